// SPDX-License-Identifier: GPL-2.0-only
//
// Fair queuing by deficit round robin (Shreedhar and Varghese, SIGCOMM '95), first in first out in
// each flow, with a limit for each: "FQ+FIFO", and "fq N" where a flow has N packets.

#ifndef SWIFTQUEUE_FAIR_QUEUE_DISC_H
#define SWIFTQUEUE_FAIR_QUEUE_DISC_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "flow-queue-disc.h"

namespace swiftqueue {

/**
 * A flow that has packets gets a quantum of bytes in its turn. A packet beyond its flow's limit is
 * refused. When the disc is full, the longest flow loses its newest packet.
 */
class FairQueueDisc : public FlowQueueDisc {
 public:
  static ns3::TypeId GetTypeId();

  static constexpr const char* kOverFlowLimit = "Over the flow's limit";

 protected:
  bool DoEnqueue(Item item) override;
  Item DoDequeue() override;
  void InitializeParams() override;

  /** Packets that a flow may have waiting, now that a packet of it comes. */
  virtual uint32_t Admit(uint32_t) { return m_flowLimit; }
  /** A packet of a flow leaves for the link. */
  virtual void Departed(uint32_t) {}
  /** A packet of a flow is dropped. */
  virtual void Lost(uint32_t) {}
  std::size_t Waiting(uint32_t bucket) const { return m_flows[bucket].packets.size(); }
  uint32_t FlowLimit() const { return m_flowLimit; }

 private:
  struct Flow {
    std::deque<Place> packets;
    int64_t deficitBytes{0};
  };

  uint32_t m_quantumBytes{0};
  uint32_t m_flowLimit{0};
  std::vector<Flow> m_flows;
  std::deque<uint32_t> m_turns;  // flows that have packets
  ByLength m_lengths;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FAIR_QUEUE_DISC_H
