// SPDX-License-Identifier: GPL-2.0-only

#include "fair-queue-disc.h"

#include "ns3/uinteger.h"

namespace swiftqueue {

NS_OBJECT_ENSURE_REGISTERED(FairQueueDisc);

ns3::TypeId FairQueueDisc::GetTypeId() {
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::FairQueueDisc")
          .SetParent<FlowQueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<FairQueueDisc>()
          .AddAttribute(
              "Quantum", "Bytes that a flow gets in its turn; with an MTU, a packet costs O(1).",
              ns3::UintegerValue(1500), ns3::MakeUintegerAccessor(&FairQueueDisc::m_quantumBytes),
              ns3::MakeUintegerChecker<uint32_t>(1))
          .AddAttribute("FlowLimit", "Packets that a flow may have waiting.",
                        ns3::UintegerValue(10'000),
                        ns3::MakeUintegerAccessor(&FairQueueDisc::m_flowLimit),
                        ns3::MakeUintegerChecker<uint32_t>(1));
  return tid;
}

void FairQueueDisc::InitializeParams() {
  FlowQueueDisc::InitializeParams();
  m_flows.resize(Buckets());
  m_lengths.Reset(Buckets(), Limit());
}

bool FairQueueDisc::DoEnqueue(Item item) {
  const uint32_t bucket = BucketOf(item);
  Flow& flow = m_flows[bucket];
  if (flow.packets.size() >= Admit(bucket)) {
    Lost(bucket);
    DropBeforeEnqueue(item, kOverFlowLimit);
    return false;
  }
  if (IsFull()) {
    const uint32_t longest = m_lengths.Longest();
    if (m_lengths.Length(longest) <= m_lengths.Length(bucket) + 1) {
      Lost(bucket);
      DropBeforeEnqueue(item, kOverLimit);
      return false;
    }
    // Longer by two at least, so it keeps packets and its turn.
    Lost(longest);
    Drop(m_flows[longest].packets.back(), kOverLimit);
    m_flows[longest].packets.pop_back();
    m_lengths.Shrink(longest);
  }
  if (flow.packets.empty()) {
    flow.deficitBytes = m_quantumBytes;
    m_turns.push_back(bucket);
  }
  flow.packets.push_back(Add(item));
  m_lengths.Grow(bucket);
  return true;
}

FairQueueDisc::Item FairQueueDisc::DoDequeue() {
  while (!m_turns.empty()) {
    const uint32_t bucket = m_turns.front();
    Flow& flow = m_flows[bucket];
    if (flow.deficitBytes <= 0) {
      flow.deficitBytes += m_quantumBytes;
      m_turns.pop_front();
      m_turns.push_back(bucket);
      continue;
    }
    Item item = Take(flow.packets.front());
    flow.packets.pop_front();
    m_lengths.Shrink(bucket);
    Departed(bucket);
    flow.deficitBytes -= item->GetSize();
    if (flow.packets.empty()) {
      m_turns.pop_front();
    }
    return item;
  }
  return nullptr;
}

}  // namespace swiftqueue
