// SPDX-License-Identifier: GPL-2.0-only
//
// A short download among other flows: its first samples, and its rate where a forecast is of.

#ifndef SWIFTQUEUE_RATE_DOWNLOAD_H
#define SWIFTQUEUE_RATE_DOWNLOAD_H

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <utility>

#include "ns3/simulator.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/tcp-tx-buffer.h"
#include "studies/rate/ns3/sampled-bbr.h"
#include "studies/rate/samples/tcp_sample.h"

namespace swiftqueue::rate {

/**
 * What a download tells of itself, from its arrival on: its packets, and at each ACK of BBR a
 * sample of the connection.
 */
class Download {
 public:
  Download(uint32_t id, uint32_t receiver, uint32_t bytes, uint32_t segment)
      : m_id(id), m_receiver(receiver), m_bytes(bytes), m_segment(segment) {}
  virtual ~Download() = default;

  /** `bbr` controls the connection and tells of it; each of the first samples is a row. */
  void Watch(ns3::Ptr<ns3::TcpSocketBase> socket, ns3::Ptr<SampledBbr> bbr, std::ostream& samples) {
    using ns3::Ptr;
    m_socket = socket;
    m_rows = &samples;
    bbr->SetStream(1000 + m_id);
    bbr->Tell([this](Ptr<ns3::TcpSocketState> tcb, const ns3::TcpRateOps::TcpRateConnection& all,
                     const ns3::TcpRateOps::TcpRateSample& sample,
                     const BbrEstimate& estimate) { Acked(tcb, all, sample, estimate); });
    socket->SetCongestionControlAlgorithm(bbr);
    socket->TraceConnectWithoutContext("RTO",
                                       ns3::Callback<void, ns3::Time, ns3::Time>(
                                           [this](ns3::Time, ns3::Time now) { m_rto = now; }));
  }

  void Established() { m_established = ns3::Simulator::Now(); }

  /** A data packet left. */
  void Sent(uint32_t payload, const ns3::TcpHeader& header) {
    if (payload == 0) {
      return;
    }
    const ns3::SequenceNumber32 end = header.GetSequenceNumber() + payload;
    if (end <= m_highest) {
      ++m_retransmitted;
      m_retransmittedBytes += payload;
    } else {
      m_highest = end;
    }
    ++m_segments;
    m_sentBytes += payload;
    m_lastSent = ns3::Simulator::Now();
  }

  /** BBR's estimate, in bytes/s; 0 before the first ACK. */
  int64_t GetEstimate() const { return m_estimate; }

  uint32_t GetId() const { return m_id; }
  uint32_t GetReceiver() const { return m_receiver; }
  uint32_t GetBytes() const { return m_bytes; }
  ns3::Time GetStarted() const { return m_started; }
  ns3::Time GetEstablished() const { return m_established; }
  int64_t GetSegments() const { return m_segments; }
  int64_t GetRetransmitted() const { return m_retransmitted; }
  /** Whether BBR has seen all of it acknowledged. */
  bool IsDelivered() const { return m_done; }

  /** Its row, without an end of line (RateColumns); what was not reached is empty. */
  void Write(std::ostream& row) const {
    row << m_id << ',' << m_receiver << ',' << m_started.GetNanoSeconds() << ',' << m_samples;
    for (const auto& [rate, at] : m_reached) {
      row << ',';
      if (at > ns3::Time(0)) {
        row << rate;
      }
    }
    for (const auto& [rate, at] : m_reached) {
      row << ',';
      if (at > ns3::Time(0)) {
        row << at.GetNanoSeconds();
      }
    }
  }

 protected:
  /** One of the first samples was written. */
  virtual void Sampled(const Sample& /*sample*/) {}
  /** All of it is acknowledged. */
  virtual void Delivered() {}

 private:
  void Acked(ns3::Ptr<ns3::TcpSocketState> tcb, const ns3::TcpRateOps::TcpRateConnection& all,
             const ns3::TcpRateOps::TcpRateSample& sample, const BbrEstimate& estimate) {
    const auto delivered = static_cast<int64_t>((all.m_delivered + m_segment - 1) / m_segment);
    if (m_done || delivered == 0) {
      return;  // the SYN's ACK says nothing of the path's rate
    }
    ++m_samples;
    m_estimate = static_cast<int64_t>(estimate.bandwidth.GetBitRate() / 8);
    if (m_samples <= kMostSamples) {
      WriteSample(tcb, sample, estimate, delivered);
    }
    for (std::size_t h = 0; h < kHorizons.size(); ++h) {
      if (m_reached[h].second.IsZero() && delivered >= kHorizons[h]) {
        m_reached[h] = {m_estimate, ns3::Simulator::Now()};
      }
    }
    m_done = all.m_delivered >= m_bytes;
    if (m_done) {
      Delivered();
    }
  }

  void WriteSample(ns3::Ptr<ns3::TcpSocketState> tcb, const ns3::TcpRateOps::TcpRateSample& rate,
                   const BbrEstimate& estimate, int64_t delivered) {
    const auto us = [](ns3::Time time) { return std::max<int64_t>(time.GetMicroSeconds(), 0); };
    const ns3::Time now = ns3::Simulator::Now();
    const ns3::Time rtt = tcb->m_lastRtt;
    // RFC 6298, section 2.
    const double error = std::abs((tcb->m_srtt.Get() - rtt).GetSeconds());
    m_rttVarS = m_samples == 1 ? rtt.GetSeconds() / 2 : 0.75 * m_rttVarS + 0.25 * error;
    Sample x{};  // zero: what ns-3's sockets do not tell
    x[At::ts] = us(now - m_established);
    x[At::ca_state] = static_cast<int64_t>(tcb->m_congState.Get());
    x[At::total_retrans] = m_retransmitted;
    x[At::rto] = us(m_rto);
    x[At::last_data_sent] = (now - m_lastSent).GetMilliSeconds();
    x[At::last_data_rcv] = (now - m_established).GetMilliSeconds();
    x[At::rtt] = us(tcb->m_srtt.Get());
    x[At::rttvar] = static_cast<int64_t>(m_rttVarS * 1e6);
    x[At::snd_cwnd] = tcb->GetCwndInSegments();
    x[At::pacing_rate] = static_cast<int64_t>(tcb->m_pacingRate.Get().GetBitRate() / 8);
    const auto acked = m_socket->GetTxBuffer()->HeadSequence() - ns3::SequenceNumber32(1);
    x[At::bytes_acked] = std::min<int64_t>(acked, m_bytes);
    x[At::notsent_bytes] = std::max<int64_t>(ns3::SequenceNumber32(1) + m_bytes - m_highest, 0);
    x[At::min_rtt] = us(tcb->m_minRtt);
    x[At::delivery_rate] = static_cast<int64_t>(rate.m_deliveryRate.GetBitRate() / 8);
    x[At::busy_time] = us(now - m_established);
    x[At::delivery_rate_app_limited] = rate.m_isAppLimited;
    x[At::bytes_retrans] = m_retransmittedBytes;
    x[At::bbr_bw] = m_estimate;
    x[At::bbr_minrtt] = us(estimate.minRtt);
    x[At::delivered] = delivered;
    x[At::bytes_sent] = m_sentBytes;
    x[At::segs_out] = m_segments;
    *m_rows << m_id << ',' << m_samples - 1;
    for (const int64_t value : x) {
      *m_rows << ',' << value;
    }
    *m_rows << '\n';
    Sampled(x);
  }

  uint32_t m_id;
  uint32_t m_receiver;
  uint32_t m_bytes;
  uint32_t m_segment;
  ns3::Ptr<ns3::TcpSocketBase> m_socket;
  std::ostream* m_rows{nullptr};
  ns3::Time m_started{ns3::Simulator::Now()};
  ns3::Time m_established;
  ns3::Time m_lastSent;
  ns3::Time m_rto;
  double m_rttVarS{0};
  ns3::SequenceNumber32 m_highest{1};
  int64_t m_estimate{0};
  int64_t m_segments{0};
  int64_t m_sentBytes{0};
  int64_t m_retransmitted{0};
  int64_t m_retransmittedBytes{0};
  int64_t m_samples{0};
  std::array<std::pair<int64_t, ns3::Time>, kHorizons.size()> m_reached{};
  bool m_done{false};
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_RATE_DOWNLOAD_H
