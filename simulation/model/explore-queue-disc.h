// SPDX-License-Identifier: GPL-2.0-only
//
// The sender's root queue disc: first in, first out, exploring the other queue now and then.

#ifndef SWIFTQUEUE_EXPLORE_QUEUE_DISC_H
#define SWIFTQUEUE_EXPLORE_QUEUE_DISC_H

#include <cstdint>

#include "ns3/queue-disc.h"
#include "ns3/random-variable-stream.h"

namespace swiftqueue {

/**
 * Sends a seeded share of the sender's L4S data packets as classic ones (Not-ECT).
 *
 * Without it a trace never shows what a flow's packet would have met in the other queue, and no
 * model could learn it. Packets are counted in send order, all flows together, and each batch of
 * `BatchPackets` is explored or left alone as a whole, as a sender's controller would decide.
 */
class ExploreQueueDisc : public ns3::QueueDisc {
 public:
  static ns3::TypeId GetTypeId();
  ExploreQueueDisc();

  /** Fix the random stream of the choices; returns the number of streams used. */
  int64_t AssignStreams(int64_t stream);

 private:
  bool DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
  ns3::Ptr<ns3::QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override;

  double m_share;
  uint32_t m_batchPackets;
  uint64_t m_dataPackets{0};
  bool m_exploring{false};
  ns3::Ptr<ns3::UniformRandomVariable> m_uniform;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_EXPLORE_QUEUE_DISC_H
