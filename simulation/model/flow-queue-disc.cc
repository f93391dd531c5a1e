// SPDX-License-Identifier: GPL-2.0-only

#include "flow-queue-disc.h"

#include <limits>

#include "ns3/abort.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

using ns3::Ptr;
using ns3::QueueDiscItem;

NS_OBJECT_ENSURE_REGISTERED(PacketPool);
NS_OBJECT_ENSURE_REGISTERED(FlowQueueDisc);

namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

}  // namespace

ns3::TypeId PacketPool::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::PacketPool")
                               .SetParent<ns3::Queue<QueueDiscItem>>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<PacketPool>();
  return tid;
}

PacketPool::Place PacketPool::Add(Ptr<QueueDiscItem> item) {
  Place place;
  const bool added = DoEnqueue(GetContainer().end(), item, place);
  NS_ABORT_MSG_UNLESS(added, "a pool of packets is never full: its disc has the limit");
  return place;
}

bool PacketPool::Enqueue(Ptr<QueueDiscItem> item) { return DoEnqueue(GetContainer().end(), item); }
Ptr<QueueDiscItem> PacketPool::Dequeue() { return DoDequeue(GetContainer().begin()); }
Ptr<QueueDiscItem> PacketPool::Remove() { return DoRemove(GetContainer().begin()); }
Ptr<const QueueDiscItem> PacketPool::Peek() const { return DoPeek(GetContainer().begin()); }

ns3::TypeId FlowQueueDisc::GetTypeId() {
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::FlowQueueDisc")
          .SetParent<ns3::QueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddAttribute("MaxSize", "Limit of the disc, in packets.",
                        ns3::QueueSizeValue(ns3::QueueSize("1000p")),
                        ns3::MakeQueueSizeAccessor(&QueueDisc::SetMaxSize, &QueueDisc::GetMaxSize),
                        ns3::MakeQueueSizeChecker())
          .AddAttribute("Flows", "Buckets into which flows are hashed.", ns3::UintegerValue(1024),
                        ns3::MakeUintegerAccessor(&FlowQueueDisc::m_buckets),
                        ns3::MakeUintegerChecker<uint32_t>(1, 1U << 20))
          .AddAttribute("Perturbation", "Salt of the hash.", ns3::UintegerValue(0),
                        ns3::MakeUintegerAccessor(&FlowQueueDisc::m_perturbation),
                        ns3::MakeUintegerChecker<uint32_t>());
  return tid;
}

FlowQueueDisc::FlowQueueDisc()
    : QueueDisc(ns3::QueueDiscSizePolicy::MULTIPLE_QUEUES, ns3::QueueSizeUnit::PACKETS) {}

uint32_t FlowQueueDisc::BucketOf(Item item) const { return item->Hash(m_perturbation) % m_buckets; }

bool FlowQueueDisc::CheckConfig() {
  if (GetNInternalQueues() == 0) {
    m_pool = ns3::CreateObject<PacketPool>();
    m_pool->SetMaxSize(ns3::QueueSize(ns3::QueueSizeUnit::PACKETS, kNone));
    AddInternalQueue(m_pool);
  }
  return m_pool && GetNInternalQueues() == 1 && GetNQueueDiscClasses() == 0 &&
         GetNPacketFilters() == 0 && GetMaxSize().GetValue() > 0;
}

void FlowQueueDisc::InitializeParams() { m_limit = GetMaxSize().GetValue(); }

void ByLength::Reset(uint32_t things, uint32_t most) {
  m_length.assign(things, 0);
  m_first.assign(most + 2, kNone);
  m_next.resize(things);
  m_previous.resize(things);
  for (uint32_t i = 0; i < things; ++i) {
    m_previous[i] = i == 0 ? kNone : i - 1;
    m_next[i] = i + 1 == things ? kNone : i + 1;
  }
  m_first[0] = things == 0 ? kNone : 0;
  m_longest = 0;
}

void ByLength::Put(uint32_t thing, uint32_t length) {
  const uint32_t before = m_previous[thing];
  const uint32_t behind = m_next[thing];
  (before == kNone ? m_first[m_length[thing]] : m_next[before]) = behind;
  if (behind != kNone) {
    m_previous[behind] = before;
  }
  uint32_t& first = m_first[length];
  m_previous[thing] = kNone;
  m_next[thing] = first;
  if (first != kNone) {
    m_previous[first] = thing;
  }
  first = thing;
  m_length[thing] = length;
  if (length > m_longest) {
    m_longest = length;
  } else if (m_longest > 0 && m_first[m_longest] == kNone) {
    --m_longest;
  }
}

}  // namespace swiftqueue
