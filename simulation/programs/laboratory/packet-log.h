// SPDX-License-Identifier: GPL-2.0-only
//
// What became of each data packet of one sender: the simulator's truth.

#ifndef SWIFTQUEUE_LABORATORY_PACKET_LOG_H
#define SWIFTQUEUE_LABORATORY_PACKET_LOG_H

#include <cstdint>
#include <string>
#include <vector>

#include "ns3/tag.h"

namespace swiftqueue::lab {

/** Which packet of which sender: rides on each data packet through the network. */
class PacketTag : public ns3::Tag {
 public:
  static ns3::TypeId GetTypeId();
  ns3::TypeId GetInstanceTypeId() const override { return GetTypeId(); }
  uint32_t GetSerializedSize() const override { return 6; }
  void Serialize(ns3::TagBuffer buffer) const override;
  void Deserialize(ns3::TagBuffer buffer) override;
  void Print(std::ostream& out) const override;

  uint16_t sender{0};
  uint32_t packet{0};
};

inline constexpr uint8_t kClassicQueue = 0;  // numbers as in feature_store/events/event_stream.h
inline constexpr uint8_t kL4sQueue = 1;

/** A row of `truth.npy`, as it lies in the file. Unknown times are NaN. */
struct [[gnu::packed]] PacketRow {
  int64_t sentNs;   // its transmission began
  int64_t ackedNs;  // first ACK that covers it, as the run's `acks` counts; -1: none came
  uint32_t packet;
  float oneWayUs;
  float queueingUs;  // in all bottleneck discs
  float latencyUs;   // to the first cumulative ACK
  uint16_t flow;
  uint16_t sizeBytes;
  uint8_t queue;
  uint8_t defaultQueue;
  uint8_t retransmitted;
  uint8_t dropped;
  uint8_t marked;     // arrived with CE
  uint8_t reordered;  // a packet of its flow sent later had arrived before
  uint8_t ambiguous;  // Karn's rule: its ACK may be another sending's, and says no latency
};

/** The rows of one sender in send order; a row's index is its packet's number. */
using PacketLog = std::vector<PacketRow>;

/**
 * A row of `waits.npy`: how long each queue of the bottlenecks would have kept the packet, as it
 * looked when the packet came. NaN: it came to none.
 */
struct [[gnu::packed]] Waits {
  float l4sUs;
  float classicUs;
};
/** Of one sender's packets, in send order. */
using WaitsLog = std::vector<Waits>;

/** Writes a log as a NumPy structured array. Throws std::runtime_error naming the file. */
void WriteTruth(const std::string& path, const PacketLog& log);
void WriteWaits(const std::string& path, const WaitsLog& log);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_PACKET_LOG_H
