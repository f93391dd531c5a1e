// SPDX-License-Identifier: GPL-2.0-only
//
// Cubic whose slow start is HyStart++ (RFC 9406).

#ifndef SWIFTQUEUE_HYSTART_PLUS_PLUS_H
#define SWIFTQUEUE_HYSTART_PLUS_PLUS_H

#include <algorithm>
#include <cstdint>

#include "ns3/boolean.h"
#include "ns3/tcp-cubic.h"

namespace swiftqueue::rate {

class HystartPlusPlus : public ns3::TcpCubic {
 public:
  static ns3::TypeId GetTypeId() {
    static ns3::TypeId tid = ns3::TypeId("swiftqueue::rate::HystartPlusPlus")
                                 .SetParent<ns3::TcpCubic>()
                                 .AddConstructor<HystartPlusPlus>();
    return tid;
  }

  // The inherited algorithm is off, from the first ACK on: attributes exist only once it is
  // constructed.
  void Init(ns3::Ptr<ns3::TcpSocketState> tcb) override {
    TcpCubic::Init(tcb);
    SetAttribute("HyStart", ns3::BooleanValue(false));
  }
  std::string GetName() const override { return "HystartPlusPlus"; }
  ns3::Ptr<ns3::TcpCongestionOps> Fork() override { return ns3::CopyObject<HystartPlusPlus>(this); }

  void PktsAcked(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t segments,
                 const ns3::Time& rtt) override {
    TcpCubic::PktsAcked(tcb, segments, rtt);
    m_current = std::min(m_current, rtt);
    ++m_samples;
  }

  void IncreaseWindow(ns3::Ptr<ns3::TcpSocketState> tcb, uint32_t segments) override {
    if (tcb->m_cWnd >= tcb->m_ssThresh) {
      TcpCubic::IncreaseWindow(tcb, segments);
      return;
    }
    if (tcb->m_lastAckedSeq >= m_roundEnd) {
      EndRound(tcb);
    }
    Look();
    const uint32_t grown = std::min(segments, kMost) * tcb->m_segmentSize;
    tcb->m_cWnd += m_conservative ? grown / kDivisor : grown;
  }

 private:
  // RFC 9406, section 4.3; without pacing.
  static constexpr uint32_t kEnough = 8;  // samples of a round
  static constexpr uint32_t kDivisor = 4;
  static constexpr uint32_t kRounds = 5;
  static constexpr uint32_t kMost = 8;  // packets that an ACK may add

  void EndRound(ns3::Ptr<ns3::TcpSocketState> tcb) {
    m_roundEnd = tcb->m_nextTxSequence;
    m_last = m_current;
    m_current = ns3::Time::Max();
    m_samples = 0;
    if (m_conservative && ++m_rounds >= kRounds) {
      tcb->m_ssThresh = tcb->m_cWnd;
    }
  }

  void Look() {
    if (m_samples < kEnough || m_current == ns3::Time::Max()) {
      return;
    }
    if (m_conservative) {
      m_conservative = m_current >= m_baseline;  // a spurious exit: back to slow start
    } else if (m_last != ns3::Time::Max()) {
      const ns3::Time threshold =
          std::clamp(m_last / 8, ns3::MilliSeconds(4), ns3::MilliSeconds(16));
      if (m_current >= m_last + threshold) {
        m_conservative = true;
        m_baseline = m_current;
        m_rounds = 0;
      }
    }
  }

  ns3::SequenceNumber32 m_roundEnd{0};
  ns3::Time m_last{ns3::Time::Max()};
  ns3::Time m_current{ns3::Time::Max()};
  ns3::Time m_baseline;
  uint32_t m_samples{0};
  uint32_t m_rounds{0};
  bool m_conservative{false};
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_HYSTART_PLUS_PLUS_H
