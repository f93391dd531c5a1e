// SPDX-License-Identifier: GPL-2.0-only

#ifndef SWIFTQUEUE_WRITE_OUT_H
#define SWIFTQUEUE_WRITE_OUT_H

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ns3/packet.h"
#include "ns3/socket.h"

namespace swiftqueue {

/**
 * Hands `bytes` to the socket, at most `chunkBytes` in one call. Returns what it did not take: a
 * socket that is not connected yet, or full, calls again when it has room.
 */
inline uint64_t WriteOut(ns3::Ptr<ns3::Socket> socket, uint64_t bytes,
                         uint32_t chunkBytes = std::numeric_limits<uint32_t>::max()) {
  uint32_t available = socket->GetTxAvailable();
  while (bytes > 0 && available > 0) {
    const uint64_t chunk = std::min({bytes, uint64_t{available}, uint64_t{chunkBytes}});
    const int sent = socket->Send(ns3::Create<ns3::Packet>(static_cast<uint32_t>(chunk)));
    if (sent <= 0) {
      break;
    }
    bytes -= static_cast<uint64_t>(sent);
    available = socket->GetTxAvailable();
  }
  return bytes;
}

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_WRITE_OUT_H
