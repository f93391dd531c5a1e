// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The virtual queue: the rule that every model has to beat. It forecasts a packet's latency from
// four numbers of its queue: the waiting of the newest packet that was acknowledged, the sender's
// own bytes since, the time since, and the age of the oldest packet that may still wait. This file
// is the rule's only definition: the forecaster binds it, and the simulator compiles it.
//
// Compile with -ffp-contract=off, as event_stream.h. Times are int64 nanoseconds, waiting is
// float64 microseconds above the least latency of the packet's receiver.
#ifndef SWIFTQUEUE_FEATURE_STORE_VIRTUAL_QUEUE_H_
#define SWIFTQUEUE_FEATURE_STORE_VIRTUAL_QUEUE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>

#include "feature_store/events/event_stream.h"

namespace swiftqueue {

inline constexpr int kVirtualQueueVersion = 1;
// Packets over which the estimate of a queue's rates forgets: its weights fall by e.
inline constexpr int kDrainMemoryPackets = 4096;
inline constexpr double kBusyUs = 1;  // waiting above which a queue is not empty
// A queue from which nothing is awaited is taken for empty so long after its last ACK: nobody knows
// it, and a rule that stays away from a queue that was long once would stay away for ever.
inline constexpr std::int64_t kStaleNs = 100'000'000;
// Share of the oldest packet's waiting that counts where nothing is fitted: fits on training slices
// of simulated traces chose it.
inline constexpr double kOnlineOverdue = 0.9;

// How the waiting in a queue changes. Rates that are NaN are those that the row has.
struct VirtualQueueRule {
  double us_per_byte;  // waiting that a byte of the sender's own adds
  double drained;      // waiting that passes in a unit of time, 0 to 1: others' bytes come too
  double overdue;      // share of the waiting of the oldest packet that counts, 0 to 1

  static VirtualQueueRule online() {
    constexpr double kEstimated = std::numeric_limits<double>::quiet_NaN();
    return {kEstimated, kEstimated, kOnlineOverdue};
  }
};

// A packet's queue as it is known when the packet is about to be sent.
struct VirtualQueueRow {
  double least_us;     // latency of its receiver, or of any other; NaN: none is known
  double queueing_us;  // waiting of the newest packet of the queue that was acknowledged; or 0
  double bytes;     // bytes that the sender has put into the queue since, that packet's among them
  double since_us;  // since that packet was sent; 0 where the queue is taken for empty
  double overdue_us;   // waiting so far of the oldest packet that may still be in the queue; or 0
  double ahead_bytes;  // bytes of its batch in the same queue before it
  double us_per_byte;  // a rule's number, as the sender's own packets give it until now
  double drained;      // a rule's number, likewise
};

inline constexpr std::array<std::string_view, 8> kVirtualQueueColumns{
    "least_us",   "queueing_us", "bytes",       "since_us",
    "overdue_us", "ahead_bytes", "us_per_byte", "drained"};
static_assert(sizeof(VirtualQueueRow) == kVirtualQueueColumns.size() * sizeof(double));

// Returns everything that a fitted rule relies on, as text.
inline std::string virtual_queue_schema_text() {
  std::string text = "virtual queue " + std::to_string(kVirtualQueueVersion) + "\nhorizon " +
                     std::to_string(kHorizon) + "\ngive_up_ns " + std::to_string(kGiveUpNs) +
                     "\ndrain_memory " + std::to_string(kDrainMemoryPackets) + "\nstale_ns " +
                     std::to_string(kStaleNs) + "\nbusy_us " +
                     std::to_string(static_cast<int>(kBusyUs)) + "\n";
  for (const std::string_view name : kVirtualQueueColumns) text.append(name).append("\n");
  return text;
}

// Returns the waiting that is left in a queue, below 0 where it has run empty.
inline double waiting_left_us(const VirtualQueueRow& row, double us_per_byte, double drained) {
  // us = us + us/byte * byte - us/us * us
  return row.queueing_us + us_per_byte * row.bytes - drained * row.since_us;
}

// Returns the forecast of a packet's latency in us, NaN where no latency is known.
inline double virtual_queue_us(const VirtualQueueRow& row, const VirtualQueueRule& rule) {
  const double us_per_byte = std::isnan(rule.us_per_byte) ? row.us_per_byte : rule.us_per_byte;
  const double drained = std::isnan(rule.drained) ? row.drained : rule.drained;
  const double left = waiting_left_us(row, us_per_byte, drained);
  const double waiting = std::max({0.0, left, rule.overdue * row.overdue_us});
  return row.least_us + waiting + us_per_byte * row.ahead_bytes;
}

// A rule's rates by least squares over the sender's own packets: each says how the waiting had
// changed since the packet that it was forecast from. Packets teach nothing where the queue has run
// empty in between. Without packets both rates are 0.
class DrainEstimate {
 public:
  void learn(double bytes, double since_us, double change_us) {
    const double kb = bytes * 1e-3, ms = since_us * 1e-3, change_ms = change_us * 1e-3;
    for (double* sum : {&kb_kb_, &kb_ms_, &ms_ms_, &kb_change_, &ms_change_}) *sum *= kKept;
    kb_kb_ += kb * kb + (1 - kKept) * kPrior;
    kb_ms_ += kb * ms;
    ms_ms_ += ms * ms + (1 - kKept) * kPrior;
    kb_change_ += kb * change_ms;
    ms_change_ += ms * change_ms;
  }

  // Writes the rates that fit best within their bounds: neither is negative, and no queue drains
  // faster than time passes.
  void write(VirtualQueueRow& row) const {
    // change = a * kb - b * ms, by the normal equations.
    const double determinant = kb_kb_ * ms_ms_ - kb_ms_ * kb_ms_;
    Rates best{(kb_change_ * ms_ms_ - ms_change_ * kb_ms_) / determinant,
               (kb_change_ * kb_ms_ - ms_change_ * kb_kb_) / determinant};
    if (best.a < 0 || best.b < 0 || best.b > 1) {  // then the best lies on a bound
      best = {0, std::clamp(-ms_change_ / ms_ms_, 0.0, 1.0)};
      for (const double b : {0.0, 1.0}) {
        const Rates other{std::max(0.0, (kb_change_ + b * kb_ms_) / kb_kb_), b};
        if (error(other) < error(best)) best = other;
      }
    }
    row.us_per_byte = best.a;  // ms/kB
    row.drained = best.b;
  }

 private:
  struct Rates {
    double a, b;
  };
  // Returns the sum of squares without the terms that no rate changes.
  double error(const Rates& r) const {
    return r.a * r.a * kb_kb_ - 2 * r.a * r.b * kb_ms_ + r.b * r.b * ms_ms_ - 2 * r.a * kb_change_ +
           2 * r.b * ms_change_;
  }

  static constexpr double kKept = 1 - 1.0 / kDrainMemoryPackets;
  static constexpr double kPrior = 1e4;  // squares of some ten packets of 30 kB and 30 ms

  double kb_kb_ = kPrior, ms_ms_ = kPrior;
  double kb_ms_ = 0, kb_change_ = 0, ms_change_ = 0;
};

// A sender's queues as its own packets show them. Feed events in time order, at one instant ACKs
// before sends; a time before the last event's counts as that event's time. Not thread-safe.
class VirtualQueue {
 public:
  // Sets a receiver's least latency when the log began. Call it before the first event.
  bool begin(std::int32_t receiver_id, float least_us) {
    if (last_packet_ >= 0 || !(std::isfinite(least_us) && least_us >= 0)) return false;
    least(receiver_id, least_us);
    return true;
  }

  // Takes a SEND; call it in send order. Returns false, and changes nothing, where EventStream
  // would refuse the event.
  bool sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what) {
    if (packet <= last_packet_ || what.size_bytes <= 0 || what.queue >= kQueues || sent_ns < 0 ||
        sent_ns > kMaxTimeNs) {
      return false;
    }
    now_ns_ = std::max(now_ns_, sent_ns);
    for (std::int32_t i = outstanding_.front();
         i != detail::kNone && now_ns_ - records_[i].sent_ns > kForgetNs;
         i = outstanding_.front()) {
      forget(i);
    }
    if (outstanding_.size() >= kMaxRemembered) forget(outstanding_.front());
    Queue& queue = queues_[what.queue];
    while (!queue.waiting.empty() && (now_ns_ - queue.waiting.front().sent_ns >= kGiveUpNs ||
                                      queue.waiting.size() >= kMaxRemembered)) {
      queue.waiting.pop_front();
    }
    const std::int32_t index = records_.take();
    VirtualQueueRow row{};
    write(queue, now_ns_, row);
    const bool teaches = waiting_left_us(row, row.us_per_byte, row.drained) > kBusyUs;
    records_[index] = {packet,          now_ns_,   what.receiver_id, what.queue, queue.sent_bytes,
                       row.queueing_us, row.bytes, row.since_us,     teaches,    detail::kNone};
    outstanding_.push(packet, index);
    queue.waiting.push_back({packet, now_ns_, what.receiver_id});
    queue.sent_bytes += what.size_bytes;
    last_packet_ = packet;
    return true;
  }

  // Takes the first ACK that covers `packet`. `latency_us` is NaN where unknown (Karn). Returns
  // false, and changes nothing, for a packet never sent, acknowledged before, or forgotten.
  bool acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    if (acked_ns < 0 || acked_ns > kMaxTimeNs) return false;
    const std::int32_t index = outstanding_.take(packet);
    if (index == detail::kNone) return false;
    const Record record = records_[index];
    records_.give_back(index);
    const std::int64_t now_ns = std::max(now_ns_, acked_ns);
    if (now_ns - record.sent_ns > kForgetNs) return false;
    now_ns_ = now_ns;
    Queue& queue = queues_[record.queue];
    // Packets sent into a queue before one that has left it have left it too, or are lost.
    while (!queue.waiting.empty() && queue.waiting.front().packet <= packet) {
      queue.waiting.pop_front();
    }
    queue.last_ack_ns = now_ns_;
    if (!std::isfinite(latency_us) || latency_us < 0) return true;
    const double queueing_us = latency_us - least(record.receiver_id, latency_us);
    if (record.teaches) {
      queue.rates.learn(record.bytes, record.since_us, queueing_us - record.queueing_us);
    }
    if (!queue.is_known || packet > queue.newest) {
      queue.is_known = true;
      queue.newest = packet;
      queue.newest_sent_ns = record.sent_ns;
      queue.bytes_before = record.bytes_before;
      queue.queueing_us = queueing_us;
    }
    return true;
  }

  // Returns the row of a packet to a receiver that would be sent now; `ahead_bytes` counts the
  // bytes of its batch that are before it in its queue.
  VirtualQueueRow query(std::int64_t decision_ns, std::int32_t receiver_id, std::uint8_t queue,
                        double ahead_bytes) const {
    const std::int64_t now_ns = std::max(now_ns_, std::min(decision_ns, kMaxTimeNs));
    VirtualQueueRow row{};
    write(queues_[queue], now_ns, row);
    row.least_us = least_of(receiver_id);
    row.ahead_bytes = ahead_bytes;
    return row;
  }

  // Forgets the oldest packet before its time, so that an ACK of it teaches nothing. False: there
  // is none.
  bool give_up_oldest() {
    const std::int32_t oldest = outstanding_.front();
    if (oldest != detail::kNone) forget(oldest);
    return oldest != detail::kNone;
  }

  // Returns the number of packets remembered because an ACK may come.
  std::int32_t remembered() const { return outstanding_.size(); }

 private:
  struct Record {
    std::int64_t packet;
    std::int64_t sent_ns;
    std::int32_t receiver_id;
    std::uint8_t queue;
    std::int64_t bytes_before;  // bytes sent into its queue before it
    // Its queue's numbers when it was sent; it teaches if they said that the queue was not empty.
    double queueing_us;
    double bytes;
    double since_us;
    bool teaches;
    std::int32_t free;

    std::int32_t& next_free() { return free; }
  };
  struct Waiting {
    std::int64_t packet;
    std::int64_t sent_ns;
    std::int32_t receiver_id;
  };
  struct Queue {
    std::int64_t sent_bytes = 0;
    std::int64_t last_ack_ns = 0;
    bool is_known = false;  // whether a latency is known; the next four are that packet's
    std::int64_t newest = 0;
    std::int64_t newest_sent_ns = 0;
    std::int64_t bytes_before = 0;
    double queueing_us = 0;
    std::deque<Waiting> waiting;  // packets sent after the newest that was acknowledged
    DrainEstimate rates;
  };

  void forget(std::int32_t index) {
    outstanding_.take(records_[index].packet);
    records_.give_back(index);
  }

  double least(std::int32_t receiver_id, float latency_us) {
    least_us_ = std::isnan(least_us_) ? latency_us : std::min<double>(least_us_, latency_us);
    double& own = receivers_.try_emplace(receiver_id, latency_us).first->second;
    return own = std::min<double>(own, latency_us);
  }
  double least_of(std::int32_t receiver_id) const {
    const auto known = receivers_.find(receiver_id);
    return known == receivers_.end() ? least_us_ : known->second;
  }

  void write(const Queue& queue, std::int64_t now_ns, VirtualQueueRow& row) const {
    const auto us = [](std::int64_t ns) { return static_cast<double>(ns) / 1000.0; };
    const auto oldest = std::partition_point(
        queue.waiting.begin(), queue.waiting.end(),
        [now_ns](const Waiting& w) { return now_ns - w.sent_ns >= kGiveUpNs; });
    const bool awaited = oldest != queue.waiting.end();
    if (queue.is_known && (awaited || now_ns - queue.last_ack_ns <= kStaleNs)) {
      row.queueing_us = queue.queueing_us;
      row.bytes = static_cast<double>(queue.sent_bytes - queue.bytes_before);
      row.since_us = us(now_ns - queue.newest_sent_ns);
    }
    if (awaited) {
      // Without a latency nobody knows how much of the age is waiting: not above 0, then.
      const double waited_us = us(now_ns - oldest->sent_ns) - least_of(oldest->receiver_id);
      row.overdue_us = waited_us > 0 ? waited_us : 0;
    }
    queue.rates.write(row);
  }

  std::int64_t now_ns_ = 0;
  std::int64_t last_packet_ = -1;
  double least_us_ = std::numeric_limits<double>::quiet_NaN();  // least latency of all receivers
  std::unordered_map<std::int32_t, double> receivers_;          // least latency of each
  std::array<Queue, kQueues> queues_{};
  detail::ChunkPool<Record> records_;
  detail::PacketIndex outstanding_;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_VIRTUAL_QUEUE_H_
