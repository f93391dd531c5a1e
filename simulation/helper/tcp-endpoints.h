// SPDX-License-Identifier: GPL-2.0-only
//
// What all traffic of these scenarios has in common: TCP's defaults, and receivers.

#ifndef SWIFTQUEUE_TCP_ENDPOINTS_H
#define SWIFTQUEUE_TCP_ENDPOINTS_H

#include <cstdint>
#include <functional>

#include "ns3/node.h"
#include "ns3/socket.h"
#include "ns3/type-id.h"

namespace swiftqueue {

inline constexpr uint32_t kSegmentBytes = 1448;  // with TCP's timestamps 1500 on the wire

/** Sockets made from now on: an ACK for each packet, 4 MiB of buffer, ECN where it is asked for. */
void SetTcpDefaults();

using Received = std::function<void(uint32_t bytes)>;

/** Accept TCP connections of congestion control `tcp` on `port`; `received` hears what arrives. */
void ListenTcp(ns3::Ptr<ns3::Node> node, uint16_t port, ns3::TypeId tcp, Received received);

/** Receive UDP datagrams on `port`. */
void ListenUdp(ns3::Ptr<ns3::Node> node, uint16_t port, Received received);

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_TCP_ENDPOINTS_H
