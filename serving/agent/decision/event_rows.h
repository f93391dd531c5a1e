// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The rows of a sender's last events, by number. Whoever answers is sent each row once; where it
// lost them, the last ones are copied from here.
//
// Shapes: E events, W rows of a window, H horizon (8 packets), F features of a row.
#ifndef SWIFTQUEUE_SERVING_AGENT_EVENT_ROWS_H_
#define SWIFTQUEUE_SERVING_AGENT_EVENT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "feature_store/events/event_window.h"

namespace swiftqueue::agent {

// Returns from which event on a session must be sent that is asked after `end` events: a model
// looks back at `reach` of them.
inline std::int64_t begin_of_session(std::int64_t end, int reach) {
  return std::max<std::int64_t>(end - reach, 0);
}

class EventRows {
 public:
  // Keeps the rows of at least the last `events` events.
  explicit EventRows(int events) : capacity_(room_for(events)), ring_(at(capacity_)) {}

  // Number of the next event; events are numbered from 0.
  std::int64_t next() const { return next_; }
  // Number of the oldest event whose row is kept.
  std::int64_t first() const { return std::max(oldest_, next_ - capacity_); }

  // Keeps at least the last `events` from now on. Rows that are kept stay.
  void keep(int events) {
    const std::int64_t capacity = room_for(events);
    if (capacity <= capacity_) return;
    std::vector<float> ring(at(capacity));
    for (std::int64_t event = first(); event < next_; ++event) {
      std::copy_n(row(event), kEventWindowFeatureCount, ring.data() + at(event % capacity));
    }
    oldest_ = first();
    capacity_ = capacity;
    ring_ = std::move(ring);
  }

  // Returns the place for the next event's row; `add` takes it up.
  float* place() { return ring_.data() + at(next_ % capacity_); }
  void add() { ++next_; }

  // Calls `visit(x_EF, events)` for the rows of events `from` … `end` - 1, in at most two runs.
  template <typename Visit>
  void visit(std::int64_t from, std::int64_t end, Visit visit) const {
    while (from < end) {
      const std::int64_t run = std::min(end - from, capacity_ - from % capacity_);
      visit(row(from), static_cast<int>(run));
      from += run;
    }
  }

  // Writes the window x_WF that a model without sessions takes: zeros while there are fewer events,
  // the last `tokens` - 8 events before `end`, the queries x_HF. False: some are no longer kept.
  bool window(int tokens, std::int64_t end, const float* x_HF, float* x_WF) const {
    const std::int64_t band = tokens - kHorizon;
    const std::int64_t from = std::max<std::int64_t>(end - band, 0);
    if (from < first()) return false;
    x_WF = std::fill_n(x_WF, at(from - (end - band)), 0.0F);
    visit(from, end,
          [&](const float* x_EF, int events) { x_WF = std::copy_n(x_EF, at(events), x_WF); });
    std::copy_n(x_HF, at(kHorizon), x_WF);
    return true;
  }

 private:
  // Rows beyond those that a question looks back at: of events that happen while questions wait.
  static constexpr std::int64_t kSlack = 512;
  static constexpr std::int64_t kLeast = 1024;  // a model that looks back further may come any time

  static std::int64_t room_for(int events) { return std::max(events + kSlack, kLeast); }
  static std::size_t at(std::int64_t row) {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(kEventWindowFeatureCount);
  }
  const float* row(std::int64_t event) const { return ring_.data() + at(event % capacity_); }

  std::int64_t capacity_;
  std::vector<float> ring_;
  std::int64_t next_ = 0;
  std::int64_t oldest_ = 0;  // older ones were lost before the ring grew
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_EVENT_ROWS_H_
