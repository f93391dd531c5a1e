// Defines a clock that never runs backwards, over capture timestamps that may.
#ifndef FEATURE_STORE_TRACE_CLOCK_H_
#define FEATURE_STORE_TRACE_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace swiftqueue {

class TraceClock {
 public:
  // A clock set back by more than this is taken as set, not as records that changed places on their
  // way to the file: ntpd steps the clock from 128 ms, and reordering between capture queues stays
  // well below.
  static constexpr std::int64_t kClockStepNs = 100'000'000;

  struct Reading {
    std::int64_t time_ns;  // never below the reading before
    std::int64_t
        stamp_ns;  // the record's own, on the same scale: below time_ns if it ran backwards
  };

  // With `may_step` the clock can be set back, as a capture's can; otherwise stamps only change
  // places.
  explicit TraceClock(bool may_step) : may_step_(may_step) {}

  Reading Read(std::int64_t stamp_ns) {
    // A stamp and the offset are at most 2^62 each: their sum may not fit, and stays there.
    std::int64_t now = static_cast<std::int64_t>(
        std::min<__int128>(static_cast<__int128>(stamp_ns) + offset_ns_, kMaxTimeNs));
    if (may_step_ && now < last_ns_ - kClockStepNs) {
      offset_ns_ += last_ns_ - now;
      now = last_ns_;
      ++steps_;
    }
    last_ns_ = std::max(last_ns_, now);
    return {last_ns_, now};
  }

  std::int64_t steps() const { return steps_; }  // number of times that the clock was set back

 private:
  static constexpr std::int64_t kMaxTimeNs = std::int64_t{1} << 62;

  bool may_step_;
  std::int64_t last_ns_ = 0;
  std::int64_t offset_ns_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace swiftqueue

#endif  // FEATURE_STORE_TRACE_CLOCK_H_
