// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The guard (guard.h) watches this besides its pairs: a test that may be looked at after each
// value, and the rates of a receiver's flows, moved and unmoved.
// Pure: no I/O, no clock, no thread. Bounded memory, O(1) for each packet.
#ifndef SWIFTQUEUE_SERVING_AGENT_GROWTH_WATCH_H_
#define SWIFTQUEUE_SERVING_AGENT_GROWTH_WATCH_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

namespace swiftqueue::agent {

// Tests whether a mean is above 0; it may be looked at after each value.
//
// With x in [-1, 1] and of mean 0 or less given all before it, a gambler who stakes the share b of
// what he has on each x has no gain to expect: his wealth, the product of 1 + b x, is a
// supermartingale, and exceeds 1 / alpha at any time with probability alpha at most (Ville). So
// does the mean of several gamblers' wealth, one for each share (Waudby-Smith and Ramdas,
// "Estimating means of bounded random variables by betting", J. R. Stat. Soc. B 86(1), 2024,
// section 4.4). Giving up early, for want of hope or of time, costs no validity: it only makes wins
// rarer.
class HelpTest {
 public:
  enum class Verdict : std::uint8_t { kOpen, kAbove, kFails };

  static constexpr std::array kStakes{0.06, 0.15, 0.3, 0.6, 0.9};

  // Gives up after `most_values`, or once those who bet on harm have `hopeless` times their stake.
  HelpTest(double alpha, int most_values, double hopeless)
      : least_(1 / alpha), hopeless_(hopeless), most_values_(most_values) {
    wealth_.fill(1), against_.fill(1);
  }

  Verdict add(double x) {
    double helps = 0;
    double harms = 0;
    for (std::size_t i = 0; i < kStakes.size(); ++i) {
      helps += wealth_[i] *= 1 + kStakes[i] * x;
      harms += against_[i] *= 1 - kStakes[i] * x;
    }
    ++values_;
    constexpr double kGamblers = kStakes.size();
    if (helps / kGamblers >= least_) return Verdict::kAbove;
    if (harms / kGamblers >= hopeless_ || values_ >= most_values_) return Verdict::kFails;
    return Verdict::kOpen;
  }

 private:
  double least_;
  double hopeless_;
  int most_values_;
  std::array<double, kStakes.size()> wealth_{};
  std::array<double, kStakes.size()> against_{};
  int values_ = 0;
};

// The average of what a flow sent unmoved in each of the last windows of time.
class MeanRate {
 public:
  static constexpr int kMostWindows = 16;

  void add(double value, bool /*held*/) {
    windows_ = std::min(windows_ + 1, kMostWindows);
    mean_ += (value - mean_) / windows_;
  }
  void moving_begins() {}
  void hold_begins() { windows_ = std::min(windows_, 1); }  // the mean counts as one window now
  int windows() const { return windows_; }

  // How far a value is above 1 + `most` times the mean, in [-1, 1].
  double beyond(double value, double most) const {
    return std::min(value / ((1 + most) * mean_) - 1, 1.0);
  }

 private:
  double mean_ = 0;
  int windows_ = 0;
};

// How much more a moved flow sent than a classic one, unmoved, in a window of time: the median,
// since one burst raises a mean, and what follows would look like a change.
//
// A classic flow's rate takes seconds to come back, so the ratio of a hold is rather too high. What
// holds say counts where it is lower than what was seen before moving began.
class MedianRatio {
 public:
  static constexpr int kMostWindows = 32;
  static constexpr int kLeastHeld = 5;  // a hold's

  void add(double ratio, bool held) {
    (held ? held_ : before_).add(ratio);
    median_ = before_.median();
    if (held_.count() >= kLeastHeld) median_ = std::min(median_, held_.median());
  }
  void moving_begins() { held_ = {}; }
  void hold_begins() {}
  int windows() const { return before_.count(); }  // before moving began

  // How far a ratio is above 1 + `most` times the median, in quarters of a doubling, in [-1, 1]:
  // bursts are frequent, so it counts how often a ratio is beyond rather than how far.
  double beyond(double ratio, double most) const {
    return std::clamp(4 * std::log2(ratio / ((1 + most) * median_)), -1.0, 1.0);
  }

 private:
  // The last ones of what was added.
  class Last {
   public:
    void add(double value) {
      std::rotate(values_.begin(), values_.end() - 1, values_.end());
      values_[0] = value;
      count_ = std::min(count_ + 1, kMostWindows);
    }
    int count() const { return count_; }
    double median() const {
      auto sorted = values_;
      const auto middle = sorted.begin() + count_ / 2;
      std::nth_element(sorted.begin(), middle, sorted.begin() + count_);
      return *middle;
    }

   private:
    std::array<double, kMostWindows> values_{};  // the last one first
    int count_ = 0;
  };

  Last before_;
  Last held_;
  double median_ = 0;
};

// Tests whether a value is settledly beyond what it was unmoved.
//
// With values that are not beyond it in the mean, given all before them, a change is settled with
// probability alpha at most in all spells of moving together: the n-th test has alpha / (n (n +
// 1)).
template <class Unmoved>
class ChangeTest {
 public:
  static constexpr int kLeastWindows = 10;    // unmoved, before anything is compared
  static constexpr int kTestWindows = 3'000;  // then a test begins anew
  static constexpr double kHopeless = 20;

  using Verdict = HelpTest::Verdict;

  bool ready() const { return ready_; }

  void begin(double alpha) {
    alpha_ = alpha;
    unmoved_.moving_begins();
    renew();
  }
  void hold_begins() { unmoved_.hold_begins(); }
  void forget() {
    unmoved_ = {};
    ready_ = false;
  }

  // Takes a window's value without moving; `held`: in a hold.
  void learn(double value, bool held) {
    unmoved_.add(value, held);
    ready_ = ready_ || unmoved_.windows() >= kLeastWindows;
  }
  // Takes a window's value while packets are moved. `most`: the change that is allowed; 0: any.
  Verdict judge(double value, double most) {
    if (!ready_ || !(most > 0)) return Verdict::kOpen;
    const Verdict verdict = test_.add(unmoved_.beyond(value, most));
    if (verdict == Verdict::kFails) renew();
    return verdict;
  }

 private:
  void renew() {
    const auto n = static_cast<double>(++tests_);
    test_ = {alpha_ / (n * (n + 1)), kTestWindows, kHopeless};
  }

  Unmoved unmoved_;
  bool ready_ = false;
  double alpha_ = 0.5;
  std::int64_t tests_ = 0;
  HelpTest test_{0.5, 1, 1};
};

// The bytes that the flows of a kind send in a window of time, on average over those that sent in
// it or in one of the three before: so more or fewer flows are no change, and a packet of each now
// and then is enough where there are many.
class FlowRate {
 public:
  static constexpr int kActiveWindows = 4;

  // Takes a packet that was sent in a window, whose flow sent its last one in the window `before`.
  void sent(std::int64_t window, std::int64_t before, double bytes) {
    bytes_ += bytes;
    advance(window);
    if (before == newest_) return;
    if (before > newest_ - kActiveWindows && before < newest_) {
      flows_of(before) = std::max(flows_of(before) - 1, 0);
    }
    ++flows_of(newest_);
  }

  // Returns the rate of a window that has ended; 0: nothing was sent.
  double take(std::int64_t window) {
    advance(window);
    return std::exchange(bytes_, 0.0) /
           std::max(std::accumulate(flows_.begin(), flows_.end(), 0), 1);
  }

 private:
  int& flows_of(std::int64_t window) {
    return flows_[static_cast<std::uint64_t>(window) % kActiveWindows];
  }
  void advance(std::int64_t window) {
    if (window <= newest_) return;
    if (newest_ < window - kActiveWindows) newest_ = window - kActiveWindows;
    while (newest_ < window) flows_of(++newest_) = 0;
  }

  double bytes_ = 0;
  std::int64_t newest_ = std::numeric_limits<std::int64_t>::min() / 2;
  std::array<int, kActiveWindows> flows_{};  // by the window in which they sent last
};

// Tests whether a receiver's moved flows gain on the sender's classic flows, which pay for it. In
// the ratio of their rates the load, which both share, cancels out. Where there are no classic
// flows, it tests whether the moved ones send more than they did unmoved.
//
// Their rate without moving changes with the network. So moving is held for a moment now and
// then, each time after twice as long, and the moved flows' unmoved rate is that of then.
//
// Moving begins with a part of the batches, and has twice as many after each hold: what would harm
// shows while little is moved, and the classic flows, which take seconds to come back, lose little.
class GrowthWatch {
 public:
  static constexpr std::int64_t kWindowNs = 100'000'000;
  static constexpr int kSettleWindows = 5;  // after moving ended: the flows' rates come back
  static constexpr int kHoldWindows = 8;    // windows of a hold; the first are left out
  static constexpr int kHoldSettle = 3;
  static constexpr std::array kHoldAfter{16, 128};  // windows of moving: the first time, at most
  static constexpr double kFirstShare = 0.25;       // share of the batches
  static constexpr int kSilentWindows = 100;        // then the classic flows have ended

  // The change that is allowed of each; 0: any.
  struct Most {
    double growth;
    double advantage;
  };
  struct Verdicts {
    HelpTest::Verdict growth = HelpTest::Verdict::kOpen;
    HelpTest::Verdict advantage = HelpTest::Verdict::kOpen;

    bool none_above() const {
      return growth != HelpTest::Verdict::kAbove && advantage != HelpTest::Verdict::kAbove;
    }
  };

  bool ready() const { return growth_.ready(); }
  bool holds() const { return hold_left_ > 0; }
  // The part of the batches that moving moves.
  double share() const { return share_; }

  void moving_begins(double alpha) {
    left_out_ = 1;  // the window that is under way
    hold_after_ = until_hold_ = kHoldAfter[0];
    share_ = kFirstShare;
    growth_.begin(alpha);
    advantage_.begin(alpha);
  }
  void moving_ends() {
    hold_left_ = 0;
    left_out_ = kSettleWindows;
  }

  // A packet was sent of a flow that may be moved, or of a classic one, `before_ns` its last one.
  Verdicts sent(std::int64_t sent_ns, std::int64_t before_ns, bool movable, double bytes,
                bool moving, const Most& most) {
    const std::int64_t window = sent_ns / kWindowNs;
    Verdicts verdicts;
    if (window != window_) {
      verdicts = closed(moving, most);
      window_ = window;
    }
    (movable ? movable_ : classic_).sent(window, before_ns / kWindowNs, bytes);
    return verdicts;
  }

 private:
  Verdicts closed(bool moving, const Most& most) {
    const double movable = movable_.take(window_);
    const double classic = classic_.take(window_);
    silent_ = classic > 0 ? 0 : silent_ + 1;
    if (silent_ >= kSilentWindows) advantage_.forget();
    Verdicts verdicts;
    if (left_out_ > 0) {
      --left_out_;
    } else if (movable > 0) {
      if (moving && !holds()) {
        const bool told = most.advantage > 0 && advantage_.ready();
        verdicts.growth = growth_.judge(movable, told ? 0 : most.growth);
        if (classic > 0) verdicts.advantage = advantage_.judge(movable / classic, most.advantage);
      } else {
        growth_.learn(movable, holds());
        if (classic > 0) advantage_.learn(movable / classic, holds());
      }
    }
    if (moving) take_turns();
    // All batches may do harm where a part of them does none.
    if (share_ < 1 && verdicts.none_above()) return {};
    return verdicts;
  }

  // Moves and holds in turn.
  void take_turns() {
    if (holds()) {
      if (--hold_left_ == 0) {
        left_out_ = 1;
        share_ = std::min(2 * share_, 1.0);
      }
      return;
    }
    if (--until_hold_ > 0) return;
    hold_after_ = until_hold_ = std::min(2 * hold_after_, kHoldAfter[1]);
    hold_left_ = kHoldWindows;
    left_out_ = kHoldSettle;
    growth_.hold_begins();
    advantage_.hold_begins();
  }

  std::int64_t window_ = std::numeric_limits<std::int64_t>::min();
  int left_out_ = 0;
  int hold_left_ = 0;
  double share_ = kFirstShare;
  int hold_after_ = 0;
  int until_hold_ = 0;
  int silent_ = 0;  // windows without a classic packet
  FlowRate movable_;
  FlowRate classic_;
  ChangeTest<MeanRate> growth_;
  ChangeTest<MedianRatio> advantage_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_GROWTH_WATCH_H_
