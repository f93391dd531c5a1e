// SPDX-License-Identifier: GPL-2.0-only
//
// The two queue discs, one rule a case: run `build/simulation/queue-disc-test`.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "../model/dual-queue-disc.h"
#include "../model/explore-queue-disc.h"
#include "ns3/double.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/test.h"
#include "ns3/uinteger.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3
using swiftqueue::DualQueueDisc;
using swiftqueue::ExploreQueueDisc;

constexpr uint32_t kPayloadBytes = 1448;
constexpr uint32_t kItemBytes = 1448 + 20 + 20;  // and TCP and IPv4 headers

Ptr<Ipv4QueueDiscItem> Item(Ipv4Header::EcnType ecn, uint32_t payloadBytes = kPayloadBytes) {
  auto packet = Create<Packet>(payloadBytes);
  packet->AddHeader(TcpHeader());
  Ipv4Header ip;
  ip.SetEcn(ecn);
  ip.SetProtocol(TcpL4Protocol::PROT_NUMBER);
  ip.SetPayloadSize(packet->GetSize());
  return Create<Ipv4QueueDiscItem>(packet, Address(), 0x0800, ip);
}

Ipv4Header::EcnType EcnOf(Ptr<const QueueDiscItem> item) {
  return DynamicCast<const Ipv4QueueDiscItem>(item)->GetHeader().GetEcn();
}

template <typename Disc>
Ptr<Disc> Make() {
  auto disc = CreateObject<Disc>();
  disc->AssignStreams(1);
  return disc;
}

class ClassificationCase : public TestCase {
 public:
  ClassificationCase() : TestCase("ECT(1) and CE go to L, ECT(0) and Not-ECT to C") {}

 private:
  void DoRun() override {
    const auto queueOf = [](Ipv4Header::EcnType ecn) { return DualQueueDisc::Classify(Item(ecn)); };
    NS_TEST_EXPECT_MSG_EQ(queueOf(Ipv4Header::ECN_ECT1), DualQueueDisc::kL4s, "ECT(1)");
    NS_TEST_EXPECT_MSG_EQ(queueOf(Ipv4Header::ECN_CE), DualQueueDisc::kL4s, "CE");
    NS_TEST_EXPECT_MSG_EQ(queueOf(Ipv4Header::ECN_ECT0), DualQueueDisc::kClassic, "ECT(0)");
    NS_TEST_EXPECT_MSG_EQ(queueOf(Ipv4Header::ECN_NotECT), DualQueueDisc::kClassic, "Not-ECT");
  }
};

class ShareCase : public TestCase {
 public:
  explicit ShareCase(double weight)
      : TestCase("L gets its share of the bytes while both wait: " + std::to_string(weight)),
        m_weight(weight) {}

 private:
  void DoRun() override {
    constexpr int kPackets = 600;
    auto disc = Make<DualQueueDisc>();
    disc->SetAttribute("LWeight", DoubleValue(m_weight));
    disc->Initialize();
    for (int i = 0; i < kPackets; ++i) {
      disc->Enqueue(Item(Ipv4Header::ECN_ECT1));
      disc->Enqueue(Item(Ipv4Header::ECN_NotECT));
    }
    int fromL = 0;
    for (int i = 0; i < kPackets; ++i) {
      fromL += EcnOf(disc->Dequeue()) == Ipv4Header::ECN_ECT1;
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(fromL, m_weight * kPackets, 1.0, "packets served from L");
    disc->Dispose();
    Simulator::Destroy();
  }

  double m_weight;
};

class StepCase : public TestCase {
 public:
  StepCase() : TestCase("L marks what waited longer than the step, and nothing else") {}

 private:
  void DoRun() override {
    auto disc = Make<DualQueueDisc>();
    disc->SetAttribute("LStep", TimeValue(MilliSeconds(20)));
    disc->Initialize();
    disc->Enqueue(Item(Ipv4Header::ECN_ECT1));
    disc->Enqueue(Item(Ipv4Header::ECN_ECT1));
    Simulator::Schedule(MilliSeconds(20), [this, disc] {
      NS_TEST_EXPECT_MSG_EQ(EcnOf(disc->Dequeue()), Ipv4Header::ECN_ECT1, "waited 20 ms");
    });
    Simulator::Schedule(MilliSeconds(21), [this, disc] {
      NS_TEST_EXPECT_MSG_EQ(EcnOf(disc->Dequeue()), Ipv4Header::ECN_CE, "waited 21 ms");
    });
    Simulator::Stop(MilliSeconds(22));
    Simulator::Run();
    disc->Dispose();
    Simulator::Destroy();
  }
};

class LimitCase : public TestCase {
 public:
  LimitCase() : TestCase("each queue has a limit of its own") {}

 private:
  void DoRun() override {
    auto disc = Make<DualQueueDisc>();
    disc->SetAttribute("CLimitBytes", UintegerValue(2 * kItemBytes));
    disc->Initialize();
    for (bool fits : {true, true, false}) {
      NS_TEST_EXPECT_MSG_EQ(disc->Enqueue(Item(Ipv4Header::ECN_NotECT)), fits, "C holds two");
    }
    NS_TEST_EXPECT_MSG_EQ(disc->Enqueue(Item(Ipv4Header::ECN_ECT1)), true, "L has room");
    NS_TEST_EXPECT_MSG_EQ(disc->GetStats().GetNDroppedPackets(DualQueueDisc::kFullDrop), 1u,
                          "one dropped");
    disc->Dispose();
    Simulator::Destroy();
  }
};

class Pi2Case : public TestCase {
 public:
  Pi2Case()
      : TestCase("a standing C queue is answered: ECT(0) marked, Not-ECT dropped, L spared") {}

 private:
  void DoRun() override {
    auto disc = Make<DualQueueDisc>();
    disc->SetAttribute("LStep", TimeValue(Seconds(10)));
    disc->Initialize();
    for (int i = 0; i < 200; ++i) {
      disc->Enqueue(Item(i % 2 ? Ipv4Header::ECN_ECT0 : Ipv4Header::ECN_NotECT));
      disc->Enqueue(Item(Ipv4Header::ECN_ECT1));
    }
    // Nothing is served for a second: by then the controller asks for p = 1.
    Simulator::Schedule(Seconds(1), [this, disc] {
      int marked = 0;
      int spared = 0;
      while (auto item = disc->Dequeue()) {
        marked += EcnOf(item) == Ipv4Header::ECN_CE;
        spared += EcnOf(item) == Ipv4Header::ECN_ECT1;
      }
      NS_TEST_EXPECT_MSG_EQ(marked, 100, "every ECT(0) packet marked");
      NS_TEST_EXPECT_MSG_EQ(spared, 200, "no L packet touched: the queues are not coupled");
      NS_TEST_EXPECT_MSG_EQ(disc->GetStats().GetNDroppedPackets(DualQueueDisc::kPi2Drop), 100u,
                            "every Not-ECT packet dropped");
    });
    // With the queue empty the controller lets go again.
    Simulator::Schedule(Seconds(2), [this, disc] {
      disc->Enqueue(Item(Ipv4Header::ECN_NotECT));
      NS_TEST_EXPECT_MSG_NE(disc->Dequeue(), nullptr, "served after the queue was empty");
    });
    Simulator::Stop(Seconds(2.1));
    Simulator::Run();
    disc->Dispose();
    Simulator::Destroy();
  }
};

class ExploreCase : public TestCase {
 public:
  ExploreCase() : TestCase("exploration remarks whole batches of L4S data, and nothing else") {}

 private:
  static std::vector<bool> Remarked(double share, Ipv4Header::EcnType ecn, uint32_t payload) {
    auto disc = Make<ExploreQueueDisc>();
    disc->SetAttribute("Share", DoubleValue(share));
    disc->Initialize();
    std::vector<bool> remarked;
    for (int i = 0; i < 8000; ++i) {
      disc->Enqueue(Item(ecn, payload));
      remarked.push_back(EcnOf(disc->Dequeue()) != ecn);
    }
    disc->Dispose();
    Simulator::Destroy();
    return remarked;
  }

  static int Count(const std::vector<bool>& flags) {
    return static_cast<int>(std::count(flags.begin(), flags.end(), true));
  }

  void DoRun() override {
    NS_TEST_EXPECT_MSG_EQ(Count(Remarked(0, Ipv4Header::ECN_ECT1, 1448)), 0, "share 0");
    NS_TEST_EXPECT_MSG_EQ(Count(Remarked(1, Ipv4Header::ECN_ECT1, 1448)), 8000, "share 1");
    NS_TEST_EXPECT_MSG_EQ(Count(Remarked(1, Ipv4Header::ECN_NotECT, 1448)), 0, "classic data");
    NS_TEST_EXPECT_MSG_EQ(Count(Remarked(1, Ipv4Header::ECN_ECT1, 0)), 0, "pure ACKs");
    const auto quarter = Remarked(0.25, Ipv4Header::ECN_ECT1, 1448);
    // 1000 batches: the standard deviation of the count is 14 batches
    NS_TEST_EXPECT_MSG_EQ_TOL(Count(quarter), 2000, 4 * 14 * 8, "share 0.25");
    for (std::size_t i = 0; i < quarter.size(); ++i) {
      NS_TEST_EXPECT_MSG_EQ(quarter[i], quarter[i - i % 8], "one fate a batch");
    }
  }
};

class QueueDiscSuite : public TestSuite {
 public:
  QueueDiscSuite() : TestSuite("swiftqueue-queue-discs", Type::UNIT) {
    AddTestCase(new ClassificationCase, Duration::QUICK);
    for (double weight : {0.1, 0.5, 0.9}) {
      AddTestCase(new ShareCase(weight), Duration::QUICK);
    }
    AddTestCase(new StepCase, Duration::QUICK);
    AddTestCase(new LimitCase, Duration::QUICK);
    AddTestCase(new Pi2Case, Duration::QUICK);
    AddTestCase(new ExploreCase, Duration::QUICK);
  }
};

QueueDiscSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string suite = "--suite=swiftqueue-queue-discs";  // and not those of ns-3's own libraries
  std::string verbose = "--verbose";
  arguments.insert(arguments.end(), {suite.data(), verbose.data(), nullptr});
  return TestRunner::Run(static_cast<int>(arguments.size()) - 1, arguments.data());
}
