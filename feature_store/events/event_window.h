// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Defines the event window: a sender's last events and the queries of a decision as one array, for
// a network that keeps no state. event_stream.h alone defines its rows; one more input tells
// whether an event is an ACK.
#ifndef SWIFTQUEUE_FEATURE_STORE_EVENT_WINDOW_H_
#define SWIFTQUEUE_FEATURE_STORE_EVENT_WINDOW_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "feature_store/events/event_stream.h"

namespace swiftqueue {

inline constexpr int kEventWindowLayoutVersion = 1;
inline constexpr int kEventWindowFeatureCount = kEventInputCount + 1;  // the last one: `ack`

// Names of a row's features, in order.
inline constexpr auto kEventWindowFeatures = [] {
  std::array<std::string_view, static_cast<std::size_t>(kEventWindowFeatureCount)> names{};
  for (std::size_t i = 0; i < kEventInputs.size(); ++i) names[i] = kEventInputs[i].name;
  names.back() = "ack";
  return names;
}();

// Returns everything that a model trained on these windows relies on, as text whose SHA-256 is the
// schema hash. Its last lines name the features and their units, in order.
inline std::string event_window_schema_text() {
  std::string text = "event window " + std::to_string(kEventWindowLayoutVersion) + "\n" +
                     event_schema_text() + "features\n";
  for (const EventInput& input : kEventInputs) {
    text.append(input.name).append(" ").append(input.unit).append("\n");
  }
  return text.append("ack flag\n");
}

// A sender's log of SEND and ACK events, viewed as event windows [tokens, features]: the last
// tokens - 8 events in time order, after all-zero rows while there are fewer (a row of `size_bytes`
// 0 is padding), and then the queries of the 8 packets about to be sent. Feed it like an
// EventStream. An event costs O(1) and a window O(W).
class EventWindow {
 public:
  explicit EventWindow(int tokens, EventStream::Pool pool = std::make_shared<detail::EventPool>())
      : tokens_(tokens), band_(tokens - kHorizon), stream_(std::move(pool)) {
    if (tokens <= kHorizon || tokens > kMaxTokens || tokens % 8 != 0) {
      throw std::invalid_argument("tokens must be a multiple of 8 in 16..4096");
    }
    ring_.resize(at(band_));
  }

  int tokens() const { return tokens_; }
  std::int32_t remembered() const { return stream_.remembered(); }
  std::int64_t overflowed() const { return stream_.overflowed(); }
  std::size_t flows() const { return stream_.flows(); }
  std::size_t receivers() const { return stream_.receivers(); }
  bool give_up_oldest() { return stream_.give_up_oldest(); }

  bool sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what) {
    return log(stream_.sent(packet, sent_ns, what, next()), 0);
  }
  bool acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    return log(stream_.acked(packet, acked_ns, latency_us, next()), 1);
  }

  // Writes the window x_WF of a decision at `decision_ns`. Returns the packets in flight then, or
  // -1, and a window that is not to be used, for a packet that `sent` would refuse.
  int window(std::int64_t decision_ns, const std::array<Candidate, kHorizon>& candidates,
             float* x_WF) const {
    const auto held = static_cast<int>(std::min<std::int64_t>(events_, band_));
    float* out = std::fill_n(x_WF, at(band_ - held), 0.0F);
    for (std::int64_t e = events_ - held; e < events_;) {  // at most two runs of the ring
      const auto from = static_cast<int>(e % band_);
      const int run = std::min(static_cast<int>(events_ - e), band_ - from);
      out = std::copy_n(ring_.data() + at(from), at(run), out);
      e += run;
    }
    float* const queries = out;
    for (int place = 0; place < kHorizon; ++place, out += kEventWindowFeatureCount) {
      const Candidate& what = candidates[static_cast<std::size_t>(place)];
      if (!stream_.query(decision_ns, what, place, out)) return -1;
      out[kEventInputCount] = 0;
    }
    return static_cast<int>(queries[event_input("in_flight")]);
  }

 private:
  static std::size_t at(int row) {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(kEventWindowFeatureCount);
  }
  float* next() { return ring_.data() + at(static_cast<int>(events_ % band_)); }
  // `next` points to the oldest event's row until another is written over it.
  bool log(bool taken, float ack) {
    if (!taken) return false;
    next()[kEventInputCount] = ack;
    ++events_;
    return true;
  }

  int tokens_;
  int band_;
  EventStream stream_;
  std::vector<float> ring_;  // rows of the last `band_` events
  std::int64_t events_ = 0;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_EVENT_WINDOW_H_
