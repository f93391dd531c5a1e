// SPDX-License-Identifier: Apache-2.0
//
// The decision loop's counts, for the metrics endpoint and the report: one thread writes, others
// read at any time, so every count is an atomic that is written without a locked instruction.
#ifndef SWIFTQUEUE_SERVING_AGENT_STATISTICS_H_
#define SWIFTQUEUE_SERVING_AGENT_STATISTICS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "serving/agent/decision/sender.h"
#include "serving/agent/io/frames.h"

namespace swiftqueue::agent {

// A number that one thread adds to and any thread reads.
class Counter {
 public:
  void add(std::int64_t more = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// A histogram of durations in ns: 16 bins for each power of two, so a quantile is 6 % wide at most.
class DurationHistogram {
 public:
  static constexpr std::size_t kBins = 16 * 44;  // up to 2^47 ns, 39 hours

  void observe(std::int64_t ns) {
    const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
    bins_[std::min(bin_of(value), kBins - 1)].add();
    count_.add();
    sum_ns_.add(static_cast<std::int64_t>(value));
  }

  std::int64_t count() const { return count_.get(); }
  double sum_s() const { return static_cast<double>(sum_ns_.get()) / 1e9; }
  std::int64_t in_bin(std::size_t bin) const { return bins_[bin].get(); }
  // Returns the upper end of `bin`.
  static std::uint64_t end_ns(std::size_t bin) {
    if (bin < 16) return bin + 1;
    return (16 + bin % 16 + 1) << (bin / 16 - 1);
  }
  // Returns the upper end of the bin that holds the quantile `q`; 0 while empty.
  std::int64_t quantile_ns(double q) const {
    const auto rank = static_cast<std::int64_t>(q * static_cast<double>(count()));
    std::int64_t seen = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      seen += in_bin(bin);
      if (seen > rank || (seen == count() && seen > 0)) {
        return static_cast<std::int64_t>(end_ns(bin));
      }
    }
    return 0;
  }

 private:
  // Returns a bin for each ns below 16; then the exponent and the four bits after the first one.
  static std::size_t bin_of(std::uint64_t ns) {
    if (ns < 16) return ns;
    const auto shift = static_cast<std::size_t>(std::bit_width(ns)) - 5;
    return 16 * shift + (ns >> shift);
  }

  std::array<Counter, kBins> bins_;
  Counter count_;
  Counter sum_ns_;
};

// The counts of all senders' guards.
struct GuardStatistics {
  std::array<Counter, Guard::kStateNames.size()> receivers;  // receivers in each state now
  Counter trials;
  Counter stops;
  Counter grown;
  Counter advantage;
  Counter pairs;

  void add(const Guard::Counts& before, const Guard::Counts& now) {
    for (std::size_t i = 0; i < receivers.size(); ++i) {
      receivers[i].add(now.receivers[i] - before.receivers[i]);
    }
    trials.add(now.trials - before.trials);
    stops.add(now.stops - before.stops);
    grown.add(now.grown - before.grown);
    advantage.add(now.advantage - before.advantage);
    pairs.add(now.pairs - before.pairs);
  }
};

struct Statistics {
  std::array<Counter, kOutcomeNames.size()> batches;  // batches by outcome
  std::array<Counter, kQueues> packets;               // packets by chosen queue
  Counter by_rule;                                    // batches that the virtual queue decided
  Counter stale;                                      // answers that came after their batch was due
  Counter moved_unacked;                              // moved packets without an ACK
  Counter senders;                                    // connected now
  Counter behind;       // batches asked about over 5 ms after their time
  Counter undelivered;  // decisions that a sender's socket did not take
  Counter refused;      // senders that were refused
  Counter turned_away;  // connections that the accepting thread refused
  Counter remembered;   // packets of all senders that an ACK may come for
  Counter overflowed;   // packets given up before their time, for want of room
  GuardStatistics guard;
  DurationHistogram round_trip;
  DurationHistogram predicted_latency;  // predictions for acknowledged packets, in their queue
  DurationHistogram prediction_error;   // |predicted - came|
  DurationHistogram lateness;           // from a batch's time to the question about it

  std::int64_t of(Outcome outcome) const {
    return batches[static_cast<std::size_t>(outcome)].get();
  }
  std::int64_t all_batches() const {
    std::int64_t sum = 0;
    for (const Counter& each : batches) sum += each.get();
    return sum;
  }
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_STATISTICS_H_
