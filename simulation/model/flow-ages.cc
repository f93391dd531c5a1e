// SPDX-License-Identifier: GPL-2.0-only

#include "flow-ages.h"

#include <algorithm>
#include <cmath>

#include "ns3/simulator.h"

namespace swiftqueue {

using ns3::Simulator;
using ns3::Time;

namespace {

constexpr double kWeightUnit = 1.0 / 128;  // paper, 6 (i)
constexpr uint32_t kMostDoublings = 16;    // beyond 128 times: no flow's weight is below 1 then

}  // namespace

void FlowAges::Reset(uint32_t buckets, uint32_t groups, const Rule& rule) {
  m_rule = rule;
  m_flows.assign(buckets, {});
  m_growing.assign(kMostDoublings * rule.stepsPerDoubling + 1, {});
  Group none;
  none.bySteps.assign(m_growing.size(), 0);
  m_groups.assign(groups, none);
}

double FlowAges::GrowthWeight(uint32_t steps) const {
  if (m_old == 0) {
    return 1;  // equation 1 would give 0 for ever: there is nobody to be careful with
  }
  const double first =
      std::max(1.0, std::floor(static_cast<double>(m_old) / std::max(1U, m_young) / kWeightUnit)) *
      kWeightUnit;
  return std::min(1.0, first * std::exp2(static_cast<double>(steps) / m_rule.stepsPerDoubling));
}

double FlowAges::Weight(uint32_t group) const {
  const Group& of = m_groups[group];
  if (of.young == 0) {
    return of.old;
  }
  if (!of.weightKnown) {
    of.weight = of.old;
    for (uint32_t steps = 0; steps < of.bySteps.size(); ++steps) {
      if (of.bySteps[steps] > 0) {
        of.weight += of.bySteps[steps] * GrowthWeight(steps);
      }
    }
    of.weightKnown = true;
  }
  return of.weight;
}

void FlowAges::Begin(uint32_t bucket, uint32_t group) {
  Flow& flow = m_flows[bucket];
  const Time now = Simulator::Now();
  flow = {group, true, false, 0, ++m_lives, now};
  m_known.push_back(bucket);
  const Time due = now + m_rule.doublingTime / m_rule.stepsPerDoubling;
  m_growing.front().push_back({bucket, flow.generation, due});
  m_nextGrowth = std::min(m_nextGrowth, due);
}

void FlowAges::Seen(uint32_t bucket) { m_flows[bucket].seen = Simulator::Now(); }

void FlowAges::Count(const Flow& flow, int by) {
  Group& group = m_groups[flow.group];
  if (flow.isNew) {
    m_young += by;
    group.young += by;
    group.bySteps[flow.steps] += by;
  } else {
    m_old += by;
    group.old += by;
  }
  for (Group& of : m_groups) {
    of.weightKnown = false;
  }
}

void FlowAges::Weigh(uint32_t bucket, bool weighs) {
  Flow& flow = m_flows[bucket];
  if (flow.weighs != weighs) {
    flow.weighs = weighs;
    Count(flow, weighs ? 1 : -1);
  }
}

void FlowAges::Put(uint32_t bucket, uint32_t group, bool isNew) {
  Flow& flow = m_flows[bucket];
  const bool weighed = flow.weighs;
  Weigh(bucket, false);
  flow.group = group;
  flow.isNew = isNew;
  Weigh(bucket, weighed);
}

void FlowAges::Grow(const std::function<void(uint32_t bucket)>& grown) {
  const Time now = Simulator::Now();
  if (now < m_nextGrowth) {
    return;
  }
  const Time step = m_rule.doublingTime / m_rule.stepsPerDoubling;
  // All who grow now beside none that is old become old together.
  const bool alone = m_old == 0;
  m_nextGrowth = Time::Max();
  // Who has been due more than once goes through several of these.
  for (uint32_t steps = 0; steps < m_growing.size(); ++steps) {
    auto& growing = m_growing[steps];
    while (!growing.empty()) {
      const Growing next = growing.front();
      Flow& flow = m_flows[next.bucket];
      if (flow.generation != next.generation || !flow.isNew) {
        growing.pop_front();  // it has ended, or is old
        continue;
      }
      if (next.due > now) {
        m_nextGrowth = std::min(m_nextGrowth, next.due);
        break;
      }
      growing.pop_front();
      const bool weighed = flow.weighs;
      Weigh(next.bucket, false);
      flow.steps = std::min(steps + 1, static_cast<uint32_t>(m_growing.size()) - 1);
      Weigh(next.bucket, weighed);
      if (flow.steps >= m_rule.stepsPerDoubling && (alone || GrowthWeight(flow.steps) >= 1)) {
        grown(next.bucket);
        continue;
      }
      m_growing[flow.steps].push_back({next.bucket, next.generation, next.due + step});
    }
  }
}

void FlowAges::Rest(const std::function<bool(uint32_t bucket)>& isEmpty) {
  const Time now = Simulator::Now();
  std::erase_if(m_known, [&](uint32_t bucket) {
    Flow& flow = m_flows[bucket];
    if (!isEmpty(bucket) || now - flow.seen < m_rule.idleAfter) {
      return false;
    }
    Weigh(bucket, false);
    if (now - flow.seen < m_rule.forgetAfter) {
      return false;
    }
    flow.group = kUnknown;
    flow.isNew = false;
    return true;
  });
}

}  // namespace swiftqueue
