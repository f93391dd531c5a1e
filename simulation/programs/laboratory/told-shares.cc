// SPDX-License-Identifier: GPL-2.0-only

#include "told-shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <variant>

#include "ns3/double.h"
#include "ns3/simulator.h"
#include "packet-log.h"

namespace swiftqueue::lab {

using Disc = ns3::DualPi2QueueDisc;
using ns3::Simulator;

namespace {

constexpr std::size_t kFlows = std::numeric_limits<uint16_t>::max() + std::size_t{1};
constexpr double kHeardEveryUs = 1'000;
const ns3::Time kRestInterval = ns3::MilliSeconds(100);  // as the router's

/** C's share in the profile, whatever the run's own attributes say. */
double ProfilesShare(const Run& run) {
  Bottleneck plain = run.bottlenecks.front();
  plain.disc.reset();
  for (const auto& [name, value] : DiscAttributesOf(run, plain)) {
    if (name == "CWeight") {
      return std::stod(value);
    }
  }
  ns3::TypeId::AttributeInformation info;
  Disc::GetTypeId().LookupAttributeByName("CWeight", &info);
  return ns3::DynamicCast<const ns3::DoubleValue>(info.initialValue)->Get();
}

}  // namespace

ToldShares::ToldShares(const Told& told, const Run& run, const Network& network)
    : m_disc(ns3::DynamicCast<Disc>(network.Bottlenecks().front())),
      m_taughtShare(ProfilesShare(run)) {
  if (!m_disc || network.Bottlenecks().size() != 1) {
    throw std::invalid_argument("control.told: there is not one bottleneck with a DualPI2");
  }
  m_ages.Reset(kFlows, 2, {});
  if (const auto* heard = std::get_if<ToldWeights>(&told)) {
    m_heardTicks = static_cast<std::size_t>(std::lround(heard->ageUs / kHeardEveryUs)) + 1;
    Hear();
  }
}

void ToldShares::Hear() {
  const Weights own = Own();
  Weights others;
  for (const auto queue : {Disc::kL4s, Disc::kClassic}) {
    others[queue] = std::max(0.0, m_disc->GetFlowsWeight(queue) - own[queue]);
  }
  m_others.push_back(others);
  if (m_others.size() > m_heardTicks) {
    m_others.pop_front();
  }
  Simulator::Schedule(ns3::Seconds(kHeardEveryUs * 1e-6), &ToldShares::Hear, this);
}

void ToldShares::Sent(uint16_t flow, uint8_t queue) {
  const auto group = static_cast<uint32_t>(queue == kL4sQueue ? Disc::kL4s : Disc::kClassic);
  if (m_ages.GroupOf(flow) == FlowAges::kUnknown) {
    m_ages.Begin(flow, group);
  } else if (m_ages.GroupOf(flow) != group) {
    m_ages.Put(flow, group, m_ages.IsNew(flow));
  }
  m_ages.Weigh(flow, true);
  m_ages.Seen(flow);
  m_ages.Grow([this](uint32_t grown) { m_ages.Put(grown, m_ages.GroupOf(grown), false); });
  if (Simulator::Now() >= m_nextRest) {
    m_ages.Rest([](uint32_t) { return true; });  // it does not see the router's queue
    m_nextRest = Simulator::Now() + kRestInterval;
  }
}

void ToldShares::Acked(uint16_t flow, float latencyUs) {
  if (!std::isnan(latencyUs)) {
    float& leastUs = m_leastUs.try_emplace(flow, latencyUs).first->second;
    leastUs = std::min(leastUs, latencyUs);
  }
}

ToldShares::Weights ToldShares::Own() const {
  return {m_ages.Weight(Disc::kL4s), m_ages.Weight(Disc::kClassic)};
}

double ToldShares::ClassicShareWith(uint16_t flow, Disc::Queue queue) const {
  const bool known = m_ages.GroupOf(flow) != FlowAges::kUnknown;
  const double weight =
      known && !m_ages.IsNew(flow) ? 1 : m_ages.GrowthWeight(known ? m_ages.StepsOf(flow) : 0);
  Weights of = Own();
  if (known && m_ages.Weighs(flow)) {
    of[m_ages.GroupOf(flow)] = std::max(0.0, of[m_ages.GroupOf(flow)] - weight);
  }
  of[queue] += weight;
  if (!m_others.empty()) {
    of[Disc::kL4s] += m_others.front()[Disc::kL4s];
    of[Disc::kClassic] += m_others.front()[Disc::kClassic];
  }
  return m_disc->ClassicShare(of[Disc::kL4s], of[Disc::kClassic]);
}

void ToldShares::Correct(const agent::Question& question,
                         const std::function<uint16_t(const Candidate&)>& flowOf, float* y_BHL,
                         std::size_t outputs) {
  float* const marked_HL = y_BHL + (question.windows - 1) * kHorizon * outputs;
  for (std::size_t i = 0; i < kHorizon; ++i) {
    const Candidate& candidate = question.batch[i];
    const uint16_t flow = flowOf(candidate);
    const auto least = m_leastUs.find(flow);
    if (candidate.queue != kL4sQueue || least == m_leastUs.end()) {
      continue;  // it has no choice, or nothing says how much of its latency is waiting
    }
    const auto corrected = [&](float forecastUs, double taught, double told) {
      const double waitUs = std::max(0.0F, forecastUs - least->second);
      return static_cast<float>(forecastUs + waitUs * (taught / told - 1));
    };
    const double classicShare = ClassicShareWith(flow, Disc::kClassic);
    const double l4sShare = 1 - ClassicShareWith(flow, Disc::kL4s);
    for (std::size_t at = i * outputs; at < (i + 1) * outputs; ++at) {
      y_BHL[at] = corrected(y_BHL[at], m_taughtShare, classicShare);
      marked_HL[at] = corrected(marked_HL[at], 1 - m_taughtShare, l4sShare);
    }
  }
}

}  // namespace swiftqueue::lab
