// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/local_predictor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serving/agent/io/clock.h"
#include "serving/agent/predictors/artifact_folder.h"
#include "serving/agent/predictors/up_to_date.h"
#include "serving/agent/predictors/usable_model.h"
#include "serving/engine/artifact.h"
#include "serving/engine/engine.h"

namespace swiftqueue::agent {
namespace {

using engine::Artifact;
using engine::Engine;

constexpr std::int64_t kSmooth = 8;  // questions over which the time of one is averaged
constexpr std::int64_t kTryNs = 20'000'000;
constexpr std::int64_t kSpinNs = 60'000;  // a sleep may end this much too late

// Returns an engine that has answered a question; throws the artifact's fault.
std::unique_ptr<Engine> tried(const Artifact& artifact, std::int64_t version) {
  const auto& model = artifact.description;
  engine::require_one_latency(model);
  const std::string why =
      why_not_usable(model.schema_hash, model.tokens, kEventWindowFeatureCount, kHorizon);
  if (!why.empty()) throw std::runtime_error(why);
  auto engine = std::make_unique<Engine>(artifact, nullptr, "auto", version);
  const std::array<float, std::size_t{kHorizon} * kEventWindowFeatureCount> x_HF{};
  std::array<float, kHorizon> y_H{};
  engine->answer(*engine->open_session(), x_HF.data(), kHorizon, y_H.data(), nullptr);
  return engine;
}

class LocalPredictor final : public Predictor {
 public:
  explicit LocalPredictor(const std::string& folder) : folder_(folder) {
    wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake_fd_ < 0) throw std::runtime_error("no event descriptor is to be had");
    seen_ = fingerprint_of(folder_);
    try {
      artifact_ = engine::load_artifact(seen_.folder.empty() ? folder_ : seen_.folder);
      engine_ = tried(artifact_, version_of(seen_.folder));
    } catch (const std::exception& error) {
      close(wake_fd_);
      throw std::runtime_error(folder_ + ": " + error.what());
    }
    artifact_.tensors.clear();  // only description and hash are compared later
    served_ = engine_.get();
    version_ = engine_->version();
    watcher_ = std::thread([this] { watch(); });
  }

  ~LocalPredictor() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    closed_.notify_all();
    watcher_.join();
    close(wake_fd_);
  }

  Model model() const override { return {engine_->reach(), engine_->version()}; }

  std::string problem() const override { return problem_; }

  // A question that cannot be answered in time is not computed: it would make later ones late too.
  bool ask(const Enquiry& enquiry) override {
    if (waiting_ == answers_.size()) {
      problem_ = "more answers wait than are ever taken";
      return false;
    }
    const std::int64_t begin_ns = monotonic_ns();
    if (begin_ns + enquiry.alternatives * alternative_ns_ > enquiry.deadline_ns &&
        begin_ns - computed_ns_ < kTryNs) {
      return true;  // one slow answer must not keep all later ones from being tried
    }
    Answer answer;
    answer.ticket = enquiry.ticket;
    try {
      answer.version =
          engine_->answer(up_to_date(enquiry), enquiry.x_QF, enquiry.alternatives * kHorizon,
                          answer.y_BH.data(), nullptr);
      answer.ok = true;
      computed_ns_ = monotonic_ns();
      alternative_ns_ +=
          ((computed_ns_ - begin_ns) / enquiry.alternatives - alternative_ns_) / kSmooth;
    } catch (const std::exception& error) {
      problem_ = answer.error = error.what();
    }
    answers_[(taken_ + waiting_++) % answers_.size()] = std::move(answer);
    return true;
  }

  void forget(std::uint32_t sender) override { sessions_.erase(sender); }

  bool next(Answer& answer, std::int64_t until_ns) override {
    if (fresh_.load(std::memory_order_acquire)) take_up();
    if (waiting_ > 0) {
      answer = std::move(answers_[taken_++ % answers_.size()]);
      --waiting_;
      return true;
    }
    wait(until_ns);
    return false;
  }

  void wake() override {
    const std::uint64_t one = 1;
    // The write fails only when 2^64 - 2 calls have not been noticed yet.
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
  }

  std::vector<ServerState> servers() const override {
    const std::lock_guard lock(mutex_);
    return {{"local", true, version_, watch_problem_, !watch_problem_.empty(), refusals_}};
  }

 private:
  // Returns the sender's session, with all its events.
  const engine::Session& up_to_date(const Enquiry& enquiry) {
    std::unique_ptr<engine::Session>& session = sessions_[enquiry.sender];
    if (session == nullptr) session = engine_->open_session();
    bring_up_to_date(*engine_, *session, enquiry.rows);
    return *session;
  }

  // Sleeps until shortly before `until_ns`, then looks at the clock; `wake` ends it.
  void wait(std::int64_t until_ns) {
    while (true) {
      const std::int64_t left_ns = until_ns - monotonic_ns();
      if (left_ns <= 0) return;
      const std::int64_t sleep_ns = std::max<std::int64_t>(left_ns - kSpinNs, 0);
      const timespec timeout{sleep_ns / 1'000'000'000, sleep_ns % 1'000'000'000};
      pollfd woken{wake_fd_, POLLIN, 0};
      if (ppoll(&woken, 1, &timeout, nullptr) > 0) {
        std::uint64_t times = 0;
        [[maybe_unused]] const ssize_t got = read(wake_fd_, &times, sizeof times);
        return;
      }
    }
  }

  // Takes over the engine that the watcher made; the watcher keeps the old one until it makes
  // another.
  void take_up() {
    const std::lock_guard lock(mutex_);
    std::swap(engine_, made_);
    sessions_.clear();  // they belong to another encoder
    served_ = engine_.get();
    fresh_ = false;
    closed_.notify_all();
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      closed_.wait_for(lock, kWatchPause);
      if (closing_ || fresh_) continue;
      lock.unlock();
      const Fingerprint now = fingerprint_of(folder_);
      const bool changed = !(now == seen_);
      std::string problem = changed ? look(now) : "";
      if (!problem.empty()) {
        problem = folder_ + ": " + problem + "; version " + std::to_string(version_) + " goes on";
        std::fprintf(stderr, "swiftqueue-agent: %s\n", problem.c_str());
      }
      lock.lock();
      if (changed) {
        watch_problem_ = problem;
        refusals_ += problem.empty() ? 0 : 1;
      }
    }
  }

  // Takes up the folder's artifact; returns one line if it cannot.
  std::string look(const Fingerprint& now) {
    seen_ = now;
    try {
      if (now.folder.empty()) throw std::runtime_error("is gone");
      Artifact artifact = engine::load_artifact(now.folder);
      const std::int64_t version = version_of(now.folder);
      auto engine = tried(artifact, version);
      const bool head_only = artifact.encoder_hash == artifact_.encoder_hash &&
                             artifact.description == artifact_.description;
      if (head_only) served_.load()->swap_head(now.folder, version);
      const std::lock_guard lock(mutex_);
      version_ = version;
      if (!head_only) {
        artifact.tensors.clear();
        artifact_ = std::move(artifact);
        made_ = std::move(engine);
        fresh_.store(true, std::memory_order_release);
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  const std::string folder_;
  int wake_fd_ = -1;
  // These belong to the loop's thread:
  std::unique_ptr<Engine> engine_;
  std::unordered_map<std::uint32_t, std::unique_ptr<engine::Session>> sessions_;  // by sender
  std::string problem_;
  std::vector<Answer> answers_ = std::vector<Answer>(kMaxOutstanding);  // ring
  std::size_t taken_ = 0;
  std::size_t waiting_ = 0;
  std::int64_t alternative_ns_ = 0;  // recent time of one alternative
  std::int64_t computed_ns_ = 0;     // time when the last answer was ready
  // These belong to the watcher:
  Fingerprint seen_;
  Artifact artifact_;  // without its tensors
  // These are shared:
  std::atomic<Engine*> served_{nullptr};  // the watcher may swap its head
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  std::unique_ptr<Engine> made_;    // waits to be taken up, or was replaced
  std::atomic<bool> fresh_{false};  // whether it waits
  bool closing_ = false;
  std::int64_t version_ = 0;
  std::string watch_problem_;  // problem of the folder's artifact; empty if it is in service
  std::int64_t refusals_ = 0;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Predictor> make_local_predictor(const std::string& folder) {
  return std::make_unique<LocalPredictor>(folder);
}

}  // namespace swiftqueue::agent
