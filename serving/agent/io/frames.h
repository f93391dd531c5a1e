// SPDX-License-Identifier: Apache-2.0
//
// The frames of the agent's socket, replay files and telemetry (docs/AGENT.md): fixed sizes, little
// endian, one layout for all. Reading trusts nothing: a frame is whole and every field possible, or
// it is refused in one line.
#ifndef SWIFTQUEUE_SERVING_AGENT_FRAMES_H_
#define SWIFTQUEUE_SERVING_AGENT_FRAMES_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "feature_store/events/event_stream.h"
#include "serving/agent/decision/sender.h"

namespace swiftqueue::agent {

static_assert(std::endian::native == std::endian::little, "frames are read and written in place");

inline constexpr std::uint8_t kFrameFormat = 1;
inline constexpr std::array<char, 8> kMagic{'S', 'W', 'Q', 'F', 'R', 'A', 'M', 'E'};

enum class FrameType : std::uint8_t {
  kHello = 1,
  kSent = 2,
  kAcked = 3,
  kBatch = 4,
  kDecision = 5,
  kRefused = 6,
  kBye = 7,
};

struct FrameHeader {
  std::uint16_t bytes = 0;  // size of the whole frame
  FrameType type{};
  std::uint8_t format = kFrameFormat;
  std::uint32_t sender = 0;  // the agent's number of the sender; 0 from a sender
  // Numbers a writer's frames about one sender, from 0. HELLO and BYE have no number of their own:
  // they carry the next one's. It is ignored in a sender's frames.
  std::uint64_t sequence = 0;
};

struct HelloFrame {
  static constexpr FrameType kType = FrameType::kHello;
  FrameHeader header;
  std::array<char, 8> magic = kMagic;
  std::array<char, 56> name{};  // the sender's name: printable ASCII, then zeros, at least one
};

struct SentFrame {
  static constexpr FrameType kType = FrameType::kSent;
  FrameHeader header;
  std::int64_t packet = 0;
  std::int64_t sent_ns = 0;  // the sender's clock
  std::int32_t size_bytes = 0;
  std::int32_t flow_id = 0;
  std::int32_t receiver_id = 0;
  std::uint8_t queue = 0;          // queue that it was marked for
  std::uint8_t ecn = 0;            // IP codepoint as sent, 0..3
  std::uint8_t retransmitted = 0;  // 0 | 1
  std::uint8_t zero = 0;
};

struct AckedFrame {
  static constexpr FrameType kType = FrameType::kAcked;
  FrameHeader header;
  std::int64_t packet = 0;
  std::int64_t acked_ns = 0;  // the sender's clock
  float latency_us = 0;       // NaN where unknown (Karn)
  std::uint32_t zero = 0;
};

struct FrameCandidate {
  std::int32_t size_bytes = 0;
  std::int32_t flow_id = 0;
  std::int32_t receiver_id = 0;
  std::uint8_t queue = 0;  // default queue
  std::array<std::uint8_t, 3> zero{};
};

struct BatchFrame {
  static constexpr FrameType kType = FrameType::kBatch;
  FrameHeader header;
  std::int64_t first_packet = 0;  // a multiple of 8
  std::int64_t now_ns = 0;        // decision time, the sender's clock
  std::int64_t due_ns = 0;        // CLOCK_MONOTONIC; 0: the agent's deadline from its arrival
  std::array<FrameCandidate, kHorizon> packets{};
};

struct DecisionFrame {
  static constexpr FrameType kType = FrameType::kDecision;
  FrameHeader header;
  std::int64_t first_packet = 0;
  std::int64_t now_ns = 0;    // the question's time
  std::int64_t version = -1;  // model version; -1 unless decided
  float round_trip_us = 0;    // NaN unless decided, like the latencies
  Outcome outcome{};
  std::array<std::uint8_t, 3> zero{};
  Queues queues{};
  std::array<float, kHorizon> classic_us_H{};
  std::array<float, kHorizon> default_us_H{};
};

struct RefusedFrame {
  static constexpr FrameType kType = FrameType::kRefused;
  FrameHeader header;
  std::array<char, 112> line{};  // the reason; the connection is closed after it
};

// Telemetry's last frame of a sender.
struct ByeFrame {
  static constexpr FrameType kType = FrameType::kBye;
  FrameHeader header;
};

static_assert(sizeof(ByeFrame) == 16);
static_assert(sizeof(FrameHeader) == 16 && sizeof(HelloFrame) == 80 && sizeof(SentFrame) == 48);
static_assert(sizeof(AckedFrame) == 40 && sizeof(BatchFrame) == 168 && sizeof(RefusedFrame) == 128);
static_assert(sizeof(DecisionFrame) == 120);

// Any frame: `header.type` says which member is valid.
union Frame {
  Frame() : header{} {}

  FrameHeader header;
  HelloFrame hello;
  SentFrame sent;
  AckedFrame acked;
  BatchFrame batch;
  DecisionFrame decision;
  RefusedFrame refused;
  ByeFrame bye;
};
inline constexpr std::size_t kMaxFrameBytes = sizeof(Frame);

// Puts size and type into a frame about to be written.
template <typename T>
T finished(T frame, std::uint32_t sender, std::uint64_t sequence) {
  static_assert(std::is_trivially_copyable_v<T>);
  frame.header = {sizeof(T), T::kType, kFrameFormat, sender, sequence};
  return frame;
}

// Writes text into a field of characters, cut to leave a zero.
template <std::size_t N>
std::array<char, N> text_field(std::string_view text) {
  std::array<char, N> out{};
  std::copy_n(text.data(), std::min(text.size(), N - 1), out.begin());
  return out;
}

template <std::size_t N>
std::string_view text_of(const std::array<char, N>& field) {
  return {field.data(),
          static_cast<std::size_t>(std::find(field.begin(), field.end(), '\0') - field.begin())};
}

inline Candidate candidate_of(const SentFrame& sent) {
  return {sent.size_bytes, sent.flow_id, sent.receiver_id, sent.queue};
}

inline Batch batch_of(const BatchFrame& frame) {
  Batch batch;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const FrameCandidate& packet = frame.packets[i];
    batch[i] = {packet.size_bytes, packet.flow_id, packet.receiver_id, packet.queue};
  }
  return batch;
}

namespace detail {

inline std::size_t bytes_of(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return sizeof(HelloFrame);
    case FrameType::kSent:
      return sizeof(SentFrame);
    case FrameType::kAcked:
      return sizeof(AckedFrame);
    case FrameType::kBatch:
      return sizeof(BatchFrame);
    case FrameType::kDecision:
      return sizeof(DecisionFrame);
    case FrameType::kRefused:
      return sizeof(RefusedFrame);
    case FrameType::kBye:
      return sizeof(ByeFrame);
  }
  return 0;
}

template <std::size_t N>
bool is_text(const std::array<char, N>& field) {
  const std::string_view text = text_of(field);
  return text.size() < N &&
         std::all_of(
             text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }) &&
         std::all_of(field.begin() + text.size(), field.end(), [](char c) { return c == '\0'; });
}

// Limits of a sender's packet fields, equal to the ingest's for telemetry
// (feature_store/telemetry/events.py), which refuses a whole batch for one event beyond them.
inline constexpr std::int64_t kMaxPacket = std::int64_t{1} << 48;
inline constexpr std::int32_t kMaxSizeBytes = 1 << 20;
inline constexpr float kMaxLatencyUs = 120e6F;

inline bool is_time(std::int64_t ns) { return ns >= 0 && ns < kMaxTimeNs; }
inline bool is_packet(std::int64_t packet) { return packet >= 0 && packet <= kMaxPacket; }
inline bool is_latency(float us) { return std::isnan(us) || (std::isfinite(us) && us >= 0); }
inline bool is_size(std::int32_t bytes) { return bytes >= 1 && bytes <= kMaxSizeBytes; }

// Returns what is impossible in a frame of the right size, or null.
inline const char* fault(const HelloFrame& f) {
  if (f.magic != kMagic) return "its magic is not SWQFRAME";
  if (!is_text(f.name)) return "its name is not printable ASCII ended by a zero";
  if (text_of(f.name).empty()) return "its name is empty";
  return nullptr;
}
inline const char* fault(const SentFrame& f) {
  if (!is_packet(f.packet)) return "its packet number is negative or beyond 2^48";
  if (!is_time(f.sent_ns)) return "its time is negative or not below 2^62";
  if (!is_size(f.size_bytes)) return "its size is not 1 to 1048576 bytes";
  if (f.flow_id < 0 || f.receiver_id < 0) return "its flow or receiver is negative";
  if (f.queue >= kQueues) return "its queue is neither 0 (classic) nor 1 (l4s)";
  if (f.ecn > 3) return "its ECN codepoint is above 3";
  if (f.retransmitted > 1 || f.zero != 0) return "a flag or spare byte is not what it must be";
  return nullptr;
}
inline const char* fault(const AckedFrame& f) {
  if (!is_packet(f.packet)) return "its packet number is negative or beyond 2^48";
  if (!is_time(f.acked_ns)) return "its time is negative or not below 2^62";
  if (!is_latency(f.latency_us) || f.latency_us > kMaxLatencyUs) {
    return "its latency is negative or above 120 s";
  }
  if (f.zero != 0) return "a spare byte is not zero";
  return nullptr;
}
inline const char* fault(const BatchFrame& f) {
  if (!is_packet(f.first_packet) || f.first_packet % kHorizon != 0) {
    return "its first packet is not a multiple of 8";
  }
  if (!is_time(f.now_ns) || !is_time(f.due_ns)) return "a time is negative or not below 2^62";
  for (const FrameCandidate& packet : f.packets) {
    if (!is_size(packet.size_bytes)) return "a packet's size is not 1 to 1048576 bytes";
    if (packet.flow_id < 0 || packet.receiver_id < 0) {
      return "a packet's flow or receiver is negative";
    }
    if (packet.queue >= kQueues) return "a packet's queue is neither 0 (classic) nor 1 (l4s)";
    if (packet.zero != decltype(packet.zero){}) return "a spare byte is not zero";
  }
  return nullptr;
}
inline const char* fault(const DecisionFrame& f) {
  if (!is_packet(f.first_packet) || f.first_packet % kHorizon != 0) {
    return "its first packet is not a multiple of 8";
  }
  if (!is_time(f.now_ns)) return "its time is negative or not below 2^62";
  if (static_cast<std::size_t>(f.outcome) >= kOutcomeNames.size()) return "its outcome is unknown";
  for (const std::uint8_t queue : f.queues) {
    if (queue >= kQueues) return "a queue is neither 0 (classic) nor 1 (l4s)";
  }
  if (f.zero != decltype(f.zero){}) return "a spare byte is not zero";
  if (!is_latency(f.round_trip_us) ||
      !std::all_of(f.classic_us_H.begin(), f.classic_us_H.end(), is_latency) ||
      !std::all_of(f.default_us_H.begin(), f.default_us_H.end(), is_latency)) {
    return "a latency is negative or infinite";
  }
  return nullptr;
}
inline const char* fault(const RefusedFrame& f) {
  return is_text(f.line) ? nullptr : "its line is not printable ASCII ended by a zero";
}

}  // namespace detail

enum class Read : std::uint8_t { kFrame, kMore, kBad };

// Reads the frame at the start of `data` into `frame`. Returns kFrame; kMore if it is not complete
// yet; or kBad, and `why` says what is wrong with it.
inline Read read_frame(std::string_view data, Frame& frame, const char*& why) {
  if (data.size() < sizeof(FrameHeader)) return Read::kMore;
  FrameHeader header;
  std::memcpy(&header, data.data(), sizeof header);
  const auto bad = [&](const char* line) {
    why = line;
    return Read::kBad;
  };
  if (header.format != kFrameFormat) return bad("its format is not 1");
  const std::size_t bytes = detail::bytes_of(header.type);
  if (bytes == 0) return bad("its type is unknown");
  if (header.bytes != bytes) return bad("its size is not that of its type");
  if (data.size() < bytes) return Read::kMore;
  std::memcpy(&frame, data.data(), bytes);
  switch (header.type) {
    case FrameType::kHello:
      why = detail::fault(frame.hello);
      break;
    case FrameType::kSent:
      why = detail::fault(frame.sent);
      break;
    case FrameType::kAcked:
      why = detail::fault(frame.acked);
      break;
    case FrameType::kBatch:
      why = detail::fault(frame.batch);
      break;
    case FrameType::kDecision:
      why = detail::fault(frame.decision);
      break;
    case FrameType::kRefused:
      why = detail::fault(frame.refused);
      break;
    case FrameType::kBye:
      why = nullptr;
      break;
  }
  return why == nullptr ? Read::kFrame : Read::kBad;
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_FRAMES_H_
