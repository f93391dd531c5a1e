// SPDX-License-Identifier: Apache-2.0
//
// Between the agent and `sq_rate`: each of a flow's first samples becomes a SAMPLE frame as it
// comes, the last of them asks, and the FORECAST, with the dispersion of the flow's first ACKs,
// goes into the kernel's map (README.md).
//
// Nobody waits for the agent. Without one, or when it goes, nothing is told: flows are plain BBR. A
// flow that began before the agent was there, or a sample of which is missing, stays plain BBR.
#ifndef SWIFTQUEUE_STUDIES_RATE_TESTBED_RATE_AGENT_H_
#define SWIFTQUEUE_STUDIES_RATE_TESTBED_RATE_AGENT_H_

#include <bpf/bpf.h>
#include <poll.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>

#include "forecaster.h"
#include "serving/agent/decision/statistics.h"
#include "serving/agent/io/clock.h"
#include "studies/rate/native/link.h"
#include "studies/rate/samples/dispersion.h"
#include "studies/rate/samples/feedback.h"
#include "testbed/fail.h"

namespace swiftqueue::testbed {

class AgentForecaster final : public Forecaster {
 public:
  /**
   * `samples`: of a flow, that a forecast is made from.
   * Throws std::invalid_argument: the socket's path is too long.
   */
  AgentForecaster(const std::string& socket, std::uint32_t samples)
      : link_(socket, "rates"), samples_(samples) {}

  bool connected() const { return link_.connected(); }

  /** Gives the agent half a second to say that it is there. */
  void greet() {
    const std::int64_t until_ns = agent::monotonic_ns() + 500'000'000;
    do {
      turn();
      const timespec pause{0, 2'000'000};
      ::nanosleep(&pause, nullptr);
    } while (!connected() && agent::monotonic_ns() < until_ns);
  }

  void sampled(const sq_rate_record& record) override {
    if (!connected() || record.number >= samples_) return;
    if (record.number == 0) {
      if (flows_.size() >= kMostFlows) flows_.erase(flows_.begin());
      flows_[record.flow] = {};
    }
    const auto found = flows_.find(record.flow);
    if (found == flows_.end()) return;
    Flow& flow = found->second;
    if (record.number != flow.told) {
      flows_.erase(found);
      return;
    }
    flow.dispersion.acked(record.fields[rate::At::ts], record.fields[rate::At::bytes_acked]);
    flow.newest = record;
    ++flow.told;
    const bool asks = flow.told == samples_;
    asked_ += asks ? 1 : 0;
    say(flow.newest, record.number, asks, asks);
  }

  void ended(std::uint64_t number) override {
    const auto found = flows_.find(number);
    if (found == flows_.end()) return;
    const Flow& flow = found->second;
    if (flow.told < samples_) say(flow.newest, flow.told, false, true);  // the agent forgets it too
    flows_.erase(found);
  }

  void wait(int ring, int forecasts) override {
    const short wanted = link_.writes_wait() ? POLLIN | POLLOUT : POLLIN;
    pollfd what[]{{ring, POLLIN, 0}, {link_.fd(), wanted, 0}};
    ::ppoll(what, std::size(what), &kLook, nullptr);
    turn();
    while (const auto answer = link_.forecast()) take(*answer, forecasts);
  }

  std::string said() const override {
    const auto us = [this](double q) {
      return std::to_string(static_cast<double>(to_map_.quantile_ns(q)) / 1e3);
    };
    std::string out = ", \"agent_connections\": " + std::to_string(link_.connections()) +
                      ", \"agent_lost\": " + std::to_string(link_.lost()) +
                      ", \"asked\": " + std::to_string(asked_);
    for (std::size_t i = 0; i < answered_.size(); ++i) {
      out += (i == 0 ? ", \"answered\": {\"" : ", \"") + std::string(agent::kRateOutcomeNames[i]) +
             "\": " + std::to_string(answered_[i]);
    }
    return out + "}, \"ack_to_map\": {\"count\": " + std::to_string(to_map_.count()) +
           ", \"within_a_trip\": " + std::to_string(in_time_) + ", \"p50_us\": " + us(0.5) +
           ", \"p99_us\": " + us(0.99) + "}";
  }

 private:
  static constexpr std::size_t kMostFlows = 1024;  // as the agent remembers of a sender

  struct Flow {
    rate::Dispersion dispersion;
    std::uint32_t told = 0;  // samples
    sq_rate_record newest{};
  };

  void say(const sq_rate_record& record, std::uint64_t number, bool asks, bool last) {
    agent::SampleFrame frame;
    frame.connection = static_cast<std::int64_t>(record.flow);
    frame.sample = static_cast<std::int32_t>(number);
    frame.asked = asks ? 1 : 0;
    frame.last = last ? 1 : 0;
    std::copy(std::begin(record.fields), std::end(record.fields), frame.fields.begin());
    link_.sample(frame);
  }

  /** Reads, writes and connects; says once why that does not go. */
  void turn() {
    link_.turn(agent::monotonic_ns());
    if (link_.lost() != lost_) flows_.clear();  // another agent knows nothing of them
    lost_ = link_.lost();
    if (link_.problem() != problem_ && !link_.problem().empty()) {
      std::fprintf(stderr, "%s; flows are plain BBR\n", link_.problem().c_str());
    }
    problem_ = link_.problem();
  }

  void take(const agent::ForecastFrame& answer, int forecasts) {
    ++answered_[static_cast<std::size_t>(answer.outcome)];
    const auto found = flows_.find(static_cast<std::uint64_t>(answer.connection));
    if (found == flows_.end()) return;  // it has ended
    if (answer.outcome == agent::RateOutcome::kForecast) {
      const std::uint64_t asked_ns = sampled_ns(found->second.newest);
      const sq_rate_forecast forecast{sq_rate_of(answer.rates.back()),  // rate at the last horizon
                                      found->second.dispersion.get(), asked_ns};
      if (bpf_map_update_elem(forecasts, &found->first, &forecast, BPF_ANY) != 0) fail("map");
      const std::int64_t took_ns = agent::monotonic_ns() - static_cast<std::int64_t>(asked_ns);
      to_map_.observe(took_ns);
      in_time_ += took_ns <= 1000 * found->second.newest.fields[rate::At::bbr_minrtt] ? 1 : 0;
    }
    flows_.erase(found);
  }

  agent::RateLink link_;
  const std::uint32_t samples_;
  std::map<std::uint64_t, Flow> flows_;  // flows that have no answer yet, the oldest first
  std::string problem_;
  std::int64_t lost_ = 0;
  std::int64_t asked_ = 0;
  std::array<std::int64_t, agent::kRateOutcomeNames.size()> answered_{};
  agent::DurationHistogram to_map_;  // from an ACK, by the kernel's clock, to its flow's forecast
  std::int64_t in_time_ = 0;         // within the flow's least round trip, of these
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_STUDIES_RATE_TESTBED_RATE_AGENT_H_
