// SPDX-License-Identifier: GPL-2.0-only
//
// TCP Prague, the congestion control that L4S was made for (RFC 9331 section 4.3, and the Internet-
// Draft draft-briscoe-iccrg-prague-congestion-control). Needs nothing but ns-3's internet module,
// so these two files can be taken out of this project as they are.

#ifndef TCP_PRAGUE_H
#define TCP_PRAGUE_H

#include <cstdint>
#include <string>

#include "ns3/data-rate.h"
#include "ns3/nstime.h"
#include "ns3/sequence-number.h"
#include "ns3/tcp-dctcp.h"
#include "ns3/traced-callback.h"

namespace ns3 {

/**
 * \ingroup congestionOps
 *
 * A scalable congestion control, DCTCP made fit for the Internet. From TcpDctcp it takes what the
 * receiver does (the echo of each CE mark) and the negotiation; what the sender does is its own, in
 * CongControl(), which ns-3 calls once for each ACK:
 *
 *   alpha  EWMA of the share of marked packets, once a round of max(RTT, virtual RTT)
 *   W      the window in segments, fractional; paced at W / srtt
 *   W +=   (RTT / virtual RTT)^2 / W for each segment acknowledged without a mark
 *   W *=   1 - alpha / 2 at a mark, 1 - LossReduction at a loss, once a round each
 *
 * See simulation/doc/tcp-prague.md for the choices, and for what ns-3's TCP does not allow.
 */
class TcpPrague : public TcpDctcp {
 public:
  /** Signature of the trace source Round. */
  typedef void (*RoundTracedCallback)(double windowSegments, double alpha, double classicScore);

  static TypeId GetTypeId();
  TcpPrague() = default;
  TcpPrague(const TcpPrague&) = default;

  std::string GetName() const override;
  Ptr<TcpCongestionOps> Fork() override;
  void Init(Ptr<TcpSocketState> tcb) override;

  bool HasCongControl() const override;
  void CongControl(Ptr<TcpSocketState> tcb, const TcpRateOps::TcpRateConnection& connection,
                   const TcpRateOps::TcpRateSample& sample) override;
  void CongestionStateSet(Ptr<TcpSocketState> tcb,
                          const TcpSocketState::TcpCongState_t newState) override;
  void CwndEvent(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCAEvent_t event) override;
  uint32_t GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t bytesInFlight) override;
  // Empty: CongControl() does it all, and TcpDctcp's must not run beside it.
  void PktsAcked(Ptr<TcpSocketState> tcb, uint32_t segmentsAcked, const Time& rtt) override;
  void IncreaseWindow(Ptr<TcpSocketState> tcb, uint32_t segmentsAcked) override;

  double GetAlpha() const;            ///< 0 to 1
  double GetWindow() const;           ///< segments
  double GetClassicEvidence() const;  ///< 0 (an L4S bottleneck) to 1 (a classic one)

 private:
  /** At most one response a round: from a signal until what was then in flight is acknowledged. */
  struct Response {
    bool active{false};
    SequenceNumber32 end;
    Time began;
  };

  void Start(Ptr<TcpSocketState> tcb);
  void MeasureRtt(Ptr<const TcpSocketState> tcb, Time sent);
  void Grow(Ptr<const TcpSocketState> tcb, double segments, uint32_t priorInFlight);
  void RespondToMark(Ptr<TcpSocketState> tcb);
  void RespondToLoss(Ptr<TcpSocketState> tcb);
  void EndRound(Ptr<const TcpSocketState> tcb);
  void WeighBottleneck();
  void Apply(Ptr<TcpSocketState> tcb);
  void Reopen(Ptr<TcpSocketState> tcb, uint32_t advancedBytes) const;

  void Begin(Response& response, Ptr<const TcpSocketState> tcb) const;
  void EndIfDone(Response& response, Ptr<const TcpSocketState> tcb) const;
  void LimitWindow(Ptr<const TcpSocketState> tcb);
  bool IsRttIndependent() const;
  Time RoundTime() const;

  // attributes
  double m_gain{0};
  Time m_virtualRtt;
  uint32_t m_independentRounds{0};
  double m_lossReduction{0};
  double m_slowStartReduction{0};
  double m_slowStartPacing{0};
  double m_avoidancePacing{0};
  double m_pacingVariation{0};
  bool m_paceInitialWindow{true};
  uint32_t m_minSegments{0};
  DataRate m_minRate;
  bool m_detectClassic{false};
  Time m_classicDeviation;
  Time m_classicDepth;

  // the window
  double m_window{0};              // segments; 0 until the handshake is done
  double m_slowStartThreshold{0};  // segments
  bool m_slowStart{true};
  Response m_markResponse;
  Response m_lossResponse;

  // the round
  double m_alpha{0};
  SequenceNumber32 m_roundEnd;
  Time m_roundBegan;
  uint32_t m_rounds{0};  // since slow start
  double m_ackedBytes{0};
  double m_markedBytes{0};
  bool m_sawMark{false};
  SequenceNumber32 m_lastAcked;

  // the round trip, in seconds; 0 until measured
  double m_srttS{0};
  double m_minRttS{0};
  double m_slowRttS{0};    // mean over some round trips
  double m_deviationS{0};  // mean deviation from that mean

  double m_classicScore{0};  // see WeighBottleneck()

  TracedCallback<double, double, double> m_roundTrace;
};

}  // namespace ns3

#endif  // TCP_PRAGUE_H
