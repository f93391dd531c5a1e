// SPDX-License-Identifier: GPL-2.0-only
//
// A forecaster in the loop: the agent's own sender and controller on simulated time.
// simulation/doc/lab.md, "The model in the loop".
//
// Shapes: B alternatives asked about (1 or 2), Q queries (8 for each), W rows of a window (events,
// then queries), F features, H horizon (8 packets), L levels of quantiles (1 without).

#ifndef SWIFTQUEUE_LABORATORY_BATCH_MOVE_H
#define SWIFTQUEUE_LABORATORY_BATCH_MOVE_H

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "control.h"
#include "serving/agent/decision/sender.h"

namespace swiftqueue::lab {

/** What decides by batches; what it decides on is its subclasses' to say. */
class BatchMove : public QueueControl {
 public:
  /**
   * A question looks back at `reach` events. With `logged`, keeps what `WriteQuestions` writes.
   * Forecasts are quantiles of these levels, or without any one latency of each packet.
   */
  BatchMove(const Batching& params, int reach, bool logged, std::vector<double> levels = {});

  bool Move(const DataPacket& packet, const Waiting& behind) override;
  void Sent(const DataPacket& packet, uint8_t queue) override;
  void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) override;
  void AddTo(JsonObject& summary, JsonObject& cost) const override;

  /** Writes every eighth question and its windows. Throws std::runtime_error naming the file. */
  void WriteQuestions(const std::string& path) const;

  /** Writes each change of a flow's queue: nanoseconds, flow, queue. Throws as above. */
  void WriteDecisions(const std::string& path) const;

 protected:
  /** Latencies in us: all packets of the batch in the classic queue, then as they are marked. */
  virtual void Forecast(const agent::Question& question, const float* x_QF, float* y_BHL) = 0;

  /** What a subclass has to say of its decisions. */
  virtual void Describe(JsonObject& decisions) const { (void)decisions; }

  /** Rows of the sender's last events, which a question comes after. */
  const agent::EventRows& Rows() const { return m_sender.rows(); }
  /** L. */
  std::size_t Outputs() const { return m_levels.empty() ? 1 : m_levels.size(); }
  uint16_t FlowOf(const Candidate& candidate) const { return m_flows[candidate.flow_id]; }
  uint32_t ReceiverOf(const Candidate& candidate) const {
    return m_receivers[candidate.receiver_id];
  }

 private:
  /** A batch between its question and its end. */
  struct Batch {
    int64_t number{-1};
    agent::Question question;
    std::array<float, agent::kMaxQueries * agent::kMostLevels> y_BHL;
    agent::Batch candidates;
    agent::Queues queues;  // once decided
    agent::Arms arms;
    std::array<bool, kHorizon> used{};
    bool decided{false};
  };
  struct InFlight {
    DataPacket packet;
    int64_t sentNs;
    bool acked;
  };

  agent::Batch Candidates(const DataPacket& first, const Waiting& behind);
  Candidate Known(const DataPacket& packet);
  void Ask(const DataPacket& first, const Waiting& behind);
  void Due(std::shared_ptr<Batch> batch);
  /** Whether a packet is moved that follows this decision. */
  bool Follow(const DataPacket& packet, uint8_t queue, agent::Arm arm);
  void ForgetInFlight();
  void Log(const agent::Question& question);

  Batching m_params;
  std::vector<double> m_levels;
  agent::Sender m_sender;
  std::vector<float> m_x_QF;
  std::shared_ptr<Batch> m_batch;  // batch of the packet that leaves
  struct Last {
    uint8_t queue;
    agent::Arm arm;
  };
  std::unordered_map<int32_t, Last> m_last;  // each flow's last decision
  agent::Arm m_arm{0};                       // arm of the decision that the packet at hand follows
  std::unordered_map<uint16_t, int32_t> m_flowIds;  // by first appearance, as in a packet table
  std::unordered_map<uint32_t, int32_t> m_receiverIds;
  std::vector<uint16_t> m_flows;  // by flow id
  std::vector<uint32_t> m_receivers;
  std::deque<InFlight> m_inFlight;  // in send order, all but UDP
  int m_tokens;                     // W
  bool m_logged;
  std::vector<float> m_x_BWF;  // rows of a logged question
  std::size_t m_questions{0};
  std::vector<char> m_questionRows;
  int64_t m_unforeseen{0};  // L4S packets of flows that were not among their batch's candidates
  struct Change {
    int64_t atNs;
    uint16_t flow;
    uint8_t queue;
  };
  std::vector<Change> m_changes;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_BATCH_MOVE_H
