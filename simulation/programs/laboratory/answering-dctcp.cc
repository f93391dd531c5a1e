// SPDX-License-Identifier: GPL-2.0-only

#include "answering-dctcp.h"

#include <algorithm>

#include "ns3/abort.h"

namespace swiftqueue::lab {

using ns3::Ptr;
using ns3::TcpSocketState;

void AnsweringDctcp::Init(Ptr<TcpSocketState> tcb) {
  ns3::TcpDctcp::Init(tcb);
  if (!m_tcb) {
    const bool isConnected = TraceConnectWithoutContext(
        "CongestionEstimate", ns3::Callback<void, uint32_t, uint32_t, double>(
                                  [this](uint32_t, uint32_t, double alpha) { m_alpha = alpha; }));
    NS_ABORT_MSG_UNLESS(isConnected, "DCTCP tells nothing of its share of marks");
  }
  m_tcb = tcb;
}

bool AnsweringDctcp::HasAnswered() const { return m_until && m_tcb->m_lastAckedSeq < *m_until; }

uint32_t AnsweringDctcp::GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t bytesInFlight) {
  return HasAnswered() ? tcb->m_cWnd.Get() : ns3::TcpDctcp::GetSsThresh(tcb, bytesInFlight);
}

void AnsweringDctcp::AnswerAsLoss() {
  if (HasAnswered()) {
    return;
  }
  m_until = m_tcb->m_highTxMark;
  m_tcb->m_ssThresh = std::max(m_tcb->m_cWnd.Get() / 2, 2 * m_tcb->m_segmentSize);
  m_tcb->m_cWnd = m_tcb->m_ssThresh.Get();
  m_tcb->m_cWndInfl = m_tcb->m_cWnd.Get();
}

// Nothing where all segments are left out: a round trip that ends there would count as one without
// marks.
std::optional<uint32_t> AnsweringDctcp::Heard(uint32_t segments) const {
  if (m_leftOut > 0 && segments <= m_leftOut) {
    return {};
  }
  return segments - m_leftOut;
}

void AnsweringDctcp::PktsAcked(Ptr<TcpSocketState> tcb, uint32_t segments, const ns3::Time& rtt) {
  if (const auto heard = Heard(segments)) {
    ns3::TcpDctcp::PktsAcked(tcb, *heard, rtt);
  }
}

void AnsweringDctcp::LeaveOut(uint32_t segments, bool grow) {
  m_leftOut = segments;
  if (grow) {
    m_growth += segments * (1 - m_alpha);
  }
}

void AnsweringDctcp::IncreaseWindow(Ptr<TcpSocketState> tcb, uint32_t segments) {
  const auto growth = static_cast<uint32_t>(m_growth);
  m_growth -= growth;
  if (const auto heard = Heard(segments); heard || growth > 0) {
    ns3::TcpDctcp::IncreaseWindow(tcb, heard.value_or(0) + growth);
  }
}

}  // namespace swiftqueue::lab
