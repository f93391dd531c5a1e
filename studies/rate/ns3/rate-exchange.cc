// SPDX-License-Identifier: GPL-2.0-only
//
// One sender with flows of every kind in one queue: DCTCP (ECT(1)), Cubic (ECT(0)), and short BBR
// downloads without ECN, through a DualPI2 bottleneck. Each data packet is a row, with what its
// connection knew when it left and when it was acknowledged; of each download the first samples
// (samples/tcp_sample.h). So a forecast of latency and one of rate can be given each
// other's inputs.
//
// sender, other sender -> router -> bottleneck -> router -> two receivers. The other sender has as
// many DCTCP and Cubic flows. They write messages, which arrive by a Poisson process.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
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
#include "ns3/tcp-dctcp.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/traffic-control-layer.h"
#include "ns3/uinteger.h"
#include "simulation/helper/link.h"
#include "simulation/helper/queue-profiles.h"
#include "simulation/helper/tcp-endpoints.h"
#include "simulation/model/traffic-application.h"
#include "simulation/programs/laboratory/ack-tracker.h"
#include "studies/rate/ns3/download.h"
#include "studies/rate/ns3/receiver.h"
#include "studies/rate/ns3/tables.h"

namespace {

using namespace ns3;               // NOLINT(build/namespaces): a program of ns-3
using namespace swiftqueue::rate;  // NOLINT(build/namespaces): this is its program

constexpr uint32_t kSegment = 1440;  // payload of a packet, as in rate.cc
constexpr uint32_t kReceivers = 2;
constexpr uint16_t kDownloads = 5000;
constexpr uint16_t kDctcp = 5001;
constexpr uint16_t kCubic = 5002;
constexpr double kCeGain = 1.0 / 16;  // DCTCP's own gain, RFC 8257
constexpr double kWarmUpS = 1;        // before the first download

struct Options {
  std::string profile{"uncoupled"};
  double rateBps{50e6};
  double rttMs{40};
  double bufferBdp{2};
  double lStepMs{20};  // threshold of profile uncoupled
  uint32_t dctcp{4};   // flows of each sender
  uint32_t cubic{2};
  double load{0.6};  // share of the bottleneck that all of their messages offer
  double messageBytes{100e3};
  double downloadLoad{0.25};
  uint32_t bytes{3200000};  // size of a download
  double seconds{60};
  uint32_t seed{1};
};

Ptr<RandomVariableStream> Exponential(double mean) {
  return CreateObjectWithAttributes<ExponentialRandomVariable>("Mean", DoubleValue(mean));
}

/** A data packet, and what its connection knew when it left. */
struct Row {
  int64_t sentNs;
  int64_t ackedNs;  // 0: not yet
  uint32_t flow;
  uint32_t receiver;
  uint32_t sizeBytes;
  uint32_t cwndBytes;
  int64_t pacingBytesPerS;
  int64_t rateBytesPerS;
  float ceShare;
  uint8_t ecn;
  bool known;  // its latency
  bool retransmitted;
};

/** One connection of the sender: its packets' rows. */
class Connection {
 public:
  Connection(uint32_t flow, uint32_t receiver, uint8_t ecn, std::vector<Row>& rows)
      : m_flow(flow), m_receiver(receiver), m_ecn(ecn), m_rows(rows) {}

  void Watch(Ptr<TcpSocketBase> socket, Download* download = nullptr) {
    m_socket = socket;
    m_download = download;
    using Heard = Callback<void, Ptr<const Packet>, const TcpHeader&, Ptr<const TcpSocketBase>>;
    socket->TraceConnectWithoutContext(
        "Tx", Heard([this](Ptr<const Packet> packet, const TcpHeader& header,
                           Ptr<const TcpSocketBase>) { Sent(packet->GetSize(), header); }));
    socket->TraceConnectWithoutContext(
        "Rx", Heard([this](Ptr<const Packet>, const TcpHeader& header, Ptr<const TcpSocketBase>) {
          Received(header);
        }));
    socket->TraceConnectWithoutContext(
        "CongestionWindow",
        Callback<void, uint32_t, uint32_t>([this](uint32_t, uint32_t now) { m_cwndBytes = now; }));
    socket->TraceConnectWithoutContext(
        "PacingRate", Callback<void, DataRate, DataRate>([this](DataRate, DataRate now) {
          m_pacingBytesPerS = static_cast<int64_t>(now.GetBitRate() / 8);
        }));
  }

 private:
  struct Left {  // when a packet left, and what had been delivered then
    int64_t sentNs;
    int64_t deliveredBytes;
  };

  void Sent(uint32_t payload, const TcpHeader& header) {
    if (payload == 0) {
      return;
    }
    const auto packet = static_cast<uint32_t>(m_rows.size());
    const bool again = m_tracker.Sent(packet, header.GetSequenceNumber().GetValue(), payload) !=
                       swiftqueue::lab::AckTracker::kNew;
    const int64_t now = Simulator::Now().GetNanoSeconds();
    if (m_download != nullptr) {
      m_download->Sent(payload, header);
    }
    m_rows.push_back({now, 0, m_flow, m_receiver, payload + 20 + header.GetSerializedSize(),
                      m_cwndBytes, m_pacingBytesPerS, m_rateBytesPerS, m_ceShare, m_ecn, false,
                      again});
    m_left.push_back({packet, {now, m_deliveredBytes}});
  }

  void Received(const TcpHeader& header) {
    if ((header.GetFlags() & TcpHeader::ACK) == 0 || (header.GetFlags() & TcpHeader::SYN) != 0) {
      return;
    }
    const float marked = (header.GetFlags() & TcpHeader::ECE) != 0 ? 1 : 0;
    m_ceShare += static_cast<float>(kCeGain) * (marked - m_ceShare);
    m_covered.clear();
    m_tracker.Acked(header.GetAckNumber().GetValue(), m_covered);
    const int64_t now = Simulator::Now().GetNanoSeconds();
    for (const auto& covered : m_covered) {
      Row& row = m_rows[covered.packet];
      row.ackedNs = now;
      row.known = covered.known;
      m_deliveredBytes += row.sizeBytes;
      while (m_left.front().first < covered.packet) {
        m_left.pop_front();  // acknowledged out of turn
      }
      if (covered.known && m_left.front().first == covered.packet && now > row.sentNs) {
        const Left& left = m_left.front().second;
        m_rateBytesPerS =
            (m_deliveredBytes - left.deliveredBytes) * 1'000'000'000 / (now - left.sentNs);
      }
    }
    if (m_download != nullptr && m_download->GetEstimate() > 0) {
      m_rateBytesPerS = m_download->GetEstimate();  // better than the last ACK's
    }
  }

  uint32_t m_flow;
  uint32_t m_receiver;
  uint8_t m_ecn;
  std::vector<Row>& m_rows;
  Ptr<TcpSocketBase> m_socket;
  Download* m_download{nullptr};
  swiftqueue::lab::AckTracker m_tracker;
  std::vector<swiftqueue::lab::AckTracker::Covered> m_covered;
  std::deque<std::pair<uint32_t, Left>> m_left;
  uint32_t m_cwndBytes{10 * kSegment};
  int64_t m_pacingBytesPerS{0};
  int64_t m_rateBytesPerS{0};
  int64_t m_deliveredBytes{0};
  float m_ceShare{0};
};

/** Everything of one run, for as long as it is simulated. */
class Experiment {
 public:
  Experiment(const Options& options, std::ostream& samples)
      : m_options(options), m_samples(samples) {
    NodeContainer core;
    core.Create(4);  // sender, other sender, the two routers
    NodeContainer receivers;
    receivers.Create(kReceivers);
    InternetStackHelper stack;
    stack.Install(core);
    stack.Install(receivers);
    const double edgeMs = 0.02 * options.rttMs / 2;
    const auto bottleneck = MakeBottleneck();
    for (const uint32_t sender : {0, 1}) {
      Link(core.Get(sender), core.Get(2), 10 * options.rateBps, edgeMs, nullptr);
    }
    Link(core.Get(2), core.Get(3), options.rateBps, options.rttMs / 2 - 2 * edgeMs, bottleneck);
    for (uint32_t r = 0; r < kReceivers; ++r) {
      m_receivers.push_back(
          Link(core.Get(3), receivers.Get(r), 10 * options.rateBps, edgeMs * (1 + r), nullptr));
      Receive(receivers.Get(r), kDownloads, kSegment, Time(0), [](uint16_t, uint32_t) {});
      swiftqueue::ListenTcp(receivers.Get(r), kDctcp, TcpDctcp::GetTypeId(), [](uint32_t) {});
      swiftqueue::ListenTcp(receivers.Get(r), kCubic, TcpCubic::GetTypeId(), [](uint32_t) {});
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    m_server = core.Get(0);
    const uint32_t each = options.dctcp + options.cubic;
    for (uint32_t f = 0; f < 2 * each; ++f) {
      const bool isL4s = f % each < options.dctcp;
      AddMessages(core.Get(f / each), f % kReceivers, isL4s, f < each);
    }
    m_gap = Exponential(options.bytes * 8 / (options.downloadLoad * options.rateBps));
    m_gap->SetStream(1);
    m_choice->SetStream(2);
    Simulator::Schedule(Seconds(kWarmUpS + m_gap->GetValue()), [this] { Arrive(); });
    Simulator::Stop(Seconds(options.seconds));
  }

  void WritePackets(std::ostream& out) const {
    uint32_t packet = 0;
    for (const Row& row : m_rows) {
      out << packet++ << ',' << row.sentNs << ',' << row.flow << ',' << row.receiver << ','
          << row.sizeBytes << ',' << int{row.ecn} << ',' << (row.ecn == 1 ? "l4s" : "classic")
          << ',';
      if (row.ackedNs > 0) {
        out << row.ackedNs;
      }
      out << ',';
      if (row.known) {
        out << static_cast<double>(row.ackedNs - row.sentNs) / 1e3;
      }
      out << ',' << (row.retransmitted ? "true" : "false") << ',' << row.cwndBytes << ','
          << row.pacingBytesPerS << ',' << row.rateBytesPerS << ',' << row.ceShare << '\n';
    }
  }

  void WriteDownloads(std::ostream& out) const {
    for (std::size_t d = 0; d < m_downloads.size(); ++d) {
      m_downloads[d]->Write(out);
      out << ',';
      if (m_downloads[d]->GetEstablished() > Time(0)) {
        out << m_downloads[d]->GetEstablished().GetNanoSeconds();
      }
      out << ',' << m_flowOf[d] << '\n';
    }
  }

 private:
  Ptr<QueueDisc> MakeBottleneck() const {
    const auto buffer = static_cast<uint32_t>(
        std::max(m_options.rateBps / 8 * m_options.rttMs / 1e3 * m_options.bufferBdp, 1e5));
    swiftqueue::DiscAttributes attributes = swiftqueue::Rfc9332Profile(buffer);
    if (m_options.profile == "uncoupled") {
      attributes = swiftqueue::UncoupledProfile(buffer, Seconds(m_options.lStepMs / 1e3));
    }
    const auto disc = swiftqueue::MakeDisc("ns3::DualPi2QueueDisc", attributes);
    DynamicCast<DualPi2QueueDisc>(disc)->AssignStreams(10);
    return disc;
  }

  /** `disc`: where waiting is to be seen; none: first in, first out, and never full. */
  Ipv4Address Link(Ptr<Node> from, Ptr<Node> to, double rateBps, double delayMs,
                   Ptr<QueueDisc> disc) {
    const auto [devices, address] = swiftqueue::LinkNodes(
        from, to, rateBps, delayMs, disc ? "1p" : "1000000p", disc, m_links++);
    TrafficControlHelper none;
    none.Uninstall(devices.Get(1));  // the device's queue is the only one
    if (!disc) {
      none.Uninstall(devices.Get(0));
    }
    return address;
  }

  Ptr<TcpSocketBase> Open(Ptr<Node> from, TypeId control, uint32_t receiver, bool isOwn) {
    auto socket =
        DynamicCast<TcpSocketBase>(from->GetObject<TcpL4Protocol>()->CreateSocket(control));
    const bool isDownload = control == SampledBbr::GetTypeId();
    socket->SetUseEcn(isDownload ? TcpSocketState::Off : TcpSocketState::On);
    if (isOwn) {
      const uint8_t ecn = isDownload ? 0 : control == TcpDctcp::GetTypeId() ? 1 : 2;
      const auto flow = static_cast<uint32_t>(m_connections.size());
      m_connections.push_back(std::make_unique<Connection>(flow, receiver, ecn, m_rows));
    }
    return socket;
  }

  void AddMessages(Ptr<Node> from, uint32_t receiver, bool isL4s, bool isOwn) {
    const TypeId control = isL4s ? TcpDctcp::GetTypeId() : TcpCubic::GetTypeId();
    const uint32_t flows = 2 * (m_options.dctcp + m_options.cubic);
    auto application = CreateObject<swiftqueue::TrafficApplication>();
    const auto open = [=, this] {
      auto socket = Open(from, control, receiver, isOwn);
      socket->SetPacingStatus(true);  // so that there is a pacing rate
      if (isOwn) {
        m_connections.back()->Watch(socket);
      }
      return socket;
    };
    application->SetSocket(open, InetSocketAddress(m_receivers[receiver], isL4s ? kDctcp : kCubic));
    const double gapS = m_options.messageBytes * 8 * flows / (m_options.load * m_options.rateBps);
    application->SetWrites(Exponential(m_options.messageBytes), Exponential(gapS), 1);
    m_stream += application->AssignStreams(m_stream);
    application->SetStartTime(Seconds(0.01 * m_applications++));  // not all at once
    from->AddApplication(application);
  }

  void Arrive() {
    const auto id = static_cast<uint32_t>(m_downloads.size());
    const uint32_t receiver = m_choice->GetInteger(0, kReceivers - 1);
    auto socket = Open(m_server, SampledBbr::GetTypeId(), receiver, true);
    m_downloads.push_back(std::make_unique<Download>(id, receiver, m_options.bytes, kSegment));
    Download* const download = m_downloads.back().get();
    m_flowOf.push_back(m_connections.size() - 1);
    m_connections.back()->Watch(socket, download);
    download->Watch(socket, CreateObject<SampledBbr>(), m_samples);
    socket->SetConnectCallback(
        Callback<void, Ptr<Socket>>([download, bytes = m_options.bytes](Ptr<Socket> ready) {
          download->Established();
          ready->Send(Create<Packet>(bytes));
          ready->Close();
        }),
        MakeNullCallback<void, Ptr<Socket>>());
    socket->Connect(InetSocketAddress(m_receivers[receiver], kDownloads));
    Simulator::Schedule(Seconds(m_gap->GetValue()), [this] { Arrive(); });
  }

  Options m_options;
  std::ostream& m_samples;
  uint32_t m_links{0};
  uint32_t m_applications{0};
  int64_t m_stream{100};
  Ptr<Node> m_server;
  std::vector<Ipv4Address> m_receivers;
  std::vector<Row> m_rows;
  std::vector<std::unique_ptr<Connection>> m_connections;
  std::vector<std::unique_ptr<Download>> m_downloads;
  std::vector<std::size_t> m_flowOf;  // for each download, its packets' flow
  Ptr<RandomVariableStream> m_gap;    // between downloads
  Ptr<UniformRandomVariable> m_choice{CreateObject<UniformRandomVariable>()};
};

void Simulate(const Options& options, const std::string& folder) {
  RngSeedManager::SetSeed(options.seed);
  swiftqueue::SetTcpDefaults();
  constexpr uint32_t kBufferBytes = 16 << 20;  // never what limits a flow here
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegment));
  Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(kBufferBytes));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(kBufferBytes));
  Config::SetDefault("ns3::TcpSocketBase::Timestamp",
                     BooleanValue(false));  // ns-3 has them in whole ms
  const std::string samples = folder + "/samples.csv";
  const std::string flows = folder + "/flows.csv";
  const std::string packets = folder + "/packets.csv";
  auto sampleRows = Open(samples, SampleColumns());
  auto flowRows = Open(flows, RateColumns() + ",established_ns,flow_id");
  auto packetRows = Open(packets,
                         "packet,sent_ns,flow_id,receiver_id,size_bytes,ecn,queue,acked_ns,"
                         "latency_us,retransmitted,cwnd_bytes,pacing_bytes_per_s,"
                         "rate_bytes_per_s,ce_share");
  {
    Experiment experiment(options, sampleRows);
    Simulator::Run();
    experiment.WriteDownloads(flowRows);
    experiment.WritePackets(packetRows);
  }
  Simulator::Destroy();
  Close(sampleRows, samples);
  Close(flowRows, flows);
  Close(packetRows, packets);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string out;
  CommandLine command(__FILE__);
  command.AddValue("profile", "uncoupled or rfc9332", options.profile);
  command.AddValue("rate-bps", "rate of the bottleneck", options.rateBps);
  command.AddValue("rtt-ms", "round trip of the nearer receiver", options.rttMs);
  command.AddValue("buffer-bdp", "bottleneck's queue, in rate times round trip", options.bufferBdp);
  command.AddValue("l-step-ms", "waiting at which L marks, under uncoupled", options.lStepMs);
  command.AddValue("dctcp", "DCTCP flows of each sender", options.dctcp);
  command.AddValue("cubic", "Cubic flows of each sender", options.cubic);
  command.AddValue("load", "share of the bottleneck that their messages offer", options.load);
  command.AddValue("message-bytes", "mean size of a message", options.messageBytes);
  command.AddValue("download-load", "share that downloads offer", options.downloadLoad);
  command.AddValue("bytes", "size of a download", options.bytes);
  command.AddValue("seconds", "simulated", options.seconds);
  command.AddValue("seed", "of all random choices", options.seed);
  command.AddValue("out", "existing folder for packets.csv, samples.csv and flows.csv", out);
  command.Parse(argc, argv);
  try {
    if (options.profile != "uncoupled" && options.profile != "rfc9332") {
      throw std::runtime_error("profile " + options.profile + ": must be uncoupled or rfc9332");
    }
    if (!(options.rateBps >= 1e6 && options.rttMs > 0 && options.bufferBdp > 0 &&
          options.lStepMs > 0 && options.dctcp > 0 && options.dctcp <= 100 &&
          options.cubic <= 100 && options.load > 0 && options.load <= 2 &&
          options.messageBytes >= 1 && options.downloadLoad > 0 && options.downloadLoad <= 2 &&
          options.bytes > 0 && options.seconds > kWarmUpS && options.seed > 0)) {
      throw std::runtime_error("a value cannot be; see --help");
    }
    Simulate(options, out);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
