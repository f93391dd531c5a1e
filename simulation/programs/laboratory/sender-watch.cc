// SPDX-License-Identifier: GPL-2.0-only

#include "sender-watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../../model/gcc-application.h"
#include "feature_store/events/event_stream.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/simulator.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-option-sack.h"
#include "streams.h"

namespace swiftqueue::lab {

using ns3::Ipv4Header;
using ns3::Ptr;
using ns3::Simulator;

namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

/** The packets behind the one that leaves, as a control may know them. */
class WaitingBehind : public Waiting {
 public:
  WaitingBehind(const SenderWatch& watch, const std::deque<Outgoing>& behind, int64_t number)
      : m_watch(watch), m_behind(behind), m_number(number) {}

  std::vector<DataPacket> First(std::size_t most) const override {
    std::vector<DataPacket> packets;
    int64_t number = m_number;
    for (auto next = m_behind.begin(); next != m_behind.end() && packets.size() < most; ++next) {
      if (next->payloadBytes > 0) {
        packets.push_back(m_watch.Describe(*next, ++number));
      }
    }
    return packets;
  }

 private:
  const SenderWatch& m_watch;
  const std::deque<Outgoing>& m_behind;
  int64_t m_number;
};

/** How a flow's packet leaves unless it is moved. */
Ipv4Header::EcnType DefaultEcn(const Group& group, const Outgoing& packet) {
  if (packet.udp) {
    return group.ecn == Ecn::kEct1   ? Ipv4Header::ECN_ECT1
           : group.ecn == Ecn::kEct0 ? Ipv4Header::ECN_ECT0
                                     : Ipv4Header::ECN_NotECT;
  }
  // Cubic and BBR know ECT(0) only. What TCP itself sends without ECT stays so.
  const bool asL4s = group.ecn == Ecn::kEct1 && packet.ecn == Ipv4Header::ECN_ECT0;
  return asL4s ? Ipv4Header::ECN_ECT1 : packet.ecn;
}

float LatencyUs(const PacketRow& row, int64_t timeNs) {
  return static_cast<float>(static_cast<double>(timeNs - row.sentNs) * 1e-3);
}

uint8_t QueueOf(Ipv4Header::EcnType ecn) {
  return ecn == Ipv4Header::ECN_ECT1 || ecn == Ipv4Header::ECN_CE ? kL4sQueue : kClassicQueue;
}

/** The uplink that a flow's packets take unless they are moved. */
uint8_t DefaultUplink(const Group& group) { return group.uplink.value_or(kL4sQueue); }

/** Number of the write that a packet's first byte belongs to; 0 where its flow makes one. */
int64_t WriteOf(const Flow& flow, const Outgoing& packet) {
  if (!flow.writes) {
    return 0;
  }
  // TCP's first sequence number is the connection's.
  const uint64_t byte = packet.udp ? MediaBegin(packet.packet) : uint64_t{packet.sequence} - 1;
  const auto& writes = flow.writes->Writes();
  return std::partition_point(writes.begin(), writes.end(),
                              [byte](const auto& write) { return write.endByte <= byte; }) -
         writes.begin();
}

}  // namespace

SenderWatch::SenderWatch(const Run& run, uint32_t sender, const Flows& flows,
                         const Network::SenderEnd& end)
    : m_run(run), m_sender(static_cast<uint16_t>(sender)), m_flows(flows) {
  end.device->TraceConnectWithoutContext("PhyTxBegin",
                                         ns3::MakeCallback(&SenderWatch::TransmissionBegins, this));
  end.node->GetObject<ns3::Ipv4L3Protocol>()->TraceConnectWithoutContext(
      "LocalDeliver", ns3::MakeCallback(&SenderWatch::Deliver, this));
}

void SenderWatch::SetControl(QueueControl* control, int64_t exploreStream) {
  m_control = control;
  m_acks = m_run.acks;
  m_movedEcn = m_run.movedEcn == Ecn::kEct0 ? Ipv4Header::ECN_ECT0 : Ipv4Header::ECN_NotECT;
  if (m_run.explore.share > 0) {
    m_explore.emplace(m_run.explore.share, m_run.explore.burstPackets, exploreStream);
  }
}

DataPacket SenderWatch::Describe(const Outgoing& packet, int64_t number) const {
  const auto flow = static_cast<uint16_t>(packet.destinationPort - kFirstPort);
  const Group& group = *m_flows[flow].group;
  const uint8_t queue =
      m_run.uplinks.empty() ? QueueOf(DefaultEcn(group, packet)) : DefaultUplink(group);
  const bool movable = group.l4s && queue == kL4sQueue;
  return {number, flow, group.receiver, packet.sizeBytes, queue, movable, !packet.udp};
}

bool SenderWatch::Held(const DataPacket& data, const Outgoing& packet, bool decided) {
  if (m_run.hold == Hold::kPacket || !data.movable) {
    return decided;
  }
  const int64_t part =
      m_run.hold == Hold::kBatch ? data.number / kHorizon : WriteOf(m_flows[data.flow], packet);
  Decided& last = m_decided[data.flow];
  if (part > last.part) {
    last = {part, decided};
  }
  return last.moved;
}

Ipv4Header::EcnType SenderWatch::Mark(const Outgoing& packet, const std::deque<Outgoing>& behind) {
  const auto number = static_cast<uint32_t>(m_log.size());
  const DataPacket data = Describe(packet, number);
  Ipv4Header::EcnType ecn = DefaultEcn(*m_flows[data.flow].group, packet);
  bool moved = m_control && m_control->Move(data, WaitingBehind(*this, behind, number));
  moved = Held(data, packet, moved);
  moved = ((m_explore && m_explore->Next()) || moved) && data.movable;
  uint8_t queue = moved ? kClassicQueue : data.defaultQueue;
  if (moved && m_run.uplinks.empty()) {
    ecn = m_movedEcn;
  }
  m_leaving = queue;
  bool again = false;
  if (!packet.udp) {
    auto& [cumulative, selective] = m_trackers[data.flow];
    const int64_t first = cumulative.Sent(number, packet.sequence, packet.payloadBytes);
    again = first != AckTracker::kNew;
    if (again) {
      m_resent.push_back({number, first});
    }
    if (m_acks == Acks::kSelective) {
      selective.Sent(number, packet.sequence, packet.payloadBytes);
    }
  }
  m_log.push_back({Simulator::Now().GetNanoSeconds(), -1, number, kUnknown, 0, kUnknown, data.flow,
                   static_cast<uint16_t>(data.sizeBytes), queue, data.defaultQueue, again, 0, 0, 0,
                   0});
  PacketTag tag;
  tag.sender = m_sender;
  tag.packet = number;
  packet.packet->ReplacePacketTag(tag);
  if (m_control) {
    m_control->Sent(data, queue);
  }
  return ecn;
}

Ipv4Header::DscpType SenderWatch::Label(const Outgoing& packet) const {
  const std::size_t flow = packet.destinationPort - std::size_t{kFirstPort};
  if (flow < m_flows.size() && !m_run.uplinks.empty()) {
    const uint8_t queue = packet.payloadBytes > 0 ? m_leaving : DefaultUplink(*m_flows[flow].group);
    return Ipv4Header::DscpType(m_run.uplinks[queue].dscp);
  }
  return flow < m_flows.size() ? Ipv4Header::DscpType(m_flows[flow].group->dscp) : packet.dscp;
}

void SenderWatch::TransmissionBegins(Ptr<const ns3::Packet> frame) {
  PacketTag tag;
  if (frame->PeekPacketTag(tag)) {
    m_log[tag.packet].sentNs = Simulator::Now().GetNanoSeconds();  // as in the capture
  }
}

std::vector<uint32_t> SenderWatch::Spurious() const {
  std::vector<uint32_t> spurious;
  for (const auto& [packet, first] : m_resent) {
    if (first == AckTracker::kAcknowledged || !std::isnan(m_log[first].oneWayUs)) {
      spurious.push_back(packet);
    }
  }
  return spurious;
}

void SenderWatch::Finish() {
  for (PacketRow& row : m_log) {
    if (std::isnan(row.oneWayUs)) {
      row.queueingUs = kUnknown;
    }
  }
}

void SenderWatch::Deliver(const Ipv4Header& ip, Ptr<const ns3::Packet> packet, uint32_t) {
  if (ip.GetProtocol() != ns3::TcpL4Protocol::PROT_NUMBER) {
    return;
  }
  ns3::TcpHeader tcp;
  packet->PeekHeader(tcp);
  const auto flow = static_cast<uint16_t>(tcp.GetSourcePort() - kFirstPort);
  const auto tracker = m_trackers.find(flow);
  if (tracker == m_trackers.end() || (tcp.GetFlags() & ns3::TcpHeader::ACK) == 0) {
    return;
  }
  const uint32_t ackNumber = tcp.GetAckNumber().GetValue();
  const int64_t timeNs = Simulator::Now().GetNanoSeconds();
  auto& [cumulative, selective] = tracker->second;
  m_covered.clear();
  cumulative.Acked(ackNumber, m_covered);
  for (const auto& [number, known] : m_covered) {
    if (known) {
      m_log[number].latencyUs = LatencyUs(m_log[number], timeNs);
    }
  }
  if (m_acks == Acks::kSelective) {
    m_covered.clear();
    selective.Acked(ackNumber, m_covered);
    if (const auto sack =
            ns3::DynamicCast<const ns3::TcpOptionSack>(tcp.GetOption(ns3::TcpOption::SACK))) {
      for (const auto& [begin, end] : sack->GetSackList()) {
        selective.Sacked(begin.GetValue(), end.GetValue(), m_covered);
      }
    }
  }
  std::sort(m_covered.begin(), m_covered.end(),
            [](const auto& a, const auto& b) { return a.packet < b.packet; });
  const bool marked = (tcp.GetFlags() & ns3::TcpHeader::ECE) != 0;
  const auto moved = [this](const auto& covered) {
    const PacketRow& row = m_log[covered.packet];
    return row.queue != row.defaultQueue;
  };
  if (m_flows[flow].hearsOfMoved) {
    const auto count = std::count_if(m_covered.begin(), m_covered.end(), moved);
    m_flows[flow].hearsOfMoved(static_cast<uint32_t>(count), marked);
  }
  for (const auto& [number, known] : m_covered) {
    PacketRow& row = m_log[number];
    row.ackedNs = timeNs;
    row.ambiguous = !known;
    if (m_control) {
      m_control->Acked(number, row.flow, row.queue, known ? LatencyUs(row, timeNs) : kUnknown);
    }
  }
}

}  // namespace swiftqueue::lab
