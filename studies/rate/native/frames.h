// SPDX-License-Identifier: Apache-2.0
//
// The frames of the socket of swiftqueue-rate-agent: HELLO and REFUSED of the latency agent
// (serving/agent/io/frames.h), and two of its own, in the same form.
#ifndef SWIFTQUEUE_STUDIES_RATE_FRAMES_H_
#define SWIFTQUEUE_STUDIES_RATE_FRAMES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "serving/agent/io/frames.h"
#include "studies/rate/samples/tcp_sample.h"

namespace swiftqueue::agent {

// Outcome of a question about a connection's rate. Only after the first has it a forecast.
enum class RateOutcome : std::uint8_t {
  kForecast,
  kLate,     // no answer within a round trip
  kError,    // the server is gone, or refused
  kNoModel,  // none is served, or one made for other samples
  kNone,     // samples that cannot be or are too few or too many, or what was forecast is no rate
};
inline constexpr std::array kRateOutcomeNames{"forecast", "late", "error", "no_model", "none"};

// The state of a connection at an ACK, as tcp_info has it (tcp_sample.h).
struct SampleFrame {
  static constexpr FrameType kType{8};
  FrameHeader header;
  std::int64_t connection = 0;  // the sender's number of it
  std::int32_t sample = 0;      // from 0, which begins the connection anew
  std::uint8_t asked = 0;       // 1: a FORECAST is wanted
  std::uint8_t last = 0;        // 1: nothing more comes of this connection
  std::array<std::uint8_t, 2> zero{};
  rate::Sample fields{};
};

struct ForecastFrame {
  static constexpr FrameType kType{9};
  FrameHeader header;
  std::int64_t connection = 0;
  std::int32_t sample = 0;  // number of the sample that it was asked with
  RateOutcome outcome = RateOutcome::kNone;
  std::array<std::uint8_t, 3> zero{};
  std::int64_t version = -1;  // version of the model; -1 unless there is a forecast
  std::array<float, rate::kHorizons.size()> rates{};  // bytes/s; NaN unless there is one
};
static_assert(sizeof(SampleFrame) == 256 && sizeof(ForecastFrame) == 64);

// A frame of this socket: `header.type` says which member is meant.
union RateFrame {
  RateFrame() : header{} {}

  FrameHeader header;
  HelloFrame hello;
  RefusedFrame refused;
  SampleFrame sample;
  ForecastFrame forecast;
};
inline constexpr std::size_t kMaxRateFrameBytes = sizeof(RateFrame);

namespace detail {

inline const char* fault(const SampleFrame& f) {
  if (f.connection < 0) return "its connection is negative";
  if (f.sample < 0) return "its sample is negative";
  if (f.asked > 1 || f.last > 1 || f.zero != decltype(f.zero){}) {
    return "a flag or spare byte is not what it must be";
  }
  return nullptr;
}
inline const char* fault(const ForecastFrame& f) {
  if (f.connection < 0 || f.sample < 0) return "its connection or sample is negative";
  if (static_cast<std::size_t>(f.outcome) >= kRateOutcomeNames.size()) {
    return "its outcome is unknown";
  }
  if (f.zero != decltype(f.zero){}) return "a spare byte is not zero";
  for (const float each : f.rates) {
    if (!std::isnan(each) && !(std::isfinite(each) && each > 0)) return "a rate is not above 0";
  }
  return nullptr;
}

template <typename T>
Read read_own(std::string_view data, T& frame, const char*& why) {
  FrameHeader header;
  std::memcpy(&header, data.data(), sizeof header);
  why = header.format != kFrameFormat ? "its format is not 1"
        : header.bytes != sizeof(T)   ? "its size is not that of its type"
                                      : nullptr;
  if (why != nullptr) return Read::kBad;
  if (data.size() < sizeof(T)) return Read::kMore;
  std::memcpy(&frame, data.data(), sizeof(T));
  why = fault(frame);
  return why == nullptr ? Read::kFrame : Read::kBad;
}

}  // namespace detail

// Reads the frame at the start of `data`, as `read_frame` does.
inline Read read_rate_frame(std::string_view data, RateFrame& frame, const char*& why) {
  if (data.size() < sizeof(FrameHeader)) return Read::kMore;
  FrameHeader header;
  std::memcpy(&header, data.data(), sizeof header);
  if (header.type == SampleFrame::kType) return detail::read_own(data, frame.sample, why);
  if (header.type == ForecastFrame::kType) return detail::read_own(data, frame.forecast, why);
  Frame other;
  const Read read = read_frame(data, other, why);
  if (read != Read::kFrame) return read;
  if (other.header.type == FrameType::kHello) {
    frame.hello = other.hello;
  } else if (other.header.type == FrameType::kRefused) {
    frame.refused = other.refused;
  } else {
    why = "it is of the latency agent";
    return Read::kBad;
  }
  return read;
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_STUDIES_RATE_FRAMES_H_
