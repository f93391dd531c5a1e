// SPDX-License-Identifier: GPL-2.0-only
//
// One sender's data packets on their way out and its ACKs on their way in: marks, logs, tells.

#ifndef SWIFTQUEUE_LABORATORY_SENDER_WATCH_H
#define SWIFTQUEUE_LABORATORY_SENDER_WATCH_H

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ack-tracker.h"
#include "control.h"
#include "flows.h"
#include "network.h"
#include "ns3/ipv4-header.h"
#include "packet-log.h"

namespace swiftqueue::lab {

/** The sender's marker: gives each packet its queue, a tag and a row of the log. */
class SenderWatch : public Marker {
 public:
  /** A sender with default marking; with uplinks its marks are their DSCPs. */
  SenderWatch(const Run& run, uint32_t sender, const Flows& flows, const Network::SenderEnd& end);

  /** From now on `control` decides, hears of ACKs, and a share of the bursts is moved besides. */
  void SetControl(QueueControl* control, int64_t exploreStream);

  ns3::Ipv4Header::EcnType Mark(const Outgoing& packet,
                                const std::deque<Outgoing>& behind) override;

  /** The DSCP of its uplink, or of its flow's group. */
  ns3::Ipv4Header::DscpType Label(const Outgoing& packet) const override;

  DataPacket Describe(const Outgoing& packet, int64_t number) const;

  /** The run is over: what never arrived has no time of waiting. */
  void Finish();

  /** Retransmissions of what had arrived, by their packets. */
  std::vector<uint32_t> Spurious() const;

  PacketLog& Log() { return m_log; }
  const PacketLog& Log() const { return m_log; }

 private:
  void TransmissionBegins(ns3::Ptr<const ns3::Packet> frame);
  void Deliver(const ns3::Ipv4Header& ip, ns3::Ptr<const ns3::Packet> packet, uint32_t interface);

  /** Whether a packet is moved, by what was decided for the part of its flow that it belongs to. */
  bool Held(const DataPacket& data, const Outgoing& packet, bool decided);

  const Run& m_run;
  uint16_t m_sender;
  const Flows& m_flows;
  QueueControl* m_control{nullptr};
  ns3::Ipv4Header::EcnType m_movedEcn{ns3::Ipv4Header::ECN_NotECT};
  std::optional<BurstChooser> m_explore;
  PacketLog m_log;
  struct Decided {
    int64_t part{-1};  // a batch or a write, by its number
    bool moved{false};
  };
  std::unordered_map<uint16_t, Decided> m_decided;  // by the flow's number
  struct Resent {
    uint32_t packet;
    int64_t first;  // packet that carried its last byte first, or AckTracker::kAcknowledged
  };
  std::vector<Resent> m_resent;
  uint8_t m_leaving{0};  // queue of the packet that was marked last
  Acks m_acks{Acks::kCumulative};
  struct Trackers {
    AckTracker cumulative;
    AckTracker selective;  // if the control learns from SACK blocks
  };
  std::unordered_map<uint16_t, Trackers> m_trackers;  // by the flow's number
  std::vector<AckTracker::Covered> m_covered;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_SENDER_WATCH_H
