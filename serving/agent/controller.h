// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The queue controller: for each packet, the queue with the lower predicted latency, with
// restraint. This file is its only definition; the agent, the simulator and Python
// (serving/agent/controller.py) use it. Pure: no I/O, no clock, no thread; choosing allocates
// nothing once as many packets have been moved, and flows been in the classic queue, as ever will
// be.
//
// The default marking of an L4S-capable flow is the L4S queue; only its packets may be moved, and
// only to the classic queue.
//
// Shapes: H horizon (8 packets).
#ifndef SWIFTQUEUE_SERVING_AGENT_CONTROLLER_H_
#define SWIFTQUEUE_SERVING_AGENT_CONTROLLER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "feature_store/events/window.h"

namespace swiftqueue::agent {

inline constexpr std::uint8_t kClassic = 0;  // numbers as in feature_store/events/window.h
inline constexpr std::uint8_t kL4s = 1;

// Flows in the classic queue that are remembered; packets of more keep their default queue.
inline constexpr std::size_t kMaxClassicFlows = 1 << 14;

using Queues = std::array<std::uint8_t, kHorizon>;
using Batch = std::array<Candidate, kHorizon>;  // about to be sent, each with its default queue

// Latencies predicted for a batch, in us.
struct Predicted {
  std::array<float, kHorizon> classic_us_H;
  std::array<float, kHorizon> default_us_H;  // each packet in its default queue
};

// How willingly packets change queues.
struct ControllerParams {
  // Hysteresis: the other queue must be better by both margins, or a flow would alternate between
  // queues whose predictions differ by noise, and every change of queue may reorder its packets.
  double margin_us = 1'000;   // the L queue's marking step: RFC 9332 A.1, 1 ms as in Linux
  double margin_share = 0.1;  // of the predicted latency in the flow's present queue
  // A burst moved on one prediction fills the queue it was moved to before its first ACK can say
  // so. Packets moved and not yet acknowledged, of all flows, or given up (kGiveUpNs):
  std::int32_t max_moved_unacked = 64;
};

// Chooses queues batch by batch; remembers which flows are in the classic queue and the moved
// packets in flight. Not thread-safe.
class QueueController {
 public:
  // Throws std::invalid_argument for a negative margin or limit (NaN too).
  explicit QueueController(const ControllerParams& params = {}) : params_(params) {
    if (!(params.margin_us >= 0) || !(params.margin_share >= 0) || params.max_moved_unacked < 0) {
      throw std::invalid_argument("the controller's margins and limits must not be negative");
    }
  }

  // Packets moved to the classic queue and not acknowledged yet.
  std::size_t moved_unacked() const { return moved_.size(); }

  // Chooses the queue of packets `first_packet` .. + H - 1 at `now_ns`. Batches may be chosen out
  // of order.
  Queues choose(std::int64_t first_packet, std::int64_t now_ns, const Batch& batch,
                const Predicted& predicted) {
    forget(now_ns);
    Queues chosen;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      chosen[i] = kClassic;
      if (batch[i].queue == kClassic) continue;
      chosen[i] =
          choose_one(batch[i].flow_id, predicted.classic_us_H[i], predicted.default_us_H[i]);
      remember(batch[i].flow_id, chosen[i]);
      if (chosen[i] == kClassic) moved(first_packet + static_cast<std::int64_t>(i), now_ns);
    }
    return chosen;
  }

  // Notes that packets of a flow went out with their default marking, so the flow is in the L4S
  // queue again.
  void keep_default(std::int32_t flow_id) { remember(flow_id, kL4s); }

  // Notes the first ACK that covers a packet.
  void acked(std::int64_t packet) {
    const auto place = place_of(packet);
    if (place != moved_.end() && place->packet == packet) moved_.erase(place);
  }

 private:
  struct Moved {
    std::int64_t packet;
    std::int64_t moved_ns;
  };

  std::uint8_t choose_one(std::int32_t flow_id, double classic_us, double l4s_us) const {
    if (moved_.size() >= static_cast<std::size_t>(params_.max_moved_unacked)) return kL4s;
    const bool in_classic =
        std::binary_search(classic_flows_.begin(), classic_flows_.end(), flow_id);
    const double stay_us = in_classic ? classic_us : l4s_us;
    const double change_us = in_classic ? l4s_us : classic_us;
    const bool change =
        stay_us - change_us > std::max(params_.margin_us, params_.margin_share * stay_us);
    if (!in_classic && classic_flows_.size() >= kMaxClassicFlows) return kL4s;
    return in_classic != change ? kClassic : kL4s;
  }

  void remember(std::int32_t flow_id, std::uint8_t queue) {
    const auto place = std::lower_bound(classic_flows_.begin(), classic_flows_.end(), flow_id);
    const bool known = place != classic_flows_.end() && *place == flow_id;
    if (queue == kClassic && !known) classic_flows_.insert(place, flow_id);
    if (queue == kL4s && known) classic_flows_.erase(place);
  }

  std::vector<Moved>::iterator place_of(std::int64_t packet) {
    return std::lower_bound(moved_.begin(), moved_.end(), packet,
                            [](const Moved& m, std::int64_t p) { return m.packet < p; });
  }

  void moved(std::int64_t packet, std::int64_t now_ns) {
    const auto place = place_of(packet);
    if (place != moved_.end() && place->packet == packet) {
      place->moved_ns = now_ns;
    } else {
      moved_.insert(place, {packet, now_ns});
    }
  }

  void forget(std::int64_t now_ns) {
    const auto live = std::find_if(moved_.begin(), moved_.end(),
                                   [&](const Moved& m) { return now_ns - m.moved_ns < kGiveUpNs; });
    moved_.erase(moved_.begin(), live);
  }

  ControllerParams params_;
  std::vector<std::int32_t> classic_flows_;  // L4S-capable ones now in the classic queue, sorted
  std::vector<Moved> moved_;                 // at most max_moved_unacked, by packet
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_CONTROLLER_H_
