// SPDX-License-Identifier: GPL-2.0-only

#include "answering-dctcp.h"

#include <algorithm>

namespace swiftqueue::lab {

using ns3::Ptr;
using ns3::TcpSocketState;

void AnsweringDctcp::Init(Ptr<TcpSocketState> tcb) {
  ns3::TcpDctcp::Init(tcb);
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

}  // namespace swiftqueue::lab
