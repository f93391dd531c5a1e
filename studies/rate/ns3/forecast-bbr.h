// SPDX-License-Identifier: GPL-2.0-only
//
// BBR that follows a forecast of its rate, within the bounds of samples/feedback.h.

#ifndef SWIFTQUEUE_FORECAST_BBR_H
#define SWIFTQUEUE_FORECAST_BBR_H

#include <algorithm>
#include <cstdint>

#include "studies/rate/ns3/sampled-bbr.h"
#include "studies/rate/samples/feedback.h"

namespace swiftqueue::rate {

/**
 * Without a forecast, or with one that is not used, it is BBR to the byte. While a forecast is
 * followed, pacing rate and window are the forecast's; BBR's own model goes on learning from what
 * is delivered, and takes over again: still in STARTUP where the path gives more or lost a packet,
 * else in DRAIN.
 */
class ForecastBbr : public SampledBbr {
 public:
  static ns3::TypeId GetTypeId() {
    static ns3::TypeId tid = ns3::TypeId("swiftqueue::rate::ForecastBbr")
                                 .SetParent<SampledBbr>()
                                 .AddConstructor<ForecastBbr>();
    return tid;
  }

  std::string GetName() const override { return "ForecastBbr"; }
  ns3::Ptr<ns3::TcpCongestionOps> Fork() override { return ns3::CopyObject<ForecastBbr>(this); }

  /** A forecast in bytes/s, made from a sample of then; held from the next ACK on, if it is used.
   */
  sq_verdict Take(double forecast, uint64_t dispersion, ns3::Time sampled) {
    const sq_seen seen{Own(), dispersion, Us(ns3::Simulator::Now() - sampled), Us(m_minRtt),
                       GetBbrState() == BBR_STARTUP};
    const uint64_t rate = sq_rate_of(forecast);
    const sq_verdict verdict = sq_judge(rate, &seen);
    if (verdict == SQ_USED) {
      m_bounded = sq_bounded(rate, dispersion);
      m_followed = true;
    }
    return verdict;
  }

  /** The receiver's window, in bytes; 0: unknown. */
  void SetReceiveWindow(uint64_t bytes) { m_window = bytes; }
  /** Why the forecast is no longer followed. */
  sq_end GetEnd() const { return m_end; }

  void CongControl(ns3::Ptr<ns3::TcpSocketState> tcb,
                   const ns3::TcpRateOps::TcpRateConnection& connection,
                   const ns3::TcpRateOps::TcpRateSample& sample) override {
    SampledBbr::CongControl(tcb, connection, m_followed ? Whole(sample) : sample);
    m_minRtt = GetEstimate().minRtt;
    if (m_bounded == 0) {
      return;
    }
    const uint64_t trip = Us(m_minRtt);
    const bool limited = sq_pace(m_bounded, m_window, trip) < sq_pace(m_bounded, 0, trip);
    if (m_roundEnd == 0) {
      m_roundEnd = connection.m_delivered;
    } else if (sample.m_priorDelivered >= m_roundEnd) {
      m_roundEnd = connection.m_delivered;
      ++m_round;
      ++m_whole;
    }
    if (limited) {
      m_whole = -1;  // the bytes acknowledged next were still sent within it
    }
    const bool lost = tcb->m_congState >= ns3::TcpSocketState::CA_RECOVERY;
    m_end = sq_follow(m_bounded, Own(), m_round, m_whole, lost, Us(tcb->m_lastRtt), trip);
    if (m_end == SQ_GOES_ON) {
      Follow(tcb);
    } else {
      Leave(tcb, connection, sample);
      m_bounded = 0;
    }
  }

 private:
  static uint64_t Us(ns3::Time time) { return static_cast<uint64_t>(time.GetMicroSeconds()); }
  uint64_t Own() const { return GetEstimate().bandwidth.GetBitRate() / 8; }

  /**
   * ns-3 keeps the interval of the first of all packets that left between two ACKs, though what was
   * delivered goes on growing: behind a silence, as a forecast finds it, the rate would be far too
   * high. Linux measures up to now for each packet, and so does this.
   */
  static ns3::TcpRateOps::TcpRateSample Whole(ns3::TcpRateOps::TcpRateSample sample) {
    const ns3::Time elapsed = ns3::Simulator::Now() - sample.m_priorTime;
    if (sample.m_delivered > 0 && !sample.m_priorTime.IsZero() && elapsed > sample.m_interval) {
      sample.m_interval = elapsed;
      sample.m_deliveryRate =
          ns3::DataRate(static_cast<uint64_t>(8.0 * sample.m_delivered / elapsed.GetSeconds()));
    }
    return sample;
  }

  void Follow(ns3::Ptr<ns3::TcpSocketState> tcb) {
    constexpr uint32_t kQuantum = 3;  // packets, as BBR's own allowance
    const uint64_t pace = sq_pace(m_bounded, m_window, Us(m_minRtt));
    tcb->m_pacingRate = ns3::DataRate(8 * pace);
    tcb->m_cWnd =
        static_cast<uint32_t>(pace * Us(m_minRtt) / SQ_US_PER_S) + kQuantum * tcb->m_segmentSize;
  }

  void Leave(ns3::Ptr<ns3::TcpSocketState> tcb,
             const ns3::TcpRateOps::TcpRateConnection& connection,
             const ns3::TcpRateOps::TcpRateSample& sample) {
    constexpr double kHighGain = 2.89;
    if (m_end == SQ_QUEUED || m_end == SQ_CONFIRMED) {
      // The pipe is full. BBR says so after three rounds without growth; here are three, and one
      // that may still have grown.
      auto now = sample;
      now.m_isAppLimited = false;
      now.m_priorDelivered = connection.m_delivered;
      UpdateRound(tcb, now);
      for (int round = 0; round < 4; ++round) {
        CheckFullPipe(now);
      }
      CheckDrain(tcb);
      return;
    }
    const uint32_t least = tcb->m_initialCWnd * tcb->m_segmentSize;
    tcb->m_cWnd = std::max(std::min(tcb->m_cWnd.Get(), InFlight(tcb, kHighGain)), least);
    SetPacingRate(tcb, GetPacingGain());
  }

  uint64_t m_bounded{0};  // bytes/s; 0: no forecast is followed
  bool m_followed{false};
  uint64_t m_window{0};
  ns3::Time m_minRtt;
  int m_round{0};  // rounds that were sent by it
  int m_whole{0};  // rounds among these since the receive window ruled last
  uint64_t m_roundEnd{0};
  sq_end m_end{SQ_GOES_ON};
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_FORECAST_BBR_H
