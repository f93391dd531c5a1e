// SPDX-License-Identifier: GPL-2.0-only
//
// What the queue discs that look at flows have in common: one pool of packets, buckets by hash.

#ifndef SWIFTQUEUE_FLOW_QUEUE_DISC_H
#define SWIFTQUEUE_FLOW_QUEUE_DISC_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ns3/queue-disc.h"
#include "ns3/queue.h"

namespace swiftqueue {

/** Packets in the order in which they came; any of them can be taken out, in constant time. */
class PacketPool : public ns3::Queue<ns3::QueueDiscItem> {
 public:
  using Place = ns3::Queue<ns3::QueueDiscItem>::Iterator;

  static ns3::TypeId GetTypeId();

  Place Add(ns3::Ptr<ns3::QueueDiscItem> item);
  ns3::Ptr<ns3::QueueDiscItem> Take(Place place) { return DoDequeue(place); }

  bool Enqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
  ns3::Ptr<ns3::QueueDiscItem> Dequeue() override;
  ns3::Ptr<ns3::QueueDiscItem> Remove() override;
  ns3::Ptr<const ns3::QueueDiscItem> Peek() const override;
};

/** A disc with a limit in packets that knows a flow by its hash, as Linux' and ns-3's fair queues.
 */
class FlowQueueDisc : public ns3::QueueDisc {
 public:
  static ns3::TypeId GetTypeId();

  static constexpr const char* kOverLimit = "Over the disc's limit";

 protected:
  using Place = PacketPool::Place;
  using Item = ns3::Ptr<ns3::QueueDiscItem>;

  FlowQueueDisc();

  /** The bucket of a packet's flow, 0 to Buckets() - 1; what is not IP is in bucket 0. */
  uint32_t BucketOf(Item item) const;
  uint32_t Buckets() const { return m_buckets; }
  bool IsFull() const { return GetNPackets() >= m_limit; }
  uint32_t Limit() const { return m_limit; }

  Place Add(Item item) { return m_pool->Add(item); }
  Item Take(Place place) { return m_pool->Take(place); }
  /** Takes a packet out for ever. */
  void Drop(Place place, const char* reason) { DropAfterDequeue(m_pool->Take(place), reason); }

  bool CheckConfig() override;
  void InitializeParams() override;

 private:
  uint32_t m_buckets{0};
  uint32_t m_perturbation{0};
  uint32_t m_limit{0};  // MaxSize, read once
  ns3::Ptr<PacketPool> m_pool;
};

/** Things by their length, 0 to `most`; the longest, and a change by one, in constant time. */
class ByLength {
 public:
  void Reset(uint32_t things, uint32_t most);
  uint32_t Length(uint32_t thing) const { return m_length[thing]; }
  void Grow(uint32_t thing) { Put(thing, m_length[thing] + 1); }
  void Shrink(uint32_t thing) { Put(thing, m_length[thing] - 1); }
  /** One of the longest. */
  uint32_t Longest() const { return m_first[m_longest]; }

 private:
  void Put(uint32_t thing, uint32_t length);

  std::vector<uint32_t> m_length, m_next, m_previous, m_first;
  uint32_t m_longest{0};
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FLOW_QUEUE_DISC_H
