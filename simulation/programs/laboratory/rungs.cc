// SPDX-License-Identifier: GPL-2.0-only

#include "rungs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "ns3/random-variable-stream.h"
#include "ns3/simulator.h"
#include "packet-log.h"
#include "serving/agent/decision/last_latency.h"
#include "simple-controls.h"
#include "streams.h"

namespace swiftqueue::lab {
namespace {

constexpr float kWorseUs = 1e9;  // than any margin

class Rung : public BatchMove {
 public:
  explicit Rung(const Batching& params) : BatchMove(params, 0, false) {}

 protected:
  /** Fills both rows: `answer` gives the classic queue's and the L4S queue's latency in us. */
  template <typename Answer>
  static void Fill(const agent::Question& question, float* y_BH, Answer answer) {
    float* const marked_H = y_BH + (question.alternatives - 1) * kHorizon;
    for (std::size_t i = 0; i < kHorizon; ++i) {
      const auto [classicUs, l4sUs] = answer(question.batch[i]);
      y_BH[i] = classicUs;
      marked_H[i] = question.batch[i].queue == kL4sQueue ? l4sUs : classicUs;
    }
  }

  static std::pair<float, float> Either(bool moved) {
    return moved ? std::pair{0.0F, kWorseUs} : std::pair{kWorseUs, 0.0F};
  }
};

class AlwaysRung : public Rung {
 public:
  AlwaysRung(const ForecastAlways&, const Batching& params) : Rung(params) {}

 protected:
  void Forecast(const agent::Question& question, const float*, float* y_BH) override {
    Fill(question, y_BH, [](const Candidate&) { return Either(true); });
  }
};

class ChanceRung : public Rung {
 public:
  ChanceRung(const ForecastByChance& by, const Batching& params)
      : Rung(params), m_bursts(by.share, 1, kRandomControlStream + by.seed) {}

 protected:
  void Forecast(const agent::Question& question, const float*, float* y_BH) override {
    const bool moved = m_bursts.Next();  // a batch is a burst
    Fill(question, y_BH, [moved](const Candidate&) { return Either(moved); });
  }

 private:
  BurstChooser m_bursts;
};

class LastLatencyRung : public Rung {
 public:
  LastLatencyRung(const ForecastByLastLatency& by, const Batching& params)
      : Rung(params), m_last(by) {}

  void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) override {
    Rung::Acked(packet, flow, queue, latencyUs);
    m_last.Acked(flow, queue, latencyUs);
  }

 protected:
  void Forecast(const agent::Question& question, const float*, float* y_BH) override {
    Fill(question, y_BH,
         [this](const Candidate& candidate) { return Either(m_last.IsHigh(FlowOf(candidate))); });
  }

 private:
  LastLatency m_last;
};

class VirtualQueueRung : public Rung {
 public:
  VirtualQueueRung(const Batching& params, const Run& run) : Rung(params), m_queues(run) {}

  void Sent(const DataPacket& packet, uint8_t queue) override {
    Rung::Sent(packet, queue);
    m_queues.Sent(packet, queue);
  }
  void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) override {
    Rung::Acked(packet, flow, queue, latencyUs);
    m_queues.Acked(packet, latencyUs);
  }

 protected:
  void Forecast(const agent::Question& question, const float*, float* y_BH) override {
    double classicBytes = 0, l4sBytes = 0;  // bytes of the batch before the packet
    Fill(question, y_BH, [&](const Candidate& candidate) {
      const uint32_t receiver = ReceiverOf(candidate);
      const double classicUs = m_queues.ForecastUs(receiver, kClassicQueue, classicBytes);
      const double l4sUs = m_queues.ForecastUs(receiver, kL4sQueue, l4sBytes);
      classicBytes += candidate.size_bytes;
      l4sBytes += candidate.queue == kL4sQueue ? candidate.size_bytes : 0;
      return std::pair{static_cast<float>(classicUs), static_cast<float>(l4sUs)};
    });
  }

 private:
  OwnQueues m_queues;
};

class ViewRung : public Rung {
 public:
  ViewRung(const ForecastByView& by, const Batching& params, const Run& run, const Network& network)
      : Rung(params), m_view(run, network, by.rateUs, by.ageUs) {}

 protected:
  void Forecast(const agent::Question& question, const float*, float* y_BH) override {
    Fill(question, y_BH, [this](const Candidate& candidate) {
      const QueueView::Both waits = m_view.Toward(ReceiverOf(candidate));
      return std::pair{static_cast<float>(waits.classicUs), static_cast<float>(waits.l4sUs)};
    });
  }

 private:
  QueueView m_view;
};

/** Another run's decisions, at other times: what leaves it in the future comes at the beginning. */
class RecordRung : public Rung {
 public:
  RecordRung(const ForecastByRecord& by, const Batching& params, double seconds)
      : Rung(params),
        m_shiftNs(static_cast<int64_t>(by.shiftUs * 1e3)),
        m_lengthNs(static_cast<int64_t>(seconds * 1e9)) {
    std::ifstream file(by.decisions);
    if (!file) {
      throw std::runtime_error("cannot read " + by.decisions);
    }
    int64_t atNs = 0;
    uint16_t flow = 0;
    int queue = 0;
    while (file >> atNs >> flow >> queue) {
      m_changes[flow].emplace_back(atNs, queue == kClassicQueue);
    }
    if (!file.eof()) {
      throw std::runtime_error("cannot read " + by.decisions);
    }
  }

 protected:
  void Forecast(const agent::Question& question, const float*, float* y_BH) override {
    const int64_t currentNs = ns3::Simulator::Now().GetNanoSeconds();
    const int64_t thenNs = (currentNs - m_shiftNs + m_lengthNs) % m_lengthNs;
    Fill(question, y_BH, [this, thenNs](const Candidate& candidate) {
      return Either(WasMoved(FlowOf(candidate), thenNs));
    });
  }

 private:
  bool WasMoved(uint16_t flow, int64_t thenNs) const {
    const auto found = m_changes.find(flow);
    if (found == m_changes.end()) {
      return false;
    }
    const auto& changes = found->second;
    const auto after = std::upper_bound(changes.begin(), changes.end(), std::pair{thenNs, true});
    return after != changes.begin() && std::prev(after)->second;
  }

  int64_t m_shiftNs;
  int64_t m_lengthNs;
  std::unordered_map<uint16_t, std::vector<std::pair<int64_t, bool>>> m_changes;  // by flow
};

class AgentRuleMove : public BatchMove {
 public:
  AgentRuleMove(const AgentRuleControl& params, const agent::ControllerParams& limits)
      : BatchMove({.inferenceUs = params.inferenceUs,
                   .holdPrevious = params.holdPrevious,
                   .marginUs = limits.margin_us,
                   .marginShare = limits.margin_share,
                   .maxMovedUnacked = limits.max_moved_unacked,
                   .maxMovedShare = limits.max_moved_share,
                   .guard = limits.guard.on},
                  0, false) {}

 protected:
  void Forecast(const agent::Question& question, const float* x_QF, float* y_BH) override {
    for (int q = 0; q < question.queries(); ++q) {
      y_BH[q] = agent::last_latency_us(x_QF + std::ptrdiff_t{q} * kEventWindowFeatureCount);
    }
  }
};

}  // namespace

std::unique_ptr<BatchMove> MakeAgentRule(const AgentRuleControl& params) {
  return std::make_unique<AgentRuleMove>(params, agent::without_limits());
}

std::unique_ptr<BatchMove> MakeRung(const BatchedControl& params, const Run& run,
                                    const Network& network) {
  return std::visit(
      [&](const auto& by) -> std::unique_ptr<BatchMove> {
        using By = std::decay_t<decltype(by)>;
        if constexpr (std::is_same_v<By, ForecastByChance>) {
          return std::make_unique<ChanceRung>(by, params.batching);
        } else if constexpr (std::is_same_v<By, ForecastByLastLatency>) {
          return std::make_unique<LastLatencyRung>(by, params.batching);
        } else if constexpr (std::is_same_v<By, ForecastByVirtualQueue>) {
          return std::make_unique<VirtualQueueRung>(params.batching, run);
        } else if constexpr (std::is_same_v<By, ForecastByView>) {
          return std::make_unique<ViewRung>(by, params.batching, run, network);
        } else if constexpr (std::is_same_v<By, ForecastByRecord>) {
          return std::make_unique<RecordRung>(by, params.batching, run.seconds);
        } else {
          return std::make_unique<AlwaysRung>(by, params.batching);
        }
      },
      params.by);
}

}  // namespace swiftqueue::lab
