// SPDX-License-Identifier: GPL-2.0-only
//
// Classic and scalable flows through one DualPI2 link, for RFC 9332's promises.
//
//   sender i --1 Gbit/s-- router == DualPI2, half the round trip == router --1 Gbit/s-- receiver i
//
// Prints one JSON object: goodput of each flow, queueing delays, counts, marks and drops by reason.
// The same arguments give the same bytes. Times and rates leave out the warm-up.

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "../helper/dual-pi2-probe.h"
#include "ns3/boolean.h"
#include "ns3/bulk-send-application.h"
#include "ns3/bulk-send-helper.h"
#include "ns3/command-line.h"
#include "ns3/config.h"
#include "ns3/double.h"
#include "ns3/enum.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/on-off-helper.h"
#include "ns3/packet-sink-helper.h"
#include "ns3/packet-sink.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/rng-seed-manager.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/traffic-control-layer.h"
#include "ns3/uinteger.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a scenario speaks ns-3

constexpr uint16_t kPort = 5000;
constexpr uint32_t kSegmentBytes = 1448;
constexpr uint32_t kBufferBytes = 32 << 20;  // never what limits a flow here
constexpr double kStartSpreadS = 0.1;        // flows start within this time

struct Options {
  double mbps = 40;
  double rttMs = 10;
  uint32_t scalable = 1;
  uint32_t classic = 1;
  std::string scalableTcp = "ns3::TcpDctcp";
  std::string classicTcp = "ns3::TcpCubic";
  bool classicEcn = false;
  bool pacing = false;
  bool prague = false;
  std::string scalableAttributes;
  std::string scalableExtraRttMs;
  uint32_t dupAckThreshold = 3;
  double udpEct1Mbps = 0;
  double udpNotEctMbps = 0;
  double durationS = 20;
  double warmupS = 5;
  uint32_t seed = 1;
  std::string disc;
};

Options Parse(int argc, char** argv) {
  Options o;
  CommandLine line(__FILE__);
  line.AddValue("mbps", "rate of the link", o.mbps);
  line.AddValue("rtt-ms", "base round trip", o.rttMs);
  line.AddValue("scalable", "scalable flows, ECT(1)", o.scalable);
  line.AddValue("classic", "classic flows", o.classic);
  line.AddValue("scalable-tcp", "their congestion control", o.scalableTcp);
  line.AddValue("classic-tcp", "their congestion control", o.classicTcp);
  line.AddValue("classic-ecn", "classic flows negotiate ECN, ECT(0)", o.classicEcn);
  line.AddValue("pacing", "scalable flows are paced", o.pacing);
  line.AddValue("prague", "scalable flows are TCP Prague (paced by itself)", o.prague);
  line.AddValue("scalable-attributes", "attributes of their TCP, NAME=VALUE;NAME=VALUE",
                o.scalableAttributes);
  line.AddValue("scalable-extra-rtt-ms", "longer round trips, by turns, as 0,70",
                o.scalableExtraRttMs);
  line.AddValue("dupack-threshold", "duplicate ACKs that scalable flows take for a loss",
                o.dupAckThreshold);
  line.AddValue("udp-ect1-mbps", "an unresponsive ECT(1) flow of this rate", o.udpEct1Mbps);
  line.AddValue("udp-notect-mbps", "an unresponsive Not-ECT flow of this rate", o.udpNotEctMbps);
  line.AddValue("duration-s", "simulated seconds", o.durationS);
  line.AddValue("warmup-s", "of these, left out at the start", o.warmupS);
  line.AddValue("seed", "seed of every random choice", o.seed);
  line.AddValue("disc", "attributes of the disc, NAME=VALUE;NAME=VALUE", o.disc);
  line.Parse(argc, argv);
  if (o.prague) {
    o.scalableTcp = "ns3::TcpPrague";
  }
  NS_ABORT_MSG_IF(o.dupAckThreshold == 0, "--dupack-threshold must be at least 1");
  NS_ABORT_MSG_IF(o.seed == 0, "--seed must be at least 1");
  NS_ABORT_MSG_IF(o.mbps <= 0 || o.mbps > 500, "--mbps must be above 0 and at most 500");
  NS_ABORT_MSG_IF(o.warmupS >= o.durationS, "--warmup-s must be less than --duration-s");
  return o;
}

/** Milliseconds by which each scalable flow's round trip is longer, at least one number. */
std::vector<double> ExtraRttMs(const std::string& list) {
  std::vector<double> values;
  std::istringstream numbers(list.empty() ? "0" : list);
  for (std::string number; std::getline(numbers, number, ',');) {
    std::istringstream text(number);
    double value = -1;
    text >> value;
    NS_ABORT_MSG_IF(text.fail() || !text.eof() || value < 0,
                    "--scalable-extra-rtt-ms: " << number << " is not a time in milliseconds");
    values.push_back(value);
  }
  return values;
}

/** Calls set(NAME, VALUE) for each of NAME=VALUE;NAME=VALUE; false ends the program. */
template <typename Set>
void ForEachAttribute(const std::string& list, const std::string& complaint, Set set) {
  std::istringstream attributes(list);
  for (std::string attribute; std::getline(attributes, attribute, ';');) {
    const auto equals = attribute.find('=');
    const bool done = equals != std::string::npos &&
                      set(attribute.substr(0, equals), StringValue(attribute.substr(equals + 1)));
    NS_ABORT_MSG_UNLESS(done, complaint << " takes no " << attribute);
  }
}

void SetTcpDefaults(const Options& options) {
  ForEachAttribute(options.scalableAttributes, "--scalable-attributes: " + options.scalableTcp,
                   [&options](const std::string& name, const StringValue& value) {
                     return Config::SetDefaultFailSafe(options.scalableTcp + "::" + name, value);
                   });
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegmentBytes));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(kBufferBytes));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(kBufferBytes));
  // Appendix C's rates are those of an ACK for each segment.
  Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
  Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
  Config::SetDefault("ns3::TcpDctcp::UseEct0", BooleanValue(false));  // L4S: ECT(1)
  // Receivers agree to ECN where a sender asks for it.
  Config::SetDefault("ns3::TcpSocketBase::UseEcn", EnumValue(TcpSocketState::AcceptOnly));
}

class Link {
 public:
  explicit Link(const Options& options) : m_options(options) {
    m_routers.Create(2);
    InternetStackHelper().Install(m_routers);
    PointToPointHelper shared;
    shared.SetDeviceAttribute("DataRate", DataRateValue(DataRate(uint64_t(options.mbps * 1e6))));
    shared.SetChannelAttribute("Delay", TimeValue(Seconds(options.rttMs * 1e-3 / 2)));
    // One packet in the device, so that all waiting happens in the disc.
    shared.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    auto devices = shared.Install(m_routers);
    m_disc = CreateObject<DualPi2QueueDisc>();
    Configure();
    m_stream += m_disc->AssignStreams(m_stream);
    m_routers.Get(0)->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(devices.Get(0),
                                                                                 m_disc);
    m_addresses.Assign(devices);
    m_addresses.NewNetwork();
    const auto extraRttMs = ExtraRttMs(options.scalableExtraRttMs);
    for (uint32_t i = 0; i < options.scalable; ++i) {
      AddTcp(options.scalableTcp, true, options.pacing, options.dupAckThreshold,
             MicroSeconds(extraRttMs[i % extraRttMs.size()] * 1e3));
    }
    for (uint32_t i = 0; i < options.classic; ++i) {
      AddTcp(options.classicTcp, options.classicEcn, false, 3, Time(0));
    }
    AddUdp(options.udpEct1Mbps, Ipv4Header::ECN_ECT1);
    AddUdp(options.udpNotEctMbps, Ipv4Header::ECN_NotECT);
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    Simulator::Schedule(Seconds(options.warmupS), [this] {
      for (const auto& sink : m_sinks) {
        m_warmupBytes.push_back(sink->GetTotalRx());
      }
    });
  }

  Ptr<DualPi2QueueDisc> Disc() const { return m_disc; }

  void WriteJson(std::ostream& out) const {
    const uint32_t classicEnd = m_options.scalable + m_options.classic;
    out << "\"scalable_tcp\": \"" << m_options.scalableTcp
        << "\", \"dupack_threshold\": " << m_options.dupAckThreshold
        << ", \"goodput_mbps\": {\"scalable\": [";
    WriteGoodput(out, 0, m_options.scalable);
    out << "], \"classic\": [";
    WriteGoodput(out, m_options.scalable, classicEnd);
    out << "], \"udp_ect1\": [";
    WriteGoodput(out, classicEnd, classicEnd + 1);
    out << "], \"udp_notect\": [";
    WriteGoodput(out, classicEnd + 1, classicEnd + 2);
    out << "]}";
  }

 private:
  void Configure() {
    ForEachAttribute(m_options.disc, "--disc: DualPi2QueueDisc",
                     [this](const std::string& name, const StringValue& value) {
                       return m_disc->SetAttributeFailSafe(name, value);
                     });
  }

  /** A sender and a receiver of their own, one access link each; half of `extraRtt` on each. */
  std::pair<Ptr<Node>, Ptr<Node>> AddHosts(Time extraRtt = Time(0)) {
    NodeContainer hosts(2);
    InternetStackHelper().Install(hosts);
    PointToPointHelper access;
    access.SetDeviceAttribute("DataRate", StringValue("1Gbps"));
    access.SetChannelAttribute("Delay", TimeValue(MicroSeconds(10) + extraRtt / 4));
    access.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("100000p"));
    for (uint32_t side : {0, 1}) {
      auto interfaces = m_addresses.Assign(access.Install(hosts.Get(side), m_routers.Get(side)));
      m_addresses.NewNetwork();
      m_receiver = interfaces.GetAddress(0);
    }
    return {hosts.Get(0), hosts.Get(1)};
  }

  void AddSink(Ptr<Node> node, const char* protocol) {
    PacketSinkHelper helper(protocol, InetSocketAddress(Ipv4Address::GetAny(), kPort));
    m_sinks.push_back(DynamicCast<PacketSink>(helper.Install(node).Get(0)));
  }

  Time StartTime() {
    auto start = CreateObject<UniformRandomVariable>();
    start->SetStream(m_stream++);
    return Seconds(start->GetValue(0, kStartSpreadS));
  }

  void AddTcp(const std::string& tcpName, bool ecn, bool paced, uint32_t dupAckThreshold,
              Time extraRtt) {
    const auto [sender, receiver] = AddHosts(extraRtt);
    for (const auto& node : {sender, receiver}) {
      // DCTCP's echo of each CE mark is the receiver's part, so it has the same congestion control.
      node->GetObject<TcpL4Protocol>()->SetAttribute("SocketType",
                                                     TypeIdValue(TypeId::LookupByName(tcpName)));
    }
    AddSink(receiver, "ns3::TcpSocketFactory");
    BulkSendHelper helper("ns3::TcpSocketFactory", InetSocketAddress(m_receiver, kPort));
    auto application = DynamicCast<BulkSendApplication>(helper.Install(sender).Get(0));
    const Time start = StartTime();
    application->SetStartTime(start);
    // TCP reads its defaults when a socket is made: this one is for this flow's sender alone.
    Simulator::Schedule(start - NanoSeconds(1), [ecn] {
      Config::SetDefault("ns3::TcpSocketBase::UseEcn",
                         EnumValue(ecn ? TcpSocketState::On : TcpSocketState::Off));
    });
    Simulator::Schedule(start + NanoSeconds(1), [application, paced, dupAckThreshold] {
      auto socket = DynamicCast<TcpSocketBase>(application->GetSocket());
      if (paced) {  // not set to false: some pace by themselves
        socket->SetPacingStatus(true);
      }
      socket->SetRetxThresh(dupAckThreshold);
    });
  }

  void AddUdp(double mbps, Ipv4Header::EcnType ecn) {
    const auto [sender, receiver] = AddHosts();
    AddSink(receiver, "ns3::UdpSocketFactory");
    if (mbps > 0) {
      OnOffHelper helper("ns3::UdpSocketFactory", InetSocketAddress(m_receiver, kPort));
      helper.SetConstantRate(DataRate(uint64_t(mbps * 1e6)), kSegmentBytes);
      helper.SetAttribute("Tos", UintegerValue(ecn));
      helper.Install(sender).Get(0)->SetStartTime(StartTime());
    }
  }

  void WriteGoodput(std::ostream& out, std::size_t first, std::size_t end) const {
    for (std::size_t i = first; i < end; ++i) {
      const double bits = 8.0 * (m_sinks[i]->GetTotalRx() - m_warmupBytes[i]);
      out << (i == first ? "" : ", ") << bits * 1e-6 / (m_options.durationS - m_options.warmupS);
    }
  }

  const Options m_options;
  NodeContainer m_routers;
  Ipv4AddressHelper m_addresses{"10.0.0.0", "255.255.255.0"};
  Ipv4Address m_receiver;  // address of the hosts added last
  Ptr<DualPi2QueueDisc> m_disc;
  std::vector<Ptr<PacketSink>> m_sinks;  // scalable, classic, UDP ECT(1), UDP Not-ECT
  std::vector<uint64_t> m_warmupBytes;
  int64_t m_stream = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  RngSeedManager::SetSeed(options.seed);
  SetTcpDefaults(options);
  Link link(options);
  DualPi2Probe probe(link.Disc(), Seconds(options.warmupS));
  Simulator::Stop(Seconds(options.durationS));
  Simulator::Run();
  std::cout << "{";
  link.WriteJson(std::cout);
  std::cout << ", ";
  probe.WriteJson(std::cout);
  std::cout << "}" << std::endl;
  Simulator::Destroy();
  return 0;
}
