// SPDX-License-Identifier: GPL-2.0-only
//
// BBR that tells what it knows at each ACK.

#ifndef SWIFTQUEUE_SAMPLED_BBR_H
#define SWIFTQUEUE_SAMPLED_BBR_H

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "ns3/simulator.h"
#include "ns3/tcp-bbr.h"

namespace swiftqueue::rate {

/** What BBR estimates: Linux's `bbr_info`. */
struct BbrEstimate {
  ns3::DataRate bandwidth;
  ns3::Time minRtt;
};

/**
 * ns-3's BBR, unchanged. Its bandwidth filter is private, so the same filter is kept beside it, fed
 * as in TcpBbr::UpdateBottleneckBandwidth (most of ten rounds; a sample that the application
 * limited counts only where it is more).
 */
class SampledBbr : public ns3::TcpBbr {
 public:
  using Heard =
      std::function<void(ns3::Ptr<ns3::TcpSocketState>, const ns3::TcpRateOps::TcpRateConnection&,
                         const ns3::TcpRateOps::TcpRateSample&, const BbrEstimate&)>;

  static ns3::TypeId GetTypeId() {
    static ns3::TypeId tid = ns3::TypeId("swiftqueue::rate::SampledBbr")
                                 .SetParent<ns3::TcpBbr>()
                                 .AddConstructor<SampledBbr>();
    return tid;
  }

  void Tell(Heard heard) { m_heard = std::move(heard); }

  std::string GetName() const override { return "SampledBbr"; }
  ns3::Ptr<ns3::TcpCongestionOps> Fork() override { return ns3::CopyObject<SampledBbr>(this); }

  void CongControl(ns3::Ptr<ns3::TcpSocketState> tcb,
                   const ns3::TcpRateOps::TcpRateConnection& connection,
                   const ns3::TcpRateOps::TcpRateSample& sample) override {
    TcpBbr::CongControl(tcb, connection, sample);
    Estimate(tcb, connection, sample);
    if (m_heard) {
      m_heard(tcb, connection, sample, GetEstimate());
    }
  }

 protected:
  /** After the first ACK. */
  BbrEstimate GetEstimate() const { return {m_bandwidth.GetBest(), m_minRtts.front().second}; }

 private:
  void Estimate(ns3::Ptr<ns3::TcpSocketState> tcb,
                const ns3::TcpRateOps::TcpRateConnection& connection,
                const ns3::TcpRateOps::TcpRateSample& sample) {
    const ns3::Time now = ns3::Simulator::Now();
    const ns3::Time rtt = tcb->m_lastRtt;
    while (!m_minRtts.empty() && m_minRtts.back().second >= rtt) {
      m_minRtts.pop_back();
    }
    m_minRtts.emplace_back(now, rtt);
    while (m_minRtts.front().first + ns3::Seconds(10) < now) {
      m_minRtts.pop_front();
    }
    if (sample.m_delivered < 0 || sample.m_interval.IsZero()) {
      return;
    }
    if (sample.m_priorDelivered >= m_nextRoundDelivered) {
      m_nextRoundDelivered = connection.m_delivered;
      ++m_round;
    }
    if (sample.m_deliveryRate >= m_bandwidth.GetBest() || !sample.m_isAppLimited) {
      m_bandwidth.Update(sample.m_deliveryRate, m_round);
    }
  }

  Heard m_heard;
  MaxBandwidthFilter_t m_bandwidth{10, ns3::DataRate(0), 0};
  uint64_t m_nextRoundDelivered{0};
  uint32_t m_round{0};
  std::deque<std::pair<ns3::Time, ns3::Time>> m_minRtts;  // when, what; each later and greater
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_SAMPLED_BBR_H
