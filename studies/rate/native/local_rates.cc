// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "serving/agent/predictors/artifact_folder.h"
#include "serving/engine/error.h"
#include "studies/rate/native/kept_rates.h"
#include "studies/rate/native/rate_model.h"

namespace swiftqueue::agent {
namespace {

using rate::RateFlow;
using rate::RateModel;

struct Served {
  Served(const std::string& folder, std::int64_t number) : model(folder, "auto"), version(number) {}
  RateModel model;
  std::int64_t version;
};

// A connection keeps the model that it began with.
struct Known {
  explicit Known(std::shared_ptr<const Served> by) : served(std::move(by)), flow(served->model) {}
  std::shared_ptr<const Served> served;
  RateFlow flow;
};

class LocalRates final : public KeptRates<Known> {
 public:
  LocalRates(std::string folder, std::function<void()> woken)
      : folder_(std::move(folder)), woken_(std::move(woken)), seen_(fingerprint_of(folder_)) {
    try {
      served_ = taken_up(seen_);
    } catch (const std::exception& error) {
      throw std::runtime_error(folder_ + ": " + error.what());
    }
    thread_ = std::thread([this] { watch(); });
  }

  ~LocalRates() override { stop(); }

  void sample(std::uint32_t sender, const SampleFrame& frame, std::int64_t arrived_ns) override {
    Known* known = frame.sample == 0 ? &begin(sender, frame.connection)
                                     : known_.find(sender, frame.connection);
    RateAnswer answer = rate_answer(sender, frame, arrived_ns, RateOutcome::kNone);
    try {
      if (known == nullptr || known->flow.samples() != frame.sample) {
        throw engine::InvalidError("sample " + std::to_string(frame.sample) +
                                   ": the samples before it are missing");
      }
      known->flow.push(frame.fields.data());
      if (frame.asked != 0) {
        answer.frame.rates = known->flow.forecast();
        answer.frame.version = known->served->version;
        answer.frame.outcome = RateOutcome::kForecast;
      }
    } catch (const engine::InvalidError& error) {
      note("connection " + std::to_string(frame.connection) + ": " + error.what());
    }
    if (frame.asked != 0) {
      const std::lock_guard lock(mutex_);
      answers_.push_back(answer);
    }
    if (frame.last != 0) known_.forget(sender, frame.connection);
  }

 private:
  Known& begin(std::uint32_t sender, std::int64_t connection) {
    std::shared_ptr<const Served> served;
    {
      const std::lock_guard lock(mutex_);
      served = served_;
    }
    return known_.begin(sender, connection, std::move(served));
  }

  static std::shared_ptr<const Served> taken_up(const Fingerprint& now) {
    if (now.folder.empty()) throw std::runtime_error("is gone");
    return std::make_shared<const Served>(now.folder, version_of(now.folder));
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kWatchPause, [this] { return closing_; })) {
      lock.unlock();
      const Fingerprint now = fingerprint_of(folder_);
      std::shared_ptr<const Served> fresh;
      if (!(now == seen_)) {
        seen_ = now;
        try {
          fresh = taken_up(now);
          note({});
        } catch (const std::exception& error) {
          note(folder_ + ": " + error.what() + "; the model in service goes on");
        }
        woken_();
      }
      lock.lock();
      if (fresh) served_ = fresh;
    }
  }

  const std::string folder_;
  const std::function<void()> woken_;
  Fingerprint seen_;  // fingerprint that the watcher saw last
  // Shared:
  std::shared_ptr<const Served> served_;
};

}  // namespace

std::unique_ptr<Rates> make_local_rates(const std::string& folder, std::function<void()> woken) {
  return std::make_unique<LocalRates>(folder, std::move(woken));
}

}  // namespace swiftqueue::agent
