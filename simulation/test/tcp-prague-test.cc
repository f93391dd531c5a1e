// SPDX-License-Identifier: GPL-2.0-only
//
// TcpPrague: its rules one by one on a bare congestion control, then two hosts and one link for
// what only a socket shows. Run `build/simulation/tcp-prague-test`.

#include "../model/tcp-prague.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ns3/boolean.h"
#include "ns3/bulk-send-application.h"
#include "ns3/bulk-send-helper.h"
#include "ns3/config.h"
#include "ns3/double.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/enum.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/ipv4-global-routing-helper.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/packet-sink-helper.h"
#include "ns3/packet-sink.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/queue-disc.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/test.h"
#include "ns3/traffic-control-layer.h"
#include "ns3/uinteger.h"
#include "suite.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3

constexpr uint32_t kSegmentBytes = 1000;
using Attributes = std::vector<std::pair<std::string, std::string>>;

// --- a bare congestion control ------------------------------------------------------------------

/** A sender whose ACKs the test makes up: one segment each, RTT later, marked or not. */
class Sender {
 public:
  Sender(double windowSegments, Time rtt, const Attributes& attributes = {},
         bool inSlowStart = false)
      : m_rtt(rtt) {
    for (const auto& [name, value] : attributes) {
      m_prague->SetAttribute(name, StringValue(value));
    }
    m_prague->TraceConnectWithoutContext(
        "Round", Callback<void, double, double, double>(
                     [this](double, double alpha, double) { m_alphas.push_back(alpha); }));
    m_tcb->m_segmentSize = kSegmentBytes;
    m_tcb->m_cWnd = static_cast<uint32_t>(windowSegments * kSegmentBytes);
    m_tcb->m_ssThresh = inSlowStart ? 1U << 30 : m_tcb->m_cWnd.Get();
    m_tcb->m_maxPacingRate = DataRate("10Gbps");
    m_tcb->m_srtt = rtt;
    m_prague->Init(m_tcb);
    m_tcb->m_ecnState = TcpSocketState::ECN_IDLE;
    m_prague->CongestionStateSet(m_tcb, TcpSocketState::CA_OPEN);
  }

  /** One round trip: as many ACKs as the window has segments, evenly spaced, all in flight. */
  void Round(const std::function<bool(int)>& marked) {
    const int segments = std::max(1, static_cast<int>(std::lround(m_prague->GetWindow())));
    for (int i = 0; i < segments; ++i) {
      Wait(m_rtt / segments);
      Ack(marked(i));
    }
  }

  void Rounds(int count, const std::function<bool(int)>& marked) {
    for (int i = 0; i < count; ++i) {
      Round(marked);
    }
  }

  void Ack(bool marked) {
    FillWindow();  // as a socket does after each ACK
    m_tcb->m_lastAckedSeq += kSegmentBytes;
    m_tcb->m_lastAckedSackedBytes = kSegmentBytes;
    m_tcb->m_ecnState = marked ? TcpSocketState::ECN_ECE_RCVD : TcpSocketState::ECN_IDLE;
    TcpRateOps::TcpRateConnection connection;
    connection.m_firstSentTime = Simulator::Now() - m_rtt;
    TcpRateOps::TcpRateSample sample;
    sample.m_priorInFlight = m_inFlightShare * m_prague->GetWindow() * kSegmentBytes;
    m_prague->CongControl(m_tcb, connection, sample);
  }

  void FillWindow() {
    const auto segments = static_cast<uint32_t>(std::lround(m_prague->GetWindow()));
    m_tcb->m_highTxMark = std::max(m_tcb->m_highTxMark.Get(),
                                   m_tcb->m_lastAckedSeq + std::max(segments, 1U) * kSegmentBytes);
  }

  void Lose() {
    FillWindow();
    m_prague->CongestionStateSet(m_tcb, TcpSocketState::CA_RECOVERY);
    m_tcb->m_congState = TcpSocketState::CA_RECOVERY;
  }

  void TimeOut() {
    m_prague->CwndEvent(m_tcb, TcpSocketState::CA_EVENT_LOSS);
    m_tcb->m_congState = TcpSocketState::CA_LOSS;
  }

  void Wait(Time time) {
    Simulator::Schedule(time, [] {});
    Simulator::Run();
  }

  double Window() const { return m_prague->GetWindow(); }
  double Alpha() const { return m_prague->GetAlpha(); }
  double ClassicEvidence() const { return m_prague->GetClassicEvidence(); }
  double PacedSegments() const {  // in a round trip
    return m_tcb->m_pacingRate.Get().GetBitRate() / 8.0 * m_rtt.GetSeconds() / kSegmentBytes;
  }
  Ptr<TcpSocketState> Tcb() { return m_tcb; }
  const std::vector<double>& AlphaOfRounds() const { return m_alphas; }

  Time m_rtt;
  double m_inFlightShare{1};

 private:
  std::vector<double> m_alphas;  // at the end of each round
  Ptr<TcpPrague> m_prague{CreateObject<TcpPrague>()};
  Ptr<TcpSocketState> m_tcb{CreateObject<TcpSocketState>()};
};

bool Never(int) { return false; }
bool Always(int) { return true; }
bool First(int i) { return i == 0; }

const Attributes kPlain = {{"VirtualRtt", "0ms"}, {"SlowStartReduction", "0"}};

/** A case that leaves no event behind. */
class PragueCase : public TestCase {
 public:
  using TestCase::TestCase;

 private:
  virtual void Check() = 0;
  void DoRun() override {
    Check();
    Simulator::Destroy();
  }
};

class IdentityCase : public PragueCase {
 public:
  IdentityCase() : PragueCase("ECT(1), DCTCP's echo, paced by itself; defaults") {}

 private:
  void Check() override {
    Sender sender(10, MilliSeconds(20));
    auto tcb = sender.Tcb();
    NS_TEST_EXPECT_MSG_EQ(tcb->m_ectCodePoint, TcpSocketState::Ect1, "RFC 9331 4.1");
    NS_TEST_EXPECT_MSG_EQ(tcb->m_ecnMode, TcpSocketState::DctcpEcn, "each mark is echoed");
    NS_TEST_EXPECT_MSG_EQ(tcb->m_useEcn, TcpSocketState::On, "it asks for ECN");
    NS_TEST_EXPECT_MSG_EQ(tcb->m_pacing, true, "paced");
    NS_TEST_EXPECT_MSG_EQ(tcb->m_paceInitialWindow, true, "from the first packet");
    const Attributes defaults = {{"AlphaGain", "0.0625"},           {"VirtualRtt", "+2.5e+07ns"},
                                 {"IndependentAfterRounds", "4"},   {"LossReduction", "0.5"},
                                 {"SlowStartReduction", "0.5"},     {"SlowStartPacing", "2"},
                                 {"AvoidancePacing", "1"},          {"PacingVariation", "0.03"},
                                 {"PaceInitialWindow", "true"},     {"MinSegments", "2"},
                                 {"MinRate", "100000bps"},          {"DetectClassicEcn", "false"},
                                 {"ClassicDeviation", "+750000ns"}, {"ClassicDepth", "+2e+06ns"}};
    const TypeId tid = TcpPrague::GetTypeId();
    NS_TEST_EXPECT_MSG_EQ(tid.GetAttributeN(), defaults.size(), "every attribute is here");
    for (const auto& [name, expected] : defaults) {
      TypeId::AttributeInformation information;
      NS_TEST_ASSERT_MSG_EQ(tid.LookupAttributeByName(name, &information), true, name);
      NS_TEST_EXPECT_MSG_EQ(information.initialValue->SerializeToString(information.checker),
                            expected, name);
      const bool sourced = information.help.find("RFC ") != std::string::npos ||
                           information.help.find("arXiv") != std::string::npos;
      NS_TEST_EXPECT_MSG_EQ(sourced, true, name << " names its section or paper");
    }
  }
};

class AlphaCase : public PragueCase {
 public:
  AlphaCase() : PragueCase("alpha is the moving average of the share of marks, once a round") {}

 private:
  void Check() override {
    Sender none(20, MilliSeconds(40), kPlain);
    none.Rounds(10, Never);
    NS_TEST_EXPECT_MSG_EQ(none.Alpha(), 0, "no mark");
    Sender all(20, MilliSeconds(40), kPlain);
    all.Rounds(30, Always);
    NS_TEST_EXPECT_MSG_GT(all.AlphaOfRounds().size(), 20u, "a value a round");
    double expected = 0;
    for (double alpha : all.AlphaOfRounds()) {
      expected += (1 - expected) / 16;
      NS_TEST_EXPECT_MSG_EQ_TOL(alpha, expected, 1e-9, "all marked");
    }
    Sender some(400, MilliSeconds(40), kPlain);
    some.Rounds(200, [](int i) { return i % 4 == 0; });
    NS_TEST_EXPECT_MSG_EQ_TOL(some.Alpha(), 0.25, 0.08, "a quarter marked");
  }
};

class MarkCase : public PragueCase {
 public:
  MarkCase() : PragueCase("a mark takes half of alpha of the window, once a round") {}

 private:
  void Check() override {
    Sender sender(100, MilliSeconds(40), kPlain);
    sender.Rounds(5, Always);
    sender.Rounds(2, Never);
    const double alpha = sender.Alpha();
    const double before = sender.Window();
    sender.Ack(true);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), before * (1 - alpha / 2), 1e-9, "the first");
    const double after = sender.Window();
    sender.Ack(true);
    sender.Ack(true);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), after, 1e-9, "the next ones of that round");
    sender.Ack(false);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), after + 1 / after, 1e-9,
                              "what is not marked goes on to make it grow");
  }
};

class EquilibriumCase : public PragueCase {
 public:
  EquilibriumCase() : PragueCase("where a share p is marked the window is 2 (1 - p) over p") {}

 private:
  void Check() override {
    for (int every : {5, 10, 25}) {
      Sender sender(20, MilliSeconds(40), kPlain);
      int count = 0;
      sender.Rounds(400, [&](int) { return ++count % every == 0; });
      double sum = 0;
      for (int i = 0; i < 100; ++i) {
        sender.Round([&](int) { return ++count % every == 0; });
        sum += sender.Window() / 100;
      }
      // A round gains 1 - p segments and gives up p W / 2. The next response comes with the first
      // mark after the round, up to 1 / p segments later, which have gained as well.
      const double p = 1.0 / every;
      const double least = 2 * (1 - p) / p;
      const double most = least / 2 + std::sqrt(least * least / 4 + least / p);
      NS_TEST_EXPECT_MSG_GT(sum, 0.95 * least, "p " << p);
      NS_TEST_EXPECT_MSG_LT(sum, 1.05 * most, "p " << p);
    }
  }
};

class SlowStartCase : public PragueCase {
 public:
  SlowStartCase() : PragueCase("slow start doubles, paced at twice; its first mark halves") {}

 private:
  void Check() override {
    Sender sender(10, MilliSeconds(40), {}, true);
    sender.Rounds(3, Never);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), 80, 1e-9, "10, 20, 40, 80");
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.PacedSegments(), 160, 1, "twice the window a round trip");
    sender.Ack(true);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), 40, 1e-9, "half");
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.PacedSegments(), 40, 40 * 0.031, "no faster than the window");
    sender.Ack(false);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), 40 + 1.0 / 40, 1e-9, "and grows by one a round");
  }
};

class RttCase : public PragueCase {
 public:
  RttCase() : PragueCase("below the virtual RTT growth is that of a flow of 25 ms") {}

 private:
  /** Segments a second, gained in a second, once the rule holds. */
  static double Acceleration(Time rtt, const Attributes& attributes = {}) {
    Sender sender(40, rtt, attributes);
    sender.Rounds(8, Never);
    const double before = sender.Window();
    const Time start = Simulator::Now();
    sender.Rounds(20, Never);
    return (sender.Window() - before) / rtt.GetSeconds() / (Simulator::Now() - start).GetSeconds();
  }

  void Check() override {
    const double reference = 1 / (0.025 * 0.025);  // segments/s per s: one a virtual RTT, in each
    for (int ms : {2, 5, 10, 20, 25}) {
      NS_TEST_EXPECT_MSG_EQ_TOL(Acceleration(MilliSeconds(ms)), reference, 0.05 * reference,
                                ms << " ms");
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(Acceleration(MilliSeconds(100)), 100, 5, "above it as Reno's");
    NS_TEST_EXPECT_MSG_EQ_TOL(Acceleration(MilliSeconds(5), kPlain), 40000, 2000,
                              "and switched off");

    Sender sender(40, MilliSeconds(5));  // marked at the start of each round trip
    sender.Rounds(6, Never);
    int responses = 0;
    for (int i = 0; i < 50; ++i) {
      bool lower = false;
      sender.Round([&, last = sender.Window()](int k) mutable {
        lower = lower || sender.Window() < last;
        last = sender.Window();
        return First(k);
      });
      responses += lower;
    }
    // 250 ms, a response every 25 ms or at the next mark, 5 ms later
    NS_TEST_EXPECT_MSG_EQ_TOL(responses, 9, 1.01, "not one in each round trip");
  }
};

class LossCase : public PragueCase {
 public:
  LossCase() : PragueCase("a loss halves the window, as Reno does; a timeout restarts") {}

 private:
  void Check() override {
    Sender sender(100, MilliSeconds(40), kPlain);
    sender.Rounds(2, Never);
    const double before = sender.Window();
    sender.Lose();
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), before / 2, 1e-9, "half, with alpha at 0");
    sender.Lose();
    sender.Ack(true);
    sender.Ack(false);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), before / 2, 1e-9, "one response a round, no growth");
    for (int i = 0; i < 110; ++i) {  // all that was in flight, and a few more
      sender.Ack(false);
    }
    NS_TEST_EXPECT_MSG_GT(sender.Window(), before / 2, "then it grows again");

    Sender late(64, MilliSeconds(40), kPlain);
    late.Round(Never);
    const double full = late.Window();
    late.TimeOut();
    NS_TEST_EXPECT_MSG_EQ_TOL(late.Window(), 1, 1e-9, "one segment");
    NS_TEST_EXPECT_MSG_EQ_TOL(late.Tcb()->m_ssThresh, full / 2 * kSegmentBytes, kSegmentBytes,
                              "half");
    late.TimeOut();
    NS_TEST_EXPECT_MSG_EQ_TOL(late.Tcb()->m_ssThresh, full / 2 * kSegmentBytes, kSegmentBytes,
                              "a second timeout in a row changes nothing");
    late.Rounds(5, Never);
    NS_TEST_EXPECT_MSG_EQ_TOL(late.Window(), 32, 1, "slow start to there");
  }
};

class PacingCase : public PragueCase {
 public:
  PacingCase() : PragueCase("paced at the window a round trip, faster then slower by 3 %") {}

 private:
  void Check() override {
    Sender sender(50, MilliSeconds(40), {{"VirtualRtt", "0ms"}});
    sender.Round(Never);
    bool faster = false;
    bool slower = false;
    for (int i = 0; i < 4; ++i) {
      sender.Round([&](int) {
        const double gain = sender.PacedSegments() / sender.Window();
        faster = faster || std::abs(gain - 1.03) < 1e-3;
        slower = slower || std::abs(gain - 0.97) < 1e-3;
        return false;
      });
    }
    NS_TEST_EXPECT_MSG_EQ(faster && slower, true, "both halves of a round");
    NS_TEST_EXPECT_MSG_GT(sender.Tcb()->m_cWnd, 1.03 * sender.Window() * kSegmentBytes,
                          "the window leaves room for the faster one");
  }
};

class SmallWindowCase : public PragueCase {
 public:
  SmallWindowCase() : PragueCase("below two segments pacing goes on down, to MinRate") {}

 private:
  void Check() override {
    Sender sender(2, MilliSeconds(10));
    sender.Rounds(300, Always);
    // 100 kbit/s · 10 ms = 1/8 segment
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), 0.125, 0.01, "a fraction of a segment");
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.PacedSegments(), 0.125, 0.01, "and paced so");
    NS_TEST_EXPECT_MSG_EQ(sender.Tcb()->m_cWnd, 2 * kSegmentBytes, "two may be in flight");
    sender.Rounds(2000, Never);
    NS_TEST_EXPECT_MSG_GT(sender.Window(), 2, "and it comes back");
  }
};

class UnusedWindowCase : public PragueCase {
 public:
  UnusedWindowCase() : PragueCase("a window of which not half is used does not grow") {}

 private:
  void Check() override {
    Sender sender(40, MilliSeconds(40), kPlain);
    sender.m_inFlightShare = 0.4;
    sender.Rounds(5, Never);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), 40, 1e-9, "application-limited");
    sender.m_inFlightShare = 0.6;
    sender.Rounds(5, Never);
    NS_TEST_EXPECT_MSG_EQ_TOL(sender.Window(), 45, 0.5, "used");
  }
};

class ClassicDetectionCase : public PragueCase {
 public:
  ClassicDetectionCase()
      : PragueCase("a deep, swinging queue is a classic one, a short one is not") {}

 private:
  static double Evidence(bool detect, double depthMs, double swingMs) {
    Attributes attributes = kPlain;
    attributes.emplace_back("DetectClassicEcn", detect ? "true" : "false");
    Sender sender(40, MilliSeconds(20), attributes);
    sender.Rounds(2, Never);
    for (int i = 0; i < 60; ++i) {
      sender.m_rtt = MilliSeconds(20) + Seconds((depthMs + (i % 2 ? swingMs : -swingMs)) * 1e-3);
      sender.Round(First);
    }
    return sender.ClassicEvidence();
  }

  void Check() override {
    NS_TEST_EXPECT_MSG_EQ(Evidence(true, 12, 5), 1, "as PIE at 15 ms");
    NS_TEST_EXPECT_MSG_EQ(Evidence(true, 0.6, 0.3), 0, "as L at 1 ms");
    NS_TEST_EXPECT_MSG_EQ(Evidence(false, 12, 5), 0, "off");
  }
};

// --- two hosts and a link -----------------------------------------------------------------------

/** A FIFO that drops or marks every n-th packet, or lets six others overtake it; from the 200th on.
 */
class TroubleQueueDisc : public QueueDisc {
 public:
  TroubleQueueDisc(int dropEvery, int holdEvery, int markEvery)
      : QueueDisc(QueueDiscSizePolicy::NO_LIMITS),
        m_dropEvery(dropEvery),
        m_holdEvery(holdEvery),
        m_markEvery(markEvery) {}

 private:
  static constexpr int kOvertaking = 6;

  static bool IsTurn(int count, int every) {
    return every > 0 && count > 200 && count % every == 0;
  }

  bool DoEnqueue(Ptr<QueueDiscItem> item) override {
    if (IsTurn(++m_enqueued, m_dropEvery)) {
      DropBeforeEnqueue(item, "every n-th");
      return false;
    }
    if (IsTurn(m_enqueued, m_markEvery)) {
      Mark(item, "every n-th");
    }
    return GetInternalQueue(0)->Enqueue(item);
  }

  Ptr<QueueDiscItem> DoDequeue() override {
    if (m_held && m_overtaken == kOvertaking) {
      m_overtaken = 0;
      return std::exchange(m_held, nullptr);
    }
    auto item = GetInternalQueue(0)->Dequeue();
    if (item && IsTurn(++m_dequeued, m_holdEvery)) {
      m_held = item;
      item = GetInternalQueue(0)->Dequeue();
    }
    m_overtaken += item && m_held;
    return item;
  }

  bool CheckConfig() override {
    AddInternalQueue(CreateObjectWithAttributes<DropTailQueue<QueueDiscItem>>(
        "MaxSize", StringValue("100000p")));
    return true;
  }
  void InitializeParams() override {}

  const int m_dropEvery;
  const int m_holdEvery;
  const int m_markEvery;
  int m_enqueued{0};
  int m_dequeued{0};
  int m_overtaken{0};
  Ptr<QueueDiscItem> m_held;
};

struct Transfer {
  std::map<std::pair<uint8_t, uint8_t>, int> packets;  // by TCP flags, ECN field
  int retransmissions{0};
  int notEct1{0};
  std::vector<double> windows;  // segments, after each change
  std::vector<double> goodputMbps;
};

/**
 * Bulk flows from one host to another over one link, one for each named congestion control. The
 * disc, of the given maker, stands at the sender's end.
 */
Transfer Send(const std::vector<std::string>& tcps, DataRate rate, Time rtt, Time duration,
              const std::function<Ptr<QueueDisc>()>& makeDisc, uint32_t dupAckThreshold = 3) {
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(1 << 22));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(1 << 22));
  Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
  Config::SetDefault("ns3::TcpSocketBase::UseEcn", EnumValue(TcpSocketState::On));
  Config::SetDefault("ns3::TcpSocketBase::ReTxThreshold", UintegerValue(dupAckThreshold));
  Transfer transfer;
  NodeContainer routers(2);
  InternetStackHelper().Install(routers);
  Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
  PointToPointHelper link;
  link.SetDeviceAttribute("DataRate", DataRateValue(rate));
  link.SetChannelAttribute("Delay", TimeValue(rtt / 2));
  link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
  auto devices = link.Install(routers);
  routers.Get(0)->GetObject<TrafficControlLayer>()->SetRootQueueDiscOnDevice(devices.Get(0),
                                                                             makeDisc());
  addresses.Assign(devices);
  PointToPointHelper access;
  access.SetDeviceAttribute("DataRate", StringValue("1Gbps"));
  access.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("100000p"));
  std::vector<Ptr<PacketSink>> sinks;
  const bool prague = tcps[0] == "ns3::TcpPrague";
  for (std::size_t i = 0; i < tcps.size(); ++i) {
    NodeContainer hosts(2);
    InternetStackHelper().Install(hosts);
    Ipv4Address receiver;
    for (uint32_t side : {0, 1}) {
      hosts.Get(side)->GetObject<TcpL4Protocol>()->SetAttribute(
          "SocketType", TypeIdValue(TypeId::LookupByName(tcps[i])));
      addresses.NewNetwork();
      receiver = addresses.Assign(access.Install(hosts.Get(side), routers.Get(side))).GetAddress(0);
      if (i == 0 && prague) {
        hosts.Get(side)->GetObject<Ipv4L3Protocol>()->TraceConnectWithoutContext(
            "Tx", Callback<void, Ptr<const Packet>, Ptr<Ipv4>, uint32_t>(
                      [&transfer](Ptr<const Packet> packet, Ptr<Ipv4>, uint32_t) {
                        auto copy = packet->Copy();
                        Ipv4Header ip;
                        TcpHeader tcp;
                        copy->RemoveHeader(ip);
                        copy->RemoveHeader(tcp);
                        ++transfer.packets[{tcp.GetFlags(), ip.GetEcn()}];
                        transfer.notEct1 += ip.GetEcn() != Ipv4Header::ECN_ECT1;
                      }));
      }
    }
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
    sinks.push_back(DynamicCast<PacketSink>(sink.Install(hosts.Get(1)).Get(0)));
    BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(receiver, 5000));
    auto application = DynamicCast<BulkSendApplication>(bulk.Install(hosts.Get(0)).Get(0));
    application->SetStartTime(MilliSeconds(1));
    if (i == 0) {
      Simulator::Schedule(MilliSeconds(1) + NanoSeconds(1), [application, &transfer] {
        auto socket = application->GetSocket();
        socket->TraceConnectWithoutContext(
            "CongestionWindow", Callback<void, uint32_t, uint32_t>([&](uint32_t, uint32_t bytes) {
              transfer.windows.push_back(bytes / 1448.0);
            }));
        socket->TraceConnectWithoutContext(
            "Retransmission",
            Callback<void, Ptr<const Packet>, const TcpHeader&, const Address&, const Address&,
                     Ptr<const TcpSocketBase>>(
                [&transfer](Ptr<const Packet>, const TcpHeader&, const Address&, const Address&,
                            Ptr<const TcpSocketBase>) { ++transfer.retransmissions; }));
      });
    }
  }
  Ipv4GlobalRoutingHelper::PopulateRoutingTables();
  Simulator::Stop(duration);
  Simulator::Run();
  for (const auto& sink : sinks) {
    transfer.goodputMbps.push_back(sink->GetTotalRx() * 8e-6 / duration.GetSeconds());
  }
  Simulator::Destroy();
  return transfer;
}

Ptr<QueueDisc> Trouble(int dropEvery, int holdEvery, int markEvery = 0) {
  return CreateObject<TroubleQueueDisc>(dropEvery, holdEvery, markEvery);
}

class EveryPacketCase : public PragueCase {
 public:
  EveryPacketCase() : PragueCase("ECT(1) on every packet: SYN, data, retransmissions, pure ACKs") {}

 private:
  void Check() override {
    const auto t = Send({"ns3::TcpPrague"}, DataRate("20Mbps"), MilliSeconds(20), Seconds(3),
                        [] { return Trouble(400, 0); });
    NS_TEST_EXPECT_MSG_EQ(t.notEct1, 0, "all of both hosts");
    NS_TEST_EXPECT_MSG_EQ(t.packets.size(), 3u, "SYN, SYN-ACK, and ACKs with and without data");
    NS_TEST_EXPECT_MSG_GT(t.retransmissions, 3, "some were retransmissions");
  }
};

class DropCase : public PragueCase {
 public:
  DropCase() : PragueCase("losses are repaired and answered on a link that marks nothing") {}

 private:
  void Check() override {
    // Reno: W = sqrt(3 / (2 p)) = 24.5 segments on average at p = 1/400, 14 Mbit/s at 20 ms
    const auto t = Send({"ns3::TcpPrague"}, DataRate("100Mbps"), MilliSeconds(20), Seconds(10),
                        [] { return Trouble(400, 0); });
    const double reno = std::sqrt(1.5 * 400) * 1448 * 8 / 20e-3 * 1e-6;
    // the virtual RTT makes it a flow of 25 ms
    NS_TEST_EXPECT_MSG_EQ_TOL(t.goodputMbps[0], reno * 20 / 25, 0.3 * reno, "as a Reno flow");
  }
};

class MarkedDropCase : public PragueCase {
 public:
  MarkedDropCase() : PragueCase("losses are answered amid marks, where ns-3's socket hides them") {}

 private:
  static double Kept(const std::string& tcp) {
    Config::SetDefault("ns3::TcpDctcp::UseEct0", BooleanValue(false));
    const auto goodput = [&tcp](int dropEvery) {
      return Send({tcp}, DataRate("100Mbps"), MilliSeconds(20), Seconds(8),
                  [dropEvery] { return Trouble(dropEvery, 0, 20); })
          .goodputMbps[0];
    };
    return goodput(300) / goodput(0);
  }

  void Check() override {
    const double prague = Kept("ns3::TcpPrague");
    const double dctcp = Kept("ns3::TcpDctcp");
    std::cout << "kept of the goodput at 1/20 marked when 1/300 is lost: Prague " << prague
              << ", DCTCP " << dctcp << "\n";
    NS_TEST_EXPECT_MSG_LT(prague, 0.8, "Prague slows down");
  }
};

class ReorderCase : public PragueCase {
 public:
  ReorderCase() : PragueCase("a raised duplicate-ACK threshold takes reordering for what it is") {}

 private:
  void Check() override {
    const auto run = [](uint32_t threshold) {
      return Send(
          {"ns3::TcpPrague"}, DataRate("20Mbps"), MilliSeconds(20), Seconds(3),
          [] { return Trouble(0, 100); }, threshold);
    };
    const auto three = run(3);
    const auto twelve = run(12);
    NS_TEST_EXPECT_MSG_GT(three.retransmissions, 5, "each held packet is sent again");
    NS_TEST_EXPECT_MSG_EQ(twelve.retransmissions, 0, "none is");
    NS_TEST_EXPECT_MSG_EQ(std::is_sorted(twelve.windows.begin(), twelve.windows.end()), true,
                          "and the window is never reduced");
  }
};

class ClassicBottleneckCase : public PragueCase {
 public:
  ClassicBottleneckCase()
      : PragueCase("behind a classic ECN AQM the detector leaves Cubic a share") {}

 private:
  static double CubicShare(bool detect) {
    Config::SetDefault("ns3::TcpPrague::DetectClassicEcn", BooleanValue(detect));
    const auto t = Send({"ns3::TcpPrague", "ns3::TcpCubic"}, DataRate("20Mbps"), MilliSeconds(20),
                        Seconds(15), [] {
                          ObjectFactory factory("ns3::PieQueueDisc");
                          factory.Set("UseEcn", BooleanValue(true));
                          factory.Set("MarkEcnThreshold", DoubleValue(1));
                          factory.Set("MaxSize", StringValue("1000p"));
                          return factory.Create<QueueDisc>();
                        });
    Config::SetDefault("ns3::TcpPrague::DetectClassicEcn", BooleanValue(false));
    return t.goodputMbps[1] / (t.goodputMbps[0] + t.goodputMbps[1]);
  }

  void Check() override {
    const double off = CubicShare(false);
    const double on = CubicShare(true);
    std::cout << "Cubic's share behind PIE: " << off << " without the detector, " << on
              << " with\n";
    NS_TEST_EXPECT_MSG_LT(off, 0.25, "without it Cubic is starved");
    NS_TEST_EXPECT_MSG_GT(on, 0.35, "with it it is not");
  }
};

class TcpPragueSuite : public TestSuite {
 public:
  TcpPragueSuite() : TestSuite("tcp-prague", Type::UNIT) {
    const auto add = [this](TestCase* testCase) { AddTestCase(testCase, Duration::QUICK); };
    add(new IdentityCase);
    add(new AlphaCase);
    add(new MarkCase);
    add(new EquilibriumCase);
    add(new SlowStartCase);
    add(new RttCase);
    add(new LossCase);
    add(new PacingCase);
    add(new SmallWindowCase);
    add(new UnusedWindowCase);
    add(new ClassicDetectionCase);
    add(new EveryPacketCase);
    add(new DropCase);
    add(new MarkedDropCase);
    add(new ReorderCase);
    add(new ClassicBottleneckCase);
  }
};

TcpPragueSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) { return swiftqueue::RunSuite("tcp-prague", argc, argv); }
