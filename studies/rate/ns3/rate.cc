// SPDX-License-Identifier: GPL-2.0-only
//
// One path, and short flows through it: at each ACK of BBR a sample of the connection
// (samples/tcp_sample.h), BBR's estimate where so many packets are delivered, and when
// each flow was complete. --forecast feeds a forecast back into BBR at its --samples-th ACK.
//
// A server -> router -> bottleneck (one FIFO) -> router -> receivers, a little farther each. Flows
// of --bytes arrive by a Poisson process and go to receivers at random; they and, with --cross,
// unresponsive Poisson packets share the bottleneck. Every flow of --flows is written down. With
// --every each so-manieth flow alone is what was asked for, and the others are plain BBR.

#include <array>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ns3/boolean.h"
#include "ns3/command-line.h"
#include "ns3/config.h"
#include "ns3/double.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/random-variable-stream.h"
#include "ns3/rng-seed-manager.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/tcp-cubic.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/udp-l4-protocol.h"
#include "ns3/uinteger.h"
#include "simulation/helper/link.h"
#include "simulation/helper/tcp-endpoints.h"
#include "studies/rate/ns3/download.h"
#include "studies/rate/ns3/forecast-bbr.h"
#include "studies/rate/ns3/forecasts.h"
#include "studies/rate/ns3/hystart-plus-plus.h"
#include "studies/rate/ns3/receiver.h"
#include "studies/rate/ns3/suss.h"
#include "studies/rate/ns3/tables.h"
#include "studies/rate/samples/dispersion.h"
#include "studies/rate/samples/tcp_sample.h"

namespace {

using namespace ns3;               // NOLINT(build/namespaces): a program of ns-3
using namespace swiftqueue::rate;  // NOLINT(build/namespaces): this is its program

constexpr uint32_t kSegment = 1440;          // payload of a packet, as in the paper
constexpr uint32_t kPacket = kSegment + 40;  // with IP's and TCP's headers
constexpr uint16_t kPort = 5000;
constexpr double kSpread = 0.05;  // receivers' round trips differ by so much to either side
constexpr double kPatience =
    120;  // simulated seconds after the last arrival, then flows are cut off

struct Path {
  double rateBps{50e6};
  double rttMs{100};
  double bufferBdp{1};
  double load{0.5};  // share of the bottleneck that the flows offer
  double cross{0};   // share of the bottleneck that unresponsive packets offer
  uint32_t receivers{4};
  uint32_t flows{30};
  uint32_t bytes{3200000};
  uint32_t seed{1};
  uint32_t window{16 << 20};  // receive window in bytes; 0: it grows as Linux's
};

/** What is asked for of a flow. */
struct Sender {
  std::string control{"bbr"};  // bbr, cubic (with HyStart), hystart++, suss
  uint32_t initialWindow{10};  // packets
  uint32_t samples{5};         // number of samples that a forecast is made from
  double delayMs{0};           // until it is there
};

TypeId ControlOf(const std::string& name) {
  const std::map<std::string, TypeId> known{{"bbr", ForecastBbr::GetTypeId()},
                                            {"cubic", TcpCubic::GetTypeId()},
                                            {"hystart++", HystartPlusPlus::GetTypeId()},
                                            {"suss", Suss::GetTypeId()}};
  if (!known.contains(name)) {
    throw std::runtime_error("control " + name + ": there is none of this name");
  }
  return known.at(name);
}

/** What all flows are written to. */
struct Output {
  std::ofstream samples;
  std::ofstream flows;
  std::ofstream completions;
};

/** One download, from its arrival to its last ACK. */
class Flow : public Download {
 public:
  /** `forecasts`: none for a plain flow. */
  Flow(uint32_t id, uint32_t receiver, uint32_t bytes, const Sender& sender, Forecasts* forecasts,
       Output& output)
      : Download(id, receiver, bytes, kSegment),
        m_sender(sender),
        m_forecasts(forecasts),
        m_output(output) {}

  /** Returns the port that it sends from. */
  uint16_t Start(Ptr<Node> server, Ipv4Address to) {
    const TypeId control = ControlOf(m_sender.control);
    auto socket =
        DynamicCast<TcpSocketBase>(server->GetObject<TcpL4Protocol>()->CreateSocket(control));
    socket->SetAttribute("InitialCwnd", UintegerValue(m_sender.initialWindow));
    if (control == ForecastBbr::GetTypeId()) {
      m_bbr = CreateObject<ForecastBbr>();
      Watch(socket, m_bbr, m_output.samples);
      socket->TraceConnectWithoutContext(
          "RWND", Callback<void, uint32_t, uint32_t>(
                      [this](uint32_t, uint32_t window) { m_bbr->SetReceiveWindow(window); }));
    }
    socket->TraceConnectWithoutContext(
        "Tx", Callback<void, Ptr<const Packet>, const TcpHeader&, Ptr<const TcpSocketBase>>(
                  [this](Ptr<const Packet> packet, const TcpHeader& header,
                         Ptr<const TcpSocketBase>) { Sent(packet->GetSize(), header); }));
    socket->SetConnectCallback(Callback<void, Ptr<Socket>>([this](Ptr<Socket> ready) {
                                 Established();
                                 ready->Send(Create<Packet>(GetBytes()));
                                 ready->Close();
                               }),
                               MakeNullCallback<void, Ptr<Socket>>());
    socket->Connect(InetSocketAddress(to, kPort));
    Address own;
    socket->GetSockName(own);
    return InetSocketAddress::ConvertFrom(own).GetPort();
  }

  bool IsDone() const { return m_bbr ? IsDelivered() : m_arrived >= GetBytes(); }

  /** So many bytes more have reached the receiver. */
  void Arrived(uint32_t bytes) {
    m_arrived += bytes;
    if (m_arrived >= GetBytes() && m_completed.IsZero()) {
      m_completed = Simulator::Now();
    }
  }

  void Write() const {
    Download::Write(m_output.flows);
    m_output.flows << '\n';
  }

  /** When it was complete, at the receiver, and what became of its forecast. */
  void WriteCompletion() const {
    auto& row = m_output.completions;
    row << GetId() << ',' << GetReceiver() << ',' << (m_forecasts != nullptr) << ','
        << GetStarted().GetNanoSeconds() << ',';
    if (!m_completed.IsZero()) {
      row << m_completed.GetNanoSeconds();
    }
    row << ',' << GetSegments() << ',' << GetRetransmitted() << ',' << m_forecast << ','
        << m_dispersion << ',' << kVerdicts.at(m_verdict) << ','
        << kEnds.at(m_bbr ? m_bbr->GetEnd() : SQ_GOES_ON) << '\n';
  }

 private:
  void Sampled(const Sample& sample) override {
    m_seen.push_back(sample);
    m_train.acked(sample[At::ts], sample[At::bytes_acked]);
    if (m_forecasts != nullptr && m_forecasts->IsAny() && m_seen.size() == m_sender.samples) {
      Forecast();
    }
  }

  void Delivered() override {
    if (m_forecasts != nullptr) {
      m_forecasts->Remember(GetReceiver(), GetEstimate());
    }
  }

  void Forecast() {
    m_dispersion = m_train.get();
    m_forecast = m_forecasts->Make(GetReceiver(), m_dispersion, m_seen);
    const auto take = [this, sampled = Simulator::Now()] {
      m_verdict = m_bbr->Take(m_forecast, m_dispersion, sampled);
    };
    if (m_sender.delayMs > 0) {
      Simulator::Schedule(NanoSeconds(std::llround(m_sender.delayMs * 1e6)), take);
    } else {
      take();
    }
  }

  static constexpr std::array kVerdicts{"used",         "not-a-rate",  "stale", "too-late",
                                        "nothing-seen", "nothing-new", "none"};
  static constexpr std::array kEnds{"", "lost", "queued", "confirmed", "exceeded"};

  Sender m_sender;
  Forecasts* m_forecasts;
  Output& m_output;
  Ptr<ForecastBbr> m_bbr;
  std::vector<Sample> m_seen;
  Dispersion m_train;
  double m_forecast{0};
  uint64_t m_dispersion{0};
  std::size_t m_verdict{kVerdicts.size() - 1};
  uint64_t m_arrived{0};
  Time m_completed;
};

/** Packets at random that nothing slows down. */
class Cross {
 public:
  Cross(Ptr<Node> from, Ipv4Address to, double rateBps)
      : m_socket(from->GetObject<UdpL4Protocol>()->CreateSocket()) {
    m_socket->Connect(InetSocketAddress(to, kPort));
    m_gap->SetStream(3);
    m_gap->SetAttribute("Mean", DoubleValue(kPacket * 8 / rateBps));
    Next();
  }

 private:
  void Next() {
    Simulator::Schedule(Seconds(m_gap->GetValue()), [this] {
      m_socket->Send(Create<Packet>(kPacket - 28));  // IP's and UDP's headers
      Next();
    });
  }

  Ptr<Socket> m_socket;
  Ptr<ExponentialRandomVariable> m_gap{CreateObject<ExponentialRandomVariable>()};
};

/** Everything of one run, for as long as it is simulated. */
class Experiment {
 public:
  Experiment(const Path& path, const Sender& sender, const Forecasts::Options& forecasts,
             uint32_t every, Output& output)
      : m_path(path), m_sender(sender), m_forecasts(forecasts), m_every(every), m_output(output) {
    NodeContainer core;
    core.Create(4);  // server, the two routers, the others' host
    InternetStackHelper stack;
    NodeContainer receivers;
    receivers.Create(path.receivers);
    stack.Install(core);
    stack.Install(receivers);
    const double edgeMs =
        0.02 * path.rttMs / 2;  // delay of an access link; the rest is the bottleneck's
    const double bdpBytes = path.rateBps / 8 * path.rttMs / 1e3;
    const auto buffer = static_cast<uint64_t>(std::max(bdpBytes * path.bufferBdp, 10.0 * kPacket));
    const double coreMs = path.rttMs / 2 * (1 - kSpread) - edgeMs;
    Link(core.Get(0), core.Get(1), 10 * path.rateBps, edgeMs, 1 << 30);
    Link(core.Get(3), core.Get(1), 10 * path.rateBps, edgeMs, 1 << 30);
    Link(core.Get(1), core.Get(2), path.rateBps, coreMs, buffer);
    for (uint32_t r = 0; r < path.receivers; ++r) {
      const double share = path.receivers > 1 ? 2.0 * r / (path.receivers - 1) : 1;
      const double extraMs = path.rttMs / 2 * kSpread * share;
      m_receivers.push_back(
          Link(core.Get(2), receivers.Get(r), 10 * path.rateBps, extraMs, 1 << 30));
      const Time grows = path.window == 0 ? Seconds(path.rttMs / 1e3) : Time(0);
      Receive(receivers.Get(r), kPort, kSegment, grows,
              [this](uint16_t port, uint32_t bytes) { m_ports.at(port)->Arrived(bytes); });
      swiftqueue::ListenUdp(receivers.Get(r), kPort, [](uint32_t) {});
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    m_server = core.Get(0);
    if (path.cross > 0) {
      m_cross = std::make_unique<Cross>(core.Get(3), m_receivers[0], path.cross * path.rateBps);
    }
    m_gap->SetStream(1);
    m_gap->SetAttribute("Mean", DoubleValue(path.bytes * 8 / (path.load * path.rateBps)));
    m_choice->SetStream(2);
    Simulator::Schedule(Seconds(1), [this] { Arrive(); });
    Simulator::Schedule(Seconds(1), [this] { Look(); });
  }

  void Write() const {
    for (const auto& flow : m_flows) {
      flow->Write();
      flow->WriteCompletion();
    }
  }

 private:
  Ipv4Address Link(Ptr<Node> from, Ptr<Node> to, double rateBps, double delayMs, uint64_t bytes) {
    const auto [devices, address] = swiftqueue::LinkNodes(
        from, to, rateBps, delayMs, std::to_string(bytes) + "B", nullptr, m_links++);
    TrafficControlHelper().Uninstall(devices);  // the device's queue is the only one
    return address;
  }

  void Arrive() {
    const auto id = static_cast<uint32_t>(m_flows.size());
    const uint32_t receiver = m_choice->GetInteger(0, m_path.receivers - 1);
    const bool asked = id % m_every == 0;
    m_flows.push_back(std::make_unique<Flow>(id, receiver, m_path.bytes,
                                             asked ? m_sender : Sender{},
                                             asked ? &m_forecasts : nullptr, m_output));
    const uint16_t port = m_flows.back()->Start(m_server, m_receivers[receiver]);
    m_ports[port] = m_flows.back().get();
    if (m_flows.size() < m_path.flows) {
      Simulator::Schedule(Seconds(m_gap->GetValue()), [this] { Arrive(); });
    } else {
      Simulator::Stop(Seconds(kPatience));
    }
  }

  void Look() {
    uint32_t done = 0;
    for (const auto& flow : m_flows) {
      done += flow->IsDone();
    }
    if (done == m_path.flows) {
      Simulator::Stop();
    }
    Simulator::Schedule(Seconds(1), [this] { Look(); });
  }

  Path m_path;
  Sender m_sender;
  Forecasts m_forecasts;
  uint32_t m_every;
  Output& m_output;
  uint32_t m_links{0};
  Ptr<Node> m_server;
  std::vector<Ipv4Address> m_receivers;
  std::vector<std::unique_ptr<Flow>> m_flows;
  std::map<uint16_t, Flow*> m_ports;
  std::unique_ptr<Cross> m_cross;
  Ptr<ExponentialRandomVariable> m_gap{CreateObject<ExponentialRandomVariable>()};
  Ptr<UniformRandomVariable> m_choice{CreateObject<UniformRandomVariable>()};
};

void Simulate(const Path& path, const Sender& sender, const Forecasts::Options& forecasts,
              uint32_t every, const std::string& folder) {
  RngSeedManager::SetSeed(path.seed);
  swiftqueue::SetTcpDefaults();
  constexpr uint32_t kBufferBytes = 16 << 20;  // never what limits a flow here
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegment));
  Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(kBufferBytes));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize",
                     UintegerValue(path.window == 0 ? GrowingWindow::kMost : path.window));
  Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue("Off"));
  Config::SetDefault("ns3::TcpSocketBase::Timestamp",
                     BooleanValue(false));  // ns-3 has them in whole ms
  const std::string samples = folder + "/samples.csv";
  const std::string flows = folder + "/flows.csv";
  const std::string completions = folder + "/completions.csv";
  Output output{Open(samples, SampleColumns()), Open(flows, RateColumns()),
                Open(completions,
                     "flow,receiver,asked,started_ns,completed_ns,segments,retransmitted,"
                     "forecast_bytes_per_s,dispersion_bytes_per_s,verdict,end")};
  {
    Experiment experiment(path, sender, forecasts, every, output);
    Simulator::Run();
    experiment.Write();
  }
  Simulator::Destroy();
  Close(output.samples, samples);
  Close(output.flows, flows);
  Close(output.completions, completions);
}

}  // namespace

int main(int argc, char** argv) {
  Path path;
  Sender sender;
  Forecasts::Options forecasts;
  std::string scale{"1"};
  uint32_t every{1};
  std::string out;
  CommandLine command(__FILE__);
  command.AddValue("rate-bps", "rate of the bottleneck", path.rateBps);
  command.AddValue("rtt-ms", "round trip of the middle receiver", path.rttMs);
  command.AddValue("buffer-bdp", "bottleneck's queue, in rate times round trip", path.bufferBdp);
  command.AddValue("load", "share of the bottleneck that flows offer", path.load);
  command.AddValue("cross", "share of it that unresponsive packets take", path.cross);
  command.AddValue("receivers", "hosts that flows go to", path.receivers);
  command.AddValue("flows", "how many", path.flows);
  command.AddValue("bytes", "size of a flow", path.bytes);
  command.AddValue("seed", "of all random choices", path.seed);
  command.AddValue("window", "of a receiver, in bytes; 0: it grows as Linux's", path.window);
  command.AddValue("control", "bbr, cubic (with HyStart), hystart++ or suss", sender.control);
  command.AddValue("initial-window", "packets", sender.initialWindow);
  command.AddValue("forecast", "none, oracle, random, dispersion, previous or network",
                   forecasts.kind);
  command.AddValue("scale", "what each forecast is multiplied by; 0, inf and nan too", scale);
  command.AddValue("artifact", "folder of the network that forecasts", forecasts.artifact);
  command.AddValue("samples", "that a forecast is made from", sender.samples);
  command.AddValue("delay-ms", "until a forecast is there", sender.delayMs);
  command.AddValue("every", "so-manieth flow is what was asked for; others are plain BBR", every);
  command.AddValue("out", "existing folder for samples.csv, flows.csv and completions.csv", out);
  command.Parse(argc, argv);
  try {
    if (!(path.rateBps >= 1e5 && path.rttMs > 0 && path.bufferBdp > 0 && path.load > 0 &&
          path.cross >= 0 && path.cross < 1 && path.receivers > 0 && path.receivers <= 200 &&
          path.flows > 0 && path.bytes > 0 && path.seed > 0)) {
      throw std::runtime_error("a value of the path cannot be; see --help");
    }
    if (!(sender.initialWindow > 0 && sender.samples > 0 && sender.samples <= kMostSamples &&
          sender.delayMs >= 0 && every > 0)) {
      throw std::runtime_error("a value of the sender cannot be; see --help");
    }
    forecasts.scale = std::stod(scale);
    forecasts.truthBytesPerS = path.rateBps / 8 * (1 - path.cross);
    Simulate(path, sender, forecasts, every, out);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
