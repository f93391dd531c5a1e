// SPDX-License-Identifier: GPL-2.0-only
//
// The heavy-hitter filter as Linux has it (sch_hhf; Estan and Varghese, SIGCOMM '02): flows that
// send much in a short time share a queue with less weight. Written from its documentation.

#ifndef SWIFTQUEUE_HEAVY_HITTER_QUEUE_DISC_H
#define SWIFTQUEUE_HEAVY_HITTER_QUEUE_DISC_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "flow-queue-disc.h"
#include "ns3/nstime.h"

namespace swiftqueue {

/**
 * A flow is heavy once each of four counters, found by four parts of its hash, has AdmitBytes since
 * the last reset; counters are raised to no more than the smallest needs. It stays heavy until it
 * has been silent for EvictAfter. Deficit round robin between both queues; when full, the longer
 * one loses its head.
 */
class HeavyHitterQueueDisc : public FlowQueueDisc {
 public:
  static ns3::TypeId GetTypeId();

  uint64_t GetHeavyFlows() const { return m_heavy.size(); }

 protected:
  bool DoEnqueue(Item item) override;
  Item DoDequeue() override;

 private:
  static constexpr std::size_t kStages = 4;
  static constexpr std::size_t kCounters = 1024;  // counters of a stage
  static constexpr std::size_t kMostHeavy = 2048;

  struct Class {
    std::deque<Place> packets;
    double deficitBytes{0};
  };

  bool IsHeavy(uint32_t hash, uint32_t bytes);

  uint64_t m_admitBytes{0};
  ns3::Time m_resetAfter;
  ns3::Time m_evictAfter;
  double m_lightWeight{0};
  std::array<std::array<uint64_t, kCounters>, kStages> m_counters{};
  ns3::Time m_reset;
  std::unordered_map<uint32_t, ns3::Time> m_heavy;  // by hash: last seen
  std::array<Class, 2> m_classes;                   // 0: light, 1: heavy
  uint32_t m_turn{0};
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_HEAVY_HITTER_QUEUE_DISC_H
