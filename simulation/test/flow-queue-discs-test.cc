// SPDX-License-Identifier: GPL-2.0-only
//
// The discs that look at flows, without a network: run `build/simulation/flow-queue-discs-test`.
// What is expected stands in simulation/doc/confucius.md and queue-discs.md, mostly in closed form.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../helper/queue-profiles.h"
#include "../model/confucius-queue-disc.h"
#include "../model/fair-queue-disc.h"
#include "../model/heavy-hitter-queue-disc.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/test.h"
#include "ns3/udp-header.h"
#include "ns3/udp-l4-protocol.h"
#include "suite.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3
using swiftqueue::ConfuciusQueueDisc;
using Attributes = std::vector<std::pair<std::string, std::string>>;

constexpr uint32_t kBytes = 1500;

/** A packet of flow `flow`; its identification is `number`. */
Ptr<Ipv4QueueDiscItem> Item(uint16_t flow, uint16_t number = 0, uint32_t bytes = kBytes,
                            uint8_t tos = 0) {
  auto packet = Create<Packet>(bytes - 28);
  UdpHeader udp;
  udp.SetDestinationPort(flow);
  packet->AddHeader(udp);
  Ipv4Header ip;
  ip.SetProtocol(UdpL4Protocol::PROT_NUMBER);
  ip.SetPayloadSize(packet->GetSize());
  ip.SetIdentification(number);
  ip.SetTos(tos);
  return Create<Ipv4QueueDiscItem>(packet, Address(), 0x0800, ip);
}

uint16_t FlowOf(Ptr<const QueueDiscItem> item) {
  UdpHeader udp;
  item->GetPacket()->PeekHeader(udp);
  return udp.GetDestinationPort();
}

uint16_t NumberOf(Ptr<const QueueDiscItem> item) {
  return DynamicCast<const Ipv4QueueDiscItem>(item)->GetHeader().GetIdentification();
}

Ptr<QueueDisc> Make(const std::string& name, Attributes attributes = {}) {
  attributes.emplace_back("Flows", "65536");  // no two flows of a test in one bucket
  auto disc = swiftqueue::MakeDisc("swiftqueue::" + name, attributes);
  disc->Initialize();
  return disc;
}

Ptr<ConfuciusQueueDisc> Confucius(const Attributes& attributes = {}) {
  return DynamicCast<ConfuciusQueueDisc>(Make("ConfuciusQueueDisc", attributes));
}

void Finish(Ptr<QueueDisc> disc) {
  Simulator::Run();
  disc->Dispose();
  Simulator::Destroy();
}

/** Serves `packets` and puts one of the same flow behind each; returns bytes by flow. */
std::map<uint16_t, uint64_t> Saturated(Ptr<QueueDisc> disc, uint32_t packets) {
  std::map<uint16_t, uint64_t> bytes;
  for (uint32_t i = 0; i < packets; ++i) {
    const auto item = disc->Dequeue();
    bytes[FlowOf(item)] += item->GetSize();
    disc->Enqueue(Item(FlowOf(item), 0, item->GetSize()));
  }
  return bytes;
}

/** Flow 1 is old, since 2 s; at 2 s come flows 101 to 100 + `pages`; then `then` at `afterMs`. */
template <typename Then>
void Page(Ptr<ConfuciusQueueDisc> disc, uint16_t pages, const std::vector<int>& afterMs,
          Then then) {
  for (int ms = 0; ms < 4000; ms += 20) {  // it stays seen
    Simulator::Schedule(MilliSeconds(ms), [disc] {
      if (disc->GetNPackets() == 0 || disc->GetClassPackets(1) < 4) {
        disc->Enqueue(Item(1));
      }
    });
  }
  Simulator::Schedule(MilliSeconds(2000) - NanoSeconds(1), [disc, pages] {
    for (uint16_t f = 101; f <= 100 + pages; ++f) {
      disc->Enqueue(Item(f));
      disc->Enqueue(Item(f));
    }
  });
  for (const int ms : afterMs) {
    Simulator::Schedule(MilliSeconds(2000 + ms), [then, ms] { then(ms); });
  }
  Finish(disc);
}

class GrowthCase : public TestCase {
 public:
  GrowthCase()
      : TestCase("equation 1: 8 new flows weigh an eighth each beside an old one, and double") {}

 private:
  void Expect(const Attributes& attributes, uint16_t pages, std::map<int, double> weights) {
    auto disc = Confucius(attributes);
    std::vector<int> times;
    for (const auto& [ms, weight] : weights) {
      times.push_back(ms);
    }
    Page(disc, pages, times, [&](int ms) {
      disc->Enqueue(Item(1));  // the steps that are due are taken
      const double old = disc->GetWeight(1) + disc->GetWeight(2) + disc->GetWeight(3);
      const double all =
          weights[ms] * std::max(1U, disc->GetWeighing(0)) / pages;  // hashes may meet
      NS_TEST_EXPECT_MSG_EQ_TOL(disc->GetWeight(0), all, 1e-9, ms << " ms, new");
      NS_TEST_EXPECT_MSG_EQ(old, (weights[ms] > 0 ? 1 : 1 + pages), ms << " ms, old");
      NS_TEST_EXPECT_MSG_GT(disc->GetWeighing(0) + old, 0.98 * pages, "each flow is one");
    });
  }

  void DoRun() override {
    Expect({}, 8, {{0, 1}, {249, 1}, {250, 2}, {500, 4}, {749, 4}, {750, 0}});
    // beyond 128 for each old one a weight is the least unit
    Expect({{"MaxSize", "2000p"}}, 300, {{0, 300.0 / 128}, {250, 300.0 / 64}, {1700, 300.0 / 2}});
    // 16 steps: within 4.4 % of the exponential, from below
    const double first = std::exp2(std::floor(16 * 0.4) / 16);
    Expect({{"StepsPerDoubling", "16"}}, 8, {{100, first}, {740, 8 * std::exp2(47.0 / 16) / 8}});
    Expect({{"LeastNewWeight", "3"}}, 8, {{0, 3}, {500, 4}});
  }
};

class NobodyOldCase : public TestCase {
 public:
  NobodyOldCase() : TestCase("with no old flow, new ones weigh 1 and are old after one doubling") {}

 private:
  void DoRun() override {
    auto disc = Confucius();
    for (uint16_t f = 1; f <= 8; ++f) {
      disc->Enqueue(Item(f));
    }
    NS_TEST_EXPECT_MSG_EQ(disc->GetWeight(0), 8, "at once");
    Simulator::Schedule(MilliSeconds(250), [&] {
      disc->Enqueue(Item(1));
      NS_TEST_EXPECT_MSG_EQ(disc->GetWeighing(0), 0, "none is new");
      NS_TEST_EXPECT_MSG_EQ(disc->GetWeighing(1), 8, "all are old");
    });
    Finish(disc);

    auto literal = Confucius({{"LeaveAtOnce", "true"}});
    literal->Enqueue(Item(1));
    NS_TEST_EXPECT_MSG_EQ(literal->GetWeighing(1), 1, "read literally, the first is old at once");
    Finish(literal);
  }
};

class ShareCase : public TestCase {
 public:
  ShareCase() : TestCase("the old flow's share of a saturated link: a half, a third, a fifth") {}

 private:
  void DoRun() override {
    auto disc = Confucius();
    const std::map<int, double> shares = {
        {1, 1.0 / 2}, {240, 1.0 / 2}, {251, 1.0 / 3}, {501, 1.0 / 5}, {751, 1.0 / 9}};
    Page(disc, 8, {1, 240, 251, 501, 751}, [&](int ms) {
      while (disc->GetClassOf(Item(1)) != ConfuciusQueueDisc::kUnknown &&
             disc->GetNPackets() < 60) {
        disc->Enqueue(Item(1));
      }
      const auto bytes = Saturated(disc, 2000);
      uint64_t all = 0;
      for (const auto& [flow, own] : bytes) {
        all += own;
      }
      const double share = static_cast<double>(bytes.at(1)) / static_cast<double>(all);
      if (ms < 750) {
        NS_TEST_EXPECT_MSG_EQ_TOL(share, shares.at(ms), 0.02, ms << " ms");
      } else {
        const uint32_t old = disc->GetWeighing(1) + disc->GetWeighing(2) + disc->GetWeighing(3);
        NS_TEST_EXPECT_MSG_EQ(old, 9, "all are old");
      }
    });
  }
};

class ForgetCase : public TestCase {
 public:
  ForgetCase() : TestCase("silent and empty: no weight after 100 ms, forgotten after 1 s") {}

 private:
  void DoRun() override {
    auto disc = Confucius();
    disc->Enqueue(Item(1));
    disc->Dequeue();
    for (int ms = 10; ms < 1300; ms += 10) {
      Simulator::Schedule(MilliSeconds(ms), [=, this] {
        disc->Enqueue(Item(2, 0, 100));  // the steps that are due are taken
        disc->Dequeue();
        const uint32_t weighing = disc->GetWeighing(0) + disc->GetWeighing(1);
        const bool known = disc->GetClassOf(Item(1)) != ConfuciusQueueDisc::kUnknown;
        // an examination sees it, up to an interval later
        if (ms < 100 || ms >= 200) {
          NS_TEST_EXPECT_MSG_EQ(weighing, (ms < 100 ? 2U : 1U), ms << " ms");
        }
        if (ms < 1000 || ms >= 1100) {
          NS_TEST_EXPECT_MSG_EQ(known, (ms < 1000), ms << " ms");
        }
      });
    }
    Finish(disc);
  }
};

/** Keeps class lengths for an interval and a half, then looks where the flow is. */
class ThresholdCase : public TestCase {
 public:
  ThresholdCase() : TestCase("a class that is too long or short moves as a whole, to the packet") {}

 private:
  /** Class of a flow that began in `from` and has `packets` waiting for an interval. */
  uint32_t After(uint32_t from, uint32_t packets, const Attributes& attributes) {
    auto disc = Confucius(attributes);
    disc->Enqueue(Item(1));
    uint32_t found = 0;
    Simulator::Schedule(MilliSeconds(300), [&, disc] {
      disc->Enqueue(Item(1));  // old by now; this examination sees two packets
      disc->MoveFlow(Item(1), from);
      while (disc->GetNPackets() + 1 < packets) {
        disc->Enqueue(Item(1));
      }
    });
    // Two intervals: the first one's mean has the filling in it, so take it out and fill again
    Simulator::Schedule(MilliSeconds(410), [&, disc] {
      disc->Enqueue(Item(1));
      disc->MoveFlow(Item(1), from);
      for (int i = 0; i < 400; ++i) {  // each arrival finds the same length
        if (disc->GetNPackets() >= packets) {
          disc->Dequeue();
        }
        disc->Enqueue(Item(1));
      }
    });
    Simulator::Schedule(MilliSeconds(520), [&, disc] {
      disc->Dequeue();
      found = disc->GetClassOf(Item(1));
    });
    Finish(disc);
    return found;
  }

  void DoRun() override {
    const Attributes code = {{"MaxSize", "800p"}};
    const Attributes text = {{"MaxSize", "800p"}, {"Thresholds", "Text"}};
    // own target M/8 = 100 and M/4 = 200; half the target below, M/16 = 50 and M/8 = 100
    NS_TEST_EXPECT_MSG_EQ(After(1, 100, code), 1, "at the target");
    NS_TEST_EXPECT_MSG_EQ(After(1, 102, code), 2, "beyond it");
    NS_TEST_EXPECT_MSG_EQ(After(2, 200, code), 2, "at the target");
    NS_TEST_EXPECT_MSG_EQ(After(2, 202, code), 3, "beyond it");
    NS_TEST_EXPECT_MSG_EQ(After(2, 51, code), 2, "long enough");
    NS_TEST_EXPECT_MSG_EQ(After(2, 48, code), 1, "too short");
    NS_TEST_EXPECT_MSG_EQ(After(3, 101, code), 3, "long enough");
    NS_TEST_EXPECT_MSG_EQ(After(3, 98, code), 2, "too short");
    // the neighbours' targets
    NS_TEST_EXPECT_MSG_EQ(After(1, 200, text), 1, "at the next one's target");
    NS_TEST_EXPECT_MSG_EQ(After(1, 202, text), 2, "beyond it");
    NS_TEST_EXPECT_MSG_EQ(After(2, 101, text), 2, "at the target below");
    NS_TEST_EXPECT_MSG_EQ(After(2, 98, text), 1, "below it");
    NS_TEST_EXPECT_MSG_EQ(After(3, 98, {{"MaxSize", "800p"}, {"MoveLone", "false"}}), 3, "lone");
  }
};

class HysteresisCase : public TestCase {
 public:
  HysteresisCase() : TestCase("equations 2 and 3: a flow far from its share changes its class") {}

 private:
  /** Classes of two flows that have been in class 2 with so many packets each. */
  std::pair<uint32_t, uint32_t> After(uint32_t first, uint32_t second, Attributes attributes) {
    attributes.emplace_back("MaxSize", "800p");
    auto disc = Confucius(attributes);
    disc->Enqueue(Item(1));
    disc->Enqueue(Item(2));
    std::pair<uint32_t, uint32_t> found;
    Simulator::Schedule(MilliSeconds(300), [=] {
      disc->Enqueue(Item(1));
      disc->Enqueue(Item(2));
      for (uint32_t i = 2; i < 150; ++i) {
        if (i < first) {
          disc->Enqueue(Item(1));
        }
        if (i < second) {
          disc->Enqueue(Item(2));
        }
      }
    });
    Simulator::Schedule(MilliSeconds(410), [=] {
      disc->Dequeue();
      disc->MoveFlow(Item(1), 2);
      disc->MoveFlow(Item(2), 2);  // nothing comes: their lengths are what waits
    });
    Simulator::Schedule(MilliSeconds(520), [=, &found] {
      disc->Dequeue();
      found = {disc->GetClassOf(Item(1)), disc->GetClassOf(Item(2))};
    });
    Finish(disc);
    return found;
  }

  void DoRun() override {
    using Both = std::pair<uint32_t, uint32_t>;
    const auto is = [this](Both found, Both wanted, const char* why) {
      NS_TEST_EXPECT_MSG_EQ(found.first, wanted.first, why);
      NS_TEST_EXPECT_MSG_EQ(found.second, wanted.second, why);
    };
    is(After(70, 70, {}), {2, 2}, "equal");
    is(After(80, 60, {}), {2, 2}, "0.57 of the class, below 1/2 + 0.1");
    is(After(120, 40, {}), {3, 2}, "0.75: up; its going up keeps the other from going down");
    is(After(30, 22, {{"Hysteresis", "0.05"}, {"Thresholds", "Text"}}), {1, 1},
       "near in packets: no outlier, and the class is short");
    is(After(130, 60, {{"OutlierShare", "0.5"}}), {2, 2}, "no outlier of half the buffer");
  }
};

class OrderCase : public TestCase {
 public:
  OrderCase() : TestCase("random moves never reorder a flow, nor lose a packet") {}

 private:
  void DoRun() override {
    std::mt19937 random(20);
    auto disc = Confucius({{"MaxSize", "300p"}});
    std::map<uint16_t, uint16_t> sent;
    std::map<uint16_t, uint16_t> served;
    uint32_t in = 0;
    uint32_t out = 0;
    for (int i = 0; i < 60'000; ++i) {
      Simulator::Schedule(MicroSeconds(50 * i), [&] {
        const auto flow = static_cast<uint16_t>(1 + random() % 20);
        disc->Enqueue(Item(flow, ++sent[flow], 100 + random() % 1400));
        ++in;
        if (random() % 10 == 0) {
          disc->MoveFlow(Item(static_cast<uint16_t>(1 + random() % 20)), random() % 4);
        }
        while (random() % 2 == 0) {
          const auto item = disc->Dequeue();
          if (!item) {
            break;
          }
          ++out;
          const uint16_t number = NumberOf(item);
          NS_TEST_ASSERT_MSG_GT(number, served[FlowOf(item)], "in order");
          served[FlowOf(item)] = number;
        }
      });
    }
    Simulator::Run();
    uint32_t waiting = 0;
    for (uint32_t c = 0; c < 4; ++c) {
      waiting += disc->GetClassPackets(c);
    }
    NS_TEST_EXPECT_MSG_EQ(waiting, disc->GetNPackets(), "classes hold what the disc holds");
    NS_TEST_EXPECT_MSG_EQ(in, out + waiting + disc->GetStats().nTotalDroppedPackets, "conserved");
    while (const auto item = disc->Dequeue()) {
      NS_TEST_ASSERT_MSG_GT(NumberOf(item), served[FlowOf(item)], "in order to the end");
      served[FlowOf(item)] = NumberOf(item);
      --waiting;
    }
    NS_TEST_EXPECT_MSG_EQ(waiting, 0, "work conserving");
    disc->Dispose();
    Simulator::Destroy();
  }
};

class FairCase : public TestCase {
 public:
  FairCase()
      : TestCase("round robin: fair in bytes within a quantum and an MTU; limits; longest") {}

 private:
  void DoRun() override {
    auto disc = Make("FairQueueDisc", {{"MaxSize", "3000p"}});
    for (uint16_t f = 1; f <= 10; ++f) {
      for (int i = 0; i < 20; ++i) {
        disc->Enqueue(Item(f, 0, 150U * f));
      }
    }
    const auto bytes = Saturated(disc, 5000);
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    for (const auto& [flow, own] : bytes) {
      least = std::min(least, own);
      most = std::max(most, own);
    }
    NS_TEST_EXPECT_MSG_EQ(bytes.size(), 10, "all are served");
    NS_TEST_EXPECT_MSG_LT(most - least, 3001U, "within a quantum and a packet");
    // Max-min: a flow that wants little gets it, the others share what is left.
    auto water = Make("FairQueueDisc", {{"MaxSize", "3000p"}});
    std::map<uint16_t, uint32_t> got;
    std::map<uint16_t, uint32_t> sent;
    for (int slot = 0; slot < 3000; ++slot) {
      if (slot % 10 == 0) {
        water->Enqueue(Item(1));  // a tenth of the link
      }
      for (uint16_t f = 2; f <= 4; ++f) {
        if (sent[f] - got[f] < 20) {
          water->Enqueue(Item(f));
          ++sent[f];
        }
      }
      ++got[FlowOf(water->Dequeue())];
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(got[1], 300U, 2U, "the small flow has what it wants");
    for (uint16_t f = 2; f <= 4; ++f) {
      NS_TEST_EXPECT_MSG_EQ_TOL(got[f], 900U, 3U, "the others a third of what is left");
    }
    Finish(water);
    Finish(disc);

    auto limited = Make("FairQueueDisc", {{"FlowLimit", "5"}});
    for (int i = 0; i < 8; ++i) {
      NS_TEST_EXPECT_MSG_EQ(limited->Enqueue(Item(1)), (i < 5), "packet " << i);
    }
    using swiftqueue::FairQueueDisc;
    NS_TEST_EXPECT_MSG_EQ(limited->GetStats().GetNDroppedPackets(FairQueueDisc::kOverFlowLimit), 3,
                          "refused");
    Finish(limited);

    auto full = Make("FairQueueDisc", {{"MaxSize", "30p"}});
    for (uint16_t i = 0; i < 30; ++i) {
      full->Enqueue(Item(1, i));
    }
    for (uint16_t i = 0; i < 20; ++i) {
      full->Enqueue(Item(2, i));
    }
    std::map<uint16_t, uint32_t> kept;
    uint16_t last = 0;
    while (const auto item = full->Dequeue()) {
      ++kept[FlowOf(item)];
      last = FlowOf(item) == 1 ? NumberOf(item) : last;
    }
    NS_TEST_EXPECT_MSG_EQ(kept[1], 15, "the longest gave until both were equal");
    NS_TEST_EXPECT_MSG_EQ(kept[2], 15, "and then the newcomer was refused");
    NS_TEST_EXPECT_MSG_EQ(last, 14, "it lost its newest");
    Finish(full);
  }
};

class ByLengthCase : public TestCase {
 public:
  ByLengthCase() : TestCase("the longest of many, against a search") {}

 private:
  void DoRun() override {
    std::mt19937 random(1);
    swiftqueue::ByLength lengths;
    lengths.Reset(50, 1000);
    std::vector<uint32_t> own(50);
    for (int i = 0; i < 20'000; ++i) {
      const uint32_t one = random() % 50;
      if (own[one] > 0 && random() % 2 == 0) {
        lengths.Shrink(one);
        --own[one];
      } else {
        lengths.Grow(one);
        ++own[one];
      }
      NS_TEST_ASSERT_MSG_EQ(own[lengths.Longest()], *std::max_element(own.begin(), own.end()),
                            "step " << i);
      NS_TEST_ASSERT_MSG_EQ(lengths.Length(one), own[one], "step " << i);
    }
  }
};

class LabelCase : public TestCase {
 public:
  LabelCase() : TestCase("by label: shares of 1:1 and 1:5, or strictly first") {}

 private:
  double LabelledShare(const Attributes& attributes, uint8_t tos) {
    auto disc = Make("ClassQueueDisc", attributes);
    for (int i = 0; i < 50; ++i) {
      disc->Enqueue(Item(1, 0, 300, tos));
      disc->Enqueue(Item(2));
    }
    uint64_t labelled = 0;
    uint64_t all = 0;
    for (int i = 0; i < 3000; ++i) {
      const auto item = disc->Dequeue();
      const bool first = FlowOf(item) == 1;
      labelled += first ? item->GetSize() : 0;
      all += item->GetSize();
      disc->Enqueue(first ? Item(1, 0, 300, tos) : Item(2));
    }
    Finish(disc);
    return static_cast<double>(labelled) / static_cast<double>(all);
  }

  void DoRun() override {
    constexpr uint8_t kEf = 46 << 2;
    NS_TEST_EXPECT_MSG_EQ_TOL(LabelledShare({}, kEf), 0.5, 0.01, "1:1");
    NS_TEST_EXPECT_MSG_EQ_TOL(LabelledShare({{"OtherWeight", "5"}}, kEf), 1.0 / 6, 0.01, "1:5");
    NS_TEST_EXPECT_MSG_EQ(LabelledShare({{"Service", "Strict"}}, kEf), 1, "strict");
    NS_TEST_EXPECT_MSG_EQ_TOL(LabelledShare({{"Label", "Ecn"}}, 1), 0.5, 0.01, "by ECT(1)");
    NS_TEST_EXPECT_MSG_EQ_TOL(LabelledShare({}, 1), 1.0 / 6, 0.01, "no label: by arrival");
  }
};

class HeavyCase : public TestCase {
 public:
  HeavyCase() : TestCase("heavy: 128 KB in 40 ms; light again after a second's silence") {}

 private:
  void DoRun() override {
    auto disc = DynamicCast<swiftqueue::HeavyHitterQueueDisc>(Make("HeavyHitterQueueDisc"));
    const auto send = [disc](uint16_t flow, uint32_t packets) {
      for (uint32_t i = 0; i < packets; ++i) {
        disc->Enqueue(Item(flow));
        disc->Dequeue();
      }
    };
    send(1, 87);  // 130,500 of 131,072 bytes
    NS_TEST_EXPECT_MSG_EQ(disc->GetHeavyFlows(), 0, "below");
    send(1, 1);
    NS_TEST_EXPECT_MSG_EQ(disc->GetHeavyFlows(), 1, "above");
    Simulator::Schedule(MilliSeconds(41), [&] { send(2, 60); });
    Simulator::Schedule(MilliSeconds(82), [&] {
      send(2, 60);
      NS_TEST_EXPECT_MSG_EQ(disc->GetHeavyFlows(), 1, "120 packets, but not within 40 ms");
      // two light bytes for each heavy one
      for (int i = 0; i < 40; ++i) {
        disc->Enqueue(Item(1));
        disc->Enqueue(Item(3));
      }
      uint32_t light = 0;
      for (int i = 0; i < 30; ++i) {
        light += FlowOf(disc->Dequeue()) == 3;
      }
      NS_TEST_EXPECT_MSG_EQ_TOL(light, 20U, 1U, "two to one");
      while (disc->Dequeue()) {
      }
    });
    Simulator::Schedule(MilliSeconds(1083), [&] {
      send(1, 1);
      NS_TEST_EXPECT_MSG_EQ(disc->GetHeavyFlows(), 0, "light again");
    });
    Finish(disc);
  }
};

class ShortestCase : public TestCase {
 public:
  ShortestCase() : TestCase("the less a flow has sent, the sooner it is served; in order") {}

 private:
  void DoRun() override {
    auto disc = Make("ShortestFirstQueueDisc", {{"MaxSize", "200p"}});
    for (uint16_t i = 0; i < 60; ++i) {
      disc->Enqueue(Item(1, i));
    }
    for (uint16_t i = 0; i < 7; ++i) {  // the 7th begins at 9,000 bytes, below 10,000
      disc->Enqueue(Item(2, i));
    }
    std::vector<uint16_t> flows;
    uint16_t numbers[3] = {};
    while (const auto item = disc->Dequeue()) {
      flows.push_back(FlowOf(item));
      uint16_t& expected = numbers[FlowOf(item)];
      NS_TEST_EXPECT_MSG_EQ(NumberOf(item), expected++, "in order");
    }
    NS_TEST_EXPECT_MSG_EQ(std::count(flows.begin(), flows.begin() + 14, 2), 7,
                          "among the first of flow 1's, before its 53 others");
    for (uint16_t i = 0; i < 200; ++i) {
      disc->Enqueue(Item(1));
    }
    disc->Enqueue(Item(9));
    NS_TEST_EXPECT_MSG_EQ(disc->GetNPackets(), 200, "the disc's limit");
    NS_TEST_EXPECT_MSG_EQ(FlowOf(disc->Dequeue()), 9, "the newcomer took the place of the last");
    Finish(disc);
  }
};

class FlowQueueDiscsSuite : public TestSuite {
 public:
  FlowQueueDiscsSuite() : TestSuite("swiftqueue-flow-queue-discs", Type::UNIT) {
    AddTestCase(new GrowthCase, Duration::QUICK);
    AddTestCase(new NobodyOldCase, Duration::QUICK);
    AddTestCase(new ShareCase, Duration::QUICK);
    AddTestCase(new ForgetCase, Duration::QUICK);
    AddTestCase(new ThresholdCase, Duration::QUICK);
    AddTestCase(new HysteresisCase, Duration::QUICK);
    AddTestCase(new OrderCase, Duration::QUICK);
    AddTestCase(new FairCase, Duration::QUICK);
    AddTestCase(new ByLengthCase, Duration::QUICK);
    AddTestCase(new LabelCase, Duration::QUICK);
    AddTestCase(new HeavyCase, Duration::QUICK);
    AddTestCase(new ShortestCase, Duration::QUICK);
  }
};

FlowQueueDiscsSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) {
  return swiftqueue::RunSuite("swiftqueue-flow-queue-discs", argc, argv);
}
