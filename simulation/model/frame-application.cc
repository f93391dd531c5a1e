// SPDX-License-Identifier: GPL-2.0-only

#include "frame-application.h"

#include <algorithm>
#include <utility>

#include "ns3/data-rate.h"
#include "ns3/sequence-number.h"
#include "ns3/simulator.h"
#include "write-out.h"

namespace swiftqueue {

using ns3::Callback;
using ns3::DataRate;
using ns3::Ptr;
using ns3::SequenceNumber32;
using ns3::Simulator;
using ns3::Time;

NS_OBJECT_ENSURE_REGISTERED(FrameApplication);

ns3::TypeId FrameApplication::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::FrameApplication")
                               .SetParent<ns3::Application>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<FrameApplication>();
  return tid;
}

void FrameApplication::SetSocket(std::function<Ptr<ns3::TcpSocketBase>()> open,
                                 const ns3::Address& peer) {
  m_open = std::move(open);
  m_peer = peer;
}

void FrameApplication::SetFrames(const FrameRule& rule, std::shared_ptr<WriteLog> log) {
  m_rule = rule;
  m_log = std::move(log);
}

uint64_t FrameRule::Bytes(double rateBps, uint64_t waitingBytes) const {
  // bit/s = bit/s - bytes · bits/byte / s
  const double wantedBps = kShare * rateBps - static_cast<double>(waitingBytes) * 8 / periodS;
  const double bytes = std::clamp(wantedBps, leastBps, mostBps) * periodS / 8;
  return std::max<uint64_t>(1, static_cast<uint64_t>(bytes));
}

void FrameApplication::StartApplication() {
  m_socket = m_open();
  m_socket->TraceConnectWithoutContext(
      "CongestionWindow", Callback<void, uint32_t, uint32_t>(
                              [this](uint32_t, uint32_t bytes) { m_windowBytes = bytes; }));
  m_socket->TraceConnectWithoutContext(
      "RTT", Callback<void, Time, Time>([this](Time, Time rtt) { m_rtt = rtt; }));
  m_socket->TraceConnectWithoutContext(
      "PacingRate", Callback<void, DataRate, DataRate>([this](DataRate, DataRate rate) {
        m_pacingBps = static_cast<double>(rate.GetBitRate());
      }));
  m_socket->TraceConnectWithoutContext(
      "HighestSequence",
      Callback<void, SequenceNumber32, SequenceNumber32>(
          [this](SequenceNumber32 before, SequenceNumber32 now) { m_sentBytes += now - before; }));
  m_socket->SetSendCallback(
      ns3::Callback<void, Ptr<ns3::Socket>, uint32_t>([this](auto, uint32_t) { Fill(); }));
  m_socket->Bind();
  m_socket->Connect(m_peer);
  m_socket->ShutdownRecv();
  NextFrame();
}

void FrameApplication::StopApplication() {
  m_next.Cancel();
  m_unsentBytes = 0;
}

void FrameApplication::NextFrame() {
  // The first sequence number was the connection's.
  const uint64_t sent = m_sentBytes > 0 ? m_sentBytes - 1 : 0;
  const uint64_t written = m_log->Bytes();
  const uint64_t bytes = m_rule.Bytes(RateBps(), written - std::min(sent, written));
  m_unsentBytes += bytes;
  m_log->Made(bytes);
  Fill();
  m_next = Simulator::Schedule(ns3::Seconds(m_rule.periodS), &FrameApplication::NextFrame, this);
}

double FrameApplication::RateBps() const {
  if (!m_rtt.IsStrictlyPositive()) {
    return 0;  // before the first round trip there is no rate: the least
  }
  const double windowBps = m_windowBytes * 8.0 / m_rtt.GetSeconds();
  return m_pacingBps > 0 ? std::min(windowBps, m_pacingBps) : windowBps;
}

void FrameApplication::Fill() { m_unsentBytes = WriteOut(m_socket, m_unsentBytes); }

}  // namespace swiftqueue
