// SPDX-License-Identifier: GPL-2.0-only

#include "network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "ns3/channel.h"
#include "ns3/data-rate.h"
#include "ns3/double.h"
#include "ns3/error-model.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/traffic-control-layer.h"

namespace swiftqueue::lab {

using namespace ns3;  // NOLINT(build/namespaces): a network speaks ns-3

namespace {

constexpr double kAccessBps = 1e9;
constexpr double kAccessOverBottleneck = 4;  // so that no access link is what queues

const std::string kDualPi2 = "ns3::DualPi2QueueDisc";

/** An attribute of DualPI2 that counts only where another one has a value. */
struct Needs {
  const char* name;
  const char* decider;
  const char* value;
};

constexpr Needs kNeeds[] = {{"LStep", "LAqm", "Step"},
                            {"LMinThreshold", "LAqm", "Ramp"},
                            {"LRange", "LAqm", "Ramp"},
                            {"CWeight", "Scheduler", "WeightedRoundRobin"},
                            {"TimeShift", "Scheduler", "TimeShiftedFifo"}};

/** Refuses attributes that the run gives and that change nothing. */
void CheckEffect(const Run& run, const DualPi2QueueDisc& disc, const DiscAttributes& own) {
  for (const auto& [name, decider, value] : kNeeds) {
    StringValue is;
    disc.GetAttribute(decider, is);
    const bool isGiven = std::any_of(
        own.begin(), own.end(), [given = name](const auto& pair) { return pair.first == given; });
    if (isGiven && is.Get() != value) {
      throw std::invalid_argument(std::string("attributes.") + name + ": without effect under " +
                                  (run.isUncoupled ? "uncoupled" : "rfc9332") + ", where " +
                                  decider + " is " + is.Get() + "; add " + decider + ": " + value);
    }
  }
}

/** A bottleneck's disc; other types than DualPI2 get its limit, unless the run says another. */
Ptr<QueueDisc> MakeBottleneckDisc(const Run& run, std::size_t index, int64_t& stream) {
  const Bottleneck& bottleneck = run.bottlenecks[index];
  const std::string& type = bottleneck.disc ? bottleneck.disc->type : kDualPi2;
  const DiscAttributes attributes = DiscAttributesOf(run, bottleneck);
  try {
    const auto disc = MakeDisc(type, attributes);
    const bool limited = std::any_of(attributes.begin(), attributes.end(),
                                     [](const auto& pair) { return pair.first == "MaxSize"; });
    if (!limited) {
      Limit(disc, bottleneck.bufferBytes);
    }
    if (const auto dualPi2 = DynamicCast<DualPi2QueueDisc>(disc)) {
      CheckEffect(run, *dualPi2, bottleneck.disc ? bottleneck.disc->attributes : DiscAttributes());
      stream += dualPi2->AssignStreams(stream);
    }
    return disc;
  } catch (const std::invalid_argument& error) {
    const std::string kind = run.uplinks.empty() ? "bottlenecks." : "uplinks.";
    throw std::invalid_argument(kind + std::to_string(index) + ".disc." + error.what());
  }
}

/** First in, first out, and never full: where nothing is to be studied. */
void InstallFifo(Ptr<NetDevice> device) {
  TrafficControlHelper helper;
  helper.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("1000000p"));
  helper.Install(device);
}

}  // namespace

DiscAttributes DiscAttributesOf(const Run& run, const Bottleneck& bottleneck) {
  DiscAttributes attributes;
  if (!bottleneck.disc || bottleneck.disc->type == kDualPi2) {
    attributes = run.isUncoupled
                     ? UncoupledProfile(bottleneck.bufferBytes, Seconds(bottleneck.lStepMs * 1e-3))
                     : Rfc9332Profile(bottleneck.bufferBytes);
  }
  if (bottleneck.disc) {
    const auto& own = bottleneck.disc->attributes;
    attributes.insert(attributes.end(), own.begin(), own.end());
  }
  return attributes;
}

Network::Network(const Run& run, int64_t& stream) {
  const bool inSeries = run.uplinks.empty();
  m_routers.Create(inSeries ? static_cast<uint32_t>(run.bottlenecks.size()) + 1 : 2);
  InternetStackHelper internet;
  internet.Install(m_routers);
  double accessBps = kAccessBps;
  for (const Bottleneck& bottleneck : run.bottlenecks) {
    accessBps = std::max(accessBps, kAccessOverBottleneck * bottleneck.rateBps);
  }
  const auto addNode = [&internet] {
    auto node = CreateObject<Node>();
    internet.Install(node);
    return node;
  };

  for (const Sender& sender : run.senders) {  // the first gets 10.0.0.1
    SenderEnd end{addNode(), nullptr, CreateObject<MarkQueueDisc>()};
    const auto devices = Link(end.node, m_routers.Get(sender.router), accessBps, sender.delayMs);
    end.device = DynamicCast<PointToPointNetDevice>(devices.Get(0));
    end.node->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(end.device, end.disc);
    InstallFifo(devices.Get(1));
    AssignAddresses(devices);
    m_senders.push_back(end);
  }
  UplinkRouting::Ways there, back;
  for (std::size_t i = 0; i < run.bottlenecks.size(); ++i) {
    const Bottleneck& bottleneck = run.bottlenecks[i];
    const uint32_t router = inSeries ? static_cast<uint32_t>(i) : 0;
    Ptr<Node> from = m_routers.Get(router);
    const auto devices =
        Link(from, m_routers.Get(router + 1), bottleneck.rateBps, bottleneck.delayMs);
    m_farEnds.Add(devices.Get(1));
    m_bottlenecks.push_back(MakeBottleneckDisc(run, i, stream));
    for (const auto& [s, rateBps] : bottleneck.rates) {
      const auto device = DynamicCast<PointToPointNetDevice>(devices.Get(0));
      Simulator::Schedule(Seconds(s), [device, rate = static_cast<uint64_t>(rateBps)] {
        device->SetDataRate(DataRate(rate));
      });
    }
    from->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(devices.Get(0),
                                                                     m_bottlenecks.back());
    InstallFifo(devices.Get(1));
    const Ipv4Address far = AssignAddresses(devices);
    if (!inSeries) {
      const auto ipv4 = from->GetObject<Ipv4>();
      const int32_t interface = ipv4->GetInterfaceForDevice(devices.Get(0));
      const Ipv4Address near = ipv4->GetAddress(interface, 0).GetAddress();
      there[i] = {devices.Get(0), far};
      back[i] = {devices.Get(1), near};
    }
  }
  for (const Receiver& receiver : run.receivers) {
    ReceiverEnd end{addNode(), {}};
    const auto devices =
        Link(m_routers.Get(receiver.router), end.node, accessBps, receiver.delayMs);
    InstallFifo(devices.Get(0));
    InstallFifo(devices.Get(1));
    end.address = AssignAddresses(devices);
    m_receivers.push_back(end);
  }
  Ipv4GlobalRoutingHelper::PopulateRoutingTables();
  if (!inSeries) {
    RouteUplinks(run, there, back);
  }
}

void Network::RouteUplinks(const Run& run, const UplinkRouting::Ways& there,
                           const UplinkRouting::Ways& back) {
  m_gateway = CreateObject<GatewayRouting>(m_senders.front().device->GetChannel()->GetDevice(1));
  m_gateway->Install(m_routers.Get(0), run.uplinks, there);
  CreateObject<ReturnRouting>()->Install(m_routers.Get(1), run.uplinks, back);
  for (std::size_t i = 0; i < run.uplinks.size(); ++i) {
    if (std::isinf(run.uplinks[i].diesS)) {
      continue;
    }
    for (const auto& end : {there[i], back[i]}) {
      auto losses = CreateObjectWithAttributes<RateErrorModel>(
          "ErrorRate", DoubleValue(1), "ErrorUnit", StringValue("ERROR_UNIT_PACKET"));
      losses->Disable();
      DynamicCast<PointToPointNetDevice>(end.device)->SetReceiveErrorModel(losses);
      Simulator::Schedule(Seconds(run.uplinks[i].diesS), &ErrorModel::Enable, losses);
    }
  }
}

NetDeviceContainer Network::Link(Ptr<Node> from, Ptr<Node> to, double rateBps, double delayMs) {
  PointToPointHelper helper;
  helper.SetDeviceAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(rateBps))));
  helper.SetChannelAttribute("Delay", TimeValue(Seconds(delayMs * 1e-3)));
  // One packet in the device, so that all waiting happens in the queue disc.
  helper.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
  return helper.Install(from, to);
}

Ipv4Address Network::AssignAddresses(const NetDeviceContainer& devices) {
  const Ipv4Address far = m_addresses.Assign(devices).GetAddress(1);
  m_addresses.NewNetwork();
  return far;
}

}  // namespace swiftqueue::lab
