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
  /** A sender with default marking. */
  SenderWatch(uint32_t sender, const Flows& flows, const Network::SenderEnd& end);

  /** From now on `control` decides, hears of ACKs, and a share of the bursts is moved besides. */
  void SetControl(QueueControl* control, Ecn movedEcn, Acks acks, const Bursts& explore,
                  int64_t exploreStream);

  ns3::Ipv4Header::EcnType Mark(const Outgoing& packet,
                                const std::deque<Outgoing>& behind) override;

  /** The DSCP of its flow's group. */
  ns3::Ipv4Header::DscpType Label(const Outgoing& packet) const override;

  DataPacket Describe(const Outgoing& packet, int64_t number) const;

  /** The run is over: what never arrived has no time of waiting. */
  void Finish();

  PacketLog& Log() { return m_log; }
  const PacketLog& Log() const { return m_log; }

 private:
  void TransmissionBegins(ns3::Ptr<const ns3::Packet> frame);
  void Deliver(const ns3::Ipv4Header& ip, ns3::Ptr<const ns3::Packet> packet, uint32_t interface);

  uint16_t m_sender;
  const Flows& m_flows;
  QueueControl* m_control{nullptr};
  ns3::Ipv4Header::EcnType m_movedEcn{ns3::Ipv4Header::ECN_NotECT};
  std::optional<BurstChooser> m_explore;
  PacketLog m_log;
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
