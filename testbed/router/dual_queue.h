// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// A link with a DualPI2 queue in virtual time: packets go in with the time they came, and come out
// with the time they left, as on a link that is never late, whenever this code runs. No clock, no
// I/O. Update before departure before arrival where times are equal.
//
//   DualQueue link(parameters, rate_bps, begin_ns, seed);
//   link.advance(now_ns, [](const Departure& d) {...});    // all that happens until now
//   link.arrive({arrived_ns, bytes, ecn, tag});            // times must not fall
#ifndef SWIFTQUEUE_TESTBED_ROUTER_DUAL_QUEUE_H_
#define SWIFTQUEUE_TESTBED_ROUTER_DUAL_QUEUE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <stdexcept>

#include "dual_pi2.h"

namespace swiftqueue::testbed {

struct Arrival {
  std::int64_t arrived_ns = 0;
  std::uint32_t bytes = 0;
  std::uint8_t ecn = 0;
  std::uint64_t tag = 0;  // the caller's
};

struct Departure {
  Arrival packet;
  std::int64_t started_ns = 0;  // its first bit goes onto the link; of a drop: when it was decided
  std::int64_t left_ns = 0;     // its last bit; of a drop as started_ns
  dual_pi2::Queue queue{};
  dual_pi2::Verdict verdict{};
};

class DualQueue {
 public:
  // Throws std::invalid_argument: a rate that is not above zero.
  DualQueue(const dual_pi2::Parameters& parameters, double rate_bps, std::int64_t begin_ns,
            std::uint64_t seed)
      : arithmetic_(parameters),
        rate_bps_(rate_bps),
        free_ns_(begin_ns),
        update_ns_(begin_ns + parameters.t_update_ns),
        random_(seed) {
    if (!(rate_bps > 0)) throw std::invalid_argument("a link's rate must be above zero");
  }

  // A packet joins its queue, or is refused. Everything before it must have happened: call
  // `advance` first.
  dual_pi2::Refusal arrive(const Arrival& packet) {
    const dual_pi2::Queue queue = dual_pi2::queue_of(packet.ecn);
    const dual_pi2::Refusal refusal = arithmetic_.refusal(queue, packet.bytes, waiting());
    if (refusal == dual_pi2::Refusal::kNone) {
      packets_[queue].push_back(packet);
      bytes_[queue] += packet.bytes;
    }
    return refusal;
  }

  // Everything that happens up to and with `now_ns`; on_departure(Departure) in the order of time.
  template <typename OnDeparture>
  void advance(std::int64_t now_ns, OnDeparture&& on_departure) {
    for (;;) {
      const std::int64_t serve_ns = busy_ ? free_ns_ : next_service_ns();
      if (update_ns_ <= now_ns && update_ns_ <= serve_ns) {
        arithmetic_.update(update_ns_, waiting());
        update_ns_ += arithmetic_.parameters().t_update_ns;
      } else if (serve_ns <= now_ns) {
        serve(serve_ns, on_departure);
      } else {
        return;
      }
    }
  }

  bool idle() const { return packets_[0].empty() && packets_[1].empty(); }
  // When the link takes its next packet, of those that wait now; the largest number if none does.
  std::int64_t next_service_ns() const {
    if (idle()) return std::numeric_limits<std::int64_t>::max();
    std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
    for (const auto& queue : packets_) {
      if (!queue.empty()) first_ns = std::min(first_ns, queue.front().arrived_ns);
    }
    return std::max(free_ns_, first_ns);
  }
  const dual_pi2::DualPi2& arithmetic() const { return arithmetic_; }
  std::uint64_t bytes_of(dual_pi2::Queue queue) const { return bytes_[queue]; }

 private:
  dual_pi2::Backlog waiting() const {
    dual_pi2::Backlog out;
    for (std::size_t q = 0; q < packets_.size(); ++q) {
      out[q] = {bytes_[q], static_cast<std::uint32_t>(packets_[q].size()),
                packets_[q].empty() ? 0 : packets_[q].front().arrived_ns};
    }
    return out;
  }

  // Takes packets until one goes onto the link; the dropped take none of its time.
  template <typename OnDeparture>
  void serve(std::int64_t now_ns, OnDeparture& on_departure) {
    busy_ = false;
    while (!idle()) {
      const dual_pi2::Backlog found = waiting();
      const bool contended = found[0].packets > 0 && found[1].packets > 0;
      const dual_pi2::Queue queue = arithmetic_.schedule(now_ns, found);
      Departure out{packets_[queue].front(), now_ns, now_ns, queue, {}};
      packets_[queue].pop_front();
      bytes_[queue] -= out.packet.bytes;
      out.verdict = arithmetic_.pass(queue, out.packet.ecn, now_ns - out.packet.arrived_ns,
                                     found[queue].packets, arithmetic_.is_short(waiting()),
                                     [this] { return uniform_(random_); });
      if (dual_pi2::is_drop(out.verdict)) {
        on_departure(out);
        continue;
      }
      arithmetic_.charge(queue, out.packet.bytes, contended);
      // ns = byte · bit/byte / (bit/s) · ns/s
      out.left_ns =
          now_ns + static_cast<std::int64_t>(out.packet.bytes * 8.0 / rate_bps_ * 1e9 + 0.5);
      free_ns_ = out.left_ns;
      busy_ = true;
      on_departure(out);
      return;
    }
    arithmetic_.reset_credit();
  }

  dual_pi2::DualPi2 arithmetic_;
  double rate_bps_;
  std::int64_t free_ns_;    // when the link can take a packet
  bool busy_ = false;       // with a packet that it has not been looked for a successor of
  std::int64_t update_ns_;  // next update of the controller
  std::array<std::deque<Arrival>, 2> packets_;  // by queue
  std::array<std::uint64_t, 2> bytes_{};
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0, 1};
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_ROUTER_DUAL_QUEUE_H_
