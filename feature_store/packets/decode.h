// Decodes the bytes of one capture record to a TCP segment, by its link, IP and TCP headers.
#ifndef FEATURE_STORE_DECODE_H_
#define FEATURE_STORE_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "segment.h"

namespace swiftqueue {

inline constexpr std::uint16_t kSll2 = 276;  // LINKTYPE_LINUX_SLL2: each record names its interface

enum class Verdict { kSegment, kRare, kSkipped };

// Decodes `captured` bytes at `data` of a packet that had `original` bytes on the wire.
// Fills all of `segment` but time_ns and the record fields; on kSkipped sets `why` instead.
// `interface` numbers the capture's interface. kRare means a link or header that only scapy knows.
// Never reads outside [data, data + captured).
Verdict Decode(const std::uint8_t* data, std::size_t captured, std::size_t original,
               std::uint16_t link_type, std::uint32_t interface, Segment* segment, Skip* why);

}  // namespace swiftqueue

#endif  // FEATURE_STORE_DECODE_H_
