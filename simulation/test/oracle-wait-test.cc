// SPDX-License-Identifier: GPL-2.0-only
//
// What the oracle predicts against what a DualPI2 does: run `build/simulation/oracle-wait-test`.

#include <string>

#include "../programs/laboratory/queue-view.h"
#include "ns3/double.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/test.h"
#include "suite.h"

namespace swiftqueue::lab {
namespace {

using Disc = ns3::DualPi2QueueDisc;
using ns3::Ptr;

constexpr uint32_t kPacketBytes = 1500;
constexpr BytesPerUs kRate = 12.5;  // 100 Mbit/s

Ptr<ns3::Ipv4QueueDiscItem> Item(Disc::Queue queue) {
  ns3::Ipv4Header ip;
  ip.SetEcn(queue == Disc::kL4s ? ns3::Ipv4Header::ECN_ECT1 : ns3::Ipv4Header::ECN_NotECT);
  const uint32_t payload = kPacketBytes - ip.GetSerializedSize();
  ip.SetPayloadSize(payload);
  return ns3::Create<ns3::Ipv4QueueDiscItem>(ns3::Create<ns3::Packet>(payload), ns3::Address(),
                                             0x0800, ip);
}

/** Two queues, and what goes on arriving in the one that the packet does not take. */
struct Load {
  double classicWeight;
  Disc::Queue queue;  // queue of the packet
  uint32_t ahead;     // packets before it
  uint32_t other;     // packets in the other queue
  double arrivals;    // in the other queue, share of the link
};

/** How long a packet waits in a disc that is served all the time; no time passes for its AQMs. */
double ServedUs(const Load& load) {
  auto disc = ns3::CreateObject<Disc>();
  disc->SetAttribute("CWeight", ns3::DoubleValue(load.classicWeight));
  disc->SetAttribute("MaxSize", ns3::StringValue("100000000B"));
  disc->AssignStreams(1);
  disc->Initialize();
  const auto other = load.queue == Disc::kL4s ? Disc::kClassic : Disc::kL4s;
  for (uint32_t i = 0; i < load.ahead; ++i) {
    disc->Enqueue(Item(load.queue));
  }
  for (uint32_t i = 0; i < load.other; ++i) {
    disc->Enqueue(Item(other));
  }
  const auto packet = Item(load.queue);
  disc->Enqueue(packet);
  double arriving = 0;
  uint32_t before = 0;
  for (; disc->Dequeue() != packet; ++before) {
    for (arriving += load.arrivals; arriving >= 1; --arriving) {
      disc->Enqueue(Item(other));
    }
  }
  disc->Dispose();
  return before * kPacketBytes / kRate;
}

class WaitCase : public ns3::TestCase {
 public:
  explicit WaitCase(const Load& load)
      : TestCase((load.queue == Disc::kL4s ? "L, " : "C, ") + std::to_string(load.ahead) +
                 " packets ahead, " + std::to_string(load.other) +
                 " in the other queue, which gets " + std::to_string(load.arrivals) +
                 " of the link; weight of C " + std::to_string(load.classicWeight)),
        m_load(load) {}

 private:
  void DoRun() override {
    const double weight =
        m_load.queue == Disc::kL4s ? 1 - m_load.classicWeight : m_load.classicWeight;
    const double predictedUs = WaitUs(m_load.ahead * kPacketBytes, m_load.other * kPacketBytes,
                                      weight, kRate, m_load.arrivals * kRate);
    // A queue's share is kept to two packets of each (dual-pi2-queue-disc-test), and the last may
    // leave in the other's turn.
    const double toleranceUs = (2 / weight + 1) * kPacketBytes / kRate;
    NS_TEST_EXPECT_MSG_EQ_TOL(predictedUs, ServedUs(m_load), toleranceUs, GetName());
    ns3::Simulator::Destroy();
  }

  Load m_load;
};

class OracleWaitSuite : public ns3::TestSuite {
 public:
  OracleWaitSuite() : TestSuite("oracle-wait", Type::UNIT) {
    for (const double weight : {1.0 / 16, 0.1, 0.5}) {
      for (const auto queue : {Disc::kL4s, Disc::kClassic}) {
        for (const uint32_t other : {0, 30, 300, 3000}) {
          // Under the other's share, about it, and above: its queue empties, hardly does, grows.
          for (const double arrivals : {0.0, 0.3, 0.48, 0.52, 0.8}) {
            AddTestCase(new WaitCase({weight, queue, 200, other, arrivals}), Duration::QUICK);
          }
        }
      }
    }
  }
};

OracleWaitSuite g_suite;  // registers itself

}  // namespace
}  // namespace swiftqueue::lab

int main(int argc, char** argv) { return swiftqueue::RunSuite("oracle-wait", argc, argv); }
