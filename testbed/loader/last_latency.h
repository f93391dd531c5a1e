// SPDX-License-Identifier: Apache-2.0
//
// The rule beside which a model has to be judged: a flow's packets are moved while its last latency
// in the L4S queue is above the least it ever had by more than a threshold, as the laboratory's
// control `last_latency` has it (simulation/doc/lab.md). Times in ns, latencies in us.
#ifndef SWIFTQUEUE_TESTBED_LOADER_LAST_LATENCY_H_
#define SWIFTQUEUE_TESTBED_LOADER_LAST_LATENCY_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace swiftqueue::testbed {

class LastLatency {
 public:
  // Of a packet that was sent once.
  void acked(bool l4s, std::uint64_t now_ns, double latency_us) {
    least_us_ = std::min(least_us_, latency_us);
    if (!l4s) return;
    last_us_ = latency_us;
    last_ns_ = now_ns;
  }

  // Until when packets are moved; 0: they are not.
  std::uint64_t moves_until_ns(double threshold_us, std::uint64_t stale_ns) const {
    return last_us_ - least_us_ > threshold_us ? last_ns_ + stale_ns : 0;
  }

 private:
  double least_us_ = std::numeric_limits<double>::infinity();
  double last_us_ = 0;
  std::uint64_t last_ns_ = 0;
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_LOADER_LAST_LATENCY_H_
