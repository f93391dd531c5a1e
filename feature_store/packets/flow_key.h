// Makes flows and addresses keys of hash tables.
#ifndef FEATURE_STORE_FLOW_KEY_H_
#define FEATURE_STORE_FLOW_KEY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "segment.h"

namespace swiftqueue {

// One direction of a TCP connection. `vlan` is 0 unless a capture shows equal addresses and ports
// in several VLANs (match.cc).
struct FlowKey {
  Address source;
  Address destination;
  std::uint16_t source_port;
  std::uint16_t destination_port;
  std::uint16_t vlan;
  bool operator==(const FlowKey&) const = default;
};

inline std::uint64_t Word(const std::uint8_t* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline std::size_t Mix(std::uint64_t h) {  // the finaliser of MurmurHash3
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  return static_cast<std::size_t>(h);
}

struct AddressHash {
  std::size_t operator()(const Address& address) const {
    return Mix(Word(address.data()) * 0x9e3779b97f4a7c15ULL ^ Word(address.data() + 8));
  }
};

struct FlowKeyHash {
  std::size_t operator()(const FlowKey& key) const {
    std::uint64_t h = Word(key.source.data()) ^ Word(key.source.data() + 8) * 3;
    h = h * 0x9e3779b97f4a7c15ULL + Word(key.destination.data());
    h = h * 0x9e3779b97f4a7c15ULL + Word(key.destination.data() + 8);
    h = h * 0x9e3779b97f4a7c15ULL + (std::uint64_t{key.vlan} << 32 |
                                     std::uint64_t{key.source_port} << 16 | key.destination_port);
    return Mix(h);
  }
};

// Return the direction in which a segment goes, and the opposite one.
inline FlowKey FlowOf(const Segment& segment) {
  return {segment.source, segment.destination, segment.source_port, segment.destination_port, 0};
}
inline FlowKey ReverseFlowOf(const Segment& segment) {
  return {segment.destination, segment.source, segment.destination_port, segment.source_port, 0};
}

}  // namespace swiftqueue

#endif  // FEATURE_STORE_FLOW_KEY_H_
