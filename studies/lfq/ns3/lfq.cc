// SPDX-License-Identifier: GPL-2.0-only
//
// Many short runs of one TCP flow through one queue, as LFQ learns from and is judged by:
// `lfq --runs=FILE --rows=FILE --inputs=FILE`. A line of the first is a run:
//
//   TCP BPS RTT_MS SECONDS INITIAL_WINDOW FORK_S KIND VALUE TIMES TYPE [ATTRIBUTE=VALUE]...
//
// TCP is new_reno, bic, cubic or bbr. KIND is `none`, `limit` or `change`: at FORK_S an LFQ's
// limits become VALUE, or change by it, and stay. At each of TIMES (s, with commas, or `-`) what an
// LFQ knows of the flow is written to --inputs: kInputs float32. A row is what came of a run;
// what there is not is empty. The same line gives the same row.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ns3/command-line.h"
#include "ns3/config.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/tcp-bbr.h"
#include "ns3/tcp-bic.h"
#include "ns3/tcp-congestion-ops.h"
#include "ns3/tcp-cubic.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/uinteger.h"
#include "simulation/helper/link.h"
#include "simulation/helper/queue-profiles.h"
#include "simulation/helper/tcp-endpoints.h"
#include "simulation/model/lfq-queue-disc.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a program of ns-3
using swiftqueue::LfqQueueDisc;
using swiftqueue::LinkNodes;

constexpr uint32_t kSegment = 1446;  // of the slides; on the wire 1500, with PPP's header
constexpr uint16_t kPort = 5000;
constexpr double kAccessMs = 0.1;  // one way, of each access link
constexpr double kAccessBps = 1e9;

struct Asked {
  std::string tcp;
  double rateBps{0};
  double rttMs{0};
  double seconds{0};
  uint32_t initialWindow{0};
  double forkS{0};
  std::string kind;
  int64_t value{0};
  std::vector<double> times;
  std::string disc;
  swiftqueue::DiscAttributes attributes;
};

TypeId TcpOf(const std::string& name) {
  static const std::map<std::string, TypeId> known = {
      {"new_reno", TcpNewReno::GetTypeId()},
      {"bic", TcpBic::GetTypeId()},
      {"cubic", TcpCubic::GetTypeId()},
      {"bbr", TcpBbr::GetTypeId()},
  };
  const auto found = known.find(name);
  if (found == known.end()) {
    throw std::invalid_argument("there is no TCP " + name);
  }
  return found->second;
}

Asked Read(const std::string& line) {
  Asked asked;
  std::istringstream words(line);
  std::string times;
  words >> asked.tcp >> asked.rateBps >> asked.rttMs >> asked.seconds >> asked.initialWindow >>
      asked.forkS >> asked.kind >> asked.value >> times >> asked.disc;
  if (!words) {
    throw std::invalid_argument("a word is missing, or no number");
  }
  if (!(asked.rateBps >= 1e4 && asked.rttMs > 4 * kAccessMs && asked.seconds > 0 &&
        asked.initialWindow > 0 && asked.forkS >= 0)) {
    throw std::invalid_argument("a number cannot be");
  }
  if (asked.kind != "none" && asked.kind != "limit" && asked.kind != "change") {
    throw std::invalid_argument("there is no kind " + asked.kind);
  }
  std::istringstream list(times == "-" ? "" : times);
  for (std::string time; std::getline(list, time, ',');) {
    asked.times.push_back(std::stod(time));
  }
  for (std::string word; words >> word;) {
    const auto equal = word.find('=');
    if (equal == std::string::npos) {
      throw std::invalid_argument(word + " is no ATTRIBUTE=VALUE");
    }
    asked.attributes.emplace_back(word.substr(0, equal), word.substr(equal + 1));
  }
  TcpOf(asked.tcp);
  return asked;
}

/** A value that changes now and then: its mean over time, and its greatest. */
class OverTime {
 public:
  void Set(double value) {
    m_sum += m_value * (Simulator::Now() - m_since).GetSeconds();
    m_since = Simulator::Now();
    m_value = value;
    m_most = std::max(m_most, value);
  }
  double Now() const { return m_value; }
  double Most() const { return m_most; }
  /** Value times seconds until now. */
  double Sum() {
    Set(m_value);
    return m_sum;
  }

 private:
  double m_value{0};
  double m_most{0};
  double m_sum{0};
  Time m_since{Simulator::Now()};
};

/** Everything of one run, for as long as it is simulated. */
class Experiment {
 public:
  Experiment(const Asked& asked, std::ostream& inputs) : m_asked(asked), m_inputs(inputs) {
    NodeContainer nodes;  // server, router, receiver
    nodes.Create(3);
    InternetStackHelper().Install(nodes);
    LinkNodes(nodes.Get(0), nodes.Get(1), kAccessBps, kAccessMs, "1000000p", nullptr, 0);
    m_disc = swiftqueue::MakeDisc(asked.disc, asked.attributes);
    m_lfq = DynamicCast<LfqQueueDisc>(m_disc);
    const double oneWayMs = asked.rttMs / 2 - kAccessMs;
    const Ipv4Address to =
        LinkNodes(nodes.Get(1), nodes.Get(2), asked.rateBps, oneWayMs, "1p", m_disc, 1).to;
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    m_disc->TraceConnectWithoutContext(
        "PacketsInQueue", Callback<void, uint32_t, uint32_t>(
                              [this](uint32_t, uint32_t packets) { m_queue.Set(packets); }));
    if (m_lfq) {
      UintegerValue begin;
      m_lfq->GetAttribute("FlowLimit", begin);
      m_limit.Set(static_cast<double>(begin.Get()));
      m_lfq->TraceConnectWithoutContext(
          "Decided",
          Callback<void, uint32_t, uint32_t, bool>([this](uint32_t bucket, uint32_t limit, bool) {
            m_bucket = bucket;
            m_limit.Set(limit);
          }));
    }
    swiftqueue::ListenTcp(nodes.Get(2), kPort, TcpOf(asked.tcp),
                          [this](uint32_t bytes) { m_bytes += bytes; });
    Connect(nodes.Get(0), to);
    for (const double time : asked.times) {
      Simulator::Schedule(Seconds(time), [this] { WriteInputs(); });
    }
    // Behind what is looked at in the same moment.
    Simulator::Schedule(Seconds(asked.forkS), [this] { Fork(); });
  }

  void Write(std::ostream& row) {
    const double seconds = Simulator::Now().GetSeconds();
    row << m_bytes << ',' << m_queue.Sum() / seconds << ',' << m_queue.Most() << ','
        << m_disc->GetStats().nTotalDroppedPackets << ',';
    if (m_lfq) {
      row << m_limit.Sum() / seconds << ',' << m_lfq->GetDecisions() << ','
          << m_lfq->GetFallbacks();
    } else {
      row << ",,";
    }
    const double after = seconds - m_asked.forkS;
    row << ',' << m_limitBefore << ',' << after << ',' << m_bytes - m_bytesBefore << ','
        << (m_queue.Sum() - m_queueBefore) / after << '\n';
  }

 private:
  /** A flow that always has something to send. */
  void Connect(Ptr<Node> from, Ipv4Address to) {
    m_socket = from->GetObject<TcpL4Protocol>()->CreateSocket(TcpOf(m_asked.tcp));
    const auto fill = [](Ptr<Socket> socket, uint32_t) {
      while (socket->GetTxAvailable() >= kSegment && socket->Send(Create<Packet>(kSegment)) > 0) {
      }
    };
    m_socket->SetConnectCallback(
        Callback<void, Ptr<Socket>>([fill](Ptr<Socket> ready) { fill(ready, 0); }),
        MakeNullCallback<void, Ptr<Socket>>());
    m_socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(fill));
    // Once the nodes are initialised.
    Simulator::ScheduleNow([this, to] { m_socket->Connect(InetSocketAddress(to, kPort)); });
  }

  void WriteInputs() {
    swiftqueue::lfq::Inputs inputs{};
    if (m_lfq && m_bucket) {
      inputs = m_lfq->GetInputs(*m_bucket);
    }
    m_inputs.write(reinterpret_cast<const char*>(inputs.data()), sizeof inputs);
  }

  void Fork() {
    m_bytesBefore = m_bytes;
    m_queueBefore = m_queue.Sum();
    m_limitBefore = static_cast<int64_t>(m_limit.Now());
    if (m_asked.kind == "none" || !m_lfq) {
      return;
    }
    using swiftqueue::lfq::kLeastLimit;
    using swiftqueue::lfq::kMostLimit;
    const int64_t to = m_asked.value + (m_asked.kind == "change" ? m_limitBefore : 0);
    const auto limit = static_cast<uint32_t>(std::clamp<int64_t>(to, kLeastLimit, kMostLimit));
    m_lfq->Freeze(limit);
    m_limit.Set(limit);
  }

  const Asked& m_asked;
  std::ostream& m_inputs;
  Ptr<QueueDisc> m_disc;
  Ptr<LfqQueueDisc> m_lfq;
  Ptr<Socket> m_socket;
  OverTime m_queue;
  OverTime m_limit;
  std::optional<uint32_t> m_bucket;  // of the flow, once a limit was decided
  uint64_t m_bytes{0};
  uint64_t m_bytesBefore{0};
  double m_queueBefore{0};
  int64_t m_limitBefore{0};
};

void Simulate(const Asked& asked, std::ostream& row, std::ostream& inputs) {
  swiftqueue::SetTcpDefaults();
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegment));
  Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(asked.initialWindow));
  Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue("Off"));
  {
    Experiment experiment(asked, inputs);
    Simulator::Stop(Seconds(asked.seconds));
    Simulator::Run();
    experiment.Write(row);
    Simulator::Destroy();
  }
}

template <typename Stream>
Stream Open(const std::string& path) {
  Stream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot open " + path);
  }
  return file;
}

void Close(std::ofstream& file, const std::string& path) {
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write all of " + path + ": is the disk full?");
  }
}

void Main(int argc, char** argv) {
  std::string runs;
  std::string rows;
  std::string inputs;
  CommandLine command(__FILE__);
  command.AddValue("runs", "file with a line for each run", runs);
  command.AddValue("rows", "file for what comes of each (CSV)", rows);
  command.AddValue("inputs", "file for what an LFQ knew (float32)", inputs);
  command.Parse(argc, argv);
  auto asked = Open<std::ifstream>(runs);
  auto row = Open<std::ofstream>(rows);
  auto known = Open<std::ofstream>(inputs);
  row.precision(std::numeric_limits<double>::max_digits10);
  row << "bytes,queue_mean,queue_max,dropped,limit_mean,decisions,fallbacks,fork_limit,after_s,"
         "after_bytes,after_queue_mean\n";
  std::size_t number = 0;
  for (std::string line; std::getline(asked, line);) {
    ++number;
    try {
      Simulate(Read(line), row, known);
    } catch (const std::exception& error) {
      throw std::runtime_error(runs + ": line " + std::to_string(number) + ": " + error.what());
    }
    if (number % 100 == 0) {
      std::cout << "progress " << number << std::endl;
    }
  }
  Close(row, rows);
  Close(known, inputs);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
