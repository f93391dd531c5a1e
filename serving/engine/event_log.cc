// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/event_log.h"

#include <algorithm>
#include <cstring>

#include "feature_store/events/event_window.h"

namespace swiftqueue::engine {
namespace {

constexpr auto kFeatures = static_cast<std::size_t>(kEventWindowFeatureCount);
constexpr std::size_t kLogs = 8;      // senders that an engine answers in turn; 0.2 MB each
constexpr int kMostEvents = 1 << 30;  // then a log begins anew, before its numbers overflow

}  // namespace

EventLogs::EventLogs(const Description& description)
    : reach_(description.layers * description.band),
      slots_((reach_ + kBlock - 1) / kBlock * kBlock),
      logs_(kLogs) {
  for (Log& log : logs_) {
    log.rows.resize(static_cast<std::size_t>(reach_) * kFeatures);
    log.states = AlignedFloats(static_cast<std::size_t>(description.layers) *
                               static_cast<std::size_t>(slots_) * 2 * kWidth);
  }
}

// Returns how many of the first rows continue the end of a log; 0: none. A full window does not
// need the log's oldest events, which may be gone: its bands reach back no further.
int EventLogs::matched(const Log& log, const float* const* rows, int count) const {
  if (log.count == 0 || log.end > kMostEvents) return 0;
  const auto same_row = [&](int row, int kept) {
    return std::memcmp(rows[row], log.rows.data() + static_cast<std::size_t>(kept) * kFeatures,
                       kFeatures * sizeof(float)) == 0;
  };
  const int least = count == reach_ ? 1 : log.count;
  for (int same = std::min(count, log.count); same >= least; --same) {
    int row = same;
    while (row > 0 && same_row(row - 1, log.count - same + row - 1)) --row;
    if (row == 0) return same;
  }
  return 0;
}

KeptEvents EventLogs::take(const float* const* rows, int count) {
  if (count == 0) return {logs_.front().states.data(), slots_, 0, 0};
  Log* found = nullptr;
  int same = 0;
  for (Log& log : logs_) {
    if ((same = matched(log, rows, count)) > 0) {
      found = &log;
      break;
    }
  }
  if (found == nullptr) {
    const auto earlier = [](const Log& a, const Log& b) { return a.asked < b.asked; };
    found = &*std::min_element(logs_.begin(), logs_.end(), earlier);
    found->count = found->end = 0;
  }
  Log& log = *found;
  const auto row = [&](int number) {
    return log.rows.begin() + number * static_cast<std::ptrdiff_t>(kFeatures);
  };
  std::copy(row(log.count - same), row(log.count), row(0));
  for (int number = same; number < count; ++number) {
    std::copy_n(rows[number], kFeatures, row(number));
  }
  log.count = count;
  log.end += count - same;
  log.asked = ++calls_;
  return {log.states.data(), slots_, log.end, count - same};
}

}  // namespace swiftqueue::engine
