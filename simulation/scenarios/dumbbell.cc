// SPDX-License-Identifier: GPL-2.0-only
//
// Dumbbell: a captured sender and others share one bottleneck with a dual queue.
//
//   captured sender --+                              +-- receiver 0
//                     +-- router == bottleneck == router -- receiver 1 (farther away)
//   other senders  ---+                              +-- ...
//
// Writes the sender's capture, what was simulated beside it (JSON), and prints `progress SECONDS`
// for each simulated second. The same arguments give the same bytes.

#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../helper/queue-profiles.h"
#include "../helper/sender-capture.h"
#include "../helper/tcp-endpoints.h"
#include "../laboratory/json-text.h"
#include "../model/mark-queue-disc.h"
#include "../model/traffic-application.h"
#include "ns3/command-line.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/node-container.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/rng-seed-manager.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/traffic-control-layer.h"
#include "ns3/uinteger.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a scenario speaks ns-3

constexpr char kDctcp[] = "ns3::TcpDctcp";
constexpr char kCubic[] = "ns3::TcpCubic";
constexpr uint16_t kFirstPort = 5000;
constexpr double kReceiverStepMs = 4;  // each receiver's base round trip is that much longer
// ns-3 has no RACK. An explored packet arrives tens of ms out of order, which the usual 3 duplicate
// ACKs would take for a loss; no other flow is reordered.
constexpr uint32_t kDupAcksOfLoss = 3;
constexpr uint32_t kDupAcksOfLossExplored = 12;
constexpr uint32_t kBatchPackets = 8;  // explored as a whole (SwiftQueue, section 4)
constexpr uint32_t kQueueBytes = 1'000'000;
constexpr double kStartSpreadS = 1;  // flows start within the first second

struct Options {
  std::string output;
  uint32_t seed = 1;
  double durationS = 72;
  double bottleneckMbps = 50;
  double rttMs = 20;
  uint32_t receivers = 3;
  uint32_t dctcpFlows = 5;
  uint32_t cubicFlows = 3;
  uint32_t crossFlows = 6;
  double flowMbps = 4;
  double exploreShare = 0;
  double lStepMs = 20;
};

void Require(bool condition, const char* message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

Options Parse(int argc, char** argv) {
  Options o;
  CommandLine line(__FILE__);
  line.AddValue("output", "pcap file to write", o.output);
  line.AddValue("seed", "seed of every random choice", o.seed);
  line.AddValue("duration-s", "simulated seconds", o.durationS);
  line.AddValue("bottleneck-mbps", "rate of the bottleneck", o.bottleneckMbps);
  line.AddValue("rtt-ms", "base round trip to the nearest receiver", o.rttMs);
  line.AddValue("receivers", "receivers, each with an address of its own", o.receivers);
  line.AddValue("dctcp-flows", "captured sender's L4S flows", o.dctcpFlows);
  line.AddValue("cubic-flows", "captured sender's classic flows", o.cubicFlows);
  line.AddValue("cross-flows", "other senders' flows, every other one L4S", o.crossFlows);
  line.AddValue("flow-mbps", "offered load of each flow", o.flowMbps);
  line.AddValue("explore-share", "share of the sender's batches sent as classic", o.exploreShare);
  line.AddValue("l-step-ms", "waiting time above which the L queue marks", o.lStepMs);
  line.Parse(argc, argv);
  Require(!o.output.empty(), "--output is missing");
  Require(o.seed > 0, "--seed must be at least 1");
  Require(o.receivers > 0, "--receivers must be at least 1");
  Require(o.dctcpFlows + o.cubicFlows > 0, "the captured sender has no flow");
  return o;
}

class Dumbbell {
 public:
  explicit Dumbbell(const Options& options) : m_options(options) {
    m_senders.Create(1 + options.crossFlows);
    m_routers.Create(2);
    m_receivers.Create(options.receivers);
    InternetStackHelper().Install(NodeContainer(m_senders, m_routers, m_receivers));
    Connect();
    AddFlows();
  }

  Ptr<PointToPointNetDevice> CapturedDevice() const { return m_captured; }
  QueueDisc::Stats BottleneckStats() const { return m_bottleneck->GetStats(); }

 private:
  void Connect() {
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
    const auto link = [&addresses](Ptr<Node> a, Ptr<Node> b, double mbps, double delayMs,
                                   const char* queue) {
      PointToPointHelper helper;
      helper.SetDeviceAttribute("DataRate", DataRateValue(DataRate(uint64_t(mbps * 1e6))));
      helper.SetChannelAttribute("Delay", TimeValue(Seconds(delayMs * 1e-3)));
      helper.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue(queue));
      return helper.Install(a, b);
    };
    const auto address = [&addresses](const NetDeviceContainer& devices) {
      Ipv4InterfaceContainer interfaces = addresses.Assign(devices);
      addresses.NewNetwork();
      return interfaces;
    };
    constexpr double kAccessMbps = 1000;
    constexpr double kAccessMs = 0.1;

    for (uint32_t i = 0; i < m_senders.GetN(); ++i) {
      auto devices = link(m_senders.Get(i), m_routers.Get(0), kAccessMbps, kAccessMs, "100p");
      if (i == 0) {
        m_captured = DynamicCast<PointToPointNetDevice>(devices.Get(0));
        auto explore = CreateObject<swiftqueue::MarkQueueDisc>();
        explore->SetMarker(std::make_shared<swiftqueue::ExploreMarker>(m_options.exploreShare,
                                                                       kBatchPackets, m_stream++));
        m_senders.Get(0)->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(m_captured,
                                                                                     explore);
      }
      address(devices);
    }
    // One packet in the device, so that all waiting happens in the queue disc.
    const double oneWayMs = m_options.rttMs / 2 - 2 * kAccessMs;
    auto shared =
        link(m_routers.Get(0), m_routers.Get(1), m_options.bottleneckMbps, oneWayMs, "1p");
    auto dual = swiftqueue::MakeDisc(
        swiftqueue::PremiseProfile(kQueueBytes, Seconds(m_options.lStepMs * 1e-3)));
    m_stream += dual->AssignStreams(m_stream);
    m_routers.Get(0)->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(shared.Get(0),
                                                                                 dual);
    m_bottleneck = dual;
    address(shared);
    for (uint32_t i = 0; i < m_receivers.GetN(); ++i) {
      const double delayMs = kAccessMs + i * kReceiverStepMs / 2;
      auto devices = link(m_routers.Get(1), m_receivers.Get(i), kAccessMbps, delayMs, "1000p");
      m_receiverAddresses.push_back(address(devices).GetAddress(1));
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
  }

  void AddFlows() {
    uint16_t port = kFirstPort;
    for (uint32_t i = 0; i < m_options.dctcpFlows; ++i) {
      AddFlow(m_senders.Get(0), port++, kDctcp, kDupAcksOfLossExplored);
    }
    for (uint32_t i = 0; i < m_options.cubicFlows; ++i) {
      AddFlow(m_senders.Get(0), port++, kCubic, kDupAcksOfLoss);
    }
    for (uint32_t i = 0; i < m_options.crossFlows; ++i) {
      AddFlow(m_senders.Get(1 + i), port++, i % 2 == 0 ? kDctcp : kCubic, kDupAcksOfLoss);
    }
  }

  void AddFlow(Ptr<Node> sender, uint16_t port, const char* tcpName, uint32_t dupAckThreshold) {
    const TypeId tcp = TypeId::LookupByName(tcpName);
    const uint32_t receiver = port % m_receivers.GetN();
    // DCTCP's echo of each CE mark is the receiver's part, so it has the same congestion control.
    swiftqueue::ListenTcp(m_receivers.Get(receiver), port, tcp, [](uint32_t) {});
    auto application = CreateObject<swiftqueue::TrafficApplication>();
    application->SetMessages(swiftqueue::kWebSearchBytes, m_options.flowMbps * 1e6);
    application->SetSocket(
        [sender, tcp, dupAckThreshold] {
          Ptr<Socket> socket = sender->GetObject<TcpL4Protocol>()->CreateSocket(tcp);
          socket->SetAttribute("ReTxThreshold", UintegerValue(dupAckThreshold));
          return socket;
        },
        InetSocketAddress(m_receiverAddresses[receiver], port));
    m_stream += application->AssignStreams(m_stream);
    auto start = CreateObject<UniformRandomVariable>();
    start->SetStream(m_stream++);
    application->SetStartTime(Seconds(start->GetValue(0, kStartSpreadS)));
    sender->AddApplication(application);
  }

  const Options m_options;
  NodeContainer m_senders;  // the first is the captured one
  NodeContainer m_routers;
  NodeContainer m_receivers;
  std::vector<Ipv4Address> m_receiverAddresses;
  Ptr<PointToPointNetDevice> m_captured;
  Ptr<QueueDisc> m_bottleneck;
  int64_t m_stream = 0;
};

void ReportProgress() {
  std::cout << "progress " << Simulator::Now().GetSeconds() << std::endl;
  Simulator::Schedule(Seconds(1), &ReportProgress);
}

/** What was simulated, beside the capture: `NAME.json` for `NAME.pcap`. */
void WriteMetadata(const Options& o) {
  using swiftqueue::lab::JsonNumber;
  using swiftqueue::lab::JsonObject;
  const std::string text = JsonObject()
                               .Add("format", JsonNumber(1))
                               .Add("seed", JsonNumber(o.seed))
                               .Add("duration_s", JsonNumber(o.durationS))
                               .Add("bottleneck_mbps", JsonNumber(o.bottleneckMbps))
                               .Add("rtt_ms", JsonNumber(o.rttMs))
                               .Add("receivers", JsonNumber(o.receivers))
                               .Add("dctcp_flows", JsonNumber(o.dctcpFlows))
                               .Add("cubic_flows", JsonNumber(o.cubicFlows))
                               .Add("cross_flows", JsonNumber(o.crossFlows))
                               .Add("flow_mbps", JsonNumber(o.flowMbps))
                               .Add("l_step_ms", JsonNumber(o.lStepMs))
                               .Add("explore", JsonObject()
                                                   .Add("share", JsonNumber(o.exploreShare))
                                                   .Add("burst_packets", JsonNumber(kBatchPackets))
                                                   .Add("seed", JsonNumber(o.seed))
                                                   .Text())
                               .Add("dctcp_dupack_threshold", JsonNumber(kDupAcksOfLossExplored))
                               .Text();
  const auto path = std::filesystem::path(o.output).replace_extension(".json");
  std::ofstream file(path);
  file << text << '\n';
  file.close();
  Require(bool(file), "cannot write all of the trace's metadata: is the disk full?");
}

void Run(const Options& options) {
  RngSeedManager::SetSeed(options.seed);
  swiftqueue::SetTcpDefaults();
  Dumbbell dumbbell(options);
  swiftqueue::SenderCapture capture(options.output, dumbbell.CapturedDevice());
  ReportProgress();
  Simulator::Stop(Seconds(options.durationS));
  Simulator::Run();
  capture.Close();
  WriteMetadata(options);
  std::cout << dumbbell.BottleneckStats() << std::endl;
  Simulator::Destroy();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(Parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
