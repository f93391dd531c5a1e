// SPDX-License-Identifier: Apache-2.0
//
// Packets as they are read from a host's device: what the log says of them, and their ECN field.
#ifndef SWIFTQUEUE_TESTBED_ROUTER_PACKETS_H_
#define SWIFTQUEUE_TESTBED_ROUTER_PACKETS_H_

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "records.h"

namespace swiftqueue::testbed {

struct Packet {
  std::vector<unsigned char> bytes;
  Record record;
};

inline constexpr unsigned kEct0 = 2, kCe = 3;

inline bool is_v4(const Packet& p) { return p.bytes[0] >> 4 == 4; }
inline std::uint8_t ds_field_of(const Packet& p) {
  return is_v4(p) ? p.bytes[1] : static_cast<std::uint8_t>(p.bytes[0] << 4 | p.bytes[1] >> 4);
}

inline void set_ecn(Packet& p, unsigned ecn) {
  if (!is_v4(p)) {
    p.bytes[1] = static_cast<unsigned char>((p.bytes[1] & ~0x30) | ecn << 4);
    return;
  }
  const auto word = [&](std::size_t at) {
    return static_cast<std::uint32_t>(p.bytes[at] << 8 | p.bytes[at + 1]);
  };
  const std::uint32_t before = word(0);
  p.bytes[1] = static_cast<unsigned char>((p.bytes[1] & ~3) | ecn);
  // RFC 1624, equation 3: ~(~HC + ~m + m')
  std::uint32_t sum = (~word(10) & 0xffff) + (~before & 0xffff) + word(0);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  p.bytes[10] = static_cast<unsigned char>(~sum >> 8);
  p.bytes[11] = static_cast<unsigned char>(~sum);
}

// What the log says of a packet; false if it is no IP packet.
inline bool describe(Packet& p, std::int64_t arrived_ns, Kind kind, std::uint8_t link) {
  const std::size_t n = p.bytes.size();
  const unsigned version = n > 0 ? p.bytes[0] >> 4 : 0;
  if (!(version == 4 && n >= 20) && !(version == 6 && n >= 40)) return false;
  const std::size_t header = version == 4 ? (p.bytes[0] & 0xf) * 4u : 40;
  p.record = {};
  p.record.arrived_ns = arrived_ns;
  p.record.started_ns = p.record.due_ns = p.record.written_ns = p.record.packet = -1;
  p.record.bytes = static_cast<std::uint32_t>(n);
  p.record.kind = kind;
  p.record.link = link;
  p.record.queue = 255;
  p.record.ecn = ds_field_of(p) & 3;
  p.record.dscp = ds_field_of(p) >> 2;
  p.record.protocol = version == 4 ? p.bytes[9] : p.bytes[6];
  if ((p.record.protocol == 6 || p.record.protocol == 17) && n >= header + 8) {
    const unsigned char* h = &p.bytes[header];
    p.record.source_port = static_cast<std::uint16_t>(h[0] << 8 | h[1]);
    p.record.destination_port = static_cast<std::uint16_t>(h[2] << 8 | h[3]);
    constexpr std::array<unsigned char, 4> kOurs{'S', 'Q', 'U', '1'};
    if (p.record.protocol == 17 && n >= header + 24 &&
        std::equal(kOurs.begin(), kOurs.end(), h + 8)) {
      std::memcpy(&p.record.packet, h + 16, sizeof p.record.packet);
    }
    if (p.record.protocol == 6 && n >= header + 20) {
      std::uint32_t word = 0;
      std::memcpy(&word, h + 4, sizeof word);
      p.record.sequence = ntohl(word);
      std::memcpy(&word, h + 8, sizeof word);
      p.record.acknowledged = ntohl(word);
      p.record.headers = static_cast<std::uint8_t>(header + (h[12] >> 4) * 4u);
    }
  }
  return true;
}

// Buffers that are used again, so that the loop allocates nothing in the long run.
class Pool {
 public:
  std::uint64_t take() {
    if (free_.empty()) {
      packets_.emplace_back();
      return packets_.size() - 1;
    }
    const std::uint64_t at = free_.back();
    free_.pop_back();
    return at;
  }
  void give_back(std::uint64_t at) { free_.push_back(at); }
  Packet& operator[](std::uint64_t at) { return packets_[at]; }

 private:
  std::deque<Packet> packets_;
  std::vector<std::uint64_t> free_;
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_ROUTER_PACKETS_H_
