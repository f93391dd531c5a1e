// SPDX-License-Identifier: GPL-2.0-only
//
// Confucius: a router that picks a flow's queue by its age and by how much of the buffer it takes.
// Written from the paper; simulation/doc/confucius.md has the choices where it contradicts itself.

#ifndef SWIFTQUEUE_CONFUCIUS_QUEUE_DISC_H
#define SWIFTQUEUE_CONFUCIUS_QUEUE_DISC_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "flow-ages.h"
#include "flow-queue-disc.h"
#include "ns3/nstime.h"

namespace swiftqueue {

/**
 * Four virtual classes under deficit weighted round robin: new flows, and three of old flows that
 * aim at a short, middle and long queue. A class's weight is the sum of its flows': 1 of an old
 * one, min(old / new * 2^(age / DoublingTime), 1) of a new one. A new flow whose weight is 1 goes
 * to the class whose target its packets are nearest to. Every Interval a flow that takes more of
 * its class than its share and Hysteresis goes up, one that takes less goes down, and a class that
 * is too long or too short for its place goes as a whole.
 *
 * Packets belong to flows; a class serves the earliest of its flows', so an order is never changed.
 * A packet costs O(1); a move costs the packets of the flow and of the class that it joins.
 */
class ConfuciusQueueDisc : public FlowQueueDisc {
 public:
  enum Thresholds { kCode, kText };
  static constexpr std::size_t kClasses = 4;  // 0: new flows; 1 to 3: old ones
  static constexpr uint32_t kUnknown = FlowAges::kUnknown;

  static ns3::TypeId GetTypeId();

  // For tests and traces; by class, or by a packet's flow.
  double GetWeight(uint32_t ofClass) const;
  uint32_t GetWeighing(uint32_t ofClass) const { return m_ages.Weighing(ofClass); }
  uint32_t GetClassPackets(uint32_t ofClass) const;
  uint32_t GetClassOf(ns3::Ptr<ns3::QueueDiscItem> item) const;
  /** kUnknown where no flow is in the bucket. */
  uint32_t GetClassOf(uint32_t bucket) const { return m_ages.GroupOf(bucket); }
  using FlowQueueDisc::BucketOf;
  /** Puts a packet's flow into a class, as an examination would. */
  void MoveFlow(ns3::Ptr<ns3::QueueDiscItem> item, uint32_t toClass);

 protected:
  bool DoEnqueue(Item item) override;
  Item DoDequeue() override;
  void InitializeParams() override;

 private:
  struct Waiting {
    uint64_t number;  // number in order of arrival
    uint32_t bucket;
    Place place;
  };
  using Order = std::list<Waiting>;
  struct Flow {
    std::deque<Order::iterator> packets;
    uint64_t lengthSum{0};  // over the packets that came in this interval
    uint32_t came{0};
  };
  struct Length {
    uint64_t sum{0};
    uint32_t came{0};
    double Mean(double now) const { return came == 0 ? now : static_cast<double>(sum) / came; }
  };

  void SetClass(uint32_t bucket, uint32_t toClass);
  void Update();
  void Examine();
  void ExamineFlows(std::array<bool, kClasses>& changed);
  void ExamineClasses(const std::array<bool, kClasses>& changed);
  double MeanLength(const Flow& flow) const;
  uint32_t NearestTarget(double packets) const;
  void DropFromFurthest();
  Item TakeFrom(Order& order, const char* dropReason);

  // attributes
  ns3::Time m_doublingTime;
  uint32_t m_stepsPerDoubling{0};
  bool m_leaveAtOnce{false};
  double m_leastNewWeight{0};
  double m_hysteresis{0};
  double m_outlierShare{0};
  bool m_moveLone{false};
  Thresholds m_thresholds{kCode};
  ns3::Time m_interval;
  ns3::Time m_idleAfter;
  ns3::Time m_forgetAfter;

  std::array<double, kClasses> m_targets{};  // packets
  FlowAges m_ages;  // groups are classes; those of class 0 are new, all others old
  std::vector<Flow> m_flows;
  std::array<Order, kClasses> m_order;
  std::array<Length, kClasses> m_length;
  ns3::Time m_nextExamination;
  uint64_t m_arrivals{0};

  // round robin
  std::array<double, kClasses> m_deficitBytes{};
  uint32_t m_turn{0};
  bool m_granted{false};  // whether the class has had its quantum of this turn
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_CONFUCIUS_QUEUE_DISC_H
