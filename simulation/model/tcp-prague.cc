// SPDX-License-Identifier: GPL-2.0-only

#include "tcp-prague.h"

#include <algorithm>
#include <cmath>

#include "ns3/boolean.h"
#include "ns3/double.h"
#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace ns3 {

NS_LOG_COMPONENT_DEFINE("TcpPrague");
NS_OBJECT_ENSURE_REGISTERED(TcpPrague);

namespace {

constexpr double kRttGain = 1.0 / 8;   // RFC 6298 2.3
constexpr double kSlowRttRounds = 4;   // time constant of the detector's mean and deviation
constexpr double kScoreRange = 16;     // the score stays within +- this, so that it can turn
constexpr double kScoreOfClassic = 4;  // from here on the response is a classic flow's
constexpr double kLargestSsThresh = 1U << 30;  // bytes

}  // namespace

TypeId TcpPrague::GetTypeId() {
  using Self = TcpPrague;
  static TypeId tid =
      TypeId("ns3::TcpPrague")
          .SetParent<TcpDctcp>()
          .SetGroupName("Internet")
          .AddConstructor<TcpPrague>()
          // marks
          .AddAttribute("AlphaGain",
                        "Gain of the moving average of the share of marked bytes (RFC 8257 4.2, g; "
                        "the draft takes the same)",
                        DoubleValue(1.0 / 16), MakeDoubleAccessor(&Self::m_gain),
                        MakeDoubleChecker<double>(0, 1))
          .AddAttribute("SlowStartReduction",
                        "Share of the window given up at the mark that ends slow start, which has "
                        "overshot by up to a factor of 2, while alpha still knows nothing (RFC "
                        "9331 leaves it open; Linux: half at the first mark, prague_alpha_mode 0)",
                        DoubleValue(0.5), MakeDoubleAccessor(&Self::m_slowStartReduction),
                        MakeDoubleChecker<double>(0, 1))
          // RTT independence
          .AddAttribute(
              "VirtualRtt",
              "Flows of a shorter round trip grow, and count rounds, as if theirs were "
              "this long (RFC 9331 4.3, Reduce RTT Dependence; the draft's target RTT); 0: off",
              TimeValue(MilliSeconds(25)), MakeTimeAccessor(&Self::m_virtualRtt),
              MakeTimeChecker(Time(0)))
          .AddAttribute("IndependentAfterRounds",
                        "Rounds after slow start from which the virtual RTT rules (RFC 9331 "
                        "leaves it open; Linux: 4)",
                        UintegerValue(4), MakeUintegerAccessor(&Self::m_independentRounds),
                        MakeUintegerChecker<uint32_t>())
          // loss
          .AddAttribute("LossReduction",
                        "Share of the window given up at a loss, once a round, as Reno does (RFC "
                        "9331 4.3, RFC 5681 3.1)",
                        DoubleValue(0.5), MakeDoubleAccessor(&Self::m_lossReduction),
                        MakeDoubleChecker<double>(0, 1))
          // pacing
          .AddAttribute(
              "SlowStartPacing",
              "Pacing rate over window / srtt below half the slow start threshold (Linux: "
              "2; RFC 9331 4.3 asks for limited bursts)",
              DoubleValue(2), MakeDoubleAccessor(&Self::m_slowStartPacing),
              MakeDoubleChecker<double>(0.1))
          .AddAttribute("AvoidancePacing",
                        "Pacing rate over window / srtt otherwise (RFC 9331 4.3 asks for limited "
                        "bursts; the draft and Linux: 1)",
                        DoubleValue(1), MakeDoubleAccessor(&Self::m_avoidancePacing),
                        MakeDoubleChecker<double>(0.1))
          .AddAttribute("PacingVariation",
                        "After slow start the rate is this share higher in the first half of each "
                        "round and lower in the second, so that a step AQM gives some marks in "
                        "each round instead of all at once (RFC 9331 leaves it open; Linux: 3 %)",
                        DoubleValue(0.03), MakeDoubleAccessor(&Self::m_pacingVariation),
                        MakeDoubleChecker<double>(0, 0.5))
          .AddAttribute("PaceInitialWindow",
                        "Pace the first window too, with the handshake's RTT (RFC 9331 4.3)",
                        BooleanValue(true), MakeBooleanAccessor(&Self::m_paceInitialWindow),
                        MakeBooleanChecker())
          // small windows
          .AddAttribute(
              "MinSegments",
              "Segments that may always be in flight; below, pacing alone holds a flow "
              "back (RFC 9331 4.3, Scaling Down to Fractional Congestion Windows; Linux: 2)",
              UintegerValue(2), MakeUintegerAccessor(&Self::m_minSegments),
              MakeUintegerChecker<uint32_t>(1))
          .AddAttribute("MinRate",
                        "Slowest pacing, whatever the marks (RFC 9331 4.3, Scaling Down to "
                        "Fractional Congestion Windows; Linux: 100 kbit/s)",
                        DataRateValue(DataRate("100kbps")), MakeDataRateAccessor(&Self::m_minRate),
                        MakeDataRateChecker())
          // a classic bottleneck
          .AddAttribute("DetectClassicEcn",
                        "Respond to marks as Reno does where the round trip varies as behind a "
                        "classic AQM (RFC 9331 4.3, Coexistence at Classic ECN Bottlenecks; arXiv "
                        "1911.00710). Off, as in "
                        "Linux: a heuristic",
                        BooleanValue(false), MakeBooleanAccessor(&Self::m_detectClassic),
                        MakeBooleanChecker())
          .AddAttribute("ClassicDeviation",
                        "Mean deviation of the RTT that speaks for neither kind (arXiv 1911.00710, "
                        "V_0: 750 us)",
                        TimeValue(MicroSeconds(750)), MakeTimeAccessor(&Self::m_classicDeviation),
                        MakeTimeChecker(MicroSeconds(1)))
          .AddAttribute(
              "ClassicDepth",
              "RTT above its minimum that speaks for neither kind (arXiv 1911.00710, D_0: "
              "2 ms)",
              TimeValue(MilliSeconds(2)), MakeTimeAccessor(&Self::m_classicDepth),
              MakeTimeChecker(MicroSeconds(1)))
          // traces
          .AddTraceSource("Round",
                          "Window in segments, alpha and the evidence of a classic bottleneck (-16 "
                          "to 16) at the end of each round",
                          MakeTraceSourceAccessor(&Self::m_roundTrace),
                          "ns3::TcpPrague::RoundTracedCallback");
  return tid;
}

std::string TcpPrague::GetName() const { return "TcpPrague"; }
Ptr<TcpCongestionOps> TcpPrague::Fork() { return CopyObject<TcpPrague>(this); }
bool TcpPrague::HasCongControl() const { return true; }
void TcpPrague::PktsAcked(Ptr<TcpSocketState>, uint32_t, const Time&) {}
void TcpPrague::IncreaseWindow(Ptr<TcpSocketState>, uint32_t) {}
double TcpPrague::GetAlpha() const { return m_alpha; }
double TcpPrague::GetWindow() const { return m_window; }

double TcpPrague::GetClassicEvidence() const {
  return m_detectClassic ? std::clamp(m_classicScore / kScoreOfClassic, 0.0, 1.0) : 0;
}

void TcpPrague::Init(Ptr<TcpSocketState> tcb) {
  TcpDctcp::Init(tcb);  // ECN on, and the receiver echoes each mark
  tcb->m_ectCodePoint = TcpSocketState::Ect1;
  tcb->m_pacing = true;
  tcb->m_paceInitialWindow = m_paceInitialWindow;
}

void TcpPrague::Start(Ptr<TcpSocketState> tcb) {
  m_window = static_cast<double>(tcb->m_cWnd) / tcb->m_segmentSize;
  m_slowStartThreshold = static_cast<double>(tcb->m_ssThresh) / tcb->m_segmentSize;
  m_srttS = tcb->m_srtt.Get().GetSeconds();  // round trip of the handshake
  m_lastAcked = tcb->m_lastAckedSeq;
  m_roundEnd = tcb->m_highTxMark;
  m_roundBegan = Simulator::Now();
  Apply(tcb);
}

// --- an ACK -------------------------------------------------------------------------------------

void TcpPrague::CongControl(Ptr<TcpSocketState> tcb,
                            const TcpRateOps::TcpRateConnection& connection,
                            const TcpRateOps::TcpRateSample& sample) {
  NS_LOG_FUNCTION(this << tcb);
  if (m_window == 0) {
    Start(tcb);  // a socket that was not told of its handshake
  }
  const uint32_t advancedBytes = tcb->m_lastAckedSeq - m_lastAcked;
  m_lastAcked = tcb->m_lastAckedSeq;
  const uint32_t ackedBytes = tcb->m_lastAckedSackedBytes;
  const bool marked = tcb->m_ecnState == TcpSocketState::ECN_ECE_RCVD;
  if (ackedBytes > 0) {
    MeasureRtt(tcb, connection.m_firstSentTime);
  }
  m_ackedBytes += ackedBytes;
  m_markedBytes += marked ? ackedBytes : 0;
  EndIfDone(m_lossResponse, tcb);
  EndIfDone(m_markResponse, tcb);
  if (marked) {
    RespondToMark(tcb);
  } else if (!m_lossResponse.active) {
    Grow(tcb, static_cast<double>(ackedBytes) / tcb->m_segmentSize, sample.m_priorInFlight);
  }
  if (m_lastAcked >= m_roundEnd && Simulator::Now() - m_roundBegan >= RoundTime()) {
    EndRound(tcb);
  }
  LimitWindow(tcb);
  Apply(tcb);
  Reopen(tcb, advancedBytes);
}

void TcpPrague::MeasureRtt(Ptr<const TcpSocketState> tcb, Time sent) {
  // Not tcb->m_srtt: with the timestamp option ns-3 measures in whole milliseconds, more than an
  // L4S queue is long. And no sample where a retransmission may have been the one (Karn).
  if (tcb->m_congState == TcpSocketState::CA_RECOVERY ||
      tcb->m_congState == TcpSocketState::CA_LOSS || m_lossResponse.active) {
    return;
  }
  const double rttS = (Simulator::Now() - sent).GetSeconds();
  if (rttS <= 0) {
    return;
  }
  if (m_minRttS == 0) {
    m_srttS = m_minRttS = m_slowRttS = rttS;
  }
  m_srttS += kRttGain * (rttS - m_srttS);
  m_minRttS = std::min(m_minRttS, rttS);
  const double slowGain = 1 / (kSlowRttRounds * std::max(m_window, 1.0));
  m_slowRttS += slowGain * (rttS - m_slowRttS);
  m_deviationS += slowGain * (std::abs(rttS - m_slowRttS) - m_deviationS);
}

void TcpPrague::Grow(Ptr<const TcpSocketState> tcb, double segments, uint32_t priorInFlight) {
  // A window of which not half is used says nothing about the path (RFC 7661 4.3).
  if (m_window > m_minSegments && 2.0 * priorInFlight < m_window * tcb->m_segmentSize) {
    return;
  }
  if (m_slowStart) {
    const double doubling = std::min(segments, std::max(0.0, m_slowStartThreshold - m_window));
    m_window += doubling;
    segments -= doubling;
    m_slowStart = segments <= 0;
  }
  // One segment a round trip, shrunk twice where the round trip is the shorter one: rounds are more
  // frequent, and a segment in each is a greater rate. What is left, in rate, is one segment in
  // each virtual RTT, in each virtual RTT.
  double scale = 1;
  if (IsRttIndependent() && m_srttS > 0 && m_srttS < m_virtualRtt.GetSeconds()) {
    scale = m_srttS / m_virtualRtt.GetSeconds();
  }
  m_window += segments * scale * scale / m_window;
}

void TcpPrague::RespondToMark(Ptr<TcpSocketState> tcb) {
  m_sawMark = true;
  if (m_markResponse.active || m_lossResponse.active) {
    return;
  }
  const double classic = GetClassicEvidence();
  double reduction = (1 - classic) * m_alpha / 2 + classic * m_lossReduction;
  if (m_slowStart) {
    reduction = std::max(reduction, m_slowStartReduction);
    m_slowStart = false;
    m_rounds = 0;
  }
  m_window *= 1 - reduction;
  Begin(m_markResponse, tcb);
}

void TcpPrague::RespondToLoss(Ptr<TcpSocketState> tcb) {
  if (m_lossResponse.active) {
    return;
  }
  m_slowStart = false;
  m_window *= 1 - m_lossReduction;
  Begin(m_lossResponse, tcb);
  LimitWindow(tcb);
}

void TcpPrague::EndRound(Ptr<const TcpSocketState> tcb) {
  // Without a mark yet there is no sign of an AQM, and nothing to average.
  if (m_sawMark && m_ackedBytes > 0) {
    m_alpha += m_gain * (m_markedBytes / m_ackedBytes - m_alpha);
    if (m_markedBytes > 0 && !m_slowStart) {
      WeighBottleneck();
    }
  }
  if (!m_slowStart) {
    ++m_rounds;
  }
  m_roundTrace(m_window, m_alpha, m_classicScore);
  m_ackedBytes = 0;
  m_markedBytes = 0;
  m_roundEnd = tcb->m_highTxMark;
  m_roundBegan = Simulator::Now();
}

void TcpPrague::WeighBottleneck() {
  // A queue that marks at a millisecond is short and steady, a classic one deep and swinging: each
  // factor of 4 above or below the references counts one point in each round with marks.
  const auto points = [](double valueS, Time reference) {
    const double ratio = std::max(valueS, 1e-6) / reference.GetSeconds();
    return std::clamp(0.5 * std::log2(ratio), -1.0, 1.0);
  };
  m_classicScore = std::clamp(m_classicScore + points(m_deviationS, m_classicDeviation) +
                                  points(m_srttS - m_minRttS, m_classicDepth),
                              -kScoreRange, kScoreRange);
}

// --- losses -------------------------------------------------------------------------------------

void TcpPrague::CongestionStateSet(Ptr<TcpSocketState> tcb,
                                   const TcpSocketState::TcpCongState_t newState) {
  TcpDctcp::CongestionStateSet(tcb, newState);
  if (m_window == 0 && newState == TcpSocketState::CA_OPEN) {
    Start(tcb);
  } else if (newState == TcpSocketState::CA_RECOVERY) {
    RespondToLoss(tcb);
  }
}

void TcpPrague::CwndEvent(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCAEvent_t event) {
  TcpDctcp::CwndEvent(tcb, event);  // the receiver's part
  if (event == TcpSocketState::CA_EVENT_LOSS) {
    // A timeout: one segment, and slow start to where it was (RFC 5681 3.1); a second one in a row
    // changes nothing more.
    if (tcb->m_congState != TcpSocketState::CA_LOSS) {
      m_slowStartThreshold = std::max(m_window * (1 - m_lossReduction), 2.0);
    }
    m_window = 1;
    m_slowStart = true;
    m_rounds = 0;
    m_lossResponse.active = false;
    LimitWindow(tcb);
    Apply(tcb);
  }
}

uint32_t TcpPrague::GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t) {
  // ns-3 asks at a loss, to which CongestionStateSet() or CwndEvent() has responded or will, and at
  // a mark, to which CongControl() will: it is shown what holds now.
  const double segments = m_slowStart ? m_slowStartThreshold : std::max(m_window, 2.0);
  return static_cast<uint32_t>(std::min(segments * tcb->m_segmentSize, kLargestSsThresh));
}

// --- what the socket sees -----------------------------------------------------------------------

void TcpPrague::Apply(Ptr<TcpSocketState> tcb) {
  // Room for the faster half of a round, so that pacing is what holds packets back.
  const double segments = std::floor(m_window * (1 + m_pacingVariation)) + 1;
  tcb->m_cWnd =
      static_cast<uint32_t>(std::max<double>(segments, m_minSegments)) * tcb->m_segmentSize;
  tcb->m_cWndInfl = tcb->m_cWnd;
  tcb->m_ssThresh = GetSsThresh(tcb, 0);
  if (m_srttS <= 0) {
    return;
  }
  double gain = m_avoidancePacing;
  if (m_slowStart) {
    gain = m_window < m_slowStartThreshold / 2 ? m_slowStartPacing : m_avoidancePacing;
  } else {
    const bool firstHalf =
        2 * (Simulator::Now() - m_roundBegan) < std::max(RoundTime(), Seconds(m_srttS));
    gain *= firstHalf ? 1 + m_pacingVariation : 1 - m_pacingVariation;
  }
  // bit/s = segments · bytes/segment · bits/byte / s
  const double rateBps = gain * m_window * tcb->m_segmentSize * 8 / m_srttS;
  tcb->m_pacingRate =
      std::min(std::max(DataRate(static_cast<uint64_t>(rateBps)), m_minRate), tcb->m_maxPacingRate);
}

void TcpPrague::Reopen(Ptr<TcpSocketState> tcb, uint32_t advancedBytes) const {
  // In CA_CWR ns-3 counts duplicate ACKs but never recovers from them, and a flow that is marked in
  // each round would never leave it: a loss would go without response. Back to CA_OPEN, where a
  // socket has no duplicate ACKs counted: after an ACK that advanced and brought no new SACK, which
  // is so if it delivered no more than the segment that it advanced by.
  if (tcb->m_congState == TcpSocketState::CA_CWR && !m_lossResponse.active && advancedBytes > 0 &&
      tcb->m_lastAckedSackedBytes <= tcb->m_segmentSize) {
    tcb->m_congState = TcpSocketState::CA_OPEN;
  }
}

// --- small parts --------------------------------------------------------------------------------

void TcpPrague::LimitWindow(Ptr<const TcpSocketState> tcb) {
  const double least = m_minRate.GetBitRate() / 8.0 * m_srttS / tcb->m_segmentSize;
  m_window = std::max(m_window, std::max(least, 1e-3));
}

void TcpPrague::Begin(Response& response, Ptr<const TcpSocketState> tcb) const {
  response = {true, tcb->m_highTxMark, Simulator::Now()};
}

void TcpPrague::EndIfDone(Response& response, Ptr<const TcpSocketState> tcb) const {
  if (response.active && tcb->m_lastAckedSeq >= response.end &&
      Simulator::Now() - response.began >= RoundTime()) {
    response.active = false;
  }
}

bool TcpPrague::IsRttIndependent() const { return !m_slowStart && m_rounds >= m_independentRounds; }

Time TcpPrague::RoundTime() const { return IsRttIndependent() ? m_virtualRtt : Time(0); }

}  // namespace ns3
