// SPDX-License-Identifier: Apache-2.0
//
// The part that both halves of the agent's stress program need.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "serving/agent/decision/decision_loop.h"
#include "serving/agent/decision/schedule.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/io/feed.h"
#include "serving/agent/io/frame_sink.h"
#include "serving/agent/marking/marked_udp.h"
#include "serving/agent/predictors/local_predictor.h"
#include "tests/stress/stress.h"

namespace swiftqueue::agent {

using stress::Random;
using stress::require;

// Returns a number from 0 to `n`.
inline std::int64_t upto(Random& random, std::int64_t n) {
  return std::uniform_int_distribution<std::int64_t>(0, n)(random);
}

// Answers at any time, out of order, wrongly, or never, as a server may.
class MoodyPredictor final : public Predictor {
 public:
  explicit MoodyPredictor(std::uint64_t seed) : random_(seed) {}

  Model model() const override { return model_; }
  std::string problem() const override { return ""; }
  bool ask(const Enquiry& enquiry) override {
    const std::uint64_t ticket = enquiry.ticket;
    const auto finite = [](const float* x_RF, int rows) {
      require(std::all_of(x_RF, x_RF + std::ptrdiff_t{rows} * kEventWindowFeatureCount,
                          [](float x) { return std::isfinite(x); }),
              "a row that is not finite");
    };
    finite(enquiry.x_QF, enquiry.alternatives * kHorizon);
    const EventRows& rows = enquiry.rows;
    require(rows.next() - rows.first() >= std::min<std::int64_t>(rows.next(), model_.reach),
            "fewer events are kept than a question looks back at");
    rows.visit(begin_of_session(rows.next(), model_.reach), rows.next(), finite);
    if (steady) {
      waiting_.push_back(ticket);
      return true;
    }
    switch (upto(random_, 9)) {
      case 0:
        return false;
      case 1:
        return true;  // no answer ever comes
      case 2:
        waiting_.push_back(ticket - static_cast<std::uint64_t>(upto(random_, 5)));  // a wrong one
        return true;
      default:
        waiting_.insert(
            waiting_.begin() + upto(random_, static_cast<std::int64_t>(waiting_.size())), ticket);
        return true;
    }
  }
  bool next(Answer& answer, std::int64_t) override {
    if (!steady && upto(random_, 99) == 0) {
      static constexpr int kReach[] = {0, 64, 128, 192};
      model_.reach = kReach[upto(random_, 3)];
    }
    if (waiting_.empty() || (!steady && upto(random_, 3) == 0)) return false;
    answer.ticket = waiting_.front();
    waiting_.erase(waiting_.begin());
    answer.ok = steady || upto(random_, 9) > 0;
    answer.version = 1;
    for (float& us : answer.y_BH) us = static_cast<float>(upto(random_, 100'000));
    if (!steady && upto(random_, 9) == 0) answer.y_BH[3] = upto(random_, 1) == 0 ? NAN : -1.0F;
    return true;
  }
  void forget(std::uint32_t) override {}
  void wake() override {}
  std::vector<ServerState> servers() const override { return {}; }

  bool steady = false;

 private:
  Random random_;
  Model model_{64, 1};
  std::vector<std::uint64_t> waiting_;
};

// Tests of what comes through the agent's doors (stress_agent_doors.cc).
void told();
void endless_acks();
bool earliest_first();
void fuzz_reader(long rounds, Random& random);
void fuzz_socket(long rounds, Random& random);
void again(const std::string& artifact, Random& random);
void beside(const std::string& artifact, Random& random);
void crowded(const std::string& artifact);
void swap_artifacts(const std::string& artifact, Random& random);

}  // namespace swiftqueue::agent
