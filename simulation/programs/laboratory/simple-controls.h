// SPDX-License-Identifier: GPL-2.0-only
//
// The controls that stand beside the model in every result.

#ifndef SWIFTQUEUE_LABORATORY_SIMPLE_CONTROLS_H
#define SWIFTQUEUE_LABORATORY_SIMPLE_CONTROLS_H

#include <array>
#include <limits>
#include <unordered_map>

#include "control.h"
#include "feature_store/events/virtual_queue.h"
#include "ns3/nstime.h"
#include "queue-view.h"

namespace swiftqueue::lab {

/** Default marking. */
class NoMove : public QueueControl {
 public:
  bool Move(const DataPacket&, const Waiting&) override { return false; }
};

/** A seeded share of the packets, whatever they are. */
class RandomMove : public QueueControl {
 public:
  explicit RandomMove(const RandomControl& params);
  bool Move(const DataPacket&, const Waiting&) override { return m_bursts.Next(); }

 private:
  BurstChooser m_bursts;
};

/** Takes the queue that is shorter now, by a margin. */
class OracleMove : public QueueControl {
 public:
  OracleMove(const OracleControl& params, const Run& run, const Network& network);
  bool Move(const DataPacket& packet, const Waiting& behind) override;

 private:
  struct Last {
    double arrivalUs{-std::numeric_limits<double>::infinity()};  // as predicted
    bool moved{false};
  };

  bool Choose(const QueueView::Both& waits, double nowUs, const Last& last) const;

  OracleControl m_params;
  QueueView m_view;
  std::unordered_map<uint16_t, Last> m_last;  // last latency of each flow
};

/** A fixed share of the flows, in the order in which they first send: none changes its queue. */
class FlowSplitMove : public QueueControl {
 public:
  explicit FlowSplitMove(const FlowSplitControl& params) : m_share(params.share) {}
  bool Move(const DataPacket& packet, const Waiting& behind) override;

 private:
  double m_share;
  std::unordered_map<uint16_t, bool> m_moved;  // whether each L4S flow was moved
};

/** A threshold on what each flow saw last in the L4S queue. */
class LastLatency {
 public:
  explicit LastLatency(const LastLatencyControl& params) : m_params(params) {}
  bool IsHigh(uint16_t flow) const;
  void Acked(uint16_t flow, uint8_t queue, float latencyUs);

 private:
  struct Seen {
    float leastUs{std::numeric_limits<float>::infinity()};
    float l4sUs{0};  // the last one in the L4S queue
    ns3::Time l4sAt{ns3::Time::Min()};
  };

  LastLatencyControl m_params;
  std::unordered_map<uint16_t, Seen> m_seen;  // newest packet of each flow
};

class LastLatencyMove : public QueueControl {
 public:
  explicit LastLatencyMove(const LastLatencyControl& params) : m_last(params) {}
  bool Move(const DataPacket& packet, const Waiting&) override {
    return m_last.IsHigh(packet.flow);
  }
  void Acked(int64_t, uint16_t flow, uint8_t queue, float latencyUs) override {
    m_last.Acked(flow, queue, latencyUs);
  }

 private:
  LastLatency m_last;
};

/** The virtual queue of feature_store/events/virtual_queue.h, with rates estimated online. */
class OwnQueues {
 public:
  /** With uplinks a receiver has a least latency over each. */
  explicit OwnQueues(const Run& run) : m_apart(!run.uplinks.empty()) {}

  /** Latency of a packet that leaves now in `queue`; 0 while none is known. */
  double ForecastUs(uint32_t receiver, uint8_t queue, double aheadBytes) const;
  void Sent(const DataPacket& packet, uint8_t queue);
  void Acked(int64_t packet, float latencyUs);

 private:
  int32_t Receiver(uint32_t receiver, uint8_t queue) const;

  bool m_apart;
  VirtualQueue m_queues;
};

/** Takes the queue with the lower forecast, by a margin. */
class VirtualQueueMove : public QueueControl {
 public:
  VirtualQueueMove(const VirtualQueueControl& params, const Run& run)
      : m_params(params), m_queues(run) {}
  bool Move(const DataPacket& packet, const Waiting& behind) override;
  void Sent(const DataPacket& packet, uint8_t queue) override { m_queues.Sent(packet, queue); }
  void Acked(int64_t packet, uint16_t, uint8_t, float latencyUs) override {
    m_queues.Acked(packet, latencyUs);
  }

 private:
  VirtualQueueControl m_params;
  OwnQueues m_queues;
};

/** Takes the uplink whose latency, of all of S1's packets, is least. */
class LeastLatencyMove : public QueueControl {
 public:
  explicit LeastLatencyMove(const LeastLatencyControl& params) : m_params(params) {}
  bool Move(const DataPacket& packet, const Waiting& behind) override;
  void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) override;

 private:
  struct Path {
    double us{std::numeric_limits<double>::infinity()};
    double sumUs{0};  // sum in the span that goes on
    uint32_t packets{0};
  };

  LeastLatencyControl m_params;
  std::array<Path, 2> m_paths;  // by kClassicQueue, kL4sQueue
  bool m_moved{false};
  ns3::Time m_lookedAt;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_SIMPLE_CONTROLS_H
