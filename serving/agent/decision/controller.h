// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The queue controller: for each packet, the queue with the lower predicted latency, with
// restraint. This file is its only definition; the agent, the simulator and Python
// (serving/agent/bindings/controller.py) use it. Pure: no I/O, no clock, no thread; choosing
// allocates nothing once as many packets have been moved, and flows been in the classic queue, as
// ever will be.
//
// The default marking of an L4S-capable flow is the L4S queue; only its packets may be moved, and
// only to the classic queue.
//
// Shapes: H horizon (8 packets), L levels of quantiles.
#ifndef SWIFTQUEUE_SERVING_AGENT_CONTROLLER_H_
#define SWIFTQUEUE_SERVING_AGENT_CONTROLLER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "feature_store/events/event_stream.h"
#include "serving/agent/decision/guard.h"

namespace swiftqueue::agent {

inline constexpr std::uint8_t kClassic = 0;  // numbers as in feature_store/events/event_stream.h
inline constexpr std::uint8_t kL4s = 1;

inline constexpr std::size_t kMostLevels = 16;  // most quantiles of a latency
inline constexpr double kMedian = 0.5;

// Flows in the classic queue that are remembered; packets of more keep their default queue.
inline constexpr std::size_t kMaxClassicFlows = 1 << 14;

using Queues = std::array<std::uint8_t, kHorizon>;
using Arms = std::array<Arm, kHorizon>;
using Batch = std::array<Candidate, kHorizon>;  // about to be sent, each with its default queue

// Latencies predicted for a batch, in us.
struct BatchLatencies {
  std::array<float, kHorizon> classic_us_H;
  std::array<float, kHorizon> default_us_H;  // with each packet in its default queue
};

// An answer about a batch: one latency of each packet and queue, or its quantiles.
struct BatchAnswer {
  std::span<const double> levels;  // levels of quantiles, ascending, with the median; or empty
  const float* classic_us_HL;
  const float* default_us_HL;

  // Number of values of each latency.
  std::size_t outputs() const { return levels.empty() ? 1 : levels.size(); }

  // The one latency of each packet, or its median.
  BatchLatencies predicted() const {
    const auto median = static_cast<std::size_t>(
        std::lower_bound(levels.begin(), levels.end(), kMedian) - levels.begin());
    BatchLatencies found;
    for (std::size_t i = 0; i < kHorizon; ++i) {
      found.classic_us_H[i] = classic_us_HL[i * outputs() + median];
      found.default_us_H[i] = default_us_HL[i * outputs() + median];
    }
    return found;
  }
};

// Margins and limits that decide when packets change queues.
struct ControllerParams {
  // Hysteresis: the other queue must be better by both margins, or a flow would alternate between
  // queues whose predictions differ by noise, and every change of queue may reorder its packets.
  double margin_us = 1'000;   // the L queue's marking step: RFC 9332 A.1, 1 ms as in Linux
  double margin_share = 0.1;  // share of the predicted latency in the flow's present queue
  // A burst moved on one prediction fills its new queue before its first ACK can say so. So packets
  // moved and neither acknowledged nor given up (kGiveUpNs), of all flows, are limited: to this
  // many or this share of the packets in flight, whichever is more. Far below the packets in flight
  // a limit sends a flow's packets to both queues by turns (simulation/doc/lab.md, "Second
  // evidence").
  std::int32_t max_moved_unacked = 128;
  double max_moved_share = 0.75;
  GuardParams guard = {};
  bool rule_stands_in = false;  // whether the virtual queue decides a batch that has no answer
};

// The choice about a batch: the queue of each packet, and its arm of the guard.
struct BatchChoice {
  Queues queues;
  Arms arms{};
};

// Chooses queues batch by batch; remembers which flows are in the classic queue and the moved
// packets in flight. Not thread-safe.
class QueueController {
 public:
  // Throws std::invalid_argument for a negative margin or limit (NaN too), and for the guard's.
  explicit QueueController(const ControllerParams& params = {})
      : params_(params), guard_(params.guard) {
    if (!(params.margin_us >= 0) || !(params.margin_share >= 0) || params.max_moved_unacked < 0 ||
        !(params.max_moved_share >= 0)) {
      throw std::invalid_argument("the controller's margins and limits must not be negative");
    }
  }

  // Packets moved to the classic queue and not acknowledged yet.
  std::size_t moved_unacked() const { return moved_.size() - dead_; }

  // Chooses the queue of packets `first_packet` .. + H - 1 at `now_ns`, when so many were in
  // flight. Batches may be chosen out of order.
  BatchChoice choose(std::int64_t first_packet, std::int64_t now_ns, const Batch& batch,
                     const BatchAnswer& answered, std::int32_t in_flight) {
    const BatchLatencies predicted = answered.predicted();
    forget(now_ns);
    limit_ = std::max(static_cast<double>(params_.max_moved_unacked),
                      params_.max_moved_share * std::max(in_flight, 0));
    Rulings rulings;
    BatchChoice chosen;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      chosen.queues[i] = kClassic;
      watch(batch[i], now_ns);
      if (batch[i].queue == kClassic) continue;
      // The controller remembers the choice without the guard, so that the guard's coin does not
      // change which batches are asked about next.
      chosen.queues[i] = choose_one(batch[i].flow_id, predicted, i);
      remember(batch[i].flow_id, chosen.queues[i]);
      if (chosen.queues[i] != kClassic) continue;
      const Guard::Ruling ruling = rulings.of(batch[i].receiver_id, now_ns, guard_);
      if (!ruling.move) chosen.queues[i] = kL4s;
      chosen.arms[i] = ruling.arm;
      // Both of a pair count as moved, for the same reason.
      if (ruling.move || ruling.of_pair) moved(first_packet + static_cast<std::int64_t>(i), now_ns);
    }
    return chosen;
  }

  // Notes that packets of a flow went out with their default marking: the flow is in the L4S queue
  // again.
  void keep_default(std::int32_t flow_id) { remember(flow_id, kL4s); }

  // Notes a packet that followed a decision with this arm.
  void sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what, Arm arm) {
    guard_.sent(packet, sent_ns, what.receiver_id, what.queue, arm);
    if (!guard_.watches()) return;
    WatchedFlow& flow = watched_of(what.flow_id);
    if (flow.flow_id != what.flow_id) return;  // another has its place
    guard_.carried(what.receiver_id, sent_ns, flow.sent_ns, flow.movable, what.size_bytes);
    flow.sent_ns = sent_ns;
  }

  // Notes the first ACK that covers a packet; `known` unless it was sent again (Karn).
  void acked(std::int64_t packet, std::int64_t acked_ns, bool known) {
    guard_.acked(packet, acked_ns, known);
    const auto place = place_of(packet);
    if (place == moved_.end() || place->packet != packet || place->dead) return;
    place->dead = true;
    if (++dead_ <= moved_.size() / 2) return;  // taken out together: O(1) for each
    std::erase_if(moved_, [](const MovedPacket& m) { return m.dead; });
    dead_ = 0;
  }

  // Where a flow's next packet goes by an earlier decision of the queue `decided`, packet by
  // packet.
  bool moves(std::int32_t receiver, bool decided, Arm arm) {
    return guard_.moves(receiver, decided, arm);
  }

  const Guard::Counts& guarded() const { return guard_.counts(); }

 private:
  // The guard's word on each receiver of a batch, asked for once.
  class Rulings {
   public:
    Guard::Ruling of(std::int32_t receiver, std::int64_t now_ns, Guard& guard) {
      std::size_t i = 0;
      while (i < known_ && receivers_[i] != receiver) ++i;
      if (i == known_) {
        receivers_[known_] = receiver;
        rulings_[known_++] = guard.rule(receiver, now_ns);
      }
      return next(rulings_[i]);
    }

   private:
    // Returns the ruling on the receiver's next packet of the batch. Once a pair has its packet,
    // the rest keep the arm and take no part in the comparison.
    static Guard::Ruling next(Guard::Ruling& ruling) {
      if (!ruling.of_pair) return ruling;
      return std::exchange(ruling, {ruling.rest_moves, ruling.arm});
    }

    std::size_t known_ = 0;
    std::array<std::int32_t, kHorizon> receivers_;
    std::array<Guard::Ruling, kHorizon> rulings_;
  };

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min() / 2;
  // A flow whose rate is watched, and its last sending time.
  struct WatchedFlow {
    std::int64_t flow_id = kNever;
    bool movable = true;
    std::int64_t sent_ns = kNever;
  };
  static constexpr std::size_t kWatched = 1024;                 // flows, in a table by hash
  static constexpr std::int64_t kKeepsPlaceNs = 1'000'000'000;  // since it sent last

  WatchedFlow& watched_of(std::int32_t flow_id) {
    if (watched_.empty()) watched_.resize(kWatched);
    const auto mixed = static_cast<std::uint64_t>(flow_id) * 0x9E3779B97F4A7C15U;
    return watched_[mixed >> 54U];
  }
  static_assert(kWatched == std::size_t{1} << 10U);

  void watch(const Candidate& packet, std::int64_t now_ns) {
    const bool movable = packet.queue != kClassic;
    if (!(movable ? guard_.watches() : guard_.watches_classic())) return;
    WatchedFlow& flow = watched_of(packet.flow_id);
    if (flow.flow_id != packet.flow_id) {
      if (now_ns - flow.sent_ns < kKeepsPlaceNs) return;
      flow = {.flow_id = packet.flow_id};
    }
    flow.movable = movable;
  }

  struct MovedPacket {
    std::int64_t packet;
    std::int64_t moved_ns;
    bool dead;  // acknowledged; it is taken out with others
  };

  std::uint8_t choose_one(std::int32_t flow_id, const BatchLatencies& predicted,
                          std::size_t i) const {
    if (static_cast<double>(moved_unacked()) >= limit_) return kL4s;
    const bool in_classic =
        std::binary_search(classic_flows_.begin(), classic_flows_.end(), flow_id);
    const double classic_us = predicted.classic_us_H[i];
    const double l4s_us = predicted.default_us_H[i];
    const bool change = gains(in_classic ? classic_us : l4s_us, in_classic ? l4s_us : classic_us);
    if (!in_classic && classic_flows_.size() >= kMaxClassicFlows) return kL4s;
    return in_classic != change ? kClassic : kL4s;
  }

  // Returns whether the other queue is better by both margins.
  bool gains(double stay_us, double change_us) const {
    return stay_us - change_us > std::max(params_.margin_us, params_.margin_share * stay_us);
  }

  void remember(std::int32_t flow_id, std::uint8_t queue) {
    const auto place = std::lower_bound(classic_flows_.begin(), classic_flows_.end(), flow_id);
    const bool known = place != classic_flows_.end() && *place == flow_id;
    if (queue == kClassic && !known) classic_flows_.insert(place, flow_id);
    if (queue == kL4s && known) classic_flows_.erase(place);
  }

  std::vector<MovedPacket>::iterator place_of(std::int64_t packet) {
    return std::lower_bound(moved_.begin(), moved_.end(), packet,
                            [](const MovedPacket& m, std::int64_t p) { return m.packet < p; });
  }

  void moved(std::int64_t packet, std::int64_t now_ns) {
    const auto place = place_of(packet);
    if (place == moved_.end() || place->packet != packet) {
      moved_.insert(place, {packet, now_ns, false});
      return;
    }
    if (place->dead) --dead_;
    *place = {packet, now_ns, false};
  }

  void forget(std::int64_t now_ns) {
    const auto live = std::find_if(moved_.begin(), moved_.end(), [&](const MovedPacket& m) {
      return !m.dead && now_ns - m.moved_ns < kGiveUpNs;
    });
    dead_ -= static_cast<std::size_t>(
        std::count_if(moved_.begin(), live, [](const MovedPacket& m) { return m.dead; }));
    moved_.erase(moved_.begin(), live);
  }

  ControllerParams params_;
  Guard guard_;
  double limit_ = 0;                         // for the last batch
  std::vector<std::int32_t> classic_flows_;  // L4S-capable ones now in the classic queue, sorted
  std::vector<MovedPacket> moved_;           // ordered by packet
  std::size_t dead_ = 0;                     // acknowledged entries of moved_
  std::vector<WatchedFlow> watched_;         // allocated for the first one
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_CONTROLLER_H_
