// SPDX-License-Identifier: GPL-2.0-only

#include "uplink-routing.h"

#include <utility>

#include "ns3/ipv4-list-routing.h"
#include "ns3/ipv4-route.h"
#include "ns3/ipv4.h"
#include "ns3/node.h"
#include "ns3/simulator.h"
#include "packet-log.h"

namespace swiftqueue::lab {

using ns3::Ptr;

namespace {

constexpr int16_t kBeforeOthers = 10;

struct Ports {
  uint16_t source;
  uint16_t destination;
};

/** TCP's and UDP's headers both begin with these. */
Ports PortsOf(Ptr<const ns3::Packet> packet) {
  std::array<uint8_t, 4> bytes{};
  packet->CopyData(bytes.data(), bytes.size());
  const auto port = [&bytes](std::size_t i) {
    return static_cast<uint16_t>(bytes[i] << 8 | bytes[i + 1]);
  };
  return {port(0), port(2)};
}

}  // namespace

ns3::TypeId UplinkRouting::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::UplinkRouting")
                               .SetParent<ns3::Ipv4RoutingProtocol>()
                               .SetGroupName("SwiftQueue");
  return tid;
}

void UplinkRouting::Install(Ptr<ns3::Node> node, const std::vector<Uplink>& links,
                            const Ways& ways) {
  m_links = links;
  m_ways = ways;
  const auto routing = node->GetObject<ns3::Ipv4>()->GetRoutingProtocol();
  ns3::DynamicCast<ns3::Ipv4ListRouting>(routing)->AddRoutingProtocol(this, kBeforeOthers);
}

bool UplinkRouting::IsDead(std::size_t link) const {
  return ns3::Simulator::Now().GetSeconds() >= m_links[link].diesS;  // a time that may be infinite
}

bool UplinkRouting::RouteInput(Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                               Ptr<const ns3::NetDevice> from,
                               const UnicastForwardCallback& forward,
                               const MulticastForwardCallback&, const LocalDeliverCallback&,
                               const ErrorCallback&) {
  for (std::size_t i = 0; i < m_ways.size(); ++i) {
    if (from == m_ways[i].device) {
      Came(i, packet);
      return false;
    }
  }
  const std::size_t link = Choose(header, packet, from);
  if (link == kNone) {
    return false;
  }
  auto route = ns3::Create<ns3::Ipv4Route>();
  route->SetSource(header.GetSource());
  route->SetDestination(header.GetDestination());
  route->SetGateway(m_ways[link].next);
  route->SetOutputDevice(m_ways[link].device);
  forward(route, packet, header);
  return true;
}

std::size_t GatewayRouting::Choose(const ns3::Ipv4Header& header, Ptr<const ns3::Packet> packet,
                                   Ptr<const ns3::NetDevice> from) {
  const std::size_t marked = header.GetDscp() == Links()[0].dscp ? 0 : 1;
  if (from != m_own) {
    return marked;
  }
  const std::size_t routed = Links()[marked].routed ? marked : 1 - marked;
  const std::size_t link = IsDead(routed) ? 1 - routed : routed;
  PacketTag tag;
  if (packet->PeekPacketTag(tag)) {
    UplinkCounts& counts = m_counts[link];
    ++counts.packets;
    counts.bytes += packet->GetSize() + header.GetSerializedSize();
    counts.unrouted += routed != marked;
    counts.diverted += link != routed;
  }
  return link;
}

void ReturnRouting::Came(std::size_t link, Ptr<const ns3::Packet> packet) {
  m_last[PortsOf(packet).destination] = link;
}

std::size_t ReturnRouting::Choose(const ns3::Ipv4Header&, Ptr<const ns3::Packet> packet,
                                  Ptr<const ns3::NetDevice>) {
  const auto last = m_last.find(PortsOf(packet).source);
  if (last == m_last.end()) {
    return kNone;
  }
  return IsDead(last->second) ? 1 - last->second : last->second;
}

}  // namespace swiftqueue::lab
