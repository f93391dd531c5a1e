// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The rule of the last latency for two uplinks, where it does as well as a model
// (docs/results/uplinks.md). This file is its only definition; the agent and the simulator use it.
//
// Shapes: F features of a query's row.
#ifndef SWIFTQUEUE_SERVING_AGENT_LAST_LATENCY_H_
#define SWIFTQUEUE_SERVING_AGENT_LAST_LATENCY_H_

#include <cstdint>
#include <limits>

#include "feature_store/events/event_stream.h"
#include "serving/agent/decision/controller.h"

namespace swiftqueue::agent {

inline constexpr float kSilentUs = 1e6F;   // silence after which a latency counts no more
inline constexpr float kStalledUs = 2e5F;  // and after which an uplink counts as stalled
inline constexpr float kAwaitedUs = 1e9F;  // more than any latency

// Returns the latency in us that the rule forecasts for a query: the last one of any packet in the
// query's alternative, or its silence once packets of it have waited for 200 ms, as long as TCP
// waits at least (Linux's TCP_RTO_MIN). An alternative that has said nothing for a second is tried
// by one batch: 0, and while such a batch is under way more than any latency. The age of the oldest
// packet under way is no sign: a flow whose packets nobody acknowledges would hold it at 2 s.
inline float last_latency_us(const float* x_F) {
  const float last_us = x_F[event_input("last_latency_queue_us")];
  const float silence_us = x_F[event_input("ack_silence_queue_us")];
  const bool awaited = x_F[event_input("in_flight_queue")] > 0;
  if (last_us > 0 && silence_us <= kSilentUs) {
    return awaited && silence_us > kStalledUs && silence_us > last_us ? silence_us : last_us;
  }
  return awaited ? kAwaitedUs : 0;
}

// Limits of the controller that follows the rule: none. They are made for two queues of one link;
// over uplinks the guard leaves 1 % of a call's packets to be moved (docs/LOG.md).
inline ControllerParams without_limits() {
  return {.margin_us = 0,
          .margin_share = 0,
          .max_moved_unacked = std::numeric_limits<std::int32_t>::max(),
          .guard = {.on = false}};
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_LAST_LATENCY_H_
