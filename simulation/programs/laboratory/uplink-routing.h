// SPDX-License-Identifier: GPL-2.0-only
//
// Two uplinks between a gateway and the node behind which they join: which packet takes which.

#ifndef SWIFTQUEUE_LABORATORY_UPLINK_ROUTING_H
#define SWIFTQUEUE_LABORATORY_UPLINK_ROUTING_H

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ns3/ipv4-header.h"
#include "ns3/ipv4-routing-protocol.h"
#include "ns3/net-device.h"
#include "run.h"

namespace swiftqueue::lab {

/** S1's data packets that the gateway has sent over an uplink. */
struct UplinkCounts {
  uint64_t packets{0};
  uint64_t bytes{0};
  uint64_t unrouted{0};  // packets among them whose mark the gateway does not route
  uint64_t diverted{0};  // packets among them whose own uplink is dead
};

/** One end of both uplinks. What it does not route is left to the node's other routing. */
class UplinkRouting : public ns3::Ipv4RoutingProtocol {
 public:
  static ns3::TypeId GetTypeId();

  struct Way {
    ns3::Ptr<ns3::NetDevice> device;
    ns3::Ipv4Address next;
  };
  using Ways = std::array<Way, 2>;

  /** Lays itself before the routing that `node` has. */
  void Install(ns3::Ptr<ns3::Node> node, const std::vector<Uplink>& links, const Ways& ways);

 protected:
  static constexpr std::size_t kNone = 2;

  /** Index of the uplink of a packet that has not come over one; kNone: it takes none. */
  virtual std::size_t Choose(const ns3::Ipv4Header& header, ns3::Ptr<const ns3::Packet> packet,
                             ns3::Ptr<const ns3::NetDevice> from) = 0;
  /** A packet has come over an uplink. */
  virtual void Came(std::size_t link, ns3::Ptr<const ns3::Packet> packet) {
    (void)link;
    (void)packet;
  }
  bool IsDead(std::size_t link) const;
  const std::vector<Uplink>& Links() const { return m_links; }

 private:
  bool RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                  ns3::Ptr<const ns3::NetDevice> from, const UnicastForwardCallback& forward,
                  const MulticastForwardCallback&, const LocalDeliverCallback&,
                  const ErrorCallback&) override;
  ns3::Ptr<ns3::Ipv4Route> RouteOutput(ns3::Ptr<ns3::Packet>, const ns3::Ipv4Header&,
                                       ns3::Ptr<ns3::NetDevice>,
                                       ns3::Socket::SocketErrno&) override {
    return nullptr;
  }
  void NotifyInterfaceUp(uint32_t) override {}
  void NotifyInterfaceDown(uint32_t) override {}
  void NotifyAddAddress(uint32_t, ns3::Ipv4InterfaceAddress) override {}
  void NotifyRemoveAddress(uint32_t, ns3::Ipv4InterfaceAddress) override {}
  void SetIpv4(ns3::Ptr<ns3::Ipv4>) override {}
  void PrintRoutingTable(ns3::Ptr<ns3::OutputStreamWrapper>, ns3::Time::Unit) const override {}

  std::vector<Uplink> m_links;
  Ways m_ways;
};

/**
 * The gateway routes by the mark. S1's packets whose mark has no rule, or whose uplink is dead,
 * take the other; those of other senders, who have the one uplink, do not.
 */
class GatewayRouting : public UplinkRouting {
 public:
  /** `own`: the device to which S1 is connected. */
  explicit GatewayRouting(ns3::Ptr<const ns3::NetDevice> own) : m_own(std::move(own)) {}

  const std::array<UplinkCounts, 2>& Counts() const { return m_counts; }

 private:
  std::size_t Choose(const ns3::Ipv4Header& header, ns3::Ptr<const ns3::Packet> packet,
                     ns3::Ptr<const ns3::NetDevice> from) override;

  ns3::Ptr<const ns3::NetDevice> m_own;
  std::array<UplinkCounts, 2> m_counts;
};

/** The other end answers over the uplink that a flow's last packet came by, as Linux does with
 * CONNMARK. */
class ReturnRouting : public UplinkRouting {
 private:
  std::size_t Choose(const ns3::Ipv4Header& header, ns3::Ptr<const ns3::Packet> packet,
                     ns3::Ptr<const ns3::NetDevice> from) override;
  void Came(std::size_t link, ns3::Ptr<const ns3::Packet> packet) override;

  std::unordered_map<uint16_t, std::size_t> m_last;  // by the receiver's port, a flow's own
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_UPLINK_ROUTING_H
