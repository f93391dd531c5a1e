// SPDX-License-Identifier: Apache-2.0
//
// The only clock of the agent and the router: CLOCK_MONOTONIC, which steps of the wall clock do not
// touch.
#ifndef SWIFTQUEUE_SERVING_AGENT_CLOCK_H_
#define SWIFTQUEUE_SERVING_AGENT_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace swiftqueue::agent {

inline std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_CLOCK_H_
