// SPDX-License-Identifier: GPL-2.0-only
//
// Where downloads end: who has received how much, through a window that is fixed or grows as
// Linux's does.

#ifndef SWIFTQUEUE_RATE_RECEIVER_H
#define SWIFTQUEUE_RATE_RECEIVER_H

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "ns3/inet-socket-address.h"
#include "ns3/node.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/socket.h"
#include "ns3/tcp-bbr.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/uinteger.h"

namespace swiftqueue::rate {

/**
 * Linux's receive buffer tuning (tcp_rcv_space_adjust): looks once a round trip, and grows by more
 * than what came grew. tcp_rmem's defaults, of which half is window: 64 KiB at first, 3 MiB at
 * most.
 */
class GrowingWindow {
 public:
  static constexpr uint32_t kFirst = 64 << 10;
  static constexpr uint32_t kMost = 3 << 20;

  GrowingWindow(uint32_t segment, ns3::Time rtt)
      : m_rtt(rtt), m_segment(segment), m_space(10 * segment) {}

  /** What it is, in bytes, after so many more have been read. */
  uint32_t Read(uint32_t bytes) {
    m_copied += bytes;
    const ns3::Time now = ns3::Simulator::Now();
    if (now - m_looked < m_rtt) {
      return m_window;
    }
    if (m_copied > m_space) {
      const uint64_t twice = 2 * m_copied + 16 * m_segment;
      const uint64_t grown = twice + 2 * (twice * (m_copied - m_space) / m_space);
      m_window = static_cast<uint32_t>(std::clamp<uint64_t>(grown, m_window, kMost));
      m_space = m_copied;
    }
    m_copied = 0;
    m_looked = now;
    return m_window;
  }

 private:
  ns3::Time m_rtt;
  ns3::Time m_looked{ns3::Simulator::Now()};
  uint64_t m_segment;
  uint64_t m_space;
  uint64_t m_copied{0};
  uint32_t m_window{kFirst};
};

/** Hears the sender's port, and how many bytes came from it now. */
using Arrived = std::function<void(uint16_t port, uint32_t bytes)>;

/** Accept connections on `port`. `rtt`: of a window that grows; 0: it is what sockets have. */
inline void Receive(ns3::Ptr<ns3::Node> node, uint16_t port, uint32_t segment, ns3::Time rtt,
                    Arrived arrived) {
  using ns3::Callback;
  using ns3::Ptr;
  using ns3::Socket;
  Ptr<Socket> listener =
      node->GetObject<ns3::TcpL4Protocol>()->CreateSocket(ns3::TcpBbr::GetTypeId());
  listener->Bind(ns3::InetSocketAddress(ns3::Ipv4Address::GetAny(), port));
  listener->Listen();
  listener->ShutdownSend();
  listener->SetAcceptCallback(
      ns3::MakeNullCallback<bool, Ptr<Socket>, const ns3::Address&>(),
      Callback<void, Ptr<Socket>, const ns3::Address&>([arrived = std::move(arrived), segment, rtt](
                                                           Ptr<Socket> socket,
                                                           const ns3::Address& from) {
        const uint16_t sender = ns3::InetSocketAddress::ConvertFrom(from).GetPort();
        std::shared_ptr<GrowingWindow> window;
        if (!rtt.IsZero()) {
          window = std::make_shared<GrowingWindow>(segment, rtt);
          socket->SetAttribute("RcvBufSize", ns3::UintegerValue(GrowingWindow::kFirst));
        }
        socket->SetRecvCallback(Callback<void, Ptr<Socket>>([arrived, window,
                                                             sender](Ptr<Socket> ready) {
          while (Ptr<ns3::Packet> data = ready->Recv()) {
            if (data->GetSize() == 0) {
              break;  // the peer closed
            }
            arrived(sender, data->GetSize());
            if (window) {
              ready->SetAttribute("RcvBufSize", ns3::UintegerValue(window->Read(data->GetSize())));
            }
          }
        }));
      }));
}

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_RATE_RECEIVER_H
