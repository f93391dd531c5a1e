// SPDX-License-Identifier: GPL-2.0-only

#include "tcp-endpoints.h"

#include <utility>

#include "ns3/boolean.h"
#include "ns3/config.h"
#include "ns3/inet-socket-address.h"
#include "ns3/nstime.h"
#include "ns3/packet.h"
#include "ns3/string.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/udp-l4-protocol.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

using namespace ns3;  // NOLINT(build/namespaces): a helper speaks ns-3

void SetTcpDefaults() {
  constexpr uint32_t kBufferBytes = 4 << 20;  // never what limits a flow here
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kSegmentBytes));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(kBufferBytes));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(kBufferBytes));
  // Delayed ACKs alone would make 4 % of the latencies look like sharp changes.
  Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
  Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
  // Classic ECN (RFC 3168) for Cubic: with drops instead, most late packets would be waiting for a
  // retransmission and not in a queue.
  Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue("On"));
  Config::SetDefault("ns3::TcpDctcp::UseEct0", BooleanValue(false));  // L4S: ECT(1)
}

namespace {

void Drain(const Received& received, Ptr<Socket> socket) {
  while (Ptr<Packet> data = socket->Recv()) {
    if (data->GetSize() == 0) {
      break;  // the peer closed
    }
    received(data->GetSize());
  }
}

}  // namespace

void ListenTcp(Ptr<Node> node, uint16_t port, TypeId tcp, Received received) {
  Ptr<Socket> listener = node->GetObject<TcpL4Protocol>()->CreateSocket(tcp);
  listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
  listener->Listen();
  listener->ShutdownSend();
  listener->SetAcceptCallback(
      MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
      Callback<void, Ptr<Socket>, const Address&>([received = std::move(received)](
                                                      Ptr<Socket> socket, const Address&) {
        socket->SetRecvCallback(
            Callback<void, Ptr<Socket>>([received](Ptr<Socket> ready) { Drain(received, ready); }));
      }));
}

void ListenUdp(Ptr<Node> node, uint16_t port, Received received) {
  Ptr<Socket> socket = node->GetObject<UdpL4Protocol>()->CreateSocket();
  socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
  socket->SetRecvCallback(Callback<void, Ptr<Socket>>(
      [received = std::move(received)](Ptr<Socket> ready) { Drain(received, ready); }));
}

}  // namespace swiftqueue
