// SPDX-License-Identifier: GPL-2.0-only
//
// Copa (Arun and Balakrishnan, NSDI '18), with its mode switch off, as Confucius' authors run it.

#ifndef TCP_COPA_H
#define TCP_COPA_H

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "ns3/nstime.h"
#include "ns3/sequence-number.h"
#include "ns3/tcp-congestion-ops.h"

namespace ns3 {

/**
 * \ingroup congestionOps
 *
 * Steers the rate towards 1 / (delta * queueing delay) packets per second, so that a flow alone
 * keeps 1 / delta packets in the queue on average:
 *
 *   standing RTT   least of the last srtt / 2;  queueing delay = standing RTT - least of 10 s
 *   W +=, W -=     v / (delta * W) for each packet acknowledged, as the rate W / standing RTT is
 *                  below or above that target; once W has gone one way for three rounds, v doubles
 *                  every two, and it is 1 again at the first ACK that turns W
 *   slow start     W doubles each round until the rate is above the target
 *   pacing         at 2 W / standing RTT
 *
 * Losses change nothing (their mode would); a timeout begins again with slow start.
 */
class TcpCopa : public TcpNewReno {
 public:
  static TypeId GetTypeId();
  TcpCopa() = default;
  TcpCopa(const TcpCopa&) = default;

  std::string GetName() const override;
  Ptr<TcpCongestionOps> Fork() override;
  void Init(Ptr<TcpSocketState> tcb) override;
  bool HasCongControl() const override;
  void CongControl(Ptr<TcpSocketState> tcb, const TcpRateOps::TcpRateConnection& connection,
                   const TcpRateOps::TcpRateSample& sample) override;
  void CwndEvent(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCAEvent_t event) override;
  uint32_t GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t bytesInFlight) override;
  // Empty: CongControl() does it all.
  void PktsAcked(Ptr<TcpSocketState> tcb, uint32_t segmentsAcked, const Time& rtt) override;
  void IncreaseWindow(Ptr<TcpSocketState> tcb, uint32_t segmentsAcked) override;

 private:
  /** The least of what came in a time, each element later and greater than the one before. */
  class LeastOf {
   public:
    void Add(Time now, double value, Time window);
    double Get() const { return m_values.front().second; }
    bool IsEmpty() const { return m_values.empty(); }

   private:
    std::deque<std::pair<Time, double>> m_values;
  };

  void EndRound(Ptr<const TcpSocketState> tcb);
  /** The window goes the other way from now on. */
  void Turn(bool up);
  void Apply(Ptr<TcpSocketState> tcb);

  double m_delta{0};
  Time m_leastRttWindow;

  double m_window{0};  // segments; 0 until the first ACK
  bool m_slowStart{true};
  double m_srttS{0};
  LeastOf m_standingRttS;
  LeastOf m_leastRttS;
  double m_velocity{1};
  bool m_up{true};
  uint32_t m_roundsOneWay{0};
  double m_windowBefore{0};  // when this round began
  SequenceNumber32 m_roundEnd;
};

}  // namespace ns3

#endif  // TCP_COPA_H
