// Reads a capture file piece by piece: pcap (microseconds or nanoseconds, both byte orders) and
// pcapng.
#ifndef FEATURE_STORE_PCAP_H_
#define FEATURE_STORE_PCAP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "segment.h"

namespace swiftqueue {

class Capture {
 public:
  enum class State : std::int32_t { kReading = 0, kNotACapture = 1, kStopped = 2 };

  struct Fed {
    std::size_t consumed;  // bytes of the input that were used
    std::size_t segments;  // number written to `out`
  };

  // Decodes the complete records at the head of `bytes` until either runs out. Feed the rest
  // again with more bytes behind it; `last` says that there are none, so a rest is a
  // truncated record.
  Fed Feed(std::span<const std::uint8_t> bytes, bool last, std::span<Segment> out);

  State state() const { return state_; }
  // Returns whether every segment so far was stamped no earlier than all before it.
  bool in_order() const { return in_order_; }
  // Returns whether it can have records of several interfaces, each written in its own time.
  bool many_interfaces() const { return many_interfaces_; }
  std::int64_t records() const { return records_; }
  std::int64_t skipped(Skip why) const { return skipped_[static_cast<std::size_t>(why)]; }

 private:
  enum class Format { kUnknown, kPcap, kPcapng };

  struct Interface {
    std::uint16_t link_type = 0;
    std::uint8_t resolution = 6;  // if_tsresol: 10^-n s, or 2^-n s with the top bit set
    std::int64_t offset_s = 0;    // if_tsoffset
  };

  static constexpr std::size_t kNeedMore = 0;

  // Each takes the input's head and returns the bytes it used, kNeedMore if it is not all there.
  std::size_t FileHeader(std::span<const std::uint8_t> bytes);
  std::size_t PcapRecord(std::span<const std::uint8_t> bytes, std::size_t offset);
  std::size_t PcapngBlock(std::span<const std::uint8_t> bytes, std::size_t offset);
  void InterfaceBlock(std::span<const std::uint8_t> body);
  void PacketBlock(std::span<const std::uint8_t> body, bool obsolete, std::size_t offset);

  void Packet(std::span<const std::uint8_t> data, std::size_t original, std::size_t interface,
              std::int64_t time_ns, std::size_t offset);
  bool Damaged(std::span<const std::uint8_t> options) const;
  bool TimeNs(const Interface& interface, std::uint64_t ticks, std::int64_t* time_ns) const;
  void Count(Skip why) { ++skipped_[static_cast<std::size_t>(why)]; }
  void Stop(Skip why);
  std::uint16_t Read16(const std::uint8_t* p) const;
  std::uint32_t Read32(const std::uint8_t* p) const;

  Format format_ = Format::kUnknown;
  State state_ = State::kReading;
  bool swapped_ = false;
  std::int64_t tick_ns_ = 1000;  // tick of a pcap's fraction of a second
  std::vector<Interface> interfaces_;
  std::uint32_t first_interface_ = 0;  // number of this section's first, over all sections
  Segment* next_ = nullptr;            // place of the next segment
  std::int64_t newest_ns_ = 0;
  bool in_order_ = true;
  bool many_interfaces_ = false;
  std::int64_t records_ = 0;
  std::int64_t skipped_[static_cast<std::size_t>(Skip::kCount)] = {};
};

}  // namespace swiftqueue

#endif  // FEATURE_STORE_PCAP_H_
