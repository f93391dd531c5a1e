// Sorts segments by their stamps, as far as a capture wrote them out of order.
#ifndef FEATURE_STORE_STAMP_ORDER_H_
#define FEATURE_STORE_STAMP_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "segment.h"
#include "trace_clock.h"

namespace swiftqueue {

// The only state between calls is the caller's buffer: the segments that are not ready stand in
// order at its front when the next ones come behind them.
class StampOrder {
 public:
  // A segment waits until one is stamped so much later, or so many stand behind it. Interfaces may
  // be written in batches (dumpcap: 250 ms); records of one interface change places by far less.
  static constexpr std::int64_t kHorizonNs = 1'000'000'000;
  static constexpr std::int64_t kOneInterfaceNs = TraceClock::kClockStepNs;
  static constexpr std::size_t kMostHeld = 1 << 18;  // 32 MB

  struct Taken {
    std::size_t fresh;  // number of new segments read; give the others again
    std::size_t ready;  // number of segments at the front in their final order
  };

  // `buffer` has the `held` segments of the call before, then fresh ones. With `in_order` these are
  // sorted already; with `last` none follow.
  Taken Take(std::span<Segment> buffer, std::size_t held, bool in_order, bool many_interfaces,
             bool last) {
    if (last && in_order) return {buffer.size() - held, buffer.size()};
    if (buffer.empty()) return {0, 0};
    const std::int64_t horizon_ns = many_interfaces ? kHorizonNs : kOneInterfaceNs;
    std::int64_t newest = held > 0 ? buffer[held - 1].time_ns : 0;  // no stamp is below
    std::int64_t oldest = INT64_MAX;  // oldest stamp below a predecessor's
    std::size_t end = in_order ? buffer.size() : held;
    for (; end < buffer.size(); ++end) {
      const std::int64_t now = buffer[end].time_ns;
      if (now < newest) {
        if (ClockWasSet(buffer, end, newest)) break;
        oldest = std::min(oldest, now);
      }
      newest = std::max(newest, now);
    }
    if (oldest != INT64_MAX) Sort(buffer.first(end), held, oldest);
    if (last || end < buffer.size()) return {end - held, end};
    std::size_t ready = After(buffer, buffer.back().time_ns - horizon_ns);
    if (end - ready > kMostHeld) ready = end - kMostHeld;
    return {end - held, ready};
  }

 private:
  // Returns whether segment `at` steps back on its own interface, not only against the others.
  static bool ClockWasSet(std::span<const Segment> buffer, std::size_t at, std::int64_t newest) {
    const std::int64_t now = buffer[at].time_ns;
    if (now >= newest - TraceClock::kClockStepNs) return false;
    if (now < newest - kHorizonNs) return true;
    for (std::size_t i = at; i-- > 0;) {
      if (buffer[i].link >> 8 != buffer[at].link >> 8) continue;
      return now < buffer[i].time_ns - TraceClock::kClockStepNs;
    }
    return false;
  }

  // Returns the number of segments of an ordered buffer stamped `time_ns` or before.
  static std::size_t After(std::span<const Segment> buffer, std::int64_t time_ns) {
    const auto later = [](std::int64_t time, const Segment& one) { return time < one.time_ns; };
    return static_cast<std::size_t>(std::upper_bound(buffer.begin(), buffer.end(), time_ns, later) -
                                    buffer.begin());
  }

  // Sorts the segments from the first that `oldest` has to stand before; equal stamps keep their
  // order.
  void Sort(std::span<Segment> buffer, std::size_t held, std::int64_t oldest) {
    const std::span<Segment> part = buffer.subspan(After(buffer.first(held), oldest));
    order_.clear();
    for (const Segment& one : part) order_.emplace_back(one.time_ns, order_.size());
    std::sort(order_.begin(), order_.end());
    before_.assign(part.begin(), part.end());
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = before_[order_[i].second];
  }

  std::vector<std::pair<std::int64_t, std::size_t>> order_;
  std::vector<Segment> before_;
};

}  // namespace swiftqueue

#endif  // FEATURE_STORE_STAMP_ORDER_H_
