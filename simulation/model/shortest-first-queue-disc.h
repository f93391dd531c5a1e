// SPDX-License-Identifier: GPL-2.0-only
//
// Shortest job first without knowing sizes, after PIAS (Bai et al., NSDI '15): the more a flow has
// sent, the later it is served.

#ifndef SWIFTQUEUE_SHORTEST_FIRST_QUEUE_DISC_H
#define SWIFTQUEUE_SHORTEST_FIRST_QUEUE_DISC_H

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "flow-queue-disc.h"
#include "ns3/nstime.h"

namespace swiftqueue {

/**
 * Queues in strict order; a flow begins in the first and goes on to the next at each threshold of
 * bytes. It never goes back while it lives, so its packets stay in order. PIAS marks at the sender;
 * here the router counts. When full, the last queue that has packets loses its newest.
 */
class ShortestFirstQueueDisc : public FlowQueueDisc {
 public:
  static ns3::TypeId GetTypeId();

 protected:
  bool DoEnqueue(Item item) override;
  Item DoDequeue() override;
  void InitializeParams() override;

 private:
  struct Flow {
    uint64_t bytes{0};
    ns3::Time seen;
  };
  static constexpr std::size_t kMostQueues = 8;  // PIAS's number of priorities in switches

  uint64_t m_firstThreshold{0};
  uint64_t m_growth{0};
  std::array<uint64_t, kMostQueues - 1> m_thresholds{};
  ns3::Time m_forgetAfter;
  std::vector<Flow> m_flows;
  std::array<std::deque<Place>, kMostQueues> m_queues;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_SHORTEST_FIRST_QUEUE_DISC_H
