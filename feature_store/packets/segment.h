// Defines a TCP segment of a capture record, which the decoder returns and the matcher takes.
#ifndef FEATURE_STORE_SEGMENT_H_
#define FEATURE_STORE_SEGMENT_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace swiftqueue {

using Address = std::array<std::uint8_t, 16>;  // IPv6, or IPv4 as ::ffff:a.b.c.d (RFC 4291 2.5.5.2)

// Reasons why a record gives no segment. Order and names are part of the C interface
// (extract_api.cc).
enum class Skip : std::uint8_t {
  kNotIp,
  kNotTcp,
  kFragment,
  kShortHeader,
  kMalformed,
  kNoTimestamp,
  kAbsurdTimestamp,
  kUnknownInterface,
  kAbsurdLength,
  kTruncated,
  kBeyondWire,  // an IP length that the record's length on the wire has no room for
  kDamaged,     // the capture itself says that the frame did not arrive whole
  kCount,
};

enum Kind : std::uint8_t {
  kTcp = 0,
  kRare = 1,     // left to scapy: only time_ns, link and the record fields are set
  kNothing = 2,  // scapy found no TCP in it either
};

enum TcpFlags : std::uint8_t { kFin = 1, kSyn = 2, kRst = 4, kAck = 16 };

// A selective acknowledgement: bytes from `left` on, before `right`, have come (RFC 2018).
struct SackBlock {
  std::uint32_t left;
  std::uint32_t right;
};
inline constexpr std::size_t kMostSacks = 4;  // most blocks that fit an option

// 128 bytes; read from Python as a NumPy record (pcaplib.py), so order and types are an interface.
struct Segment {
  std::int64_t time_ns;  // since 1970-01-01, as stamped by the capture
  Address source;
  Address destination;
  std::uint16_t source_port;
  std::uint16_t destination_port;
  std::uint32_t sequence;
  std::uint32_t acknowledgment;
  std::uint32_t payload_bytes;
  std::uint32_t ip_bytes;         // IP header, TCP header and payload
  std::uint32_t timestamp_value;  // TSval and TSecr of RFC 7323; valid if has_timestamps
  std::uint32_t timestamp_echo;
  std::uint32_t link;            // interface << 8 | direction: equal links, equal numbers
  std::uint32_t record_offset;   // offset of a rare record's first byte in the buffer
  std::uint32_t record_bytes;    // captured bytes
  std::uint32_t original_bytes;  // bytes on the wire
  std::uint16_t link_type;       // LINKTYPE_ of the record's interface
  std::uint8_t flags;            // TcpFlags
  std::uint8_t ecn;              // IP codepoint 0..3 (RFC 3168)
  std::uint8_t kind;             // Kind
  std::uint8_t has_timestamps;
  std::uint8_t sacks;        // number of filled entries of `sack`
  std::uint8_t cut_options;  // 1: the snapshot length cut TCP options off
  std::uint16_t ip_id;       // 0: none (IPv6), or a meaningless one (RFC 6864)
  std::uint16_t vlan;        // VLAN tags, mixed into one number; 0: none
  std::array<SackBlock, kMostSacks> sack;
};
static_assert(sizeof(Segment) == 128);

}  // namespace swiftqueue

#endif  // FEATURE_STORE_SEGMENT_H_
