// SPDX-License-Identifier: GPL-2.0-only

#include "traffic-application.h"

#include <algorithm>
#include <utility>

#include "ns3/simulator.h"
#include "write-out.h"

namespace swiftqueue {

using ns3::Ptr;
using ns3::Simulator;

NS_OBJECT_ENSURE_REGISTERED(TrafficApplication);

namespace {

constexpr uint32_t kStreamChunkBytes = 65'536;  // one write to TCP, which cuts it itself
constexpr uint32_t kDatagramBytes = 1448;       // as TCP's segments here
constexpr uint64_t kEndless = uint64_t{1} << 60;

}  // namespace

Ptr<ns3::RandomVariableStream> Empirical(std::span<const Quantile> points) {
  auto variable = ns3::CreateObject<ns3::EmpiricalRandomVariable>();
  variable->SetInterpolate(true);
  for (const auto& [value, cumulative] : points) {
    variable->CDF(value, cumulative);
  }
  return variable;
}

ns3::TypeId TrafficApplication::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::TrafficApplication")
                               .SetParent<ns3::Application>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<TrafficApplication>();
  return tid;
}

void TrafficApplication::SetSocket(std::function<Ptr<ns3::Socket>()> open,
                                   const ns3::Address& peer) {
  m_open = std::move(open);
  m_peer = peer;
}

void TrafficApplication::SetWrites(Ptr<ns3::RandomVariableStream> bytes,
                                   Ptr<ns3::RandomVariableStream> gap, double gapUnitS) {
  m_bytes = bytes;
  m_gap = gap;
  m_gapUnitS = gapUnitS;
}

void TrafficApplication::SetMessages(std::span<const Quantile> bytes, double rateBps) {
  // s/message = bytes/message · bit/byte / (bit/s)
  SetWrites(Empirical(bytes), ns3::CreateObject<ns3::ExponentialRandomVariable>(),
            Mean(bytes) * 8 / rateBps);
}

void TrafficApplication::SetGreedy() {
  m_bytes = nullptr;
  m_gap = nullptr;
}

int64_t TrafficApplication::AssignStreams(int64_t stream) {
  if (!m_bytes) {
    return 0;
  }
  m_bytes->SetStream(stream);
  m_gap->SetStream(stream + 1);
  return 2;
}

void TrafficApplication::StartApplication() {
  m_socket = m_open();
  if (m_socket->GetSocketType() == ns3::Socket::NS3_SOCK_DGRAM) {
    m_chunkBytes = kDatagramBytes;  // UDP never makes one wait
  } else {
    m_chunkBytes = kStreamChunkBytes;
    m_socket->SetSendCallback(
        ns3::Callback<void, Ptr<ns3::Socket>, uint32_t>([this](auto, uint32_t) { Fill(); }));
  }
  m_socket->Bind();
  m_socket->Connect(m_peer);
  m_socket->ShutdownRecv();
  NextWrite();
}

void TrafficApplication::StopApplication() {
  m_next.Cancel();
  m_unsentBytes = 0;
}

void TrafficApplication::NextWrite() {
  const uint64_t bytes = m_bytes ? std::max<uint64_t>(1, m_bytes->GetInteger()) : kEndless;
  if (m_log) {
    m_log->Made(bytes);
  }
  m_unsentBytes += bytes;
  Fill();
  if (m_gap) {
    m_next = Simulator::Schedule(ns3::Seconds(m_gap->GetValue() * m_gapUnitS),
                                 &TrafficApplication::NextWrite, this);
  }
}

void TrafficApplication::Fill() { m_unsentBytes = WriteOut(m_socket, m_unsentBytes, m_chunkBytes); }

}  // namespace swiftqueue
