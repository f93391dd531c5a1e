// SPDX-License-Identifier: GPL-2.0-only
//
// Nodes, links and queues of a run: senders and receivers around bottlenecks in series, or around
// two uplinks.

#ifndef SWIFTQUEUE_LABORATORY_NETWORK_H
#define SWIFTQUEUE_LABORATORY_NETWORK_H

#include <cstdint>
#include <vector>

#include "../../helper/queue-profiles.h"
#include "../../model/mark-queue-disc.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/net-device-container.h"
#include "ns3/node-container.h"
#include "ns3/point-to-point-net-device.h"
#include "run.h"
#include "uplink-routing.h"

namespace swiftqueue::lab {

/** Attributes of a bottleneck's disc: the profile's if it is a DualPI2, then those of the run. */
DiscAttributes DiscAttributesOf(const Run& run, const Bottleneck& bottleneck);

class Network {
 public:
  /**
   * Every sender's disc still needs its marker. Takes random streams from `stream` on. Throws
   * std::invalid_argument, which names the key, for a disc that cannot be.
   */
  Network(const Run& run, int64_t& stream);

  struct SenderEnd {
    ns3::Ptr<ns3::Node> node;
    ns3::Ptr<ns3::PointToPointNetDevice> device;
    ns3::Ptr<MarkQueueDisc> disc;
  };
  struct ReceiverEnd {
    ns3::Ptr<ns3::Node> node;
    ns3::Ipv4Address address;
  };

  const std::vector<SenderEnd>& Senders() const { return m_senders; }
  const std::vector<ReceiverEnd>& Receivers() const { return m_receivers; }
  const std::vector<ns3::Ptr<ns3::QueueDisc>>& Bottlenecks() const { return m_bottlenecks; }
  /** The far ends of the bottlenecks. */
  const ns3::NetDeviceContainer& FarEnds() const { return m_farEnds; }
  /** Null without uplinks. */
  ns3::Ptr<const GatewayRouting> Gateway() const { return m_gateway; }

 private:
  ns3::NetDeviceContainer Link(ns3::Ptr<ns3::Node> from, ns3::Ptr<ns3::Node> to, double rateBps,
                               double delayMs);
  /** Addresses of both ends; discs must be in place, or ns-3 would install its own. */
  ns3::Ipv4Address AssignAddresses(const ns3::NetDeviceContainer& devices);
  void RouteUplinks(const Run& run, const UplinkRouting::Ways& there,
                    const UplinkRouting::Ways& back);

  ns3::Ipv4AddressHelper m_addresses{"10.0.0.0", "255.255.255.0"};
  ns3::NodeContainer m_routers;
  std::vector<SenderEnd> m_senders;
  std::vector<ReceiverEnd> m_receivers;
  std::vector<ns3::Ptr<ns3::QueueDisc>> m_bottlenecks;
  ns3::NetDeviceContainer m_farEnds;
  ns3::Ptr<GatewayRouting> m_gateway;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_NETWORK_H
