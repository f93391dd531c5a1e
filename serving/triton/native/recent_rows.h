// SPDX-License-Identifier: Apache-2.0
//
// The rows of a session's last events, by number. An encoder's keys and values are made from them.
//
// Shapes: E events, F features of a row.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_RECENT_ROWS_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_RECENT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "feature_store/events/event_window.h"

namespace swiftqueue::backend {

class RecentRows {
 public:
  // Number of the next event.
  std::uint64_t next() const { return next_; }
  // Number of the oldest event whose row is kept.
  std::uint64_t first() const { return std::max(oldest_, next_ - std::min(next_, capacity_)); }
  // Number of the log: rows of the same events in another log may be others.
  std::uint64_t log() const { return log_; }
  // Returns the memory that the rows take.
  std::size_t bytes() const { return ring_.size() * sizeof(float); }

  // Forgets all rows; another log begins at event `first`.
  void begin(std::uint64_t first) {
    oldest_ = next_ = first;
    ++log_;
  }

  // Keeps the last `events` from now on. Rows that are kept stay.
  void keep(int events) {
    const auto capacity = static_cast<std::uint64_t>(events);
    if (capacity <= capacity_) return;
    std::vector<float> ring(capacity * kFeatures);
    oldest_ = first();
    visit(oldest_, next_, [&](std::uint64_t event, const float* x_EF, int run) {
      for (; run > 0; --run, ++event, x_EF += kFeatures) {
        std::copy_n(x_EF, kFeatures, ring.data() + event % capacity * kFeatures);
      }
    });
    capacity_ = capacity;
    ring_ = std::move(ring);
  }

  // Takes the rows of events `first`, `first` + 1, ... that it does not have yet; `first` is at
  // most `next`.
  void add(std::uint64_t first, const float* x_EF, std::int64_t events) {
    const std::uint64_t end = first + static_cast<std::uint64_t>(events);
    if (end <= next_) return;
    next_ = std::max(next_, end - std::min(end, capacity_));
    x_EF += (next_ - first) * kFeatures;
    while (next_ < end) {
      const std::uint64_t run = run_at(next_, end);
      std::copy_n(x_EF, run * kFeatures, ring_.data() + next_ % capacity_ * kFeatures);
      x_EF += run * kFeatures;
      next_ += run;
    }
  }

  // Calls `visit(event, x_EF, events)` for the rows of events `from` … `end` - 1, in at most two
  // runs.
  template <typename Visit>
  void visit(std::uint64_t from, std::uint64_t end, Visit visit) const {
    while (from < end) {
      const std::uint64_t run = run_at(from, end);
      visit(from, ring_.data() + from % capacity_ * kFeatures, static_cast<int>(run));
      from += run;
    }
  }

 private:
  static constexpr std::size_t kFeatures = kEventWindowFeatureCount;

  std::uint64_t run_at(std::uint64_t from, std::uint64_t end) const {
    return std::min(end - from, capacity_ - from % capacity_);
  }

  std::uint64_t capacity_ = 0;
  std::vector<float> ring_;
  std::uint64_t next_ = 0;
  std::uint64_t oldest_ =
      0;  // older ones were lost before the ring grew, or are no part of the log
  std::uint64_t log_ = 0;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_RECENT_ROWS_H_
