// SPDX-License-Identifier: GPL-2.0-only

#include "confucius-queue-disc.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/enum.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

using ns3::Simulator;
using ns3::Time;

NS_OBJECT_ENSURE_REGISTERED(ConfuciusQueueDisc);

namespace {

constexpr uint32_t kNew = 0;
constexpr double kMtuBytes = 1500;
// Unstated in the paper: of the buffer, of the classes in order; then where the class that is
// examined is too long and too short (variant Code).
constexpr std::array<double, 4> kTargets = {1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2};
constexpr std::array<double, 4> kTooLong = {0, 1.0 / 8, 1.0 / 4, 1};
constexpr std::array<double, 4> kTooShort = {0, 0, 1.0 / 16, 1.0 / 8};

}  // namespace

ns3::TypeId ConfuciusQueueDisc::GetTypeId() {
  using This = ConfuciusQueueDisc;
  const auto time = ns3::MakeTimeChecker(Time(1));
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::ConfuciusQueueDisc")
          .SetParent<FlowQueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<This>()
          .AddAttribute("DoublingTime", "1 / lambda: a new flow's weight doubles in it (4.2).",
                        ns3::TimeValue(ns3::MilliSeconds(250)),
                        ns3::MakeTimeAccessor(&This::m_doublingTime), time)
          .AddAttribute("StepsPerDoubling", "1: bit shifts (6); 16: near equation 1, within 4.4 %.",
                        ns3::UintegerValue(1), ns3::MakeUintegerAccessor(&This::m_stepsPerDoubling),
                        ns3::MakeUintegerChecker<uint32_t>(1, 64))
          .AddAttribute("LeaveAtOnce",
                        "A flow is old as soon as its weight is 1, before its first reweighting "
                        "(4.2 read literally, against 6).",
                        ns3::BooleanValue(false), ns3::MakeBooleanAccessor(&This::m_leaveAtOnce),
                        ns3::MakeBooleanChecker())
          .AddAttribute("LeastNewWeight", "Least weight of the new flows together (0 in the text).",
                        ns3::DoubleValue(0), ns3::MakeDoubleAccessor(&This::m_leastNewWeight),
                        ns3::MakeDoubleChecker<double>(0, 1e3))
          .AddAttribute("Hysteresis", "alpha of equations 2 and 3 (5.1).", ns3::DoubleValue(0.1),
                        ns3::MakeDoubleAccessor(&This::m_hysteresis),
                        ns3::MakeDoubleChecker<double>(0, 1))
          .AddAttribute("OutlierShare",
                        "Of the buffer: by how many packets a flow must differ from its class's "
                        "mean besides (0 in the text).",
                        ns3::DoubleValue(1.0 / 32), ns3::MakeDoubleAccessor(&This::m_outlierShare),
                        ns3::MakeDoubleChecker<double>(0, 1))
          .AddAttribute("MoveLone", "Whether a class of one flow is moved too, as in the text.",
                        ns3::BooleanValue(true), ns3::MakeBooleanAccessor(&This::m_moveLone),
                        ns3::MakeBooleanChecker())
          .AddAttribute("Thresholds",
                        "Where a class is too long or short: Text, its neighbours' targets (5.1); "
                        "Code, its own target and half the one below.",
                        ns3::EnumValue(kCode),
                        ns3::MakeEnumAccessor<Thresholds>(&This::m_thresholds),
                        ns3::MakeEnumChecker(kCode, "Code", kText, "Text"))
          .AddAttribute("Interval", "How often flows and classes are examined (6).",
                        ns3::TimeValue(ns3::MilliSeconds(100)),
                        ns3::MakeTimeAccessor(&This::m_interval), time)
          .AddAttribute("IdleAfter", "A flow that is empty and silent for so long weighs nothing.",
                        ns3::TimeValue(ns3::MilliSeconds(100)),
                        ns3::MakeTimeAccessor(&This::m_idleAfter), time)
          .AddAttribute("ForgetAfter", "A flow that is empty and silent for so long is forgotten.",
                        ns3::TimeValue(ns3::Seconds(1)),
                        ns3::MakeTimeAccessor(&This::m_forgetAfter), time);
  return tid;
}

void ConfuciusQueueDisc::InitializeParams() {
  FlowQueueDisc::InitializeParams();
  std::transform(kTargets.begin(), kTargets.end(), m_targets.begin(),
                 [this](double share) { return share * Limit(); });
  m_flows.resize(Buckets());
  m_ages.Reset(Buckets(), kClasses,
               {m_doublingTime, m_stepsPerDoubling, m_idleAfter, m_forgetAfter});
}

double ConfuciusQueueDisc::GetWeight(uint32_t ofClass) const {
  const double weight = m_ages.Weight(ofClass);
  const bool isNew = ofClass == kNew && m_ages.Weighing(kNew) > 0;
  return isNew ? std::max(weight, m_leastNewWeight) : weight;
}

uint32_t ConfuciusQueueDisc::GetClassPackets(uint32_t ofClass) const {
  return static_cast<uint32_t>(m_order[ofClass].size());
}

uint32_t ConfuciusQueueDisc::GetClassOf(ns3::Ptr<ns3::QueueDiscItem> item) const {
  return m_ages.GroupOf(BucketOf(item));
}

void ConfuciusQueueDisc::MoveFlow(ns3::Ptr<ns3::QueueDiscItem> item, uint32_t toClass) {
  const uint32_t bucket = BucketOf(item);
  if (m_ages.GroupOf(bucket) != kUnknown) {
    SetClass(bucket, toClass);
  }
}

void ConfuciusQueueDisc::SetClass(uint32_t bucket, uint32_t toClass) {
  Flow& flow = m_flows[bucket];
  const uint32_t ofClass = m_ages.GroupOf(bucket);
  if (ofClass == toClass) {
    return;
  }
  Order& from = m_order[ofClass];
  Order& to = m_order[toClass];
  auto at = to.end();
  for (auto packet = flow.packets.rbegin(); packet != flow.packets.rend(); ++packet) {
    while (at != to.begin() && std::prev(at)->number > (*packet)->number) {
      --at;
    }
    to.splice(at, from, *packet);
    at = *packet;
  }
  m_ages.Put(bucket, toClass, toClass == kNew);
}

uint32_t ConfuciusQueueDisc::NearestTarget(double packets) const {
  uint32_t nearest = 1;
  for (uint32_t c = 2; c < kClasses; ++c) {
    if (std::abs(m_targets[c] - packets) < std::abs(m_targets[nearest] - packets)) {
      nearest = c;
    }
  }
  return nearest;
}

double ConfuciusQueueDisc::MeanLength(const Flow& flow) const {
  return flow.came == 0 ? static_cast<double>(flow.packets.size())
                        : static_cast<double>(flow.lengthSum) / flow.came;
}

void ConfuciusQueueDisc::Update() {
  const Time now = Simulator::Now();
  m_ages.Grow(
      [this](uint32_t bucket) { SetClass(bucket, NearestTarget(MeanLength(m_flows[bucket]))); });
  if (now >= m_nextExamination) {
    Examine();
    m_nextExamination = now + m_interval;
  }
}

void ConfuciusQueueDisc::Examine() {
  m_ages.Rest([this](uint32_t bucket) { return m_flows[bucket].packets.empty(); });
  std::array<bool, kClasses> changed{};
  ExamineFlows(changed);
  ExamineClasses(changed);
  for (const uint32_t bucket : m_ages.Known()) {
    m_flows[bucket].lengthSum = m_flows[bucket].came = 0;
  }
  m_length = {};
}

void ConfuciusQueueDisc::ExamineFlows(std::array<bool, kClasses>& changed) {
  std::array<double, kClasses> sum{};
  std::array<uint32_t, kClasses> flows{};
  for (const uint32_t bucket : m_ages.Known()) {
    if (m_ages.Weighs(bucket)) {
      const uint32_t own = m_ages.GroupOf(bucket);
      sum[own] += MeanLength(m_flows[bucket]);
      ++flows[own];
    }
  }
  std::vector<std::pair<uint32_t, uint32_t>> moves;  // flow, class to go to
  std::array<bool, kClasses> promotes{};
  for (const uint32_t bucket : m_ages.Known()) {
    const uint32_t own = m_ages.GroupOf(bucket);
    if (!m_ages.Weighs(bucket) || own == kNew || sum[own] == 0) {
      continue;
    }
    const double length = MeanLength(m_flows[bucket]);
    const double beyond = length / sum[own] - 1.0 / flows[own];
    const bool outlier =
        std::abs(length - sum[own] / flows[own]) >= m_outlierShare * Limit() && flows[own] > 1;
    if (outlier && beyond >= m_hysteresis && own + 1 < kClasses) {
      moves.emplace_back(bucket, own + 1);
      promotes[own] = true;
    } else if (outlier && beyond <= -m_hysteresis && own > 1) {
      moves.emplace_back(bucket, own - 1);
    }
  }
  for (const auto& [bucket, toClass] : moves) {
    const uint32_t own = m_ages.GroupOf(bucket);
    if (toClass < own && promotes[own]) {
      continue;  // who is below the mean may be so only because of who has left
    }
    changed[own] = changed[toClass] = true;
    SetClass(bucket, toClass);
  }
}

void ConfuciusQueueDisc::ExamineClasses(const std::array<bool, kClasses>& changed) {
  std::array<uint32_t, kClasses> toClass{};
  for (uint32_t c = 1; c < kClasses; ++c) {
    toClass[c] = c;
    const uint32_t weighing = m_ages.Weighing(c);
    if (changed[c] || weighing == 0 || (weighing == 1 && !m_moveLone)) {
      continue;
    }
    const bool text = m_thresholds == kText;
    const double packets = m_length[c].Mean(static_cast<double>(m_order[c].size()));
    if (c + 1 < kClasses && packets > (text ? m_targets[c + 1] : kTooLong[c] * Limit())) {
      toClass[c] = c + 1;
    } else if (c > 1 && packets < (text ? m_targets[c - 1] : kTooShort[c] * Limit())) {
      toClass[c] = c - 1;
    }
  }
  for (const uint32_t bucket : m_ages.Known()) {
    const uint32_t own = m_ages.GroupOf(bucket);
    if (own != kNew) {
      SetClass(bucket, toClass[own]);
    }
  }
}

bool ConfuciusQueueDisc::DoEnqueue(Item item) {
  Update();
  if (IsFull()) {
    DropFromFurthest();
  }
  const uint32_t bucket = BucketOf(item);
  Flow& flow = m_flows[bucket];
  if (m_ages.GroupOf(bucket) == kUnknown) {
    m_ages.Begin(bucket, kNew);
    flow.lengthSum = flow.came = 0;
  }
  m_ages.Weigh(bucket, true);
  if (m_leaveAtOnce && m_ages.IsNew(bucket) && m_ages.GrowthWeight(m_ages.StepsOf(bucket)) >= 1) {
    SetClass(bucket, NearestTarget(MeanLength(flow)));
  }
  const uint32_t ofClass = m_ages.GroupOf(bucket);
  Order& order = m_order[ofClass];
  order.push_back({++m_arrivals, bucket, Add(item)});
  flow.packets.push_back(std::prev(order.end()));
  m_ages.Seen(bucket);
  flow.lengthSum += flow.packets.size();
  ++flow.came;
  m_length[ofClass].sum += order.size();
  ++m_length[ofClass].came;
  return true;
}

void ConfuciusQueueDisc::DropFromFurthest() {
  uint32_t furthest = kNew;
  const auto above = [this](uint32_t c) {
    return m_order[c].empty() ? -static_cast<double>(2 * Limit())
                              : static_cast<double>(m_order[c].size()) - m_targets[c];
  };
  for (uint32_t c = 1; c < kClasses; ++c) {
    furthest = above(c) > above(furthest) ? c : furthest;
  }
  TakeFrom(m_order[furthest], kOverLimit);
}

ConfuciusQueueDisc::Item ConfuciusQueueDisc::TakeFrom(Order& order, const char* dropReason) {
  const Waiting first = order.front();
  m_flows[first.bucket].packets.pop_front();  // the earliest of its class is that of its flow
  order.pop_front();
  if (dropReason != nullptr) {
    Drop(first.place, dropReason);
    return nullptr;
  }
  m_ages.Seen(first.bucket);
  return Take(first.place);
}

ConfuciusQueueDisc::Item ConfuciusQueueDisc::DoDequeue() {
  if (GetNPackets() == 0) {
    return nullptr;
  }
  Update();
  double heaviest = 0;
  for (uint32_t c = 0; c < kClasses; ++c) {
    if (!m_order[c].empty()) {
      heaviest = std::max(heaviest, GetWeight(c));
    }
  }
  // The heaviest gets an MTU in its turn, so two rounds at most.
  while (true) {
    Order& order = m_order[m_turn];
    if (!order.empty()) {
      if (!m_granted) {
        m_deficitBytes[m_turn] += kMtuBytes * GetWeight(m_turn) / heaviest;
        m_granted = true;
      }
      const uint32_t bytes = (*order.front().place)->GetSize();
      if (m_deficitBytes[m_turn] >= bytes) {
        Item item = TakeFrom(order, nullptr);
        m_deficitBytes[m_turn] = order.empty() ? 0 : m_deficitBytes[m_turn] - bytes;
        return item;
      }
    } else {
      m_deficitBytes[m_turn] = 0;
    }
    m_turn = (m_turn + 1) % kClasses;
    m_granted = false;
  }
}

}  // namespace swiftqueue
