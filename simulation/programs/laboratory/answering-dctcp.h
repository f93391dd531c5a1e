// SPDX-License-Identifier: GPL-2.0-only
//
// A DCTCP that is told which of its packets were moved to the classic queue: it answers their marks
// as losses.

#ifndef SWIFTQUEUE_LABORATORY_ANSWERING_DCTCP_H
#define SWIFTQUEUE_LABORATORY_ANSWERING_DCTCP_H

#include <cstdint>
#include <optional>

#include "ns3/sequence-number.h"
#include "ns3/tcp-dctcp.h"
#include "ns3/tcp-socket-state.h"

namespace swiftqueue::lab {

/**
 * What its packets in the classic queue are marked by stands for a loss (RFC 3168, section 6.1.2),
 * unlike the marks of the L4S queue (RFC 9331, section 4.3).
 */
class AnsweringDctcp : public ns3::TcpDctcp {
 public:
  void Init(ns3::Ptr<ns3::TcpSocketState> tcb) override;

  /** In the round trip after such an answer DCTCP itself reduces nothing. */
  uint32_t GetSsThresh(ns3::Ptr<const ns3::TcpSocketState> tcb, uint32_t bytesInFlight) override;

  /** Halves the window, unless that was done for what was sent before (RFC 3168, section 6.1.2). */
  void AnswerAsLoss();

 private:
  bool HasAnswered() const;

  ns3::Ptr<ns3::TcpSocketState> m_tcb;
  std::optional<ns3::SequenceNumber32> m_until;  // the last answer is for all that was sent before
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_ANSWERING_DCTCP_H
