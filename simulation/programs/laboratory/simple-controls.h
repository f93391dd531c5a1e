// SPDX-License-Identifier: GPL-2.0-only
//
// The controls that stand beside the model in every result.

#ifndef SWIFTQUEUE_LABORATORY_SIMPLE_CONTROLS_H
#define SWIFTQUEUE_LABORATORY_SIMPLE_CONTROLS_H

#include <array>
#include <limits>
#include <unordered_map>

#include "control.h"
#include "ns3/nstime.h"

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

/** Waiting time ahead of a packet that comes now, if no other came after it. */
struct Waits {
  double l4sUs;
  double classicUs;
};

/** Bytes in us. */
using BytesPerUs = double;

/** Sees both queues of every bottleneck, and how fast they have been filled of late. */
class OracleMove : public QueueControl {
 public:
  OracleMove(const OracleControl& params, const Run& run, const Network& network);
  bool Move(const DataPacket& packet, const Waiting& behind) override;

 private:
  struct View {
    ns3::Ptr<ns3::DualPi2QueueDisc> disc;
    BytesPerUs rate;
    double classicWeight;
    // By DualPi2QueueDisc::Queue: of each queue's arrivals, smoothed.
    std::array<BytesPerUs, 2> arrivals{};
    std::array<uint64_t, 2> arrivedBytes{};
  };
  struct Last {
    double arrivalUs{-std::numeric_limits<double>::infinity()};  // as predicted
    bool moved{false};
  };

  void MeasureArrivals();
  Waits Predict(uint32_t receiver) const;
  bool Choose(const Waits& waits, double nowUs, const Last& last) const;

  OracleControl m_params;
  uint32_t m_firstBottleneck;
  std::vector<uint32_t> m_lastBottleneck;  // of each receiver; exclusive
  std::vector<View> m_views;
  std::unordered_map<uint16_t, Last> m_last;  // of each flow
};

/** A threshold on what the flow saw last in the L4S queue. */
class LastLatencyMove : public QueueControl {
 public:
  explicit LastLatencyMove(const LastLatencyControl& params) : m_params(params) {}
  bool Move(const DataPacket& packet, const Waiting& behind) override;
  void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) override;

 private:
  struct Seen {
    float leastUs{std::numeric_limits<float>::infinity()};
    float l4sUs{0};  // the last one in the L4S queue
    ns3::Time l4sAt{ns3::Time::Min()};
  };

  LastLatencyControl m_params;
  std::unordered_map<uint16_t, Seen> m_seen;  // of each flow
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_SIMPLE_CONTROLS_H
