// SPDX-License-Identifier: GPL-2.0-only
//
// MarkQueueDisc and ExploreMarker without a network: run `build/simulation/mark-queue-disc-test`.

#include "../model/mark-queue-disc.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/test.h"
#include "suite.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3
using swiftqueue::MarkQueueDisc;

Ptr<Ipv4QueueDiscItem> Item(Ipv4Header::EcnType ecn, uint32_t payloadBytes) {
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

class Explorer : public swiftqueue::Marker {
 public:
  explicit Explorer(double share) : m_bursts(share, 8, 1) {}
  Ipv4Header::EcnType Mark(const swiftqueue::Outgoing& packet,
                           const std::deque<swiftqueue::Outgoing>&) override {
    return m_bursts.Next() ? Ipv4Header::ECN_NotECT : packet.ecn;
  }

 private:
  swiftqueue::BurstChooser m_bursts;
};

class ExploreCase : public TestCase {
 public:
  ExploreCase() : TestCase("exploration remarks whole batches of data, and nothing else") {}

 private:
  static std::vector<bool> Remarked(double share, Ipv4Header::EcnType ecn, uint32_t payload) {
    auto disc = CreateObject<MarkQueueDisc>();
    disc->SetMarker(std::make_shared<Explorer>(share));
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
    NS_TEST_EXPECT_MSG_EQ(Count(Remarked(1, Ipv4Header::ECN_ECT1, 0)), 0, "pure ACKs");
    const auto quarter = Remarked(0.25, Ipv4Header::ECN_ECT1, 1448);
    // 1000 batches: the standard deviation of the count is 14 batches
    NS_TEST_EXPECT_MSG_EQ_TOL(Count(quarter), 2000, 4 * 14 * 8, "share 0.25");
    for (std::size_t i = 0; i < quarter.size(); ++i) {
      NS_TEST_EXPECT_MSG_EQ(quarter[i], quarter[i - i % 8], "one fate a batch");
    }
  }
};

class MarkQueueDiscSuite : public TestSuite {
 public:
  MarkQueueDiscSuite() : TestSuite("swiftqueue-mark-queue-disc", Type::UNIT) {
    AddTestCase(new ExploreCase, Duration::QUICK);
  }
};

MarkQueueDiscSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) {
  return swiftqueue::RunSuite("swiftqueue-mark-queue-disc", argc, argv);
}
