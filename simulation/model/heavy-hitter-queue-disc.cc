// SPDX-License-Identifier: GPL-2.0-only

#include "heavy-hitter-queue-disc.h"

#include <algorithm>

#include "ns3/double.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

NS_OBJECT_ENSURE_REGISTERED(HeavyHitterQueueDisc);

namespace {

constexpr double kMtuBytes = 1500;
constexpr uint32_t kCounterBits = 10;  // log2 of a stage's counters

}  // namespace

ns3::TypeId HeavyHitterQueueDisc::GetTypeId() {
  using This = HeavyHitterQueueDisc;
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::HeavyHitterQueueDisc")
          .SetParent<FlowQueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<This>()
          .AddAttribute("AdmitBytes", "Bytes between two resets that make a flow heavy (sch_hhf).",
                        ns3::UintegerValue(128 * 1024),
                        ns3::MakeUintegerAccessor(&This::m_admitBytes),
                        ns3::MakeUintegerChecker<uint64_t>(1))
          .AddAttribute("ResetAfter", "How often the counters begin anew (sch_hhf).",
                        ns3::TimeValue(ns3::MilliSeconds(40)),
                        ns3::MakeTimeAccessor(&This::m_resetAfter),
                        ns3::MakeTimeChecker(ns3::Time(1)))
          .AddAttribute("EvictAfter", "A flow so long without a packet is light (sch_hhf).",
                        ns3::TimeValue(ns3::Seconds(1)), ns3::MakeTimeAccessor(&This::m_evictAfter),
                        ns3::MakeTimeChecker(ns3::Time(1)))
          .AddAttribute("LightWeight", "Weight of light flows; heavy ones have 1 (sch_hhf).",
                        ns3::DoubleValue(2), ns3::MakeDoubleAccessor(&This::m_lightWeight),
                        ns3::MakeDoubleChecker<double>(1, 1e3));
  return tid;
}

bool HeavyHitterQueueDisc::IsHeavy(uint32_t hash, uint32_t bytes) {
  const ns3::Time now = ns3::Simulator::Now();
  const auto known = m_heavy.find(hash);
  if (known != m_heavy.end()) {
    if (now - known->second <= m_evictAfter) {
      known->second = now;
      return true;
    }
    m_heavy.erase(known);
  }
  if (now - m_reset > m_resetAfter) {
    m_counters = {};
    m_reset = now;
  }
  std::array<uint64_t*, kStages> own{};
  uint64_t least = 0;
  uint32_t folded = 0;
  for (std::size_t i = 0; i < kStages; ++i) {
    // three parts of ten bits, and their exclusive or with what is left
    const uint32_t part = hash >> (i * kCounterBits) & (kCounters - 1);
    folded ^= part;
    own[i] = &m_counters[i][i + 1 == kStages ? folded : part];
    least = i == 0 ? *own[i] : std::min(least, *own[i]);
  }
  least += bytes;
  for (uint64_t* counter : own) {
    *counter = std::max(*counter, least);
  }
  if (least <= m_admitBytes) {
    return false;
  }
  if (m_heavy.size() >= kMostHeavy) {
    std::erase_if(m_heavy, [&](const auto& flow) { return now - flow.second > m_evictAfter; });
  }
  if (m_heavy.size() >= kMostHeavy) {
    return false;
  }
  m_heavy.emplace(hash, now);
  return true;
}

bool HeavyHitterQueueDisc::DoEnqueue(Item item) {
  const uint32_t hash = item->Hash();
  if (IsFull()) {
    const bool heavier = m_classes[1].packets.size() >= m_classes[0].packets.size();
    Class& longer = m_classes[heavier ? 1 : 0];
    Drop(longer.packets.front(), kOverLimit);
    longer.packets.pop_front();
  }
  m_classes[IsHeavy(hash, item->GetSize()) ? 1 : 0].packets.push_back(Add(item));
  return true;
}

HeavyHitterQueueDisc::Item HeavyHitterQueueDisc::DoDequeue() {
  const bool both = !m_classes[0].packets.empty() && !m_classes[1].packets.empty();
  while (both && m_classes[m_turn].deficitBytes <= 0) {
    m_turn = 1 - m_turn;
    m_classes[m_turn].deficitBytes += kMtuBytes * (m_turn == 0 ? 1 : 1 / m_lightWeight);
  }
  Class& next = m_classes[both ? m_turn : m_classes[0].packets.empty() ? 1 : 0];
  if (next.packets.empty()) {
    return nullptr;
  }
  Item item = Take(next.packets.front());
  next.packets.pop_front();
  next.deficitBytes -= both ? item->GetSize() : 0;
  return item;
}

}  // namespace swiftqueue
