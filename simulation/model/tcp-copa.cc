// SPDX-License-Identifier: GPL-2.0-only

#include "tcp-copa.h"

#include <algorithm>
#include <cmath>

#include "ns3/double.h"
#include "ns3/simulator.h"
#include "ns3/tcp-socket-state.h"

namespace ns3 {

NS_OBJECT_ENSURE_REGISTERED(TcpCopa);

namespace {

constexpr double kLeastWindow = 2;       // segments
constexpr double kPacing = 2;            // times the window each standing RTT (2.2 of the paper)
constexpr double kSrttGain = 1.0 / 8;    // RFC 6298
constexpr uint32_t kRoundsBefore = 3;    // rounds of one direction until velocity doubles
constexpr uint32_t kRoundsToDouble = 2;  // then, as in implementations; 1 in the paper
constexpr double kMostVelocity = 1 << 16;
const Time kTimestampStep = MilliSeconds(1);

}  // namespace

TypeId TcpCopa::GetTypeId() {
  static TypeId tid =
      TypeId("ns3::TcpCopa")
          .SetParent<TcpNewReno>()
          .SetGroupName("Internet")
          .AddConstructor<TcpCopa>()
          .AddAttribute("Delta", "Weight of delay: a flow alone keeps 1 / delta packets queued.",
                        DoubleValue(0.5), MakeDoubleAccessor(&TcpCopa::m_delta),
                        MakeDoubleChecker<double>(1e-3, 10))
          .AddAttribute("LeastRttWindow", "For how long a least round trip counts.",
                        TimeValue(Seconds(10)), MakeTimeAccessor(&TcpCopa::m_leastRttWindow),
                        MakeTimeChecker(Time(1)));
  return tid;
}

std::string TcpCopa::GetName() const { return "TcpCopa"; }
Ptr<TcpCongestionOps> TcpCopa::Fork() { return CopyObject<TcpCopa>(this); }
bool TcpCopa::HasCongControl() const { return true; }
void TcpCopa::PktsAcked(Ptr<TcpSocketState>, uint32_t, const Time&) {}
void TcpCopa::IncreaseWindow(Ptr<TcpSocketState>, uint32_t) {}

void TcpCopa::Init(Ptr<TcpSocketState> tcb) { tcb->m_pacing = true; }

void TcpCopa::LeastOf::Add(Time now, double value, Time window) {
  while (!m_values.empty() && m_values.back().second >= value) {
    m_values.pop_back();
  }
  m_values.emplace_back(now, value);
  while (now - m_values.front().first > window) {
    m_values.pop_front();
  }
}

void TcpCopa::CongControl(Ptr<TcpSocketState> tcb, const TcpRateOps::TcpRateConnection& connection,
                          const TcpRateOps::TcpRateSample& sample) {
  const Time now = Simulator::Now();
  if (m_window == 0) {
    m_window = static_cast<double>(tcb->m_cWnd) / tcb->m_segmentSize;
    m_windowBefore = m_window;
    m_roundEnd = tcb->m_highTxMark;
  }
  // Not tcb->m_lastRtt: with the timestamp option (RFC 7323) ns-3 measures in whole milliseconds,
  // as much as Copa's queue is long. But it measures right where a packet was sent twice: a time
  // from the second sending to the ACK of the first is less than the least of those, and no round
  // trip.
  const Time rtt = now - connection.m_firstSentTime;
  const double rttS = rtt.GetSeconds();
  const bool sure = tcb->m_minRtt == Time::Max() || rtt >= tcb->m_minRtt - kTimestampStep;
  if (tcb->m_lastAckedSackedBytes > 0 && sure && rttS > 0) {
    m_srttS += (m_srttS == 0 ? 1 : kSrttGain) * (rttS - m_srttS);
    m_standingRttS.Add(now, rttS, Seconds(m_srttS / 2));
    m_leastRttS.Add(now, rttS, m_leastRttWindow);
  }
  if (!m_standingRttS.IsEmpty()) {
    const double queueingS = m_standingRttS.Get() - m_leastRttS.Get();
    // packets/s against packets/s; without a queue the target is without end
    const bool below = m_window * m_delta * queueingS <= m_standingRttS.Get();
    const double acked = static_cast<double>(tcb->m_lastAckedSackedBytes) / tcb->m_segmentSize;
    // A window of which not half is used says nothing about the path (RFC 7661 4.3).
    const bool used = 2.0 * sample.m_priorInFlight >= m_window * tcb->m_segmentSize;
    m_slowStart = m_slowStart && below;
    if (m_velocity > 1 && below != m_up) {
      Turn(below);  // it was gained the other way
    }
    if (m_slowStart) {
      m_window += used ? acked : 0;
    } else if (!below || used) {
      m_window += (below ? 1 : -1) * m_velocity * acked / (m_delta * m_window);
    }
    m_window = std::max(m_window, kLeastWindow);
  }
  if (tcb->m_lastAckedSeq >= m_roundEnd) {
    EndRound(tcb);
  }
  Apply(tcb);
}

void TcpCopa::EndRound(Ptr<const TcpSocketState> tcb) {
  const bool up = m_window > m_windowBefore;
  if (m_slowStart || up != m_up) {
    Turn(up);
  } else if (++m_roundsOneWay >= kRoundsBefore &&
             (m_roundsOneWay - kRoundsBefore) % kRoundsToDouble == 0) {
    // W^2 changes by 2 v / delta with each packet, so with W packets to 4 W^2, or to W^2 / 4: a
    // round does no more than double or halve the window.
    const double most = m_delta * m_window * (up ? 3.0 / 2 : 3.0 / 8);
    m_velocity = std::min({2 * m_velocity, kMostVelocity, std::max(1.0, most)});
  }
  m_windowBefore = m_window;
  m_roundEnd = tcb->m_highTxMark;
}

void TcpCopa::Turn(bool up) {
  m_up = up;
  m_velocity = 1;
  m_roundsOneWay = 0;
  m_windowBefore = m_window;
}

void TcpCopa::CwndEvent(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCAEvent_t event) {
  if (event == TcpSocketState::CA_EVENT_LOSS) {
    m_window = kLeastWindow;
    m_slowStart = true;
    Turn(true);
    Apply(tcb);
  }
}

uint32_t TcpCopa::GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t) {
  // ns-3 asks at a loss, which changes nothing.
  return std::max(tcb->m_cWnd.Get(), 2 * tcb->m_segmentSize);
}

void TcpCopa::Apply(Ptr<TcpSocketState> tcb) {
  tcb->m_cWnd = static_cast<uint32_t>(std::lround(m_window)) * tcb->m_segmentSize;
  tcb->m_cWndInfl = tcb->m_cWnd;
  if (m_standingRttS.IsEmpty()) {
    return;
  }
  // bit/s = segments · bytes/segment · bits/byte / s
  const double rateBps =
      kPacing * m_window * tcb->m_segmentSize * 8 / std::max(m_standingRttS.Get(), 1e-6);
  tcb->m_pacingRate = std::min(DataRate(static_cast<uint64_t>(rateBps)), tcb->m_maxPacingRate);
}

}  // namespace ns3
