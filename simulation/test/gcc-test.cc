// SPDX-License-Identifier: GPL-2.0-only
//
// Google congestion control: its arithmetic in closed form, and a call over a link of two nodes.
// Run `build/simulation/gcc-test`.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../model/gcc-application.h"
#include "../model/gcc-controller.h"
#include "ns3/data-rate.h"
#include "ns3/error-model.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/point-to-point-net-device.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/test.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/udp-l4-protocol.h"
#include "suite.h"

namespace {

using namespace ns3;         // NOLINT(build/namespaces): a test speaks ns-3
using namespace swiftqueue;  // NOLINT(build/namespaces): of this

constexpr double kTolerance = 1e-9;

// --- arithmetic ---------------------------------------------------------------------------------

class GroupingCase : public TestCase {
 public:
  GroupingCase()
      : TestCase("packets of one burst are a group, and so is what arrives in a burst") {}

 private:
  void DoRun() override {
    gcc::Grouping groups;
    NS_TEST_EXPECT_MSG_EQ(groups.Add({0, 20, 1200}).has_value(), false, "the first");
    NS_TEST_EXPECT_MSG_EQ(groups.Add({4.9, 26, 1200}).has_value(), false, "within 5 ms");
    NS_TEST_EXPECT_MSG_EQ(groups.Add({10, 31, 1200}).has_value(), false, "one group is no delta");
    const auto delta = groups.Add({20, 41, 1200});
    NS_TEST_EXPECT_MSG_EQ(delta.has_value(), true, "two are");
    NS_TEST_EXPECT_MSG_EQ_TOL(delta->arrivalMs, 31 - 26, kTolerance, "between the last packets");
    NS_TEST_EXPECT_MSG_EQ_TOL(delta->departureMs, 10 - 4.9, kTolerance, "likewise");
    // Sent 10 ms later and there 1 ms later: what an outage has held back is one group.
    NS_TEST_EXPECT_MSG_EQ(groups.Add({30, 42, 1200}).has_value(), false, "a burst of arrivals");
    NS_TEST_EXPECT_MSG_EQ(groups.Add({25, 41.5, 1200}).has_value(), false, "out of order: ignored");
    NS_TEST_EXPECT_MSG_EQ(groups.Add({40, 52, 1200})->arrivalMs, 42 - 31, "the burst's end counts");
  }
};

class FilterCase : public TestCase {
 public:
  FilterCase() : TestCase("the arrival filter, step by step") {}

 private:
  void DoRun() override {
    gcc::ArrivalFilter filter;
    // z = 2; an exponent of 30 / (1000 · 0.2 per ms); e(0) + q = 0.101
    const double alpha = std::pow(0.99, 0.15);
    const double variance = alpha + (1 - alpha) * 4;
    const double gain = 0.101 / (variance + 0.101);
    const double first = filter.Update({7, 5});
    NS_TEST_EXPECT_MSG_EQ_TOL(first, 2 * gain, kTolerance, "m(1)");
    NS_TEST_EXPECT_MSG_EQ_TOL(filter.Error(), (1 - gain) * 0.101, kTolerance, "e(1)");
    NS_TEST_EXPECT_MSG_EQ_TOL(filter.Variance(), variance, kTolerance, "var(1)");
    // An outlier counts as three deviations for the variance.
    const double before = filter.Variance();
    filter.Update({1005, 5});
    NS_TEST_EXPECT_MSG_EQ_TOL(filter.Variance(), alpha * before + (1 - alpha) * 9 * before,
                              kTolerance, "an outlier");
    gcc::ArrivalFilter steady;
    double growth = 0;
    for (int i = 0; i < 2000; ++i) {
      growth = steady.Update({5.5, 5});
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(growth, 0.5, 0.001, "a queue that grows by 0.5 ms a group");
  }
};

class DetectorCase : public TestCase {
 public:
  DetectorCase() : TestCase("over-use takes 10 ms and does not fall; the threshold adapts") {}

 private:
  void DoRun() override {
    gcc::OveruseDetector detector(1);
    NS_TEST_EXPECT_MSG_EQ((detector.Update(13, 5) == gcc::Usage::kNormal), true, "0 ms");
    NS_TEST_EXPECT_MSG_EQ_TOL(detector.ThresholdMs(), 12.5 + 5 * 0.01 * 0.5, kTolerance, "up");
    NS_TEST_EXPECT_MSG_EQ((detector.Update(14, 5) == gcc::Usage::kNormal), true, "5 ms");
    NS_TEST_EXPECT_MSG_EQ((detector.Update(15, 5) == gcc::Usage::kOver), true, "10 ms");
    NS_TEST_EXPECT_MSG_EQ((detector.Update(14.9, 5) == gcc::Usage::kNormal), true, "it falls");
    NS_TEST_EXPECT_MSG_EQ((detector.Update(-20, 5) == gcc::Usage::kUnder), true, "a queue drains");
    const double before = detector.ThresholdMs();
    NS_TEST_EXPECT_MSG_EQ((detector.Update(0, 10) == gcc::Usage::kNormal), true, "between");
    NS_TEST_EXPECT_MSG_EQ_TOL(detector.ThresholdMs(), before * (1 - 10 * 0.00018), kTolerance,
                              "down");
    detector.Update(100, 5);
    NS_TEST_EXPECT_MSG_EQ_TOL(detector.ThresholdMs(), before * (1 - 10 * 0.00018), kTolerance,
                              "what is far beyond changes nothing");
    for (int i = 0; i < 100'000; ++i) {
      detector.Update(0, 5);
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(detector.ThresholdMs(), 6, kTolerance, "the least");
    gcc::OveruseDetector scaled;
    for (int i = 0; i < 59; ++i) {
      scaled.Update(0.3, 5);
    }
    NS_TEST_EXPECT_MSG_EQ((scaled.Update(0.3, 5) == gcc::Usage::kOver), true, "60 · 0.3 ms");
  }
};

class DelayRateCase : public TestCase {
 public:
  DelayRateCase() : TestCase("8 % a second, 0.85 of what comes, half a packet a response time") {}

 private:
  void DoRun() override {
    using State = gcc::DelayRate::State;
    gcc::DelayRate rate(1e6, 1e5, 1e8);
    const auto update = [&rate](gcc::Usage usage, double incoming, double now) {
      rate.Update(usage, incoming, 40, now);
    };
    update(gcc::Usage::kNormal, 1e6, 0);
    update(gcc::Usage::kNormal, 1e6, 500);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 1e6 * std::sqrt(1.08), 1e-3, "half a second");
    update(gcc::Usage::kNormal, 1e6, 5500);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 1e6 * std::sqrt(1.08) * 1.08, 1e-3, "a second at most");
    update(gcc::Usage::kOver, 1e6, 5600);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 0.85e6, 1e-3, "over-use");
    NS_TEST_EXPECT_MSG_EQ((rate.GetState() == State::kDecrease), true, "state");
    update(gcc::Usage::kNormal, 0.9e6, 5700);
    NS_TEST_EXPECT_MSG_EQ((rate.GetState() == State::kHold), true, "holds first");
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 0.85e6, 1e-3, "and stays");
    update(gcc::Usage::kUnder, 0.9e6, 5800);
    NS_TEST_EXPECT_MSG_EQ((rate.GetState() == State::kHold), true, "while a queue drains");
    update(gcc::Usage::kOver, 0.98e6, 5900);
    NS_TEST_EXPECT_MSG_EQ(rate.IsNearConvergence(0.99e6), false, "two decreases say nothing");
    update(gcc::Usage::kNormal, 0.98e6, 5950);
    update(gcc::Usage::kOver, 0.99e6, 5970);
    update(gcc::Usage::kNormal, 0.99e6, 6000);
    // Their mean is 0.99 and their deviation 0.0082 Mbit a second, so 0.995 is near. 140 ms later:
    // half a packet of 833e3 / 30 bits in three packets.
    const double bps = rate.Bps();
    update(gcc::Usage::kNormal, 0.995e6, 6140);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps() - bps, 0.5 * bps / 30 / 3, 1e-3, "near: additive");
    NS_TEST_EXPECT_MSG_EQ(rate.IsNearConvergence(1.01e6), true, "within 3 deviations");
    NS_TEST_EXPECT_MSG_EQ(rate.IsNearConvergence(1.02e6), false, "beyond them");
    update(gcc::Usage::kNormal, 2e6, 6240);
    NS_TEST_EXPECT_MSG_EQ(rate.IsNearConvergence(0.99e6), false, "another level: forgotten");
    gcc::DelayRate idle(1e6, 1e5, 1e8);
    for (int i = 0; i < 100; ++i) {
      idle.Update(gcc::Usage::kNormal, 1e6, 40, i * 1000);
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(idle.Bps(), 1.5e6, 1e-3, "no more than 1.5 of what comes");
  }
};

class LossRateCase : public TestCase {
 public:
  LossRateCase() : TestCase("2 % and 10 %") {}

 private:
  void DoRun() override {
    gcc::LossRate rate(1e6, 1e5);
    rate.Update(0.0199, 1e8);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 1.05e6, 1e-3, "grows");
    rate.Update(0.02, 1e8);
    rate.Update(0.10, 1e8);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 1.05e6, 1e-3, "stays");
    rate.Update(0.2, 1e8);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 0.945e6, 1e-3, "1 - p / 2");
    rate.Update(0, 0.95e6);
    NS_TEST_EXPECT_MSG_EQ_TOL(rate.Bps(), 0.95e6, 1e-3, "not beyond A_hat");
  }
};

// --- a call over a link -------------------------------------------------------------------------

constexpr double kDelayMs = 20;

/** Two nodes, a FIFO of 1000 packets, a call that starts at 0.3 Mbit/s. */
class Link {
 public:
  explicit Link(double mbps, uint32_t scale = gcc::OveruseDetector::kScale,
                double startMbps = 0.3) {
    m_nodes.Create(2);
    InternetStackHelper().Install(m_nodes);
    PointToPointHelper helper;
    helper.SetChannelAttribute("Delay", TimeValue(Seconds(kDelayMs * 1e-3)));
    helper.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    const auto devices = helper.Install(m_nodes);
    m_out = DynamicCast<PointToPointNetDevice>(devices.Get(0));
    m_in = DynamicCast<PointToPointNetDevice>(devices.Get(1));
    m_in->SetDataRate(DataRate("1Gbps"));
    SetMbps(mbps);
    TrafficControlHelper control;
    control.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("1000p"));
    const auto discs = control.Install(devices);
    discs.Get(0)->TraceConnectWithoutContext(
        "Dequeue", Callback<void, Ptr<const QueueDiscItem>>([this](Ptr<const QueueDiscItem> item) {
          m_waits.push_back({Simulator::Now().GetSeconds(),
                             (Simulator::Now() - item->GetTimeStamp()).GetSeconds() * 1e3});
        }));
    const auto to = Ipv4AddressHelper("10.0.0.0", "255.255.255.0").Assign(devices).GetAddress(1);
    auto receiver = CreateObject<GccReceiver>();
    receiver->Listen(Open(1), 5000, 0.02, [this](uint32_t bytes) {
      m_received.push_back({Simulator::Now().GetSeconds(), static_cast<double>(bytes)});
      log->Received(m_stream += bytes);
    });
    m_nodes.Get(1)->AddApplication(receiver);
    call = CreateObject<GccApplication>();
    call->SetSocket([this] { return Open(0); }, InetSocketAddress(to, 5000));
    call->SetFrames({0.02, 0.1e6, 50e6}, startMbps * 1e6, log, scale);
    m_nodes.Get(0)->AddApplication(call);
  }
  ~Link() { Simulator::Destroy(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void SetMbps(double mbps) { m_out->SetDataRate(DataRate(static_cast<uint64_t>(mbps * 1e6))); }

  void SetLoss(double share) {
    auto errors = CreateObject<RateErrorModel>();
    errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
    errors->SetRate(share);
    errors->AssignStreams(1);
    m_in->SetReceiveErrorModel(errors);
  }

  void RunUntil(double s) {
    Simulator::Stop(Seconds(s) - Simulator::Now());
    Simulator::Run();
  }

  double Mbps(double from, double to) const {
    double bytes = 0;
    for (const auto& [s, count] : m_received) {
      bytes += s >= from && s < to ? count : 0;
    }
    return bytes * 8e-6 / (to - from);
  }

  /** Of the packets that left in between: a quantile of how long they waited, ms. */
  double WaitMs(double share, double from, double to) const {
    std::vector<double> waits;
    for (const auto& [s, ms] : m_waits) {
      if (s >= from && s < to) {
        waits.push_back(ms);
      }
    }
    std::sort(waits.begin(), waits.end());
    return waits.empty() ? 0 : waits[static_cast<std::size_t>(share * (waits.size() - 1))];
  }

  std::shared_ptr<WriteLog> log{std::make_shared<WriteLog>()};
  Ptr<GccApplication> call;

 private:
  Ptr<Socket> Open(uint32_t node) {
    return m_nodes.Get(node)->GetObject<UdpL4Protocol>()->CreateSocket();
  }

  NodeContainer m_nodes;
  Ptr<PointToPointNetDevice> m_out, m_in;
  std::vector<std::pair<double, double>> m_waits, m_received;
  uint64_t m_stream{0};
};

class FillCase : public TestCase {
 public:
  FillCase() : TestCase("a call alone fills a link of 5 Mbit a second, without a standing queue") {}

 private:
  void DoRun() override {
    {
      Link link(5);
      link.RunUntil(120);
      NS_TEST_EXPECT_MSG_GT(link.Mbps(60, 120), 0.75 * 5, "filled");
      NS_TEST_EXPECT_MSG_LT(link.WaitMs(0.95, 60, 120), 10, "no standing queue");
    }
    // The draft's letter, which compares one group's growth with its threshold of 12.5 ms, does not
    // see a queue that grows slowly.
    Link literal(5, 1);
    literal.RunUntil(120);
    NS_TEST_EXPECT_MSG_GT(literal.WaitMs(0.5, 60, 120), 500, "why growths are added up");
  }
};

class StepCase : public TestCase {
 public:
  StepCase() : TestCase("it backs off on a growing queue, and finds the new rate after a step") {}

 private:
  void DoRun() override {
    Link link(4, gcc::OveruseDetector::kScale, 2);
    link.RunUntil(60);
    link.SetMbps(8);
    link.RunUntil(110);
    link.SetMbps(3);
    link.RunUntil(150);
    NS_TEST_EXPECT_MSG_GT(link.Mbps(30, 60), 0.75 * 4, "before");
    NS_TEST_EXPECT_MSG_GT(link.Mbps(80, 110), 0.75 * 8, "a step up");
    NS_TEST_EXPECT_MSG_LT(link.WaitMs(0.95, 60, 110), 15, "without a queue");
    NS_TEST_EXPECT_MSG_GT(link.WaitMs(1, 110, 115), 100, "a step down: a queue grows");
    NS_TEST_EXPECT_MSG_LT(link.WaitMs(1, 117, 150), 50, "and is gone");
    NS_TEST_EXPECT_MSG_GT(link.Mbps(120, 150), 0.7 * 3, "at the lower rate");
  }
};

class LossCase : public TestCase {
 public:
  LossCase() : TestCase("it yields to loss above 10 %, not to 1 %, and repairs both") {}

 private:
  void DoRun() override {
    Link link(8, gcc::OveruseDetector::kScale, 4);
    link.SetLoss(0.01);
    link.RunUntil(60);
    link.SetLoss(0.2);
    link.RunUntil(75);
    link.SetLoss(0);
    link.RunUntil(150);
    NS_TEST_EXPECT_MSG_GT(link.Mbps(30, 60), 0.75 * 8, "1 %");
    NS_TEST_EXPECT_MSG_LT(link.Mbps(70, 75), 0.1 * 8, "20 %");
    NS_TEST_EXPECT_MSG_GT(link.Mbps(140, 150), 0.7 * 8, "afterwards");
    const auto& frames = link.log->Writes();
    const auto missing = std::count_if(frames.begin(), frames.end(),
                                       [](const auto& frame) { return frame.delayS < 0; });
    NS_TEST_EXPECT_MSG_LT(missing, 5, "what was lost was sent again: only the last are under way");
  }
};

class GccSuite : public TestSuite {
 public:
  GccSuite() : TestSuite("swiftqueue-gcc", Type::UNIT) {
    AddTestCase(new GroupingCase, Duration::QUICK);
    AddTestCase(new FilterCase, Duration::QUICK);
    AddTestCase(new DetectorCase, Duration::QUICK);
    AddTestCase(new DelayRateCase, Duration::QUICK);
    AddTestCase(new LossRateCase, Duration::QUICK);
    AddTestCase(new FillCase, Duration::QUICK);
    AddTestCase(new StepCase, Duration::QUICK);
    AddTestCase(new LossCase, Duration::QUICK);
  }
};

GccSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) { return swiftqueue::RunSuite("swiftqueue-gcc", argc, argv); }
