// SPDX-License-Identifier: GPL-2.0-only
//
// DualPi2QueueDisc without a network, one rule of RFC 9332 a case: run
// `build/simulation/dual-pi2-queue-disc-test`.

#include "../model/dual-pi2-queue-disc.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ns3/double.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/ipv6-queue-disc-item.h"
#include "ns3/queue.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/test.h"
#include "ns3/uinteger.h"
#include "suite.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3
using Disc = DualPi2QueueDisc;
using Ecn = Ipv4Header::EcnType;

constexpr Ecn kNotEct = Ipv4Header::ECN_NotECT;
constexpr Ecn kEct0 = Ipv4Header::ECN_ECT0;
constexpr Ecn kEct1 = Ipv4Header::ECN_ECT1;
constexpr Ecn kCe = Ipv4Header::ECN_CE;
constexpr uint32_t kItemBytes = 1500;

Ptr<Ipv4QueueDiscItem> Item(Ecn ecn, uint32_t bytes = kItemBytes) {
  Ipv4Header ip;
  ip.SetEcn(ecn);
  ip.SetPayloadSize(bytes - ip.GetSerializedSize());
  return Create<Ipv4QueueDiscItem>(Create<Packet>(bytes - ip.GetSerializedSize()), Address(),
                                   0x0800, ip);
}

Ptr<Ipv6QueueDiscItem> Item6(Ecn ecn) {
  Ipv6Header ip;
  ip.SetEcn(static_cast<Ipv6Header::EcnType>(ecn));
  return Create<Ipv6QueueDiscItem>(Create<Packet>(1000), Address(), 0x86dd, ip);
}

/** Something that is not IP, as an ARP request: it has no ECN field and cannot be marked. */
class PlainItem : public QueueDiscItem {
 public:
  PlainItem() : QueueDiscItem(Create<Packet>(kItemBytes), Address(), 0x0806) {}
  void AddHeader() override {}
  bool Mark() override { return false; }
};

Ecn EcnOf(Ptr<const QueueDiscItem> item) {
  uint8_t dsField = 0;
  item->GetUint8Value(QueueItem::IP_DSFIELD, dsField);
  return static_cast<Ecn>(dsField & 0b11);
}

using Attributes = std::vector<std::pair<std::string, std::string>>;

Ptr<Disc> Make(const Attributes& attributes = {}) {
  auto disc = CreateObject<Disc>();
  for (const auto& [name, value] : attributes) {
    disc->SetAttribute(name, StringValue(value));
  }
  disc->AssignStreams(1);
  disc->Initialize();
  return disc;
}

/** Run what has been scheduled, then leave nothing behind for the next case. */
void Finish(Ptr<Disc> disc, Time at) {
  Simulator::Stop(at);
  Simulator::Run();
  disc->Dispose();
  Simulator::Destroy();
}

/**
 * Attributes under which p' is `p` from 16 ms to 32 ms if a packet has stood in the queue since 0:
 * with Alpha = 0, p' = Beta · 16 ms.
 */
Attributes HoldBaseProbability(double p, Attributes more = {}) {
  more.emplace_back("Alpha", "0");
  more.emplace_back("Beta", std::to_string(p / 0.016));
  // nothing but the coupling marks in L
  more.emplace_back("LAqm", "Step");
  more.emplace_back("LStep", "10s");
  return more;
}
const Time kHeld = MilliSeconds(20);

class ClassificationCase : public TestCase {
 public:
  ClassificationCase() : TestCase("2.3: ECT(1) and CE go to L, all else to C; IPv4 and IPv6") {}

 private:
  void DoRun() override {
    const std::vector<std::tuple<Ptr<QueueDiscItem>, Disc::Queue, std::string>> table = {
        {Item(kNotEct), Disc::kClassic, "IPv4 Not-ECT"},
        {Item(kEct0), Disc::kClassic, "IPv4 ECT0"},
        {Item(kEct1), Disc::kL4s, "IPv4 ECT1"},
        {Item(kCe), Disc::kL4s, "IPv4 CE"},
        {Item6(kNotEct), Disc::kClassic, "IPv6 Not-ECT"},
        {Item6(kEct0), Disc::kClassic, "IPv6 ECT0"},
        {Item6(kEct1), Disc::kL4s, "IPv6 ECT1"},
        {Item6(kCe), Disc::kL4s, "IPv6 CE"},
        {Create<PlainItem>(), Disc::kClassic, "not IP"},
    };
    for (const auto& [item, queue, name] : table) {
      auto disc = Make();
      NS_TEST_EXPECT_MSG_EQ(Disc::ClassifyItem(item), queue, name);
      const uint8_t before = EcnOf(item);
      disc->Enqueue(item);
      NS_TEST_EXPECT_MSG_EQ(disc->GetInternalQueue(queue)->GetNPackets(), 1u, name);
      NS_TEST_EXPECT_MSG_EQ(EcnOf(disc->Dequeue()), before, name << ": not marked when idle");
      Finish(disc, Time(1));
    }
  }
};

class DefaultsCase : public TestCase {
 public:
  DefaultsCase() : TestCase("A.1: parameter defaults") {}

 private:
  void DoRun() override {
    const std::vector<std::pair<std::string, std::string>> defaults = {
        {"Target", "+1.5e+07ns"},
        {"Tupdate", "+1.6e+07ns"},
        {"Alpha", "0.16"},
        {"Beta", "3.2"},
        {"CouplingFactor", "2"},
        {"LAqm", "Ramp"},
        {"LMinThreshold", "+800000ns"},
        {"LRange", "+400000ns"},
        {"LStep", "+1e+06ns"},
        {"LMinPackets", "1"},
        {"LMaxProbability", "1"},
        {"CWeight", "0.0625"},
        {"CWeightBy", "Fixed"},
        {"Overload", "Drop"},
        {"DelayInput", "Greater"},
        {"Draw", "Recur"},
        {"Scheduler", "WeightedRoundRobin"},
        {"MaxSize", "3125000B"},
        {"LMaxBytes", "4294967295"},
        {"CMaxBytes", "4294967295"},
        {"Mtu", "1500"},
        {"MinBacklogBytes", "0"},
        {"TimeShift", "+5e+07ns"},
    };
    const TypeId tid = Disc::GetTypeId();
    NS_TEST_EXPECT_MSG_EQ(tid.GetAttributeN(), defaults.size(), "every attribute is here");
    for (const auto& [name, expected] : defaults) {
      TypeId::AttributeInformation information;
      NS_TEST_ASSERT_MSG_EQ(tid.LookupAttributeByName(name, &information), true, name);
      NS_TEST_EXPECT_MSG_EQ(information.initialValue->SerializeToString(information.checker),
                            expected, name);
      NS_TEST_EXPECT_MSG_NE(information.help.find("RFC 9332"), std::string::npos,
                            name << " names its section");
    }
  }
};

class LimitCase : public TestCase {
 public:
  LimitCase() : TestCase("A.1: drop when full; a shared limit and one of each queue") {}

 private:
  void Fill(const Attributes& attributes, Ecn ecn, uint32_t fits, const char* reason) {
    auto disc = Make(attributes);
    for (uint32_t i = 0; i < fits + 3; ++i) {
      NS_TEST_EXPECT_MSG_EQ(disc->Enqueue(Item(ecn)), (i < fits), reason << ", packet " << i);
    }
    NS_TEST_EXPECT_MSG_EQ(disc->GetStats().GetNDroppedPackets(reason), 3u, reason);
    const auto queue = Disc::ClassifyItem(Item(ecn));
    NS_TEST_EXPECT_MSG_EQ(disc->GetQueueCounts(queue).refusedPackets, 3u, reason);
    NS_TEST_EXPECT_MSG_EQ(disc->GetQueueCounts(queue).enqueuedPackets, fits, reason);
    Finish(disc, Time(1));
  }

  void DoRun() override {
    Fill({{"MaxSize", "6000B"}}, kEct1, 4, Disc::kSharedLimitDrop);
    Fill({{"MaxSize", "6000B"}}, kEct0, 4, Disc::kSharedLimitDrop);
    Fill({{"LMaxBytes", "3000"}}, kEct1, 2, Disc::kLLimitDrop);
    Fill({{"CMaxBytes", "4500"}}, kNotEct, 3, Disc::kCLimitDrop);

    auto disc = Make({{"MaxSize", "6000B"}, {"CMaxBytes", "3000"}});
    for (int i = 0; i < 3; ++i) {
      disc->Enqueue(Item(kNotEct));
    }
    NS_TEST_EXPECT_MSG_EQ(disc->Enqueue(Item(kEct1)), true, "a full C leaves L its room");
    NS_TEST_EXPECT_MSG_EQ(disc->Enqueue(Item(kEct1, 100)), true, "an MTU still fits");
    NS_TEST_EXPECT_MSG_EQ(disc->Enqueue(Item(kEct1, 100)), false, "an MTU does not fit: no favour");
    Finish(disc, Time(1));
  }
};

class WeightCase : public TestCase {
 public:
  WeightCase(double weight, uint32_t lBytes, uint32_t cBytes)
      : TestCase("4.2: C gets " + std::to_string(weight) + " of the bytes, L packets of " +
                 std::to_string(lBytes) + " B, C of " + std::to_string(cBytes)),
        m_weight(weight),
        m_lBytes(lBytes),
        m_cBytes(cBytes) {}

 private:
  void DoRun() override {
    constexpr double kServedBytes = 2e6;
    auto disc = Make({{"CWeight", std::to_string(m_weight)}, {"MaxSize", "100000000B"}});
    for (double filled = 0; filled < kServedBytes; filled += std::min(m_lBytes, m_cBytes)) {
      disc->Enqueue(Item(kEct1, m_lBytes));
      disc->Enqueue(Item(kNotEct, m_cBytes));
    }
    double served = 0;
    double fromC = 0;
    while (served < kServedBytes) {
      auto item = disc->Dequeue();
      served += item->GetSize();
      fromC += EcnOf(item) == kNotEct ? item->GetSize() : 0;
      // Never more than a packet of each (and the head start after idle) away from the share.
      NS_TEST_ASSERT_MSG_LT_OR_EQ(std::abs(fromC - m_weight * served), 2 * 1500 + 1,
                                  "after " << served << " bytes");
    }
    Finish(disc, Time(1));
  }

  double m_weight;
  uint32_t m_lBytes;
  uint32_t m_cBytes;
};

/** C's share of the bytes sent from `fromMs` for 100 ms: one flow in C, eight more in L from 1 s
 * on. */
double AgedShare(const Attributes& attributes, int64_t fromMs) {
  auto disc = Make(HoldBaseProbability(0, attributes));
  const auto ofFlow = [](Ecn ecn, uint8_t flow) {
    auto item = Item(ecn);
    Ipv4Header ip = item->GetHeader();
    ip.SetSource(Ipv4Address(flow));
    return Create<Ipv4QueueDiscItem>(item->GetPacket(), Address(), 0x0800, ip);
  };
  std::array<double, 2> sent{};
  constexpr int64_t kPacketUs = 120;  // at 100 Mbit/s
  for (int64_t us = 0; us < (fromMs + 100) * 1000; us += kPacketUs) {
    Simulator::Schedule(MicroSeconds(us), [&, us] {
      if (disc->GetInternalQueue(Disc::kClassic)->GetNPackets() < 20) {
        disc->Enqueue(ofFlow(kEct0, 1));
      }
      const auto turn = static_cast<uint8_t>(us / kPacketUs % 8);
      if (us >= 1'000'000 && disc->GetInternalQueue(Disc::kL4s)->GetNPackets() < 40) {
        disc->Enqueue(ofFlow(kEct1, 10 + turn));
      }
      const auto item = disc->Dequeue();
      if (us >= fromMs * 1000 && item) {
        sent[Disc::ClassifyItem(item)] += item->GetSize();
      }
    });
  }
  Finish(disc, MilliSeconds(fromMs + 100));
  return sent[Disc::kClassic] / (sent[Disc::kClassic] + sent[Disc::kL4s]);
}

class AgedWeightCase : public TestCase {
 public:
  AgedWeightCase() : TestCase("CWeightBy: an old flow of C beside eight new ones of L") {}

 private:
  void DoRun() override {
    const Attributes aged = {{"CWeightBy", "Age"}};
    // 1 / (1 + 2^(age / 250 ms)), until the eight are old too
    for (const auto& [ms, share] : {std::pair{1100, 1.0 / 2},
                                    {1350, 1.0 / 3},
                                    {1600, 1.0 / 5},
                                    {1850, 1.0 / 9},
                                    {3000, 1.0 / 9}}) {
      NS_TEST_EXPECT_MSG_EQ_TOL(AgedShare(aged, ms), share, 0.02, ms << " ms");
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(AgedShare({}, 1100), 1.0 / 16, 0.02, "Fixed: CWeight");
    NS_TEST_EXPECT_MSG_EQ_TOL(AgedShare({{"CWeightBy", "Age"}, {"CWeight", "0.25"}}, 3000), 0.25,
                              0.02, "no less than CWeight");
  }
};

class DroppedShareCase : public TestCase {
 public:
  DroppedShareCase() : TestCase("4.2: a packet dropped at dequeue costs its queue no share") {}

 private:
  void DoRun() override {
    constexpr int kServed = 1000;
    // uncoupled: C loses p_C = 0.49 of its packets, L none
    auto disc = Make(HoldBaseProbability(
        0.7, {{"CWeight", "0.5"}, {"CouplingFactor", "0"}, {"MaxSize", "100000000B"}}));
    for (int i = 0; i < 2 * kServed; ++i) {
      disc->Enqueue(Item(kNotEct));
      disc->Enqueue(Item(kEct1));
    }
    int fromC = 0;
    Simulator::Schedule(kHeld, [&] {
      for (int i = 0; i < kServed; ++i) {
        fromC += EcnOf(disc->Dequeue()) == kNotEct;
      }
    });
    Finish(disc, kHeld + Time(1));
    NS_TEST_EXPECT_MSG_GT(disc->GetQueueCounts(Disc::kClassic).droppedPackets, kServed / 3,
                          "C loses packets");
    NS_TEST_EXPECT_MSG_EQ_TOL(fromC, kServed / 2, 2, "and still gets its half of the link");
  }
};

class AloneCase : public TestCase {
 public:
  AloneCase() : TestCase("2.2: a queue alone has the whole link and gains no claim on the other") {}

 private:
  void DoRun() override {
    for (const std::string scheduler : {"WeightedRoundRobin", "TimeShiftedFifo"}) {
      auto disc = Make({{"Scheduler", scheduler}});
      for (int i = 0; i < 500; ++i) {
        disc->Enqueue(Item(kNotEct));
        NS_TEST_EXPECT_MSG_NE(disc->Dequeue(), nullptr, "C alone");
      }
      for (int i = 0; i < 40; ++i) {
        disc->Enqueue(Item(kNotEct));
        disc->Enqueue(Item(kEct1));
      }
      int fromL = 0;
      for (int i = 0; i < 15; ++i) {
        fromL += EcnOf(disc->Dequeue()) == kEct1;
      }
      NS_TEST_EXPECT_MSG_GT_OR_EQ(fromL, 14, scheduler << ": L after C's time alone");
      Finish(disc, Time(1));
    }
  }
};

class TimeShiftCase : public TestCase {
 public:
  TimeShiftCase() : TestCase("A.1: a FIFO in which L's packets are TimeShift older") {}

 private:
  void DoRun() override {
    for (const auto& [cAheadMs, first] : {std::pair{40, kEct1}, {50, kEct1}, {51, kNotEct}}) {
      auto disc = Make({{"Scheduler", "TimeShiftedFifo"}, {"TimeShift", "50ms"}});
      disc->Enqueue(Item(kNotEct));
      Simulator::Schedule(MilliSeconds(cAheadMs), [disc] { disc->Enqueue(Item(kEct1)); });
      Ecn served = kCe;
      Simulator::Schedule(MilliSeconds(cAheadMs + 5),
                          [disc, &served] { served = EcnOf(disc->Dequeue()); });
      Finish(disc, MilliSeconds(80));
      NS_TEST_EXPECT_MSG_EQ(served, first, "C waits " << cAheadMs << " ms longer than L");
    }
  }
};

class NativeCase : public TestCase {
 public:
  NativeCase() : TestCase("A.1: L's ramp and step, and Th_len") {}

 private:
  /** p_L of a packet that waited `us` and found `packets`, itself counted. */
  double ProbabilityOf(const Attributes& attributes, double us, int packets) {
    auto disc = Make(attributes);
    double pL = 0;  // a traced value that stays 0 fires nothing
    disc->TraceConnectWithoutContext(
        "L4sProbability",
        Callback<void, double, double>([&pL](double, double value) { pL = value; }));
    for (int i = 0; i < packets; ++i) {
      disc->Enqueue(Item(kEct1));
    }
    Simulator::Schedule(NanoSeconds(std::llround(us * 1000)), [disc] { disc->Dequeue(); });
    Finish(disc, MilliSeconds(15));  // before the controller's first update
    return pL;
  }

  void DoRun() override {
    const Attributes ramp = {};
    for (const auto& [us, expected] : std::vector<std::pair<double, double>>{{0, 0},
                                                                             {799, 0},
                                                                             {800, 0},
                                                                             {900, 0.25},
                                                                             {1000, 0.5},
                                                                             {1199, 0.9975},
                                                                             {1200, 1},
                                                                             {9000, 1}}) {
      NS_TEST_EXPECT_MSG_EQ_TOL(ProbabilityOf(ramp, us, 2), expected, 1e-9, us << " us, ramp");
      NS_TEST_EXPECT_MSG_EQ(ProbabilityOf(ramp, us, 1), 0, us << " us, ramp, the only packet");
    }
    const Attributes step = {{"LAqm", "Step"}};
    for (const auto& [us, expected] :
         std::vector<std::pair<double, double>>{{999, 0}, {1000, 0}, {1000.001, 1}, {9000, 1}}) {
      NS_TEST_EXPECT_MSG_EQ(ProbabilityOf(step, us, 2), expected, us << " us, step");
      NS_TEST_EXPECT_MSG_EQ(ProbabilityOf(step, us, 1), 0, us << " us, step, the only packet");
    }
    const Attributes always = {{"LAqm", "Step"}, {"LMinPackets", "0"}};
    NS_TEST_EXPECT_MSG_EQ(ProbabilityOf(always, 2000, 1), 1, "Th_len of 0 spares none");
    const Attributes flat = {{"LRange", "0us"}};
    NS_TEST_EXPECT_MSG_EQ(ProbabilityOf(flat, 799, 2), 0, "a ramp of range 0 below");
    NS_TEST_EXPECT_MSG_EQ(ProbabilityOf(flat, 800, 2), 1, "a ramp of range 0 above");
  }
};

class ControllerCase : public TestCase {
 public:
  ControllerCase() : TestCase("A.1: p' of a standing queue, against the closed form") {}

 private:
  void DoRun() override {
    auto disc = Make();
    int updates = 0;
    disc->TraceConnectWithoutContext(
        "Update", Callback<void, Time, double, double, double>(
                      [&](Time delay, double pBase, double pCoupled, double pClassic) {
                        const double n = ++updates;
                        NS_TEST_EXPECT_MSG_EQ(delay, MilliSeconds(16) * updates, "head's delay");
                        // sum of 0.16 Hz (16 ms i - 15 ms) + 3.2 Hz · 16 ms, i = 1 … n
                        const double closed =
                            0.16 * (0.016 * n * (n + 1) / 2 - 0.015 * n) + 3.2 * 0.016 * n;
                        const double expected = std::min(closed, 1.0);
                        NS_TEST_EXPECT_MSG_EQ_TOL(pBase, expected, 1e-12, "p', update " << n);
                        NS_TEST_EXPECT_MSG_EQ(pCoupled, 2 * pBase, "p_CL = k p'");
                        NS_TEST_EXPECT_MSG_EQ(pClassic, pBase * pBase, "p_C = p'^2");
                      }));
    disc->Enqueue(Item(kNotEct));
    Finish(disc, MilliSeconds(16 * 30 + 1));
    NS_TEST_EXPECT_MSG_EQ(updates, 30, "one update every Tupdate");
  }
};

class DelayInputCase : public TestCase {
 public:
  DelayInputCase() : TestCase("A.2: the greater of both delays drives p'; in A.1 C's alone") {}

 private:
  double BaseAfterStandingL(const std::string& input) {
    auto disc = Make({{"DelayInput", input}});
    disc->Enqueue(Item(kEct1));
    double pBase = 0;
    Simulator::Schedule(MilliSeconds(100), [&] { pBase = disc->GetBaseProbability(); });
    Finish(disc, MilliSeconds(101));
    return pBase;
  }

  void DoRun() override {
    NS_TEST_EXPECT_MSG_EQ(BaseAfterStandingL("Classic"), 0, "only L waits");
    NS_TEST_EXPECT_MSG_GT(BaseAfterStandingL("Greater"), 0.3, "only L waits");
  }
};

/** Send `packets` of one codepoint through the disc with p' held; how they came out. */
struct Outcome {
  int passed = 0;
  int marked = 0;
  int dropped = 0;
};

Outcome SendHeld(double pBase, Ecn ecn, int packets, Attributes more = {}) {
  more.emplace_back("MaxSize", "100000000B");
  auto disc = Make(HoldBaseProbability(pBase, std::move(more)));
  for (int i = 0; i < packets; ++i) {
    disc->Enqueue(Item(ecn));
  }
  Outcome outcome;
  Simulator::Schedule(kHeld, [&] {
    while (auto item = disc->Dequeue()) {
      ++(EcnOf(item) == ecn ? outcome.passed : outcome.marked);
    }
    outcome.dropped = disc->GetStats().nTotalDroppedPackets;
  });
  Finish(disc, kHeld + Time(1));
  return outcome;
}

class CouplingCase : public TestCase {
 public:
  CouplingCase()
      : TestCase("2.1: C's signals follow p'^2, L's k p'; ECT(0) marked, Not-ECT dropped") {}

 private:
  void DoRun() override {
    constexpr int kPackets = 10'000;
    for (double k : {1.0, 1.5, 2.0, 3.0}) {
      const Attributes factor = {{"CouplingFactor", std::to_string(k)}};
      for (double pBase : {0.02, 0.1, 0.3}) {
        const std::string what = "k " + std::to_string(k) + ", p' " + std::to_string(pBase);
        // evenly spaced signals: the count is off by at most one
        const Outcome ect0 = SendHeld(pBase, kEct0, kPackets, factor);
        NS_TEST_EXPECT_MSG_EQ_TOL(ect0.marked, pBase * pBase * kPackets, 1.01, what << ", ECT(0)");
        NS_TEST_EXPECT_MSG_EQ(ect0.dropped, 0, what << ", ECT(0)");
        const Outcome notEct = SendHeld(pBase, kNotEct, kPackets, factor);
        NS_TEST_EXPECT_MSG_EQ_TOL(notEct.dropped, pBase * pBase * kPackets, 1.01,
                                  what << ", Not-ECT");
        NS_TEST_EXPECT_MSG_EQ(notEct.marked, 0, what << ", Not-ECT");
        const Outcome ect1 = SendHeld(pBase, kEct1, kPackets, factor);
        NS_TEST_EXPECT_MSG_EQ_TOL(ect1.marked, k * pBase * kPackets, 1.01, what << ", ECT(1)");
        NS_TEST_EXPECT_MSG_EQ(ect1.dropped, 0, what << ", ECT(1)");
      }
    }
    const Outcome uncoupled = SendHeld(0.3, kEct1, kPackets, {{"CouplingFactor", "0"}});
    NS_TEST_EXPECT_MSG_EQ(uncoupled.marked, 0, "k = 0 uncouples L");
  }
};

class RandomDrawCase : public TestCase {
 public:
  RandomDrawCase() : TestCase("Draw: at random it has the same mean, and the stream fixes it") {}

 private:
  void DoRun() override {
    constexpr int kPackets = 20'000;
    const Attributes random = {{"Draw", "Random"}};
    for (double p : {0.05, 0.2}) {
      const double mean = 2 * p * kPackets;
      const double deviation = std::sqrt(mean * (1 - 2 * p));
      const int marked = SendHeld(p, kEct1, kPackets, random).marked;
      NS_TEST_EXPECT_MSG_EQ_TOL(marked, mean, 4 * deviation, "p' " << p);
      NS_TEST_EXPECT_MSG_NE(marked, SendHeld(p, kEct1, kPackets).marked, "it is random");
      NS_TEST_EXPECT_MSG_EQ(marked, SendHeld(p, kEct1, kPackets, random).marked, "same stream");
    }
  }
};

class OverloadCase : public TestCase {
 public:
  OverloadCase() : TestCase("A.2: at saturation both queues drop with p_C; or only delay grows") {}

 private:
  void DoRun() override {
    constexpr int kPackets = 10'000;
    for (double pBase : {0.5, 0.7, 0.9}) {  // p_CL >= 1
      const double drops = pBase * pBase * kPackets;
      const Outcome l = SendHeld(pBase, kEct1, kPackets);
      NS_TEST_EXPECT_MSG_EQ_TOL(l.dropped, drops, 1.01, "L drops with p_C, p' " << pBase);
      NS_TEST_EXPECT_MSG_EQ(l.passed, 0, "and marks the rest");
      const Outcome c = SendHeld(pBase, kEct0, kPackets);
      NS_TEST_EXPECT_MSG_EQ_TOL(c.dropped, drops, 1.01, "C drops ECT(0) as well, p' " << pBase);
      NS_TEST_EXPECT_MSG_EQ(c.marked, 0, "overload disables ECN in C");

      const Attributes delay = {{"Overload", "Delay"}};
      const Outcome lDelayed = SendHeld(pBase, kEct1, kPackets, delay);
      NS_TEST_EXPECT_MSG_EQ(lDelayed.marked, kPackets, "all marked, none dropped");
      const Outcome cDelayed = SendHeld(pBase, kEct0, kPackets, delay);
      // p' ends at 1/k = 0.5
      NS_TEST_EXPECT_MSG_EQ_TOL(cDelayed.marked, 0.25 * kPackets, 1.01, "p_C ends at 1/k^2");
      NS_TEST_EXPECT_MSG_EQ(cDelayed.dropped, 0, "none dropped");
    }
    const Outcome below = SendHeld(0.49, kEct1, kPackets);
    NS_TEST_EXPECT_MSG_EQ(below.dropped, 0, "p_CL just below p_Lmax drops nothing");
    const Outcome early = SendHeld(0.3, kEct1, kPackets, {{"LMaxProbability", "0.5"}});
    NS_TEST_EXPECT_MSG_EQ_TOL(early.dropped, 0.09 * kPackets, 1.01, "p_Lmax of 0.5");
    NS_TEST_EXPECT_MSG_EQ_TOL(early.marked, 0.6 * 0.91 * kPackets, 1.01, "p_CL marks the rest");
  }
};

class Ipv6Case : public TestCase {
 public:
  Ipv6Case() : TestCase("IPv6 packets are marked and dropped as IPv4 ones are") {}

 private:
  void DoRun() override {
    auto disc = Make(HoldBaseProbability(0.49, {{"Draw", "Random"}}));
    for (int i = 0; i < 400; ++i) {
      disc->Enqueue(Item6(kEct1));
      disc->Enqueue(Item6(kEct0));
      disc->Enqueue(Item6(kNotEct));
    }
    int marked = 0;
    Simulator::Schedule(kHeld, [&] {
      while (auto item = disc->Dequeue()) {
        marked += EcnOf(item) == kCe;
      }
    });
    Finish(disc, kHeld + Time(1));
    const auto& stats = disc->GetStats();
    NS_TEST_EXPECT_MSG_GT(stats.GetNMarkedPackets(Disc::kLCoupledMark), 350u, "p_CL = 0.98");
    NS_TEST_EXPECT_MSG_GT(stats.GetNMarkedPackets(Disc::kCMark), 60u, "p_C = 0.24, ECT(0)");
    NS_TEST_EXPECT_MSG_GT(stats.GetNDroppedPackets(Disc::kCDrop), 60u, "p_C = 0.24, Not-ECT");
    NS_TEST_EXPECT_MSG_EQ(stats.nTotalMarkedPackets, static_cast<uint32_t>(marked), "CE is set");
  }
};

class PeekCase : public TestCase {
 public:
  PeekCase() : TestCase("Peek() takes no packet out of the count") {}

 private:
  void DoRun() override {
    auto disc = Make();
    disc->Enqueue(Item(kEct1));
    disc->Enqueue(Item(kNotEct));
    auto peeked = disc->Peek();
    NS_TEST_EXPECT_MSG_EQ(disc->GetNPackets(), 2u, "both are still there");
    NS_TEST_EXPECT_MSG_EQ(disc->Dequeue(), peeked, "the one that was shown");
    NS_TEST_EXPECT_MSG_NE(disc->Dequeue(), nullptr, "and the other");
    NS_TEST_EXPECT_MSG_EQ(disc->Dequeue(), nullptr, "no more");
    Finish(disc, Time(1));
  }
};

class MinBacklogCase : public TestCase {
 public:
  MinBacklogCase() : TestCase("MinBacklogBytes spares a short queue, as Linux does") {}

 private:
  void DoRun() override {
    // p' = 0.9: every packet but the last two would be dropped or marked
    const Outcome spared = SendHeld(0.9, kNotEct, 3, {{"MinBacklogBytes", "4500"}});
    NS_TEST_EXPECT_MSG_EQ(spared.passed, 3, "less than 3 MTU left behind each");
    const Outcome all = SendHeld(1, kNotEct, 3);
    NS_TEST_EXPECT_MSG_EQ(all.dropped, 3, "without it all go");
  }
};

class ConservationCase : public TestCase {
 public:
  explicit ConservationCase(uint32_t run)
      : TestCase("no packet is lost from the count, random traffic " + std::to_string(run)),
        m_run(run) {}

 private:
  void Check(Ptr<Disc> disc) {
    uint64_t enqueued = 0;
    uint64_t dequeued = 0;
    uint64_t dropped = 0;
    uint64_t refused = 0;
    uint64_t marked = 0;
    for (auto queue : {Disc::kL4s, Disc::kClassic}) {
      const auto& c = disc->GetQueueCounts(queue);
      auto internal = disc->GetInternalQueue(queue);
      NS_TEST_ASSERT_MSG_EQ(c.enqueuedPackets,
                            c.dequeuedPackets + c.droppedPackets + internal->GetNPackets(),
                            "packets of queue " << queue);
      NS_TEST_ASSERT_MSG_EQ(c.enqueuedBytes,
                            c.dequeuedBytes + c.droppedBytes + internal->GetNBytes(),
                            "bytes of queue " << queue);
      enqueued += c.enqueuedPackets;
      dequeued += c.dequeuedPackets;
      dropped += c.droppedPackets;
      refused += c.refusedPackets;
      marked += c.markedPackets;
    }
    const auto& stats = disc->GetStats();
    NS_TEST_ASSERT_MSG_EQ(stats.nTotalReceivedPackets, enqueued + refused, "received");
    NS_TEST_ASSERT_MSG_EQ(stats.nTotalDroppedPacketsAfterDequeue, dropped, "AQM drops");
    NS_TEST_ASSERT_MSG_EQ(stats.nTotalDroppedPacketsBeforeEnqueue, refused, "refused");
    NS_TEST_ASSERT_MSG_EQ(stats.nTotalMarkedPackets, marked, "marks");
    NS_TEST_ASSERT_MSG_EQ(enqueued, dequeued + dropped + disc->GetNPackets(), "both queues");
  }

  void DoRun() override {
    auto random = CreateObject<UniformRandomVariable>();
    random->SetStream(100 + m_run);
    const auto pick = [&](std::vector<std::string> values) {
      return values[random->GetInteger(0, values.size() - 1)];
    };
    auto disc = Make({{"MaxSize", pick({"20000B", "150000B", "1000000B"})},
                      {"LMaxBytes", pick({"10000", "4294967295"})},
                      {"CMaxBytes", pick({"15000", "4294967295"})},
                      {"Scheduler", pick({"WeightedRoundRobin", "TimeShiftedFifo"})},
                      {"LAqm", pick({"Ramp", "Step"})},
                      {"Overload", pick({"Drop", "Delay"})},
                      {"Draw", pick({"Recur", "Random"})},
                      {"MinBacklogBytes", pick({"0", "3000"})},
                      {"CouplingFactor", pick({"0", "1", "2", "2.7"})}});
    const double overload = random->GetValue(0.5, 1.5);  // arrivals for each departure
    for (int i = 0; i < 3000; ++i) {
      Simulator::Schedule(MicroSeconds(random->GetInteger(0, 900'000)), [=, this] {
        if (random->GetValue() * (1 + overload) < overload) {
          disc->Enqueue(
              Item(static_cast<Ecn>(random->GetInteger(0, 3)), random->GetInteger(60, 1500)));
        } else {
          disc->Dequeue();
        }
        Check(disc);
      });
    }
    Finish(disc, Seconds(1));
  }

  uint32_t m_run;
};

class DualPi2QueueDiscSuite : public TestSuite {
 public:
  DualPi2QueueDiscSuite() : TestSuite("dual-pi2-queue-disc", Type::UNIT) {
    const auto add = [this](TestCase* testCase) { AddTestCase(testCase, Duration::QUICK); };
    add(new ClassificationCase);
    add(new DefaultsCase);
    add(new LimitCase);
    add(new AgedWeightCase);
    for (double weight : {1.0 / 16, 0.1, 0.5, 0.9}) {
      add(new AgedWeightCase);
      add(new WeightCase(weight, 1500, 1500));
      add(new WeightCase(weight, 300, 1500));
      add(new WeightCase(weight, 1500, 100));
    }
    add(new DroppedShareCase);
    add(new AloneCase);
    add(new TimeShiftCase);
    add(new NativeCase);
    add(new ControllerCase);
    add(new DelayInputCase);
    add(new CouplingCase);
    add(new RandomDrawCase);
    add(new OverloadCase);
    add(new Ipv6Case);
    add(new PeekCase);
    add(new MinBacklogCase);
    for (uint32_t run = 0; run < 12; ++run) {
      add(new ConservationCase(run));
    }
  }
};

DualPi2QueueDiscSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) { return swiftqueue::RunSuite("dual-pi2-queue-disc", argc, argv); }
