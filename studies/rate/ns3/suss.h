// SPDX-License-Identifier: GPL-2.0-only
//
// Cubic with SUSS, as we know it: Arghavani, Zhang, Eyers and Arghavani, "SUSS: Improving TCP
// Performance by Speeding Up Slow-Start", SIGCOMM 2024. The paper itself was not at hand. What is
// public of it is built here: where the next round would still be one of exponential growth, the
// window grows fourfold in this one, and what is more than doubling leaves paced.

#ifndef SWIFTQUEUE_SUSS_H
#define SWIFTQUEUE_SUSS_H

#include <algorithm>
#include <cstdint>

#include "ns3/boolean.h"
#include "ns3/simulator.h"
#include "ns3/tcp-cubic.h"

namespace swiftqueue::rate {

/**
 * A round is the data that was in flight when its first ACK came. Its first part left clocked by
 * ACKs, the rest paced. Only the ACKs of the first part say how closely packets arrive, and so how
 * long the ACKs of all of the round would last if all had been clocked. From that and from the
 * round's least round trip HyStart would say whether slow start ends here; where it would not end
 * in the next round either, growth is fourfold.
 */
class Suss : public ns3::TcpCubic {
 public:
  static ns3::TypeId GetTypeId() {
    static ns3::TypeId tid =
        ns3::TypeId("swiftqueue::rate::Suss").SetParent<ns3::TcpCubic>().AddConstructor<Suss>();
    return tid;
  }

  // The inherited algorithm would take the paced packets' ACKs for a long train.
  void Init(ns3::Ptr<ns3::TcpSocketState> tcb) override {
    TcpCubic::Init(tcb);
    SetAttribute("HyStart", ns3::BooleanValue(false));
  }
  std::string GetName() const override { return "Suss"; }
  ns3::Ptr<ns3::TcpCongestionOps> Fork() override { return ns3::CopyObject<Suss>(this); }

  void PktsAcked(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t segments,
                 const ns3::Time& rtt) override {
    TcpCubic::PktsAcked(tcb, segments, rtt);
    m_current = std::min(m_current, rtt);
    m_least = std::min(m_least, rtt);
    ++m_samples;
  }

  void IncreaseWindow(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t segments) override {
    if (m_over || tcb->m_cWnd >= tcb->m_ssThresh) {
      m_over = true;
      tcb->m_pacing = false;
      TcpCubic::IncreaseWindow(tcb, segments);
      return;
    }
    if (tcb->m_lastAckedSeq > m_end) {
      Begin(tcb);
    }
    tcb->m_cWnd += segments * tcb->m_segmentSize;
    if (!m_decided && m_samples >= kEnough && tcb->m_lastAckedSeq >= m_clockedEnd) {
      Decide(tcb);
    }
  }

 private:
  static constexpr uint32_t kEnough = 8;  // samples of a round (HyStart)
  static constexpr uint32_t kGrowth = 4;  // growth of the window in a round: two doublings
  static constexpr uint32_t kShare = 2;   // a train of a half round trip ends slow start (HyStart)
  static constexpr uint32_t kDelay = 8;   // so does an eighth more delay (HyStart), within
  static constexpr int64_t kLeastMs = 4;  // this
  static constexpr int64_t kMostMs = 16;  // and this
  static constexpr uint16_t kSlowStartPacing = 100;  // %: a window a round trip, not two

  void Begin(ns3::Ptr<ns3::TcpSocketState> tcb) {
    m_begin = m_end;
    m_end = tcb->m_nextTxSequence;
    m_clockedEnd = m_accelerated ? m_clockedNext : m_end;
    m_started = ns3::Simulator::Now();
    m_current = ns3::Time::Max();
    m_samples = 0;
    m_decided = m_accelerated = false;
    tcb->m_pacing = false;
  }

  /** All that was clocked of this round is acknowledged. */
  void Decide(ns3::Ptr<ns3::TcpSocketState> tcb) {
    m_decided = true;
    const double clocked = m_clockedEnd - m_begin;
    const double whole = m_end - m_begin;
    const double trainS = (ns3::Simulator::Now() - m_started).GetSeconds() * whole / clocked;
    const double trip = m_least.GetSeconds();
    const double delay = (m_current - m_least).GetSeconds();
    const double most = std::clamp(trip / kDelay, kLeastMs / 1e3, kMostMs / 1e3);
    if (trainS * kShare >= trip || delay >= most) {
      tcb->m_ssThresh = tcb->m_cWnd;
      m_over = true;
      return;
    }
    // One round on, twice as much is in flight: the train is twice as long, and what queues too.
    if (2 * trainS * kShare < trip && 2 * delay < most) {
      m_accelerated = true;
      m_clockedNext = tcb->m_nextTxSequence;
      tcb->m_cWnd += static_cast<uint32_t>(whole) * (kGrowth - 2);
      tcb->m_pacing = true;
      tcb->m_pacingSsRatio = kSlowStartPacing;
      tcb->m_pacingRate = ns3::DataRate(static_cast<uint64_t>(8 * tcb->m_cWnd / trip));
    }
  }

  ns3::SequenceNumber32 m_begin{0};
  ns3::SequenceNumber32 m_end{0};
  ns3::SequenceNumber32 m_clockedEnd{0};   // end of this round
  ns3::SequenceNumber32 m_clockedNext{0};  // end of the next one
  ns3::Time m_started;
  ns3::Time m_current{ns3::Time::Max()};
  ns3::Time m_least{ns3::Time::Max()};
  uint32_t m_samples{0};
  bool m_decided{false};
  bool m_accelerated{false};
  bool m_over{false};
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_SUSS_H
