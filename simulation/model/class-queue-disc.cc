// SPDX-License-Identifier: GPL-2.0-only

#include "class-queue-disc.h"

#include <algorithm>

#include "ns3/double.h"
#include "ns3/enum.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

NS_OBJECT_ENSURE_REGISTERED(ClassQueueDisc);

namespace {

constexpr double kMtuBytes = 1500;
constexpr double kLeastWeight = 1e-3;
constexpr uint8_t kEcnMask = 0b11;
constexpr uint8_t kEct1Bit = 0b01;   // set in ECT(1) and CE
constexpr uint32_t kExpedited = 46;  // RFC 3246

}  // namespace

ns3::TypeId ClassQueueDisc::GetTypeId() {
  using This = ClassQueueDisc;
  const auto weight = ns3::MakeDoubleChecker<double>(kLeastWeight, 1e3);
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::ClassQueueDisc")
          .SetParent<FlowQueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<This>()
          .AddAttribute("Service", "Weighted (CBQ) or Strict (the labelled class first).",
                        ns3::EnumValue(kWeighted), ns3::MakeEnumAccessor<Service>(&This::m_service),
                        ns3::MakeEnumChecker(kWeighted, "Weighted", kStrict, "Strict"))
          .AddAttribute("Label", "What is labelled: a DSCP, or ECN's ECT(1) and CE (RFC 9331).",
                        ns3::EnumValue(kDscp), ns3::MakeEnumAccessor<This::Label>(&This::m_label),
                        ns3::MakeEnumChecker(kDscp, "Dscp", kEcn, "Ecn"))
          .AddAttribute("Dscp", "The label; EF (RFC 3246) by default.",
                        ns3::UintegerValue(kExpedited), ns3::MakeUintegerAccessor(&This::m_dscp),
                        ns3::MakeUintegerChecker<uint32_t>(0, 63))
          .AddAttribute("LabelledWeight", "Weight of the labelled class.", ns3::DoubleValue(1),
                        ns3::MakeDoubleAccessor(&This::SetLabelledWeight), weight)
          .AddAttribute("OtherWeight", "Weight of all others.", ns3::DoubleValue(1),
                        ns3::MakeDoubleAccessor(&This::SetOtherWeight), weight);
  return tid;
}

bool ClassQueueDisc::HasLabel(Item item) const {
  uint8_t dsField = 0;
  item->GetUint8Value(ns3::QueueItem::IP_DSFIELD, dsField);
  return m_label == kEcn ? (dsField & kEcnMask & kEct1Bit) != 0 : dsField >> 2 == m_dscp;
}

bool ClassQueueDisc::DoEnqueue(Item item) {
  Class& own = m_classes[HasLabel(item) ? 0 : 1];
  Class& other = m_classes[HasLabel(item) ? 1 : 0];
  if (IsFull()) {
    if (own.packets.size() >= other.packets.size()) {
      DropBeforeEnqueue(item, kOverLimit);
      return false;
    }
    Drop(other.packets.back(), kOverLimit);
    other.packets.pop_back();
  }
  own.packets.push_back(Add(item));
  return true;
}

ClassQueueDisc::Class& ClassQueueDisc::Next() {
  if (m_service == kStrict || m_classes[0].packets.empty() || m_classes[1].packets.empty()) {
    return m_classes[m_classes[0].packets.empty() ? 1 : 0];
  }
  const double heaviest = std::max(m_weights[0], m_weights[1]);
  while (m_classes[m_turn].deficitBytes <= 0) {
    m_turn = 1 - m_turn;
    m_classes[m_turn].deficitBytes += kMtuBytes * m_weights[m_turn] / heaviest;
  }
  return m_classes[m_turn];
}

ClassQueueDisc::Item ClassQueueDisc::DoDequeue() {
  Class& next = Next();
  if (next.packets.empty()) {
    return nullptr;
  }
  Item item = Take(next.packets.front());
  next.packets.pop_front();
  next.deficitBytes -= item->GetSize();
  if (m_classes[0].packets.empty() || m_classes[1].packets.empty()) {
    m_classes[0].deficitBytes = m_classes[1].deficitBytes = 0;  // nobody waits for anybody
  }
  return item;
}

}  // namespace swiftqueue
