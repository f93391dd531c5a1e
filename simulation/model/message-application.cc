// SPDX-License-Identifier: GPL-2.0-only

#include "message-application.h"

#include <algorithm>

#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/uinteger.h"
#include "web-search-sizes.h"

namespace swiftqueue {

using ns3::Ptr;
using ns3::Simulator;

NS_OBJECT_ENSURE_REGISTERED(MessageApplication);

ns3::TypeId MessageApplication::GetTypeId() {
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::MessageApplication")
          .SetParent<ns3::Application>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<MessageApplication>()
          .AddAttribute("DataRate", "Offered load of the messages, on average",
                        ns3::DataRateValue(ns3::DataRate("4Mbps")),
                        ns3::MakeDataRateAccessor(&MessageApplication::m_offered),
                        ns3::MakeDataRateChecker())
          .AddAttribute("DupAckThreshold", "Duplicate ACKs that stand for a loss (RFC 5681: 3)",
                        ns3::UintegerValue(3),
                        ns3::MakeUintegerAccessor(&MessageApplication::m_dupAckThreshold),
                        ns3::MakeUintegerChecker<uint32_t>(1));
  return tid;
}

MessageApplication::MessageApplication()
    : m_peer(ns3::Ipv4Address::GetAny(), 0),
      m_messageBytes(ns3::CreateObject<ns3::EmpiricalRandomVariable>()),
      m_gap(ns3::CreateObject<ns3::ExponentialRandomVariable>()) {
  m_messageBytes->SetInterpolate(true);
  for (const auto& [bytes, cumulative] : kWebSearchSizes) {
    m_messageBytes->CDF(bytes, cumulative);
  }
}

void MessageApplication::SetPeer(const ns3::InetSocketAddress& peer, ns3::TypeId tcp) {
  m_peer = peer;
  m_tcp = tcp;
}

int64_t MessageApplication::AssignStreams(int64_t stream) {
  m_messageBytes->SetStream(stream);
  m_gap->SetStream(stream + 1);
  return 2;
}

void MessageApplication::StartApplication() {
  m_socket = GetNode()->GetObject<ns3::TcpL4Protocol>()->CreateSocket(m_tcp);
  m_socket->SetAttribute("ReTxThreshold", ns3::UintegerValue(m_dupAckThreshold));
  m_socket->SetSendCallback(ns3::MakeCallback(&MessageApplication::Fill, this));
  m_socket->Bind();
  m_socket->Connect(m_peer);
  m_socket->ShutdownRecv();
  NextMessage();
}

void MessageApplication::StopApplication() {
  m_next.Cancel();
  m_unsentBytes = 0;
}

void MessageApplication::NextMessage() {
  m_unsentBytes += std::max<uint64_t>(1, m_messageBytes->GetInteger());
  Fill(m_socket, m_socket->GetTxAvailable());
  // s/message = bytes/message · bit/byte / (bit/s)
  const double meanGapS = MeanWebSearchBytes() * 8 / m_offered.GetBitRate();
  m_next = Simulator::Schedule(ns3::Seconds(m_gap->GetValue() * meanGapS),
                               &MessageApplication::NextMessage, this);
}

void MessageApplication::Fill(Ptr<ns3::Socket> socket, uint32_t available) {
  constexpr uint64_t kChunkBytes = 65'536;  // one write; what the socket holds it cuts itself
  while (m_unsentBytes > 0 && available > 0) {
    const uint64_t chunk = std::min({m_unsentBytes, uint64_t{available}, kChunkBytes});
    const int sent = socket->Send(ns3::Create<ns3::Packet>(static_cast<uint32_t>(chunk)));
    if (sent <= 0) {
      return;  // not connected yet, or full: the socket calls again
    }
    m_unsentBytes -= static_cast<uint64_t>(sent);
    available = socket->GetTxAvailable();
  }
}

}  // namespace swiftqueue
