// SPDX-License-Identifier: GPL-2.0-only
//
// Two queues by label: the labelled flows first, or each with its share of the link.

#ifndef SWIFTQUEUE_CLASS_QUEUE_DISC_H
#define SWIFTQUEUE_CLASS_QUEUE_DISC_H

#include <array>
#include <cstdint>
#include <deque>

#include "flow-queue-disc.h"

namespace swiftqueue {

/**
 * Packets with the label (a DSCP, or the ECN codepoint of L4S) are one class, all others the other.
 * Each is first in, first out. `Weighted` is class-based queuing by deficit round robin,
 * `Strict` serves the labelled while there are any. When full, the longer class loses its newest.
 */
class ClassQueueDisc : public FlowQueueDisc {
 public:
  enum Service { kWeighted, kStrict };
  enum Label { kDscp, kEcn };

  static ns3::TypeId GetTypeId();

  void SetLabelledWeight(double weight) { m_weights[0] = weight; }
  void SetOtherWeight(double weight) { m_weights[1] = weight; }

 protected:
  bool DoEnqueue(Item item) override;
  Item DoDequeue() override;

 private:
  struct Class {
    std::deque<Place> packets;
    double deficitBytes{0};
  };

  bool HasLabel(Item item) const;
  Class& Next();

  Service m_service{kWeighted};
  Label m_label{kDscp};
  uint32_t m_dscp{0};
  std::array<double, 2> m_weights{1, 1};
  std::array<Class, 2> m_classes;  // 0: labelled
  uint32_t m_turn{0};
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_CLASS_QUEUE_DISC_H
