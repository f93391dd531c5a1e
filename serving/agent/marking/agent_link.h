// SPDX-License-Identifier: Apache-2.0
//
// A sender's connection with the agent (docs/how-to/mark-packets.md) that never makes it wait:
// every read, write and connect is non-blocking. Without an agent, or when it goes, nothing is
// decided from that moment on.
//
//   AgentLink link("var/agent.sock", "backup");
//   link.turn(now_ns);  // often: takes what came; without a connection it tries each second
//   link.ask(first_packet, now_ns, due_ns, batch);  // some time before `first_packet` is due
//   link.decided(packet);  // a queue; or nothing: then the packet's default
//   link.sent(...);
//   link.acked(...);
//
// Times are CLOCK_MONOTONIC. One thread.
#ifndef SWIFTQUEUE_SERVING_AGENT_AGENT_LINK_H_
#define SWIFTQUEUE_SERVING_AGENT_AGENT_LINK_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "serving/agent/io/agent_socket.h"

namespace swiftqueue::agent {

struct LinkCounts {
  std::int64_t connections = 0;  // connections that the agent greeted
  std::int64_t lost = 0;         // connections that ended, whoever ended them
  std::int64_t asked = 0;        // batches asked about
  std::array<std::int64_t, kOutcomeNames.size()> answered{};  // answers by outcome
};

class AgentLink final : public AgentSocket<Frame, read_frame> {
 public:
  // Without an agent nothing is ever decided.
  using AgentSocket::AgentSocket;

  // From now on SENT and ACKED frames are written together: with the next question, at the next
  // turn, or when 4 KiB of them wait. Without this each one is written at once.
  void write_together() { together_ = true; }

  LinkCounts counts() const { return {connections(), lost(), asked_, answered_}; }

  void ask(std::int64_t first_packet, std::int64_t now_ns, std::int64_t due_ns,
           const Batch& batch) {
    if (!connected()) return;
    BatchFrame frame;
    frame.first_packet = first_packet;
    frame.now_ns = now_ns;
    frame.due_ns = due_ns;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      frame.packets[i] = {
          batch[i].size_bytes, batch[i].flow_id, batch[i].receiver_id, batch[i].queue, {}};
    }
    ++asked_;
    say(frame);
  }

  // Returns the queue decided for a packet, and forgets earlier batches.
  std::optional<std::uint8_t> decided(std::int64_t packet) {
    const std::int64_t batch = packet / kHorizon;
    decisions_.erase(decisions_.begin(), decisions_.lower_bound(batch));
    const auto found = decisions_.find(batch);
    if (found == decisions_.end() || found->second.outcome != Outcome::kDecided)
      return std::nullopt;
    return found->second.queues[static_cast<std::size_t>(packet % kHorizon)];
  }

  // Returns the answer about the earliest batch, each once, whatever its outcome.
  std::optional<DecisionFrame> next() {
    if (decisions_.empty()) return std::nullopt;
    return decisions_.extract(decisions_.begin()).mapped();
  }

  void sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& as, std::uint8_t ecn,
            bool retransmitted = false) {
    if (!connected()) return;
    if (first_told_ < 0) first_told_ = packet;
    SentFrame frame;
    frame.packet = packet;
    frame.sent_ns = sent_ns;
    frame.size_bytes = as.size_bytes;
    frame.flow_id = as.flow_id;
    frame.receiver_id = as.receiver_id;
    frame.queue = as.queue;
    frame.ecn = ecn;
    frame.retransmitted = retransmitted;
    say(frame, together_);
  }

  // Reports the first ACK of a packet, unless this connection was not told of the packet, or the
  // ACK is too late for a frame: the agent has forgotten such a packet.
  void acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    if (!connected() || first_told_ < 0 || packet < first_told_) return;
    if (latency_us > detail::kMaxLatencyUs) return;
    AckedFrame frame;
    frame.packet = packet;
    frame.acked_ns = acked_ns;
    frame.latency_us = latency_us;
    say(frame, together_);
  }

 private:
  static constexpr std::size_t kMostAnswers = 1 << 12;  // answers that nobody took

  void took(const Frame& frame) override {
    if (frame.header.type != FrameType::kDecision) return;
    const DecisionFrame& decision = frame.decision;
    ++answered_[static_cast<std::size_t>(decision.outcome)];
    decisions_[decision.first_packet / kHorizon] = decision;
    if (decisions_.size() > kMostAnswers) decisions_.erase(decisions_.begin());
  }

  void gone() override {
    first_told_ = -1;
    decisions_.clear();
  }

  bool together_ = false;  // whether SENT and ACKED frames may wait
  std::int64_t first_told_ = -1;
  std::map<std::int64_t, DecisionFrame> decisions_;  // answers by batch
  std::int64_t asked_ = 0;
  std::array<std::int64_t, kOutcomeNames.size()> answered_{};
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_AGENT_LINK_H_
