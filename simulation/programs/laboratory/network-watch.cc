// SPDX-License-Identifier: GPL-2.0-only

#include "network-watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ns3/ipv4-l3-protocol.h"
#include "ns3/queue-disc.h"
#include "ns3/simulator.h"

namespace swiftqueue::lab {

using ns3::Ptr;
using ns3::Simulator;

namespace {

constexpr double kViewRateUs = 20'000;  // as the oracle's in the scenarios
constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
constexpr Waits kCameToNone{kUnknown, kUnknown};

}  // namespace

NetworkWatch::NetworkWatch(const Network& network,
                           std::vector<std::shared_ptr<SenderWatch>>& senders, std::size_t flows)
    : m_network(network), m_senders(senders), m_newestArrived(flows, -1) {
  for (const auto& disc : network.Bottlenecks()) {
    disc->TraceConnectWithoutContext("Dequeue", ns3::MakeCallback(&NetworkWatch::Waited, this));
    disc->TraceConnectWithoutContext("Drop", ns3::MakeCallback(&NetworkWatch::Dropped, this));
  }
  for (std::size_t i = 0; network.Gateway() && i < network.FarEnds().GetN(); ++i) {
    network.FarEnds().Get(i)->TraceConnectWithoutContext(
        "PhyRxDrop", ns3::MakeCallback(&NetworkWatch::Lost, this));  // it is dead
  }
  for (const auto& receiver : network.Receivers()) {
    receiver.node->GetObject<ns3::Ipv4L3Protocol>()->TraceConnectWithoutContext(
        "LocalDeliver", ns3::MakeCallback(&NetworkWatch::Arrived, this));
  }
}

void NetworkWatch::LogWaits(const Run& run) {
  m_view.emplace(run, m_network, kViewRateUs);
  for (uint32_t i = 0; i < m_network.Bottlenecks().size(); ++i) {
    m_network.Bottlenecks()[i]->TraceConnectWithoutContext(
        "Enqueue", ns3::MakeCallback(&NetworkWatch::Came, this, i));
  }
}

WaitsLog NetworkWatch::Waits() const {
  WaitsLog waits = m_waits;
  waits.resize(m_senders.front()->Log().size(), kCameToNone);
  return waits;
}

void NetworkWatch::Came(uint32_t bottleneck, Ptr<const ns3::QueueDiscItem> item) {
  PacketTag tag;
  if (!item->GetPacket()->PeekPacketTag(tag) || tag.sender != 0) {
    return;
  }
  const auto queue = QueueView::Disc::ClassifyItem(ns3::ConstCast<ns3::QueueDiscItem>(item));
  const QueueView::Both found = m_view->Behind(bottleneck, queue, item->GetSize());
  if (tag.packet >= m_waits.size()) {
    m_waits.resize(tag.packet + 1, kCameToNone);
  }
  lab::Waits& waits = m_waits[tag.packet];
  waits = {
      static_cast<float>(found.l4sUs) + (std::isnan(waits.l4sUs) ? 0 : waits.l4sUs),
      static_cast<float>(found.classicUs) + (std::isnan(waits.classicUs) ? 0 : waits.classicUs)};
}

PacketRow* NetworkWatch::RowOf(Ptr<const ns3::Packet> packet) {
  PacketTag tag;
  return packet->PeekPacketTag(tag) ? &m_senders[tag.sender]->Log()[tag.packet] : nullptr;
}

void NetworkWatch::Waited(Ptr<const ns3::QueueDiscItem> item) {
  if (PacketRow* row = RowOf(item->GetPacket())) {
    const int64_t waitedNs = (Simulator::Now() - item->GetTimeStamp()).GetNanoSeconds();
    row->queueingUs += static_cast<float>(static_cast<double>(waitedNs) * 1e-3);
  }
}

void NetworkWatch::Dropped(Ptr<const ns3::QueueDiscItem> item) {
  if (PacketRow* row = RowOf(item->GetPacket())) {
    row->dropped = 1;
  }
}

void NetworkWatch::Lost(Ptr<const ns3::Packet> packet) {
  if (PacketRow* row = RowOf(packet)) {
    row->dropped = 1;
  }
}

void NetworkWatch::Arrived(const ns3::Ipv4Header& ip, Ptr<const ns3::Packet> packet, uint32_t) {
  PacketRow* row = RowOf(packet);
  if (row == nullptr) {
    return;
  }
  const int64_t oneWayNs = Simulator::Now().GetNanoSeconds() - row->sentNs;
  row->oneWayUs = static_cast<float>(static_cast<double>(oneWayNs) * 1e-3);
  row->marked = ip.GetEcn() == ns3::Ipv4Header::ECN_CE;
  int64_t& newest = m_newestArrived[row->flow];
  row->reordered = row->packet < newest;
  newest = std::max<int64_t>(newest, row->packet);
}

}  // namespace swiftqueue::lab
