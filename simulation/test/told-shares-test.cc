// SPDX-License-Identifier: GPL-2.0-only
//
// A sender that is told the router's age rule: run `build/simulation/told-shares-test`.

#include "../programs/laboratory/told-shares.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../programs/laboratory/packet-log.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/test.h"
#include "suite.h"

namespace swiftqueue::lab {
namespace {

using Disc = ns3::DualPi2QueueDisc;
using ns3::MilliSeconds;
using ns3::Simulator;

constexpr double kExact = 1e-9;
constexpr double kRoundingUs = 0.01;  // of float32
constexpr float kLeastUs = 40'000;

/** One bottleneck that weighs by age, 40 ms; C has 1/16 at least. */
Run RunOf(bool uncoupled) {
  Run run{};
  run.isUncoupled = uncoupled;
  run.bottlenecks.push_back(
      {20e6,
       19.8,
       1'500'000,
       20,
       DiscOfType{"ns3::DualPi2QueueDisc", {{"CWeightBy", "Age"}, {"CWeight", "0.0625"}}},
       {}});
  run.receivers.push_back({"r1", 1, 0.1});
  run.senders.push_back({"s1", 0, 0.1, {}});
  return run;
}

class NoMarker : public Marker {
 public:
  ns3::Ipv4Header::EcnType Mark(const Outgoing&, const std::deque<Outgoing>&) override {
    return ns3::Ipv4Header::ECN_NotECT;
  }
};

/** A sender that is told, beside its network. */
struct World {
  explicit World(const Told& what, bool uncoupled = false)
      : run(RunOf(uncoupled)), network(run, stream), told(what, run, network) {
    network.Senders().front().disc->SetMarker(std::make_shared<NoMarker>());
  }

  double With(uint16_t flow, Disc::Queue queue) { return told.ClassicShareWith(flow, queue); }

  Run run;
  int64_t stream{1};
  Network network;
  ToldShares told;
};

class OwnAgesCase : public ns3::TestCase {
 public:
  OwnAgesCase() : TestCase("The share follows the ages of the sender's own flows") {}

 private:
  void DoRun() override {
    World world(ToldOwnAges{});
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(1, Disc::kClassic), 15.0 / 16, kExact, "alone in C");
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(1, Disc::kL4s), 1.0 / 16, kExact, "alone in L");
    for (int ms = 0; ms <= 1000; ms += 50) {  // without a rest, or it would be new again
      Simulator::Schedule(MilliSeconds(ms), [&world] { world.told.Sent(1, kL4sQueue); });
    }
    Simulator::Schedule(MilliSeconds(1000), [&world] {
      world.told.Sent(2, kL4sQueue);
      world.told.Sent(3, kL4sQueue);
    });
    Simulator::Stop(MilliSeconds(1001));
    Simulator::Run();
    // Equation 1 of Confucius: one old flow, two new ones of half a weight each.
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(2, Disc::kClassic), 0.5 / 2, kExact, "a new flow");
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(1, Disc::kClassic), 1.0 / 2, kExact, "the old flow");
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(1, Disc::kL4s), 1.0 / 16, kExact, "all in L");
    world.told.Sent(2, kClassicQueue);
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(3, Disc::kClassic), 1.0 / 2, kExact, "both new ones");
    NS_TEST_EXPECT_MSG_EQ_TOL(world.With(3, Disc::kL4s), 0.5 / 2, kExact, "one of them");
    Simulator::Destroy();
  }
};

class WeightsCase : public ns3::TestCase {
 public:
  WeightsCase() : TestCase("The router's weights are heard a round trip late") {}

 private:
  void DoRun() override {
    World world(ToldWeights{40'000});
    Simulator::Schedule(MilliSeconds(10), [&world] {
      for (uint32_t flow = 0; flow < 3; ++flow) {
        ns3::Ipv4Header ip;
        ip.SetSource(ns3::Ipv4Address(1000 + flow));
        ip.SetEcn(ns3::Ipv4Header::ECN_ECT1);
        world.network.Bottlenecks().front()->Enqueue(ns3::Create<ns3::Ipv4QueueDiscItem>(
            ns3::Create<ns3::Packet>(100), ns3::Address(), 0x0800, ip));
      }
    });
    const auto expect = [&](int ms, double share) {
      Simulator::Schedule(MilliSeconds(ms), [this, &world, share] {
        NS_TEST_EXPECT_MSG_EQ_TOL(world.With(1, Disc::kClassic), share, kExact, "alone in C");
      });
    };
    expect(45, 15.0 / 16);
    expect(55, 1.0 / 4);
    Simulator::Stop(MilliSeconds(60));
    Simulator::Run();
    Simulator::Destroy();
  }
};

class CorrectCase : public ns3::TestCase {
 public:
  explicit CorrectCase(bool uncoupled)
      : TestCase(std::string("Only the wait is corrected, ") +
                 (uncoupled ? "of a model of uncoupled" : "of a model of rfc9332")),
        m_uncoupled(uncoupled) {}

 private:
  void DoRun() override {
    World world(ToldOwnAges{}, m_uncoupled);
    agent::Question question{0, {}, 2, 0};
    question.batch.fill({.size_bytes = 1500, .flow_id = 1, .receiver_id = 0, .queue = kL4sQueue});
    question.batch[6].flow_id = 2;  // of which no latency is known
    question.batch[7].queue = kClassicQueue;
    world.told.Acked(1, kLeastUs + 5'000);
    world.told.Acked(1, kLeastUs);
    constexpr std::size_t kOutputs = 2;  // of quantiles, alike here
    std::vector<float> y_BHL(2 * kHorizon * kOutputs, kLeastUs + 15'000);
    const auto flowOf = [](const Candidate& one) { return static_cast<uint16_t>(one.flow_id); };
    world.told.Correct(question, flowOf, y_BHL.data(), kOutputs);
    const double taught = m_uncoupled ? 0.5 : 1.0 / 16;
    const double classicUs = kLeastUs + 15'000 * taught / (15.0 / 16);
    const double l4sUs = kLeastUs + 15'000 * (1 - taught) / (15.0 / 16);
    const float* const marked_HL = y_BHL.data() + kHorizon * kOutputs;
    for (std::size_t at = 0; at < 6 * kOutputs; ++at) {
      NS_TEST_EXPECT_MSG_EQ_TOL(y_BHL[at], classicUs, kRoundingUs, "in C, where it has 15/16");
      NS_TEST_EXPECT_MSG_EQ_TOL(marked_HL[at], l4sUs, kRoundingUs, "in L, where it has 15/16");
    }
    for (std::size_t at = 6 * kOutputs; at < kHorizon * kOutputs; ++at) {
      NS_TEST_EXPECT_MSG_EQ(y_BHL[at], kLeastUs + 15'000, "left as it was");
      NS_TEST_EXPECT_MSG_EQ(marked_HL[at], kLeastUs + 15'000, "left as it was");
    }
    Simulator::Destroy();
  }

  bool m_uncoupled;
};

class ToldSharesSuite : public ns3::TestSuite {
 public:
  ToldSharesSuite() : TestSuite("told-shares", Type::UNIT) {
    AddTestCase(new OwnAgesCase, Duration::QUICK);
    AddTestCase(new WeightsCase, Duration::QUICK);
    AddTestCase(new CorrectCase(false), Duration::QUICK);
    AddTestCase(new CorrectCase(true), Duration::QUICK);
  }
};

ToldSharesSuite g_suite;  // registers itself

}  // namespace
}  // namespace swiftqueue::lab

int main(int argc, char** argv) { return swiftqueue::RunSuite("told-shares", argc, argv); }
