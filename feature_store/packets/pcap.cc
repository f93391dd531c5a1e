// Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
#include "pcap.h"

#include <algorithm>
#include <cstring>

#include "decode.h"

namespace swiftqueue {
namespace {

constexpr std::uint32_t kMaxRecordBytes = 262144;    // libpcap's MAXIMUM_SNAPLEN
constexpr std::uint32_t kMaxBlockBytes = 16u << 20;  // a pcapng block; name tables can be long
constexpr std::int64_t kMaxTimeNs = std::int64_t{1} << 62;  // year 2116; leaves room to add
constexpr std::uint32_t kSectionBlock = 0x0a0d0d0a, kInterfaceBlock = 1, kObsoletePacketBlock = 2,
                        kSimplePacketBlock = 3, kEnhancedPacketBlock = 6;

std::uint32_t Native32(const std::uint8_t* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace

std::uint16_t Capture::Read16(const std::uint8_t* p) const {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return swapped_ ? __builtin_bswap16(value) : value;
}

std::uint32_t Capture::Read32(const std::uint8_t* p) const {
  return swapped_ ? __builtin_bswap32(Native32(p)) : Native32(p);
}

void Capture::Stop(Skip why) {
  Count(why);
  state_ = State::kStopped;
}

Capture::Fed Capture::Feed(std::span<const std::uint8_t> bytes, bool last, std::span<Segment> out) {
  next_ = out.data();
  Segment* const end = out.data() + out.size();
  std::size_t at = 0;
  while (state_ == State::kReading && next_ < end) {
    const auto rest = bytes.subspan(at);
    std::size_t used = kNeedMore;
    switch (format_) {
      case Format::kUnknown:
        used = FileHeader(rest);
        break;
      case Format::kPcap:
        used = PcapRecord(rest, at);
        break;
      case Format::kPcapng:
        used = PcapngBlock(rest, at);
        break;
    }
    if (used == kNeedMore && state_ == State::kReading) {
      if (last && format_ == Format::kUnknown) state_ = State::kNotACapture;
      if (last && state_ == State::kReading && !rest.empty()) {
        ++records_;
        Stop(Skip::kTruncated);
      }
      break;
    }
    at += used;
  }
  return {at, static_cast<std::size_t>(next_ - out.data())};
}

std::size_t Capture::FileHeader(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < 4) return kNeedMore;
  const std::uint32_t magic = Native32(bytes.data());
  if (magic == kSectionBlock) {  // a palindrome: the byte order comes after it
    format_ = Format::kPcapng;
    return PcapngBlock(bytes, 0);
  }
  if (bytes.size() < 24) return kNeedMore;
  for (const bool swapped : {false, true}) {
    const std::uint32_t native = swapped ? __builtin_bswap32(magic) : magic;
    if (native != 0xa1b2c3d4 && native != 0xa1b23c4d) continue;
    swapped_ = swapped;
    tick_ns_ = native == 0xa1b2c3d4 ? 1000 : 1;
    if (Read16(bytes.data() + 4) != 2) break;  // version 2.x is the only one ever written
    format_ = Format::kPcap;
    // The upper bits of the last word tell the length of a frame check sequence.
    interfaces_ = {Interface{.link_type = static_cast<std::uint16_t>(Read32(bytes.data() + 20))}};
    return 24;
  }
  state_ = State::kNotACapture;
  return kNeedMore;
}

std::size_t Capture::PcapRecord(std::span<const std::uint8_t> bytes, std::size_t offset) {
  if (bytes.size() < 16) return kNeedMore;
  const std::uint8_t* header = bytes.data();
  const std::uint32_t captured = Read32(header + 8);
  if (captured > kMaxRecordBytes) {  // the next record cannot be found
    ++records_;
    Stop(Skip::kAbsurdLength);
    return kNeedMore;
  }
  if (bytes.size() < 16u + captured) return kNeedMore;
  ++records_;
  const std::int64_t time_ns = std::int64_t{Read32(header)} * 1'000'000'000 +  // s · ns/s
                               std::int64_t{Read32(header + 4)} * tick_ns_;
  Packet(bytes.subspan(16, captured), Read32(header + 12), 0, time_ns, offset + 16);
  return 16u + captured;
}

std::size_t Capture::PcapngBlock(std::span<const std::uint8_t> bytes, std::size_t offset) {
  if (bytes.size() < 12) return kNeedMore;
  const std::uint8_t* block = bytes.data();
  const bool section = Native32(block) == kSectionBlock;
  if (section) {
    const std::uint32_t byte_order = Native32(block + 8);
    if (byte_order != 0x1a2b3c4d && byte_order != 0x4d3c2b1a) {
      ++records_;
      Stop(Skip::kAbsurdLength);
      return kNeedMore;
    }
    swapped_ = byte_order == 0x4d3c2b1a;
  }
  const std::uint32_t length = Read32(block + 4);
  if (length < (section ? 28u : 12u) || length % 4 != 0 || length > kMaxBlockBytes) {
    ++records_;
    Stop(Skip::kAbsurdLength);
    return kNeedMore;
  }
  if (bytes.size() < length) return kNeedMore;
  if (Read32(block + length - 4) != length) {
    ++records_;
    Stop(Skip::kAbsurdLength);
    return kNeedMore;
  }
  const auto body = bytes.subspan(8, length - 12);
  switch (Read32(block)) {
    case kSectionBlock:
      first_interface_ += static_cast<std::uint32_t>(interfaces_.size());
      interfaces_.clear();
      break;
    case kInterfaceBlock:
      InterfaceBlock(body);
      break;
    case kEnhancedPacketBlock:
      PacketBlock(body, false, offset + 8);
      break;
    case kObsoletePacketBlock:
      PacketBlock(body, true, offset + 8);
      break;
    case kSimplePacketBlock:
      ++records_;
      Count(Skip::kNoTimestamp);
      break;
    default:  // statistics, names, comments, secrets, blocks of vendors
      break;
  }
  return length;
}

void Capture::InterfaceBlock(std::span<const std::uint8_t> body) {
  Interface interface;
  if (body.size() >= 8) interface.link_type = Read16(body.data());
  for (std::size_t at = 8; at + 4 <= body.size();) {
    const std::uint16_t code = Read16(body.data() + at);
    const std::size_t length = Read16(body.data() + at + 2);
    const std::uint8_t* value = body.data() + at + 4;
    if (code == 0 || at + 4 + length > body.size()) break;
    if (code == 9 && length == 1) interface.resolution = value[0];
    if (code == 14 && length == 8) {
      std::uint64_t seconds;
      std::memcpy(&seconds, value, sizeof seconds);
      interface.offset_s =
          static_cast<std::int64_t>(swapped_ ? __builtin_bswap64(seconds) : seconds);
    }
    at += 4 + (length + 3) / 4 * 4;
  }
  interfaces_.push_back(interface);
  many_interfaces_ |= first_interface_ + interfaces_.size() > 1;
}

void Capture::PacketBlock(std::span<const std::uint8_t> body, bool obsolete, std::size_t offset) {
  ++records_;
  if (body.size() < 20) return Count(Skip::kMalformed);
  const std::uint8_t* p = body.data();
  const std::size_t interface = obsolete ? Read16(p) : Read32(p);
  const std::uint64_t ticks = std::uint64_t{Read32(p + 4)} << 32 | Read32(p + 8);
  const std::uint32_t captured = Read32(p + 12);
  if (interface >= interfaces_.size()) return Count(Skip::kUnknownInterface);
  if (captured > body.size() - 20) return Count(Skip::kMalformed);
  std::int64_t time_ns;
  if (!TimeNs(interfaces_[interface], ticks, &time_ns)) return Count(Skip::kAbsurdTimestamp);
  if (Damaged(body.subspan(std::min(body.size(), 20 + (captured + std::size_t{3}) / 4 * 4)))) {
    return Count(Skip::kDamaged);
  }
  Packet(body.subspan(20, captured), Read32(p + 16), interface, time_ns, offset + 20);
}

// Returns whether a packet block's options say that the link saw an error in the frame.
bool Capture::Damaged(std::span<const std::uint8_t> options) const {
  constexpr std::uint32_t kLinkErrors =
      0xff000000;  // epb_flags: checksum, length, alignment, symbol
  for (std::size_t at = 0; at + 4 <= options.size();) {
    const std::uint16_t code = Read16(options.data() + at);
    const std::size_t length = Read16(options.data() + at + 2);
    if (code == 0 || at + 4 + length > options.size()) break;
    if (code == 2 && length == 4) return Read32(options.data() + at + 4) & kLinkErrors;
    at += 4 + (length + 3) / 4 * 4;
  }
  return false;
}

bool Capture::TimeNs(const Interface& interface, std::uint64_t ticks, std::int64_t* time_ns) const {
  const unsigned exponent = interface.resolution & 0x7f;
  __int128 ns = static_cast<__int128>(ticks);
  if (interface.resolution & 0x80) {
    ns = exponent > 100 ? 0 : (ns * 1'000'000'000) >> exponent;
  } else {
    for (unsigned n = exponent; n < 9; ++n) ns *= 10;
    for (unsigned n = 9; n < exponent && ns != 0; ++n) ns /= 10;
  }
  ns += static_cast<__int128>(interface.offset_s) * 1'000'000'000;
  if (ns < 0 || ns > kMaxTimeNs) return false;
  *time_ns = static_cast<std::int64_t>(ns);
  return true;
}

void Capture::Packet(std::span<const std::uint8_t> data, std::size_t original,
                     std::size_t interface, std::int64_t time_ns, std::size_t offset) {
  Skip why = Skip::kMalformed;
  const std::uint16_t link_type = interfaces_[interface].link_type;
  many_interfaces_ |= link_type == kSll2;
  next_->time_ns = time_ns;
  in_order_ &= time_ns >= newest_ns_;
  newest_ns_ = std::max(newest_ns_, time_ns);
  switch (Decode(data.data(), data.size(), original, link_type,
                 first_interface_ + static_cast<std::uint32_t>(interface), next_, &why)) {
    case Verdict::kSegment:
      ++next_;
      break;
    case Verdict::kRare:
      next_->kind = kRare;
      next_->record_offset = static_cast<std::uint32_t>(offset);
      next_->record_bytes = static_cast<std::uint32_t>(data.size());
      next_->original_bytes = static_cast<std::uint32_t>(original);
      next_->link_type = link_type;
      ++next_;
      break;
    case Verdict::kSkipped:
      Count(why);
      break;
  }
}

}  // namespace swiftqueue
