// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The guard: moves packets to a receiver only while it is settled that moving helps there. This
// file file is its only definition; the agent and the simulator use it. Pure: no I/O, no clock, no
// thread. It knows nothing of queues but the latencies of their packets.
//
// Some of the batches that the controller would move form pairs: a coin says which of the two is
// moved, and the other keeps its default queue. The first packet of each gives its latency, and a
// test asks whether the moved one's is lower on average. Until that is settled all other batches
// keep their default queue (a trial); from then on they are moved, and it must be settled again
// and again. Where it is not, moving stops, and after a pause, each twice as long, there is a
// trial.
//
// A pair compares the queues of one moment. It cannot see that moved packets escape marks, so that
// their flows grow, and others get less and wait longer. So rates are watched too: where the moved
// flows settledly gain on the sender's classic flows to the same receiver, moving stops as well.
// Where there are no classic flows, moving stops where the moved flows send settledly more. While
// rates are watched, moving begins with a part of the batches (growth_watch.h).
//
// Per receiver: bounded memory, O(1) for each decision, packet and ACK.
#ifndef SWIFTQUEUE_SERVING_AGENT_GUARD_H_
#define SWIFTQUEUE_SERVING_AGENT_GUARD_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "feature_store/events/event_stream.h"
#include "serving/agent/decision/growth_watch.h"

namespace swiftqueue::agent {

struct GuardParams {
  bool on = false;
  // Largest probability that a receiver at which moving never helps is ever moved to beyond its
  // trials, however long it is watched.
  double alpha = 0.05;
  std::uint64_t seed = 1;  // seed of the coins
  // How much the ratio of a moved flow's rate to a classic one's may grow, as a share; 0: nobody
  // looks.
  double most_advantage = 0.5;
  // Largest growth of a moved flow's rate, as a share, where there are no classic flows, or they
  // are not watched.
  double most_growth = 0.5;
};

// The side and pair that a packet belongs to; 0 is none. Unique in a guard's life.
using Arm = std::int64_t;

class Guard {
 public:
  // Batches between two pairs, which all follow the state. A trial costs by its pairs, so they come
  // soon; while packets are moved the held batch costs.
  static constexpr std::array kRest{2, 14};
  static constexpr std::array kMostPairs{192, 384};  // then it counts as not settled
  static constexpr std::array kHopeless{6.0, 20.0};
  static constexpr std::size_t kPairs = 4;                 // pairs of a receiver under way
  static constexpr std::size_t kMaxReceivers = 1024;       // further ones keep their default queue
  static constexpr std::int64_t kIdleNs = 60'000'000'000;  // a silent receiver may be forgotten
  // First pause after a failed trial. Watched moving takes seconds to begin, so it is in no hurry,
  // and each trial costs.
  static constexpr std::int64_t kFirstPauseNs = 2'000'000'000;
  static constexpr std::int64_t kFirstWatchedPauseNs = 8'000'000'000;
  static constexpr std::int64_t kLongestPauseNs = 512'000'000'000;
  static constexpr std::int64_t kFirstGrownPauseNs = 8'000'000'000;
  static constexpr std::int64_t kFirstAdvantagePauseNs = 32'000'000'000;
  static constexpr double kForget = 0.95;  // decay of the largest difference, with each further one

  enum class State : std::uint8_t { kTrial, kMoving, kStopped };
  static constexpr std::array kStateNames{"trial", "moving", "stopped"};

  // Where the batch is one of a pair, its first packet to that receiver does as `move` says, the
  // rest as `rest_moves`; else all do as `move` says.
  struct Ruling {
    bool move = false;
    Arm arm = 0;
    bool of_pair = false;
    bool rest_moves = false;
  };
  struct Counts {
    std::array<std::int64_t, kStateNames.size()> receivers{};  // receivers in each state now
    std::int64_t trials = 0;
    std::int64_t admitted = 0;   // trials after which moving began
    std::int64_t stops = 0;      // ends of moving
    std::int64_t grown = 0;      // stops because the rate had grown
    std::int64_t advantage = 0;  // stops because moved flows had gained on classic ones
    std::int64_t pairs = 0;      // pairs compared
  };

  // Throws std::invalid_argument for impossible parameters.
  explicit Guard(const GuardParams& params = {}) : params_(params), coins_(params.seed) {
    if (!(params.alpha > 0) || !(params.alpha < 1)) {
      throw std::invalid_argument("the guard's alpha must be between 0 and 1");
    }
    if (!(params.most_growth >= 0)) {
      throw std::invalid_argument("the guard's growth must not be negative");
    }
    if (!(params.most_advantage >= 0)) {
      throw std::invalid_argument("the guard's advantage must not be negative");
    }
  }

  const Counts& counts() const { return counts_; }

  // Rules on a batch's packets to `receiver` that the controller would move at `now_ns`.
  Ruling rule(std::int32_t receiver, std::int64_t now_ns) {
    if (!params_.on) return {true};
    Receiver* const found = at(receiver, now_ns);
    if (found == nullptr) return {};
    Receiver& r = *found;
    r.asked_ns = now_ns;
    expire(r, now_ns);
    if (r.state == State::kStopped) {
      if (now_ns < r.until_ns) return {};
      try_again(r);
    }
    if (watches() && (!r.rate.ready() || r.rate.holds())) return {};
    for (Pair& pair : r.pairs) {
      if (pair.serial != 0 && pair.half) return second(r, pair);
    }
    if (r.rest > 0) {
      --r.rest;
      return {turn(r)};
    }
    for (Pair& pair : r.pairs) {
      if (pair.serial == 0) return first(r, pair, now_ns);
    }
    return {turn(r)};
  }

  // Returns whether a flow's next packet to a receiver is moved, given its decision and arm: as its
  // pair says, or as the state does once the pair has its packet.
  bool moves(std::int32_t receiver, bool decided, Arm arm) {
    if (!params_.on) return decided;
    const auto found = receivers_.find(receiver);
    if (found == receivers_.end()) return false;
    if (arm == 0) return decided && is_moved(found->second);
    if (has_room(found->second, arm)) return side_of(arm) == kMoved;
    return is_moved(found->second);
  }

  bool watches() const { return params_.on && (params_.most_growth > 0 || watches_classic()); }
  bool watches_classic() const { return params_.on && params_.most_advantage > 0; }

  // Notes a sent packet of a flow that may be moved, or not (a classic one); `before_ns` is the
  // time of the flow's last one.
  void carried(std::int32_t receiver, std::int64_t sent_ns, std::int64_t before_ns, bool movable,
               double bytes) {
    if (!watches()) return;
    // Receivers of classic flows alone leave room for those that packets may be moved to.
    if (!movable && receivers_.size() >= kMaxReceivers / 2 && !receivers_.contains(receiver))
      return;
    Receiver* const found = at(receiver, sent_ns);
    if (found == nullptr) return;
    Receiver& r = *found;
    const GrowthWatch::Verdicts verdicts =
        r.rate.sent(sent_ns, before_ns, movable, bytes, r.state == State::kMoving,
                    {params_.most_growth, params_.most_advantage});
    // At most one of them applies: where the advantage is known, growth is not looked at.
    const std::int64_t pause_ns =
        std::max(rate_pause(verdicts.growth, kFirstGrownPauseNs, r.grown_pause_ns),
                 rate_pause(verdicts.advantage, kFirstAdvantagePauseNs, r.advantage_pause_ns));
    if (pause_ns == 0) return;
    counts_.grown += verdicts.growth == HelpTest::Verdict::kAbove ? 1 : 0;
    counts_.advantage += verdicts.advantage == HelpTest::Verdict::kAbove ? 1 : 0;
    stop(r, sent_ns, pause_ns);
  }

  // Notes a sent packet that follows a decision with this arm.
  void sent(std::int64_t packet, std::int64_t sent_ns, std::int32_t receiver, std::uint8_t queue,
            Arm arm) {
    if (arm == 0) return;
    const auto found = receivers_.find(receiver);
    if (found == receivers_.end()) return;
    Pair* const pair = pair_of(found->second, arm);
    if (pair == nullptr) return;
    Side& side = pair->sides[side_of(arm)];
    const bool moved = side_of(arm) == kMoved;
    if (side.sent > 0 || moved != (queue == kMovedTo)) return;
    ++side.sent;
    if (side.packet >= 0) return;
    if (waiting_.empty()) waiting_.resize(kWaiting);
    WaitingPacket& place = place_of(packet);
    if (place.packet >= 0 && sent_ns - place.sent_ns < kGiveUpNs) return;  // the next one then
    place = {packet, sent_ns, receiver, arm};
    side.packet = packet;
    side.sent_ns = sent_ns;
  }

  // Notes the first ACK that covers a packet; `known` unless it was sent again (Karn).
  void acked(std::int64_t packet, std::int64_t acked_ns, bool known) {
    if (waiting_.empty()) return;
    WaitingPacket& place = place_of(packet);
    if (place.packet != packet) return;
    const WaitingPacket was = place;
    place = {};
    const auto found = receivers_.find(was.receiver);
    if (found == receivers_.end()) return;
    Pair* const pair = pair_of(found->second, was.arm);
    if (pair == nullptr || pair->sides[side_of(was.arm)].packet != packet) return;
    Side& side = pair->sides[side_of(was.arm)];
    side.took_ns = std::max<std::int64_t>(acked_ns - was.sent_ns, 0);
    side.lost = !known;
    if (pair->sides[kMoved].took_ns >= 0 && pair->sides[kHeld].took_ns >= 0) {
      settle(found->second, *pair, acked_ns);
    }
  }

 private:
  static constexpr std::uint8_t kMovedTo = 0;  // the classic queue
  static constexpr std::size_t kHeld = 0;
  static constexpr std::size_t kMoved = 1;
  static constexpr std::size_t kWaiting = 1024;  // packets whose ACK is waited for

  struct Side {
    std::int64_t packet = -1;  // packet whose ACK gives its latency
    std::int64_t sent_ns = 0;
    std::int64_t took_ns = -1;
    bool lost = false;
    int sent = 0;
  };
  struct Pair {
    std::int64_t serial = 0;  // 0: free
    std::int64_t begun_ns = 0;
    bool half = false;  // its second batch is still to come
    bool moved_first = false;
    std::array<Side, 2> sides;
  };
  struct Receiver {
    State state = State::kTrial;
    HelpTest test{1, 1, 1};
    double largest_ns = 0;  // largest recent difference; 0: none yet
    std::int64_t trials = 0;
    std::int64_t pause_ns = 0;
    std::int64_t grown_pause_ns = 0;
    std::int64_t advantage_pause_ns = 0;
    std::int64_t until_ns = 0;  // end of the pause
    std::int64_t asked_ns = 0;
    int rest = 0;
    double credit = 0;  // towards the next batch that is moved while moving
    GrowthWatch rate;
    std::array<Pair, kPairs> pairs;
  };
  struct WaitingPacket {
    std::int64_t packet = -1;
    std::int64_t sent_ns = 0;
    std::int32_t receiver = 0;
    Arm arm = 0;
  };

  static std::size_t side_of(Arm arm) { return static_cast<std::size_t>(arm & 1); }
  static Arm arm_of(const Pair& pair, bool moved) { return pair.serial * 2 + (moved ? 1 : 0); }

  static Pair* pair_of(Receiver& r, Arm arm) {
    if (arm == 0) return nullptr;
    const auto found = std::find_if(r.pairs.begin(), r.pairs.end(),
                                    [arm](const Pair& p) { return p.serial == arm >> 1; });
    return found == r.pairs.end() ? nullptr : &*found;
  }

  static bool is_moved(const Receiver& r) { return r.state == State::kMoving && !r.rate.holds(); }

  static bool has_room(Receiver& r, Arm arm) {
    const Pair* const pair = pair_of(r, arm);
    return pair != nullptr && pair->sides[side_of(arm)].sent == 0;
  }

  // A batch's first packet is a multiple of 8: the product's upper bits differ all the same.
  WaitingPacket& place_of(std::int64_t packet) {
    const auto mixed = static_cast<std::uint64_t>(packet) * 0x9E3779B97F4A7C15U;
    return waiting_[mixed >> 54U];
  }
  static_assert(kWaiting == std::size_t{1} << 10U);

  Receiver* at(std::int32_t receiver, std::int64_t now_ns) {
    const auto found = receivers_.find(receiver);
    if (found != receivers_.end()) return &found->second;
    if (receivers_.size() >= kMaxReceivers && !make_room(now_ns)) return nullptr;
    Receiver& r = receivers_[receiver];
    r.asked_ns = now_ns;
    ++in_state(r);
    try_again(r);
    return &r;
  }

  // Forgets the receivers without a question for a minute, once in a minute.
  bool make_room(std::int64_t now_ns) {
    if (now_ns < next_sweep_ns_) return false;
    next_sweep_ns_ = now_ns + kIdleNs;
    std::erase_if(receivers_, [&](auto& each) {
      const bool idle = now_ns - each.second.asked_ns >= kIdleNs;
      if (idle) --in_state(each.second);
      return idle;
    });
    return receivers_.size() < kMaxReceivers;
  }

  std::int64_t& in_state(const Receiver& r) {
    return counts_.receivers[static_cast<std::size_t>(r.state)];
  }

  void enter(Receiver& r, State state) {
    --in_state(r);
    r.state = state;
    ++in_state(r);
  }

  static HelpTest test_of(State state, double alpha) {
    const auto i = static_cast<std::size_t>(state);
    return {alpha, kMostPairs[i], kHopeless[i]};
  }

  // Gives each trial its part of alpha: alpha / (n (n + 1)) for the n-th, which sum up to alpha.
  void try_again(Receiver& r) {
    enter(r, State::kTrial);
    const auto n = static_cast<double>(++r.trials);
    r.test = test_of(State::kTrial, params_.alpha / (n * (n + 1)));
    r.rest = 0;
    ++counts_.trials;
  }

  void stop(Receiver& r, std::int64_t now_ns) {
    const std::int64_t first_ns = watches() ? kFirstWatchedPauseNs : kFirstPauseNs;
    r.pause_ns = std::clamp(2 * r.pause_ns, first_ns, kLongestPauseNs);
    stop(r, now_ns, r.pause_ns);
  }

  void stop(Receiver& r, std::int64_t now_ns, std::int64_t pause_ns) {
    if (r.state == State::kMoving) {
      ++counts_.stops;
      r.rate.moving_ends();
    }
    enter(r, State::kStopped);
    r.until_ns = now_ns + pause_ns;
    r.pairs.fill({});
  }

  // Returns the pause after a verdict on a rate; 0: none.
  static std::int64_t rate_pause(HelpTest::Verdict verdict, std::int64_t first_ns,
                                 std::int64_t& last_ns) {
    if (verdict == HelpTest::Verdict::kFails) last_ns = 0;
    if (verdict != HelpTest::Verdict::kAbove) return 0;
    last_ns = std::clamp(2 * last_ns, first_ns, kLongestPauseNs);
    return last_ns;
  }

  // Returns whether a batch is among those that are moved.
  bool turn(Receiver& r) const {
    if (r.state != State::kMoving) return false;
    r.credit += watches() ? r.rate.share() : 1;
    if (r.credit < 1) return false;
    r.credit -= 1;
    return true;
  }

  // splitmix64
  bool coin() {
    std::uint64_t z = coins_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return (z >> 63U) != 0;
  }

  Ruling first(Receiver& r, Pair& pair, std::int64_t now_ns) {
    pair = {++serial_, now_ns, true, coin(), {}};
    r.rest = kRest[static_cast<std::size_t>(r.state)];
    return ruling(r, pair, pair.moved_first);
  }

  Ruling second(Receiver& r, Pair& pair) const {
    pair.half = false;
    return ruling(r, pair, !pair.moved_first);
  }

  Ruling ruling(Receiver& r, const Pair& pair, bool moved) const {
    return {moved, arm_of(pair, moved), true, turn(r)};
  }

  // Packets without an ACK by now are lost. A pair whose second batch was never sent says nothing.
  void expire(Receiver& r, std::int64_t now_ns) {
    for (Pair& pair : r.pairs) {
      if (pair.serial == 0 || now_ns - pair.begun_ns < kGiveUpNs) continue;
      bool sent = true;
      for (Side& side : pair.sides) {
        if (side.packet < 0) {
          sent = false;
        } else if (side.took_ns < 0) {
          side.took_ns = kGiveUpNs;
          side.lost = true;
        }
      }
      if (!sent) {
        pair = {};
      } else {
        settle(r, pair, now_ns);
      }
      if (r.state == State::kStopped) return;
    }
  }

  // A loss speaks against moving only, for as long as it took to mend: drops in the default queue
  // are no reason to move, since whoever escapes a queue in overload takes from those in the other.
  //
  // The difference is divided by the largest recent one, which was known before the coin's side is:
  // so x is a bounded value of the mean in question, but for larger differences.
  void settle(Receiver& r, Pair& pair, std::int64_t now_ns) {
    const auto helped_ns =
        static_cast<double>(pair.sides[kHeld].took_ns - pair.sides[kMoved].took_ns);
    const bool says_nothing = pair.sides[kHeld].lost;
    pair = {};
    if (says_nothing) return;
    ++counts_.pairs;
    const double scale_ns = r.largest_ns;
    r.largest_ns = std::max({std::fabs(helped_ns), kForget * r.largest_ns, 1.0});
    if (scale_ns == 0) return;
    switch (r.test.add(std::clamp(helped_ns / scale_ns, -1.0, 1.0))) {
      case HelpTest::Verdict::kOpen:
        return;
      case HelpTest::Verdict::kFails:
        stop(r, now_ns);
        return;
      case HelpTest::Verdict::kAbove:
        if (r.state == State::kTrial) {
          ++counts_.admitted;
          enter(r, State::kMoving);
          r.rate.moving_begins(params_.alpha);
        }
        r.pause_ns = 0;
        r.test = test_of(State::kMoving, params_.alpha);
        return;
    }
  }

  GuardParams params_;
  std::uint64_t coins_;
  Counts counts_;
  std::int64_t serial_ = 0;
  std::int64_t next_sweep_ns_ = std::numeric_limits<std::int64_t>::min();
  std::unordered_map<std::int32_t, Receiver> receivers_;
  std::vector<WaitingPacket> waiting_;  // by a hash of the packet; made with the first one
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_GUARD_H_
