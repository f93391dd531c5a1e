// SPDX-License-Identifier: GPL-2.0-only

#include "gcc-controller.h"

#include <algorithm>
#include <cmath>

namespace swiftqueue::gcc {

namespace {

constexpr double kFramesPerS = 30;  // frame rate behind an average packet's size (5.5)
constexpr double kPacketBits = 1200 * 8;
constexpr double kLeastStepBps = 1000;
constexpr double kNominalMs = 1000.0 / 30;  // between groups: alpha is 1 - chi there (5.3)

}  // namespace

bool Grouping::BelongsTo(const Group& group, const Arrival& packet) const {
  if (packet.sentMs - group.burstSentMs < kBurstMs) {
    return true;
  }
  const double gapMs = packet.arrivedMs - group.arrivedMs;
  const double variationMs = gapMs - (packet.sentMs - group.sentMs);
  return gapMs < kBurstMs && variationMs < 0 &&
         packet.arrivedMs - group.firstArrivedMs < kLongestMs;
}

std::optional<GroupDelta> Grouping::Add(const Arrival& packet) {
  if (m_current && packet.arrivedMs < m_current->arrivedMs) {
    return std::nullopt;  // out of order (5.1)
  }
  if (m_current && BelongsTo(*m_current, packet)) {
    if (packet.sentMs - m_current->burstSentMs >= kBurstMs) {
      m_current->burstSentMs = packet.sentMs;
    }
    m_current->sentMs = packet.sentMs;
    m_current->arrivedMs = packet.arrivedMs;
    return std::nullopt;
  }
  std::optional<GroupDelta> delta;
  if (m_current && m_previous) {
    delta = {m_current->arrivedMs - m_previous->arrivedMs, m_current->sentMs - m_previous->sentMs};
  }
  m_previous = m_current;
  m_current = {packet.sentMs, packet.arrivedMs, packet.sentMs, packet.arrivedMs};
  return delta;
}

double ArrivalFilter::Update(const GroupDelta& delta) {
  m_departuresMs.push_back(delta.departureMs);
  if (m_departuresMs.size() > kGroups) {
    m_departuresMs.pop_front();
  }
  // 30 / (1000 f_max) with f_max in 1/ms: the shortest distance of two departures over 33 ms.
  const double shortestMs = *std::min_element(m_departuresMs.begin(), m_departuresMs.end());
  const double alpha = std::pow(1 - kNoiseCoefficient, shortestMs / kNominalMs);
  const double z = delta.VariationMs() - m_growthMs;
  const double most = kOutlier * std::sqrt(m_variance);
  const double seen = std::clamp(z, -most, most);
  m_variance = std::max(alpha * m_variance + (1 - alpha) * seen * seen, kLeastVariance);
  const double predicted = m_error + kStateNoise;
  const double gain = predicted / (m_variance + predicted);
  m_growthMs += z * gain;
  m_error = (1 - gain) * predicted;
  return m_growthMs;
}

Usage OveruseDetector::Update(double growthMs, double arrivalMs) {
  m_groups = std::min(m_groups + 1, m_scale);
  const double m = m_groups * growthMs;
  const bool rises = growthMs >= m_lastMs;
  m_lastMs = growthMs;
  Usage usage = Usage::kNormal;
  if (m > m_thresholdMs) {
    m_overMs = m_overMs ? *m_overMs + arrivalMs : 0;
    usage = *m_overMs >= kOveruseMs && rises ? Usage::kOver : Usage::kNormal;
  } else {
    m_overMs.reset();
    usage = m < -m_thresholdMs ? Usage::kUnder : Usage::kNormal;
  }
  const double beyondMs = std::abs(m) - m_thresholdMs;
  if (beyondMs <= kFarMs) {
    const double k = beyondMs < 0 ? kDown : kUp;
    m_thresholdMs = std::clamp(m_thresholdMs + std::min(arrivalMs, kLongestStepMs) * k * beyondMs,
                               kLeastThresholdMs, kMostThresholdMs);
  }
  return usage;
}

bool DelayRate::IsKnown() const { return m_decreases >= kFewestDecreases; }

double DelayRate::Deviations(double incomingBps) const {
  return (incomingBps - m_meanBps) / std::sqrt(std::max(m_variance, 1.0));
}

bool DelayRate::IsNearConvergence(double incomingBps) const {
  return IsKnown() && std::abs(Deviations(incomingBps)) <= kDeviations;
}

void DelayRate::Remember(double incomingBps) {
  if (IsKnown() && Deviations(incomingBps) < -kDeviations) {
    m_decreases = 0;  // another level of congestion
  }
  // The first few weigh alike, so that the first alone does not rule.
  const double weight = std::max(1 - kSmoothing, 1.0 / ++m_decreases);
  const double distance = incomingBps - m_meanBps;
  m_meanBps += weight * distance;
  m_variance = (1 - weight) * (m_variance + weight * distance * distance);
}

void DelayRate::Update(Usage usage, std::optional<double> incomingBps, double rttMs, double nowMs) {
  const double sinceMs = m_lastMs ? nowMs - *m_lastMs : 0;
  m_lastMs = nowMs;
  const State before = m_state;
  switch (usage) {
    case Usage::kOver:
      m_state = State::kDecrease;
      break;
    case Usage::kUnder:
      m_state = State::kHold;
      break;
    case Usage::kNormal:
      m_state = m_state == State::kDecrease ? State::kHold : State::kIncrease;
      break;
  }
  if (m_state == State::kIncrease) {
    Increase(incomingBps, rttMs, sinceMs);
  } else if (m_state == State::kDecrease && incomingBps) {
    if (before != State::kDecrease) {
      Remember(*incomingBps);
    }
    m_bps = std::min(m_bps, kBeta * *incomingBps);
  }
  m_bps = std::clamp(m_bps, m_leastBps, m_mostBps);
}

void DelayRate::Increase(std::optional<double> incomingBps, double rttMs, double sinceMs) {
  if (incomingBps && IsKnown() && Deviations(*incomingBps) > kDeviations) {
    m_decreases = 0;  // another level of congestion
  }
  double bps = m_bps;
  if (incomingBps && IsNearConvergence(*incomingBps)) {
    const double frameBits = bps / kFramesPerS;
    const double packetBits = frameBits / std::ceil(frameBits / kPacketBits);
    const double responseMs = rttMs + Controller::kReactionMs;
    const double part = std::min(sinceMs / responseMs, 1.0);
    bps += std::max(kLeastStepBps * part, 0.5 * part * packetBits);
  } else {
    bps *= std::pow(kEta, std::min(sinceMs / 1000, 1.0));
  }
  if (incomingBps) {
    bps = std::min(bps, std::max(m_bps, kOverIncoming * *incomingBps));
  }
  m_bps = bps;
}

void LossRate::Update(double lost, double mostBps) {
  if (lost > kHigh) {
    m_bps *= 1 - 0.5 * lost;
  } else if (lost < kLow) {
    m_bps *= kGrowth;
  }
  m_bps = std::clamp(m_bps, m_leastBps, std::max(m_leastBps, mostBps));
}

Controller::Controller(double startBps, double leastBps, double mostBps, uint32_t scale)
    : m_leastBps(leastBps),
      m_mostBps(mostBps),
      m_detector(scale),
      m_delay(startBps, leastBps, mostBps),
      m_loss(startBps, leastBps) {}

void Controller::Feedback(const std::vector<Arrival>& came, uint32_t lost, double rttMs,
                          double nowMs) {
  for (const Arrival& packet : came) {
    m_firstArrivedMs = m_firstArrivedMs.value_or(packet.arrivedMs);
    m_window.push_back(packet);
    m_windowBytes += packet.bytes;
    if (const auto delta = m_grouping.Add(packet)) {
      m_usage = m_detector.Update(m_filter.Update(*delta), delta->arrivalMs);
    }
  }
  while (!m_window.empty() && m_window.front().arrivedMs <= m_window.back().arrivedMs - kWindowMs) {
    m_windowBytes -= m_window.front().bytes;
    m_window.pop_front();
  }
  m_delay.Update(m_usage, IncomingBps(), rttMs, nowMs);
  m_came += came.size();
  m_lost += lost;
  m_lossLookedMs = m_lossLookedMs.value_or(nowMs);
  if (m_came + m_lost > 0 && nowMs - *m_lossLookedMs >= rttMs + kReactionMs) {
    const double share = static_cast<double>(m_lost) / static_cast<double>(m_came + m_lost);
    m_loss.Update(share, m_delay.Bps());
    m_came = m_lost = 0;
    m_lossLookedMs = nowMs;
  }
}

std::optional<double> Controller::IncomingBps() const {
  if (m_window.empty() || m_window.back().arrivedMs - *m_firstArrivedMs < kWindowMs) {
    return std::nullopt;
  }
  return static_cast<double>(m_windowBytes) * 8 / kWindowMs * 1000;
}

double Controller::TargetBps() const {
  return std::clamp(std::min(m_delay.Bps(), m_loss.Bps()), m_leastBps, m_mostBps);
}

}  // namespace swiftqueue::gcc
