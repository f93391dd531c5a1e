// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/rule_predictor.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "serving/agent/decision/last_latency.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/io/wake_up.h"

namespace swiftqueue::agent {
namespace {

constexpr int kReach = kHorizon;  // events whose rows are kept; the rule reads none

class RulePredictor final : public Predictor {
 public:
  Model model() const override { return {kReach, 0}; }
  std::string problem() const override { return ""; }

  bool ask(const Enquiry& enquiry) override {
    if (answers_.size() >= kMaxOutstanding) return false;
    Ready& ready = answers_.emplace_back(Ready{enquiry.sender, {}});
    ready.answer.ticket = enquiry.ticket;
    ready.answer.ok = true;
    ready.answer.version = 0;
    for (int q = 0; q < enquiry.alternatives * kHorizon; ++q) {
      const float* row = enquiry.x_QF + std::ptrdiff_t{q} * kEventWindowFeatureCount;
      ready.answer.y_BH[static_cast<std::size_t>(q)] = last_latency_us(row);
    }
    return true;
  }

  void forget(std::uint32_t sender) override {
    std::erase_if(answers_, [&](const Ready& ready) { return ready.sender == sender; });
  }

  bool next(Answer& answer, std::int64_t until_ns) override {
    if (!answers_.empty()) {
      answer = answers_.front().answer;
      answers_.pop_front();
      return true;
    }
    for (std::int64_t now_ns = monotonic_ns(); now_ns < until_ns; now_ns = monotonic_ns()) {
      if (wake_up_.sleep(now_ns, until_ns)) break;
    }
    return false;
  }

  void wake() override { wake_up_.wake(); }

  std::vector<ServerState> servers() const override {
    ServerState rule;
    rule.name = "rule";
    rule.connected = true;
    rule.version = 0;
    return {rule};
  }

 private:
  struct Ready {
    std::uint32_t sender;
    Answer answer;
  };

  WakeUp wake_up_{kOversleepNs};
  std::deque<Ready> answers_;
};

}  // namespace

std::unique_ptr<Predictor> make_rule_predictor() { return std::make_unique<RulePredictor>(); }

}  // namespace swiftqueue::agent
