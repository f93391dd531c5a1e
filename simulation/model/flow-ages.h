// SPDX-License-Identifier: GPL-2.0-only
//
// Confucius' age rule: how much a flow weighs. docs: simulation/doc/confucius.md.

#ifndef SWIFTQUEUE_FLOW_AGES_H
#define SWIFTQUEUE_FLOW_AGES_H

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "ns3/nstime.h"

namespace swiftqueue {

/**
 * Flows (buckets) in groups. An old flow weighs 1, a new one min(old / new * 2^(age / doubling),
 * 1), and a group as much as its flows together. A flow that is silent and empty weighs nothing
 * after a while, and is forgotten later. A packet costs O(1) in flows.
 */
class FlowAges {
 public:
  static constexpr uint32_t kUnknown = 255;  // group of a flow that is not known

  struct Rule {
    ns3::Time doublingTime{ns3::MilliSeconds(250)};  // 1 / lambda
    uint32_t stepsPerDoubling{1};
    ns3::Time idleAfter{ns3::MilliSeconds(100)};
    ns3::Time forgetAfter{ns3::Seconds(1)};
  };

  void Reset(uint32_t buckets, uint32_t groups, const Rule& rule);

  /** A packet of the flow comes or goes. */
  void Seen(uint32_t bucket);
  /** A flow that was not known is new from now on; it does not weigh yet. */
  void Begin(uint32_t bucket, uint32_t group);
  void Weigh(uint32_t bucket, bool weighs);
  /** Puts a known flow into another group, as a new or an old one. */
  void Put(uint32_t bucket, uint32_t group, bool isNew);

  uint32_t GroupOf(uint32_t bucket) const { return m_flows[bucket].group; }
  bool IsNew(uint32_t bucket) const { return m_flows[bucket].isNew; }
  bool Weighs(uint32_t bucket) const { return m_flows[bucket].weighs; }
  uint32_t StepsOf(uint32_t bucket) const { return m_flows[bucket].steps; }
  const std::vector<uint32_t>& Known() const { return m_known; }

  double Weight(uint32_t group) const;
  /** Flows of the group that weigh. */
  uint32_t Weighing(uint32_t group) const { return m_groups[group].old + m_groups[group].young; }
  /** Of a new flow after so many steps. */
  double GrowthWeight(uint32_t steps) const;

  /** New flows whose time has come grow; `grown` hears of those that may be old now. */
  void Grow(const std::function<void(uint32_t bucket)>& grown);
  /** Silent flows without packets rest, or are forgotten. */
  void Rest(const std::function<bool(uint32_t bucket)>& isEmpty);

 private:
  struct Flow {
    uint32_t group{kUnknown};
    bool isNew{false};
    bool weighs{false};
    uint32_t steps{0};       // steps of growth, while new
    uint64_t generation{0};  // generation of the life that began last
    ns3::Time seen;
  };
  struct Growing {
    uint32_t bucket;
    uint64_t generation;
    ns3::Time due;
  };
  struct Group {
    uint32_t old{0};  // flows that weigh, as is the next one
    uint32_t young{0};
    std::vector<uint32_t> bySteps;  // young flows by their steps
    mutable double weight{0};
    mutable bool weightKnown{false};
  };

  void Count(const Flow& flow, int by);

  Rule m_rule;
  std::vector<Flow> m_flows;
  std::vector<uint32_t> m_known;  // buckets of the flows that are known
  std::vector<Group> m_groups;
  uint32_t m_old{0};  // flows that weigh, as is the next one
  uint32_t m_young{0};
  std::vector<std::deque<Growing>> m_growing;  // new flows by steps, oldest first
  ns3::Time m_nextGrowth{ns3::Time::Max()};
  uint64_t m_lives{0};
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FLOW_AGES_H
