#include "decode.h"

#include <algorithm>
#include <cstring>

namespace swiftqueue {
namespace {

// LINKTYPE_ values: https://www.tcpdump.org/linktypes.html
constexpr std::uint16_t kNull = 0, kEthernet = 1, kRawBsd = 12, kRawOpenBsd = 14, kRaw = 101,
                        kLoop = 108, kSll = 113, kIpv4 = 228, kIpv6 = 229;
constexpr std::uint16_t kLargestLength = 1500;  // IEEE 802.3, 3.2.6: a larger one is an EtherType

std::uint16_t Big16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] << 8 | p[1]); }

std::uint32_t Big32(const std::uint8_t* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return __builtin_bswap32(value);
}

// The headers of one record, walked from the link inwards.
class Record {
 public:
  Record(const std::uint8_t* data, std::size_t captured, std::size_t original, Segment* segment,
         Skip* why)
      : data_(data),
        captured_(captured),
        original_(std::max(original, captured)),
        segment_(segment),
        why_(why) {}

  Verdict Link(std::uint16_t link_type, std::uint32_t interface) {
    segment_->link = interface << 8;
    segment_->vlan = 0;
    switch (link_type) {
      case kNull:
      case kLoop:
        return Loopback();
      case kEthernet:
        return captured_ < 14 ? Skipped(Skip::kShortHeader) : EtherType(Big16(data_ + 12), 14);
      case kSll:
        if (captured_ < 16) return Skipped(Skip::kShortHeader);
        segment_->link |=
            data_[1];  // packet type: a loopback packet shows up once in each direction
        return EtherType(Big16(data_ + 14), 16);
      case kSll2:
        if (captured_ < 20) return Skipped(Skip::kShortHeader);
        segment_->link ^= Big32(data_ + 4) << 8 | data_[10];  // interface index, packet type
        return EtherType(Big16(data_), 20);
      case kRaw:
      case kRawBsd:
      case kRawOpenBsd:
      case kIpv4:
      case kIpv6:
        if (captured_ < 1) return Skipped(Skip::kShortHeader);
        if (data_[0] >> 4 == 4) return Ipv4(0);
        return data_[0] >> 4 == 6 ? Ipv6(0) : Skipped(Skip::kNotIp);
      default:
        return Verdict::kRare;
    }
  }

 private:
  Verdict Skipped(Skip why) {
    *why_ = why;
    return Verdict::kSkipped;
  }

  // The address family is a number of the system that captured, in its byte order (link type 108:
  // in network order). Each system has its own for IPv6.
  Verdict Loopback() {
    if (captured_ < 4) return Skipped(Skip::kShortHeader);
    const std::uint32_t family = std::min(Big32(data_), __builtin_bswap32(Big32(data_)));
    switch (family) {
      case 2:
        return Ipv4(4);
      case 10:  // Linux
      case 23:  // Windows
      case 24:  // NetBSD, OpenBSD
      case 28:  // FreeBSD
      case 30:  // macOS
        return Ipv6(4);
      default:
        return Skipped(Skip::kNotIp);
    }
  }

  Verdict EtherType(std::uint16_t type, std::size_t at) {
    for (;;) {  // a stack of tags is walked to its end
      if (type == 0x8100 || type == 0x88a8 || type == 0x9100) {  // 802.1Q, 802.1ad, older QinQ
        if (captured_ < at + 4) return Skipped(Skip::kShortHeader);
        Tag(Big16(data_ + at) & 0xfff);
        type = Big16(data_ + at + 2);
        at += 4;
      } else if (type == 0x88e7) {  // 802.1ah: a service's number, and a whole Ethernet header
        if (captured_ < at + 18) return Skipped(Skip::kShortHeader);
        Tag(Big32(data_ + at) & 0xffffff);
        type = Big16(data_ + at + 16);
        at += 18;
      } else if (type <= kLargestLength) {  // 802.2: LLC, mostly with SNAP (RFC 1042)
        if (captured_ < at + 8) return Skipped(Skip::kShortHeader);
        const std::uint8_t* llc = data_ + at;
        if (llc[0] == 0x06 && llc[1] == 0x06 && llc[2] == 0x03) return Ipv4(at + 3);
        // Organisations 0 (RFC 1042) and 0xf8 (802.1H) mean that an EtherType follows.
        const bool snap = llc[0] == 0xaa && llc[1] == 0xaa && llc[2] == 0x03 && llc[3] == 0 &&
                          llc[4] == 0 && (llc[5] == 0 || llc[5] == 0xf8);
        if (!snap || Big16(llc + 6) <= kLargestLength) return Skipped(Skip::kNotIp);
        type = Big16(llc + 6);
        at += 8;
      } else {
        break;
      }
    }
    switch (type) {
      case 0x0800:
        return Ipv4(at);
      case 0x86dd:
        return Ipv6(at);
      case 0x8847:  // MPLS, unicast and multicast
      case 0x8848:
      case 0x8864:  // PPPoE session
        return Verdict::kRare;
      default:
        return Skipped(Skip::kNotIp);
    }
  }

  void Tag(std::uint32_t number) {
    segment_->vlan = static_cast<std::uint16_t>(segment_->vlan * 4099u + (number ^ number >> 16));
  }

  Verdict Ipv4(std::size_t at) {
    if (captured_ < at + 20) return Skipped(Skip::kShortHeader);
    const std::uint8_t* ip = data_ + at;
    const std::size_t header = (ip[0] & 15u) * 4u;
    if (ip[0] >> 4 != 4 || header < 20) return Skipped(Skip::kMalformed);
    if (ip[9] != 6) return Skipped(Skip::kNotTcp);
    if (Big16(ip + 6) & 0x3fff) return Skipped(Skip::kFragment);  // more fragments, or an offset
    std::size_t total = Big16(ip + 2);
    // The card will split this segment; it was captured before it had a length.
    if (total == 0 && original_ > at) total = original_ - at;
    if (total > original_ - at) return Skipped(Skip::kBeyondWire);
    static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(segment_->source.data(), kMapped, 12);
    std::memcpy(segment_->source.data() + 12, ip + 12, 4);
    std::memcpy(segment_->destination.data(), kMapped, 12);
    std::memcpy(segment_->destination.data() + 12, ip + 16, 4);
    segment_->ecn = ip[1] & 3;
    segment_->ip_id = Big16(ip + 4);
    return Tcp(at + header, header, total);
  }

  Verdict Ipv6(std::size_t at) {
    if (captured_ < at + 40) return Skipped(Skip::kShortHeader);
    const std::uint8_t* ip = data_ + at;
    if (ip[0] >> 4 != 6) return Skipped(Skip::kMalformed);
    std::size_t total = 40u + Big16(ip + 4);
    if (total == 40 && original_ > at + 40) total = original_ - at;  // jumbogram, RFC 2675
    if (total > original_ - at) return Skipped(Skip::kBeyondWire);
    std::memcpy(segment_->source.data(), ip + 8, 16);
    std::memcpy(segment_->destination.data(), ip + 24, 16);
    segment_->ecn = ip[1] >> 4 & 3;
    segment_->ip_id = 0;
    std::uint8_t next = ip[6];
    std::size_t header = 40;
    while (next != 6) {
      if (next != 0 && next != 43 && next != 44 && next != 60) return Skipped(Skip::kNotTcp);
      if (captured_ < at + header + 8) return Skipped(Skip::kShortHeader);
      const std::uint8_t* extension = ip + header;
      // Offset and more-fragments bits; an atomic fragment (RFC 6946) has neither.
      if (next == 44 && (Big16(extension + 2) & 0xfff9)) return Skipped(Skip::kFragment);
      header += next == 44 ? 8 : 8 * (extension[1] + 1u);
      next = extension[0];
    }
    return Tcp(at + header, header, total);
  }

  // `at`: offset of the TCP header; `ip_header`, `total`: lengths in the IP packet.
  Verdict Tcp(std::size_t at, std::size_t ip_header, std::size_t total) {
    if (captured_ < at + 14) return Skipped(Skip::kShortHeader);
    const std::uint8_t* tcp = data_ + at;
    const std::size_t header = (tcp[12] >> 4) * 4u;
    if (header < 20 || total < ip_header + header) return Skipped(Skip::kMalformed);
    segment_->source_port = Big16(tcp);
    segment_->destination_port = Big16(tcp + 2);
    segment_->sequence = Big32(tcp + 4);
    segment_->acknowledgment = Big32(tcp + 8);
    segment_->flags = tcp[13];
    segment_->ip_bytes = static_cast<std::uint32_t>(total);
    segment_->payload_bytes = static_cast<std::uint32_t>(total - ip_header - header);
    segment_->has_timestamps = 0;
    segment_->sacks = 0;
    segment_->sack = {};
    segment_->timestamp_value = segment_->timestamp_echo = 0;
    segment_->kind = kTcp;
    segment_->cut_options = 0;
    Options(tcp, std::min(header, captured_ - at), header);
    return Verdict::kSegment;
  }

  // `end`: how much of the header was captured.
  void Options(const std::uint8_t* tcp, std::size_t end, std::size_t header) {
    if (end < header) segment_->cut_options = 1;
    std::size_t at = 20;
    if (end >= 32 && Big32(tcp + 20) == 0x0101080a) {  // the layout of RFC 7323 appendix A
      Timestamps(tcp + 24);
      at = 32;
    }
    while (at < end) {
      if (tcp[at] == 0) {
        segment_->cut_options = 0;
        return;
      }
      if (tcp[at] == 1) {
        ++at;
        continue;
      }
      if (at + 1 >= end || tcp[at + 1] < 2) return;
      const std::size_t length = tcp[at + 1];
      if (at + length > end) return;
      // The first option of a kind counts.
      if (tcp[at] == 8 && length == 10 && !segment_->has_timestamps) Timestamps(tcp + at + 2);
      if (tcp[at] == 5 && !segment_->sacks) {
        Sacks(tcp + at + 2, (length - 2) / sizeof(SackBlock));
      }
      at += length;
    }
  }

  void Sacks(const std::uint8_t* blocks, std::size_t n) {
    n = std::min(n, kMostSacks);
    for (std::size_t i = 0; i < n; ++i, blocks += sizeof(SackBlock)) {
      segment_->sack[i] = {.left = Big32(blocks), .right = Big32(blocks + 4)};
    }
    segment_->sacks = static_cast<std::uint8_t>(n);
    segment_->cut_options = 0;  // nothing behind it is read
  }

  void Timestamps(const std::uint8_t* option) {
    segment_->has_timestamps = 1;
    segment_->timestamp_value = Big32(option);
    segment_->timestamp_echo = Big32(option + 4);
  }

  const std::uint8_t* data_;
  std::size_t captured_;
  std::size_t original_;
  Segment* segment_;
  Skip* why_;
};

}  // namespace

Verdict Decode(const std::uint8_t* data, std::size_t captured, std::size_t original,
               std::uint16_t link_type, std::uint32_t interface, Segment* segment, Skip* why) {
  return Record(data, captured, original, segment, why).Link(link_type, interface);
}

}  // namespace swiftqueue
