// SPDX-License-Identifier: GPL-2.0-only
//
// A link of two nodes, as programs need it that build their few links by hand.

#ifndef SWIFTQUEUE_LINK_H
#define SWIFTQUEUE_LINK_H

#include <cmath>
#include <cstdint>
#include <string>

#include "ns3/data-rate.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/net-device-container.h"
#include "ns3/node.h"
#include "ns3/nstime.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/queue-disc.h"
#include "ns3/string.h"
#include "ns3/traffic-control-layer.h"

namespace swiftqueue {

struct LinkEnds {
  ns3::NetDeviceContainer devices;  // devices of `from` and of `to`
  ns3::Ipv4Address to;
};

/**
 * Link two nodes as network 10.0.`network`.0. Each device's queue holds at most `queue`; `disc`, if
 * it is given, is the queue disc of the device at `from`.
 */
inline LinkEnds LinkNodes(ns3::Ptr<ns3::Node> from, ns3::Ptr<ns3::Node> to, double rateBps,
                          double delayMs, const std::string& queue, ns3::Ptr<ns3::QueueDisc> disc,
                          uint32_t network) {
  using namespace ns3;  // NOLINT(build/namespaces): within the function
  PointToPointHelper link;
  link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(rateBps))));
  link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(std::llround(delayMs * 1e6))));
  link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue(queue));
  const NetDeviceContainer devices = link.Install(from, to);
  if (disc) {
    from->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(devices.Get(0), disc);
  }
  Ipv4AddressHelper addresses(("10.0." + std::to_string(network) + ".0").c_str(), "255.255.255.0");
  return {devices, addresses.Assign(devices).GetAddress(1)};
}

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_LINK_H
