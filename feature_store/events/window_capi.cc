// SPDX-License-Identifier: Apache-2.0
//
// C ABI of window.h, for Python's ctypes: the streaming window of a live sender, and the offline
// builder that drives the same class through a packet table. No exception crosses it; a null
// pointer or a negative result is an error.
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "feature_store/events/packet_table.h"
#include "feature_store/events/trace_windows.h"
#include "feature_store/events/window.h"

namespace {

using swiftqueue::candidates_at;
using swiftqueue::kHorizon;
using swiftqueue::made;
using swiftqueue::PacketColumns;
using swiftqueue::SenderWindow;
using TraceWindows = swiftqueue::TraceWindows<SenderWindow, swiftqueue::kFeatureCount>;

}  // namespace

extern "C" {

int sq_horizon() { return kHorizon; }
int sq_features() { return swiftqueue::kFeatureCount; }
const char* sq_schema() {
  static const std::string text = swiftqueue::schema_text();
  return text.c_str();
}

SenderWindow* sq_window_new(int tokens) {
  return made([=] { return std::make_unique<SenderWindow>(tokens); });
}
void sq_window_free(SenderWindow* window) { delete window; }

// 1 taken, 0 refused, -1 out of memory (as all below).
int sq_sent(SenderWindow* window, std::int64_t packet, std::int64_t sent_ns,
            std::int32_t size_bytes, std::int32_t flow_id, std::int32_t receiver_id,
            std::uint8_t queue) {
  try {
    return window->sent(packet, sent_ns, {size_bytes, flow_id, receiver_id, queue});
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
int sq_acked(SenderWindow* window, std::int64_t packet, std::int64_t acked_ns, float latency_us) {
  try {
    return window->acked(packet, acked_ns, latency_us);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
// Packets in flight, or -1 for a bad candidate.
int sq_window(const SenderWindow* window, std::int64_t decision_ns, const std::int32_t* size_bytes,
              const std::int32_t* flow_id, const std::int32_t* receiver_id,
              const std::uint8_t* queue, float* x_WF) {
  return window->window(decision_ns, candidates_at(size_bytes, flow_id, receiver_id, queue), x_WF);
}

// What is remembered, what was given up for want of room, and what giving up has cost.
void sq_window_costs(const SenderWindow* window, std::int64_t* remembered, std::int64_t* overflowed,
                     std::int64_t* expiry_steps) {
  *remembered = window->remembered();
  *overflowed = window->overflowed();
  *expiry_steps = window->expiry_steps();
}

TraceWindows* sq_trace_new(std::int64_t packets, const std::int64_t* sent_ns,
                           const std::int32_t* size_bytes, const std::int32_t* flow_id,
                           const std::int32_t* receiver_id, const std::uint8_t* queue,
                           const std::int64_t* acked_ns, const float* latency_us, int tokens,
                           int previous) {
  const PacketColumns columns{packets,     sent_ns, size_bytes, flow_id,
                              receiver_id, queue,   acked_ns,   latency_us};
  return made([&] { return std::make_unique<TraceWindows>(columns, tokens, previous != 0); });
}
void sq_trace_free(TraceWindows* trace) { delete trace; }

// Windows written, 0 at the end, -1 - packet for a packet refused, INT64_MIN when out of memory.
std::int64_t sq_trace_next(TraceWindows* trace, std::int64_t max_windows, float* x_BWF) {
  try {
    return trace->next(max_windows, x_BWF);
  } catch (const std::bad_alloc&) {
    return std::numeric_limits<std::int64_t>::min();
  }
}

}  // extern "C"
