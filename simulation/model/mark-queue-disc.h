// SPDX-License-Identifier: GPL-2.0-only
//
// A sender's root queue disc: first in, first out; what leaves may get another ECN field and a
// DSCP.

#ifndef SWIFTQUEUE_MARK_QUEUE_DISC_H
#define SWIFTQUEUE_MARK_QUEUE_DISC_H

#include <cstdint>
#include <deque>
#include <memory>

#include "ns3/ipv4-header.h"
#include "ns3/packet.h"
#include "ns3/queue-disc.h"
#include "ns3/random-variable-stream.h"

namespace swiftqueue {

/** A packet in the sender's queue disc; a data packet carries TCP or UDP payload. */
struct Outgoing {
  ns3::Ptr<ns3::Packet> packet;
  ns3::Ipv4Header::EcnType ecn;    // as the socket set it
  ns3::Ipv4Header::DscpType dscp;  // as the socket set it
  bool udp;
  uint16_t destinationPort;
  uint32_t sequence;      // sequence number of the first payload byte (TCP)
  uint32_t payloadBytes;  // 0: no data
  uint32_t sizeBytes;     // IP length
};

/** Decides how packets leave, in send order. */
class Marker {
 public:
  virtual ~Marker() = default;

  /** The ECN field that `packet` leaves with, now. `behind` are the packets that wait behind it. */
  virtual ns3::Ipv4Header::EcnType Mark(const Outgoing& packet,
                                        const std::deque<Outgoing>& behind) = 0;

  /**
   * The DSCP that `packet`, with data or without, leaves with; one with data has just been marked.
   *
   * It is set here since a TCP socket of ns-3 whose TOS is set marks no packet ECT.
   */
  virtual ns3::Ipv4Header::DscpType Label(const Outgoing& packet) const { return packet.dscp; }
};

/** Asks its Marker for the DSCP of each packet as it leaves, and for the ECN field of those with
 * data. */
class MarkQueueDisc : public ns3::QueueDisc {
 public:
  static ns3::TypeId GetTypeId();
  MarkQueueDisc();

  void SetMarker(std::shared_ptr<Marker> marker);

 private:
  bool DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
  ns3::Ptr<ns3::QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override;

  std::shared_ptr<Marker> m_marker;
  std::deque<Outgoing> m_waiting;  // packets that the internal queue holds
};

/**
 * True for a seeded share of the bursts of so many successive calls: what exploration sends to the
 * other queue.
 *
 * Without it a trace never shows what a flow's packet would have met there, and no model could
 * learn it. Packets are counted in send order, all flows together, and each burst is explored or
 * left alone as a whole, as a sender's controller would decide.
 */
class BurstChooser {
 public:
  /** `stream` of ns-3's generator: the same stream and seed, the same choices. */
  BurstChooser(double share, uint32_t burstPackets, int64_t stream);
  bool Next();

 private:
  double m_share;
  uint32_t m_burstPackets;
  uint64_t m_packets{0};
  bool m_chosen{false};
  ns3::Ptr<ns3::UniformRandomVariable> m_uniform;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_MARK_QUEUE_DISC_H
