// SPDX-License-Identifier: GPL-2.0-only
//
// The predictor in the loop: the agent's own sender and controller, and the serving engine, on
// simulated time. simulation/doc/lab.md, "The model in the loop".
//
// Shapes: B windows asked about (1 or 2), W window tokens, F features, H horizon (8 packets).

#ifndef SWIFTQUEUE_LABORATORY_MODEL_CONTROLLER_H
#define SWIFTQUEUE_LABORATORY_MODEL_CONTROLLER_H

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "control.h"
#include "serving/agent/sender.h"
#include "serving/engine/engine.h"

namespace swiftqueue::lab {

class ModelMove : public QueueControl {
 public:
  /** With `logged`, keeps what `WriteQuestions` writes. */
  ModelMove(const ModelControl& params, bool logged);

  bool Move(const DataPacket& packet, const Waiting& behind) override;
  void Sent(const DataPacket& packet, uint8_t queue) override;
  void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) override;
  void AddTo(JsonObject& summary, JsonObject& cost) const override;

  /** Another head over the same encoder answers from now on. Throws InvalidError or FileError. */
  void SwapHead(const std::string& artifact, int64_t version);

  /** Writes every eighth question and its windows. Throws std::runtime_error naming the file. */
  void WriteQuestions(const std::string& path) const;

 private:
  /** A batch between its question and its end. */
  struct Batch {
    int64_t number{-1};
    agent::Question question;
    std::array<float, agent::kMaxWindows * kHorizon> y_BH;
    agent::Batch candidates;
    agent::Queues queues;  // once decided
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
  void ForgetInFlight();
  void Log(const agent::Question& question);

  ModelControl m_params;
  engine::Engine m_engine;
  agent::Sender m_sender;
  std::vector<float> m_x_BWF;
  std::shared_ptr<Batch> m_batch;                    // of the packet that leaves
  std::unordered_map<int32_t, uint8_t> m_lastQueue;  // each flow's last decision
  std::unordered_map<uint16_t, int32_t> m_flowIds;   // by first appearance, as in a packet table
  std::unordered_map<uint32_t, int32_t> m_receiverIds;
  std::deque<InFlight> m_inFlight;  // in send order, all but UDP
  std::map<int64_t, int64_t> m_askedByVersion;
  bool m_logged;
  std::size_t m_questions{0};
  std::vector<char> m_questionRows;
  int64_t m_unforeseen{0};  // L4S packets of flows that were not among their batch's candidates
  double m_engineS{0};
  int64_t m_engineCalls{0};
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_MODEL_CONTROLLER_H
