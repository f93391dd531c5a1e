// SPDX-License-Identifier: Apache-2.0
//
// The offline builder of windows: drives a live sender's class through a packet table. For the C
// ABIs; no exception crosses those.
#ifndef SWIFTQUEUE_FEATURE_STORE_TRACE_WINDOWS_H_
#define SWIFTQUEUE_FEATURE_STORE_TRACE_WINDOWS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "feature_store/events/packet_table.h"
#include "feature_store/events/window.h"

namespace swiftqueue {

inline std::array<Candidate, kHorizon> candidates_at(const std::int32_t* size_bytes,
                                                     const std::int32_t* flow_id,
                                                     const std::int32_t* receiver_id,
                                                     const std::uint8_t* queue) {
  std::array<Candidate, kHorizon> out;
  for (int i = 0; i < kHorizon; ++i) {
    out[static_cast<std::size_t>(i)] = {size_bytes[i], flow_id[i], receiver_id[i], queue[i]};
  }
  return out;
}

// Replays a packet table as a log of events in time order and decides each complete batch of it.
// `Window` is SenderWindow or EventWindow, `kFeatures` the floats of a token of it.
template <typename Window, int kFeatures>
class TraceWindows {
 public:
  // `previous`: a packet with a known latency counts as acknowledged at its own send instant.
  TraceWindows(const PacketColumns& columns, int tokens, bool previous)
      : columns_(columns), window_(tokens), acks_(columns, previous) {}

  // Writes up to `max_windows` further windows x_BWF; returns their number, 0 at the end, or -1 -
  // the number of the packet that is refused.
  std::int64_t next(std::int64_t max_windows, float* x_BWF) {
    const auto window_floats = static_cast<std::int64_t>(window_.tokens()) * kFeatures;
    std::int64_t written = 0;
    for (; written < max_windows && packet_ + kHorizon <= columns_.packets; ++written) {
      const std::int64_t decision_ns = columns_.sent_ns[packet_];
      acknowledge_until(decision_ns);
      const std::int64_t p = packet_;
      const auto candidates = candidates_at(columns_.size_bytes + p, columns_.flow_id + p,
                                            columns_.receiver_id + p, columns_.queue + p);
      if (window_.window(decision_ns, candidates, x_BWF + written * window_floats) < 0) {
        return -1 - refused(candidates);
      }
      for (const Candidate& what : candidates) {
        acknowledge_until(columns_.sent_ns[packet_]);
        if (!window_.sent(packet_, columns_.sent_ns[packet_], what)) return -1 - packet_;
        ++packet_;
      }
    }
    return written;
  }

 private:
  void acknowledge_until(std::int64_t ns) {
    acks_.take_until(ns, packet_,
                     [this](std::int64_t packet, std::int64_t acked_ns, float latency_us) {
                       window_.acked(packet, acked_ns, latency_us);
                     });
  }

  std::int64_t refused(const std::array<Candidate, kHorizon>& candidates) const {
    const auto bad = std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) {
      return c.size_bytes <= 0 || c.queue >= kQueues;
    });
    return packet_ + (bad - candidates.begin());
  }

  PacketColumns columns_;
  Window window_;
  AckLog acks_;
  std::int64_t packet_ = 0;  // the next one to be sent
};

// What `make` gives, released to a C caller; null for what cannot be.
template <typename Make>
auto made(Make make) -> decltype(make().release()) {
  try {
    return make().release();
  } catch (
      const std::exception&) {  // bad_alloc, or tokens out of range (Python checks them before)
    return nullptr;
  }
}

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_TRACE_WINDOWS_H_
