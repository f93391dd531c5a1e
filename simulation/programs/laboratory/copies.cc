// SPDX-License-Identifier: GPL-2.0-only

#include "copies.h"

#include <algorithm>
#include <cmath>

#include "ns3/simulator.h"

namespace swiftqueue::lab {

namespace {

constexpr std::size_t kPredictions = 3000;       // predictions that a new one is compared with
constexpr std::size_t kFewestPredictions = 200;  // with fewer nothing is late
constexpr uint64_t kEvery = 20;                  // packets for which a threshold holds

int64_t NowNs() { return ns3::Simulator::Now().GetNanoSeconds(); }

}  // namespace

bool Copies::Next(const DataPacket& packet, uint8_t uplink, int64_t frame) {
  m_allowed += m_share;
  const bool late = IsLate(PredictedUs(uplink));
  Decided& last = m_decided[packet.flow];
  if (frame > last.frame) {
    last = {frame, late};
  }
  const bool copied = (frame == last.frame ? last.copied : late) && m_allowed >= 1;
  m_allowed -= copied;
  return copied;
}

void Copies::Sent(const DataPacket& packet, uint8_t uplink) {
  if (packet.acknowledged) {
    m_paths[uplink].unacked.emplace(packet.number, NowNs());
  }
}

void Copies::Acked(int64_t packet, uint8_t uplink, float latencyUs) {
  Path& path = m_paths[uplink];
  path.unacked.erase(packet);
  if (!std::isnan(latencyUs)) {
    path.lastUs = latencyUs;
  }
}

double Copies::PredictedUs(uint8_t uplink) const {
  const Path& path = m_paths[uplink];
  if (path.unacked.empty()) {
    return path.lastUs;
  }
  const int64_t underWayNs = NowNs() - path.unacked.begin()->second;
  return std::max(path.lastUs, static_cast<double>(underWayNs) * 1e-3);
}

bool Copies::IsLate(double predictedUs) {
  m_predictedUs.push_back(predictedUs);
  if (m_predictedUs.size() > kPredictions) {
    m_predictedUs.pop_front();
  }
  if (m_predictedUs.size() < kFewestPredictions) {
    return false;
  }
  if (m_packets++ % kEvery == 0) {
    m_sortedUs.assign(m_predictedUs.begin(), m_predictedUs.end());
    const auto rank =
        static_cast<std::size_t>((1 - m_share) * static_cast<double>(m_sortedUs.size()));
    const auto place =
        m_sortedUs.begin() + static_cast<std::ptrdiff_t>(std::min(rank, m_sortedUs.size() - 1));
    std::nth_element(m_sortedUs.begin(), place, m_sortedUs.end());
    m_lateUs = *place;
  }
  return predictedUs >= m_lateUs;
}

}  // namespace swiftqueue::lab
