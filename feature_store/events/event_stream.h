// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The event stream: a sender's SEND and ACK events, each with inputs that are fixed when it
// happens, and the inputs of a query about a packet that may be sent next. This file is their only
// definition: the offline stages, the live sender and the simulator all compile it. docs/EVENTS.md
// states the rules in words.
//
// Compile with -ffp-contract=off and without -ffast-math: inputs are compared bit for bit. Times
// are int64 nanoseconds; a difference becomes float64 / 1000 and then float32 microseconds.
#ifndef SWIFTQUEUE_FEATURE_STORE_EVENT_STREAM_H_
#define SWIFTQUEUE_FEATURE_STORE_EVENT_STREAM_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "feature_store/events/sizes.h"

namespace swiftqueue {

inline constexpr int kEventLayoutVersion = 2;
inline constexpr int kQueues = 2;  // 0 classic, 1 l4s (RFC 9332 section 2.1)

// A packet without an ACK for this long is given up: it no longer counts as in flight, since a
// packet that never gets a latency must not count for ever. Twice the initial RTO of RFC 6298.
inline constexpr std::int64_t kGiveUpNs = 2'000'000'000;
// A given-up packet's ACK still makes its latency visible until this age; RFC 6298's maximum RTO.
inline constexpr std::int64_t kForgetNs = 60'000'000'000;
// Packets of one sender that are remembered because an ACK may come: 10 Gbit/s of 1,500 bytes over
// 150 ms. Beyond them the oldest is given up and forgotten before its time, and counted: a sender
// that is never answered, or whose clock stands still, must not fill the memory. Not in the schema:
// within the bound nothing depends on it.
inline constexpr std::int32_t kMaxRemembered = 1 << 17;
inline constexpr std::int64_t kHoleNs = 5'000'000;         // shortest silence called a hole
inline constexpr std::int64_t kHoleCapNs = 1'000'000'000;  // longest hole told apart
inline constexpr std::int64_t kHoleAgeCapNs =
    10'000'000'000;  // also the value while no hole was seen
inline constexpr std::int64_t kMaxTimeNs = std::int64_t{1} << 62;  // differences cannot overflow
inline constexpr std::uint32_t kHashMultiplier =
    2654435761U;  // Knuth, TAOCP 3, section 6.4: 2^32 / phi
// Time in which the weights of counted SENDs and ACKs fall by e: the rates cover some 20 ms.
inline constexpr double kRateDecayNs = 20e6;

// The rows that have an input: events, queries, or both. Elsewhere it is 0.
enum class Rows : std::uint8_t { kBoth, kEvents, kQueries };

struct EventInput {
  std::string_view name;
  std::string_view unit;
  Rows rows = Rows::kBoth;
};

// The inputs of an event or a query, in order. Nothing else in the project writes this order down.
// Those of a scope come thrice: of the sender, of the packet's queue, of its flow.
inline constexpr std::array kEventInputs{
    EventInput{"size_bytes", "bytes"},
    EventInput{"queue_l4s", "flag"},
    EventInput{"flow_code_0", "sign"},
    EventInput{"flow_code_1", "sign"},
    EventInput{"flow_code_2", "sign"},
    EventInput{"flow_code_3", "sign"},
    EventInput{"receiver_code_0", "sign"},
    EventInput{"receiver_code_1", "sign"},
    EventInput{"flow_age_us", "us"},  // since the flow's first packet was sent; 0 for a new flow
    EventInput{"gap_us", "us"},       // since the last SEND; in an ACK, since the last ACK
    EventInput{"hole_us", "us"},
    EventInput{"hole_age_us", "us"},
    EventInput{"in_flight", "packets"},
    EventInput{"in_flight_queue", "packets"},
    EventInput{"in_flight_flow", "packets"},
    EventInput{"last_latency_us", "us"},
    EventInput{"last_latency_queue_us", "us"},
    EventInput{"last_latency_flow_us", "us"},
    EventInput{"mean8_latency_us", "us"},  // moving averages of gain 1/8 (RFC 6298's SRTT) and 1/2
    EventInput{"mean8_latency_queue_us", "us"},
    EventInput{"mean8_latency_flow_us", "us"},
    EventInput{"mean2_latency_us", "us"},
    EventInput{"mean2_latency_queue_us", "us"},
    EventInput{"mean2_latency_flow_us", "us"},
    EventInput{"min_latency_us", "us"},
    EventInput{"min_latency_queue_us", "us"},
    EventInput{"min_latency_flow_us", "us"},
    // Latencies less the least one of their receiver so far: what queues added.
    EventInput{"last_queueing_us", "us"},
    EventInput{"last_queueing_queue_us", "us"},
    EventInput{"last_queueing_flow_us", "us"},
    EventInput{"mean2_queueing_us", "us"},
    EventInput{"mean2_queueing_queue_us", "us"},
    EventInput{"mean2_queueing_flow_us", "us"},
    EventInput{"min_latency_receiver_us", "us"},
    EventInput{"expected_latency_us", "us"},  // the receiver's least and the queue's last queueing
    EventInput{"ack_silence_us", "us"},  // since the last ACK; before any, since the first SEND
    EventInput{"ack_silence_queue_us", "us"},
    EventInput{"ack_silence_flow_us", "us"},
    EventInput{"oldest_unacked_us", "us"},
    EventInput{"oldest_unacked_queue_us", "us"},
    EventInput{"oldest_unacked_flow_us", "us"},
    EventInput{"send_rate", "packets"},  // SENDs in the last 20 ms, decayed
    EventInput{"send_rate_queue", "packets"},
    EventInput{"send_rate_flow", "packets"},
    EventInput{"ack_rate", "packets"},
    EventInput{"ack_rate_queue", "packets"},
    EventInput{"ack_rate_flow", "packets"},
    EventInput{"latency_us", "us", Rows::kEvents},  // latency of an ACK; 0 where unknown (Karn)
    EventInput{"latency_visible", "flag", Rows::kEvents},
    EventInput{"previous_latency_flow_us", "us", Rows::kEvents},  // value before this ACK
    EventInput{"place", "packets", Rows::kQueries},               // place 0 … 7 in the batch
};
inline constexpr int kEventInputCount = static_cast<int>(kEventInputs.size());

// Index of an input by name, at compile time; a name that does not exist does not compile.
consteval int event_input(std::string_view name) {
  for (int i = 0; i < kEventInputCount; ++i) {
    if (kEventInputs[static_cast<std::size_t>(i)].name == name) return i;
  }
  throw "no such input";
}

// Everything a model trained on these rows relies on, as text; the schema hash is its SHA-256.
inline std::string event_schema_text() {
  std::string text = "events " + std::to_string(kEventLayoutVersion) + "\nhorizon " +
                     std::to_string(kHorizon) + "\ngive_up_ns " + std::to_string(kGiveUpNs) +
                     "\nforget_ns " + std::to_string(kForgetNs) + "\nhole_ns " +
                     std::to_string(kHoleNs) + "\nhole_cap_ns " + std::to_string(kHoleCapNs) +
                     "\nhole_age_cap_ns " + std::to_string(kHoleAgeCapNs) + "\nhash_multiplier " +
                     std::to_string(kHashMultiplier) + "\nrate_decay_ns " +
                     std::to_string(static_cast<std::int64_t>(kRateDecayNs)) + "\n";
  constexpr std::array<std::string_view, 3> kRows{"both", "events", "queries"};
  for (const EventInput& input : kEventInputs) {
    text.append(input.name).append(" ").append(input.unit).append(" ");
    text.append(kRows[static_cast<std::size_t>(input.rows)]).append("\n");
  }
  return text;
}

// A packet about to be sent: the input of a decision.
struct Candidate {
  std::int32_t size_bytes;
  std::int32_t flow_id;
  std::int32_t receiver_id;
  std::uint8_t queue;
};

namespace detail {

inline constexpr std::int64_t kNever = -1;
inline constexpr std::int32_t kNone = -1;
inline float microseconds(std::int64_t ns) {
  return static_cast<float>(static_cast<double>(ns) / 1000.0);
}

// Writes the `count` highest bits of the hash of `id` as -1 | +1.
inline void write_code(float* out, int count, std::int32_t id) {
  const std::uint32_t hash = static_cast<std::uint32_t>(id) * kHashMultiplier;
  for (int bit = 0; bit < count; ++bit) out[bit] = (hash >> (31 - bit)) & 1U ? 1.0F : -1.0F;
}

// Records of any number of streams. Grows by whole chunks, so that nothing is copied,
// and a record that one of them has no use for serves another.
template <typename Kept>
class ChunkPool {
 public:
  Kept& operator[](std::int32_t i) { return chunks_[chunk(i)][place(i)]; }
  const Kept& operator[](std::int32_t i) const { return chunks_[chunk(i)][place(i)]; }

  std::int32_t take() {
    if (free_ == kNone) {
      if (place(made_) == 0) chunks_.push_back(std::make_unique<Kept[]>(kChunk));
      return made_++;
    }
    const std::int32_t index = free_;
    free_ = (*this)[index].next_free();
    return index;
  }
  void give_back(std::int32_t index) {
    (*this)[index].next_free() = free_;
    free_ = index;
  }

 private:
  static constexpr std::size_t kChunk = 256;
  static std::size_t chunk(std::int32_t i) { return static_cast<std::size_t>(i) / kChunk; }
  static std::size_t place(std::int32_t i) { return static_cast<std::size_t>(i) % kChunk; }

  std::vector<std::unique_ptr<Kept[]>> chunks_;
  std::int32_t made_ = 0;
  std::int32_t free_ = kNone;
};

// Packet number -> record, for numbers that only grow: a ring searched by bisection. Erased entries
// stay until they reach the front, or are most of a full ring: then they are swept out.
class PacketIndex {
 public:
  std::int32_t size() const { return static_cast<std::int32_t>(live_); }
  void push(std::int64_t packet, std::int32_t record) {
    if (used_ == ring_.size()) resize(2 * live_ > used_ ? ring_.size() * 2 : ring_.size());
    ring_[(head_ + used_++) & (ring_.size() - 1)] = {packet, record};
    ++live_;
  }
  // Calls `visit` with each record.
  template <typename Visit>
  void each(Visit visit) {
    for (std::size_t i = 0; i < used_; ++i) {
      if (at(i).record != kNone) visit(at(i).record);
    }
  }
  // The oldest entry's record, or kNone.
  std::int32_t front() const { return used_ == 0 ? kNone : ring_[head_].record; }
  // Removes a packet and gives its record, or kNone if it is not here.
  std::int32_t take(std::int64_t packet) {
    std::size_t low = 0;
    if (used_ > 0 && at(0).packet < packet) {  // most packets leave in order
      for (std::size_t high = used_; low < high;) {
        const std::size_t middle = (low + high) / 2;
        if (at(middle).packet < packet) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
    }
    if (low == used_ || at(low).packet != packet || at(low).record == kNone) return kNone;
    const std::int32_t record = at(low).record;
    at(low).record = kNone;
    --live_;
    while (used_ > 0 && ring_[head_].record == kNone) {
      head_ = (head_ + 1) & (ring_.size() - 1);
      --used_;
    }
    if (ring_.size() > kKept && live_ * 16 < ring_.size()) resize(ring_.size() / 4);
    return record;
  }

 private:
  struct Entry {
    std::int64_t packet;
    std::int32_t record;
  };
  static constexpr std::size_t kKept = 1 << 14;  // entries: a ring this small is never made smaller

  Entry& at(std::size_t i) { return ring_[(head_ + i) & (ring_.size() - 1)]; }
  // Resizes the ring to a power of two that holds the live entries.
  void resize(std::size_t entries) {
    std::vector<Entry> other(entries);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < used_; ++i) {
      if (at(i).record != kNone) other[kept++] = at(i);
    }
    ring_ = std::move(other);
    head_ = 0;
    used_ = kept;
  }

  std::vector<Entry> ring_ = std::vector<Entry>(64);  // the length is a power of two
  std::size_t head_ = 0;
  std::size_t used_ = 0;  // entries, erased ones too
  std::size_t live_ = 0;  // entries that are not
};

// exp(-ns / kRateDecayNs) within 1e-9, the same on every machine, as libraries' exp is not: only
// operations that IEEE 754 rounds correctly. 2^-(n + i/64) by tables, the rest by Taylor.
class Decay {
 public:
  Decay() {
    double root = 0.5;
    for (int i = 0; i < 6; ++i) root = std::sqrt(root);  // 2^-(1/64)
    whole_[0] = part_[0] = 1;
    for (std::size_t i = 1; i < whole_.size(); ++i) whole_[i] = whole_[i - 1] / 2;
    for (std::size_t i = 1; i < part_.size(); ++i) part_[i] = part_[i - 1] * root;
  }
  double operator()(std::int64_t ns) const {
    if (ns >= kGone) return 0;
    const double steps = static_cast<double>(ns) * (64 * 1.4426950408889634 / kRateDecayNs);
    const auto step = static_cast<std::uint32_t>(steps);
    const double x = (steps - step) * (-0.6931471805599453 / 64);  // in (-0.011, 0]
    const double rest = 1 + x * (1 + x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24))));
    return whole_[step / 64] * part_[step % 64] * rest;
  }

 private:
  static constexpr std::int64_t kGone = 830'000'000;  // 2^-60, less than any float shows

  std::array<double, 64> whole_{};
  std::array<double, 64> part_{};
};
inline const Decay kDecayed;

// A decayed count of packets sent or acknowledged.
struct DecayedCount {
  double count = 0;
  std::int64_t at_ns = 0;

  double at(std::int64_t ns) const { return count == 0 ? 0 : count * kDecayed(ns - at_ns); }
  void add(std::int64_t ns) {
    count = at(ns) + 1;
    at_ns = ns;
  }
};

// The state of a sender, of one of its queues, or of one of its flows.
struct Scope {
  std::int64_t first_sent_ns = kNever;
  std::int64_t last_ack_ns = kNever;
  std::int32_t in_flight = 0;
  bool seen = false;         // whether a latency was seen
  bool least_known = false;  // whether `min_us` is known, by a latency or from before the log began
  float last_us = 0;
  float min_us = 0;
  double mean8_us = 0;
  double mean2_us = 0;
  float last_queueing_us = 0;
  double mean2_queueing_us = 0;
  DecayedCount sends;
  DecayedCount acks;
  std::int32_t oldest = kNone;  // oldest of the packets in flight, a list in send order
  std::int32_t newest = kNone;
  // The oldest packet that was not given up at the last query, and the number of given-up ones.
  mutable std::int32_t live = kNone;
  mutable std::int32_t overdue = 0;
};

inline constexpr int kScopes = 3;  // sender, queue, flow

// One packet sent; its neighbours among the packets in flight of each of its scopes.
struct EventRecord {
  struct Link {
    std::int32_t older = kNone;
    std::int32_t newer = kNone;
    mutable bool overdue = false;  // in flight, but given up at the scope's last query
  };
  std::int64_t packet;
  std::int64_t sent_ns;
  Candidate what;
  std::array<Scope*, kScopes> scopes;
  std::array<Link, kScopes> links;
  bool in_flight;

  std::int32_t& next_free() { return links[0].newer; }
};
using EventPool = ChunkPool<EventRecord>;

}  // namespace detail

// Knowledge of one flow, queue or receiver for a log that begins in the midst of a sender's life.
// Its lead-in restores the rest: last and mean latencies, rates, and the packets in flight.
struct KnownBefore {
  enum class Of : std::uint8_t { kFlow, kQueue, kReceiver };
  Of of;
  std::int32_t id;
  std::int64_t first_sent_ns = detail::kNever;               // flow's first SEND; kNever: unknown
  float least_us = std::numeric_limits<float>::quiet_NaN();  // latency; NaN: none was seen
};

// A sender's log of SEND and ACK events as rows of inputs. Feed events in time order, at one
// instant ACKs before sends; a time before the last event's counts as that event's time. Not
// thread-safe. An event and a query cost O(1); giving up costs O(1) a packet. A query changes
// nothing that an event or another query could see.
class EventStream {
 public:
  using Pool = std::shared_ptr<detail::EventPool>;

  // Streams of one thread may share a pool.
  explicit EventStream(Pool pool = std::make_shared<detail::EventPool>())
      : pool_(std::move(pool)) {}
  ~EventStream() {
    if (pool_.use_count() == 1) return;
    const auto give_back = [this](std::int32_t i) { pool_->give_back(i); };
    outstanding_.each(give_back);
    given_up_.each(give_back);
  }
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  // Before the first event, in any order: what was known when the log began. Returns false, and
  // changes nothing, for what cannot be. The first packet must not be sent before a flow began that
  // was told of.
  bool begin(const KnownBefore& known) {
    const bool tells = !std::isnan(known.least_us);
    if (last_packet_ >= 0 || known.of > KnownBefore::Of::kReceiver ||
        (tells && !(std::isfinite(known.least_us) && known.least_us >= 0)) ||
        known.first_sent_ns < detail::kNever || known.first_sent_ns > kMaxTimeNs ||
        (known.of == KnownBefore::Of::kQueue && (known.id < 0 || known.id >= kQueues))) {
      return false;
    }
    begins_ns_ = std::max(begins_ns_, known.first_sent_ns);
    switch (known.of) {
      case KnownBefore::Of::kFlow: {
        detail::Scope& flow = flows_[known.id];
        flow.first_sent_ns = known.first_sent_ns;
        if (tells) least(flow, known.least_us);
        break;
      }
      case KnownBefore::Of::kQueue:
        if (tells) least(queues_[static_cast<std::size_t>(known.id)], known.least_us);
        break;
      case KnownBefore::Of::kReceiver:
        if (!tells) break;
        least(sender_, known.least_us);  // the sender's least is that of its receivers
        receivers_[known.id] = known.least_us;
        break;
    }
    return true;
  }

  // Likewise: the last hole as of `until_ns`, which ends the lead-in (`end_ns` kNever: there was
  // none). Silences of the lead-in count for nothing: this log lacks the ACKs of the packets that
  // were in flight when it began.
  bool begin_holes(std::int64_t hole_ns, std::int64_t end_ns, std::int64_t until_ns) {
    const bool none = end_ns == detail::kNever;
    if (last_packet_ >= 0 || until_ns > kMaxTimeNs || end_ns > until_ns ||
        end_ns < detail::kNever || (!none && hole_ns < kHoleNs)) {
      return false;
    }
    hole_ns_ = none ? 0 : hole_ns;
    hole_end_ns_ = end_ns;
    holes_until_ns_ = until_ns;
    return true;
  }

  // SEND. Packets are numbered in send order. Writes the event's row x_F, the state just after it.
  // Returns false, and changes and writes nothing, for a number not above the last one, a size
  // below 1, a queue other than 0 and 1, or a time outside 0..2^62.
  bool sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what, float* x_F) {
    if (packet <= last_packet_ || !valid(what) || sent_ns < 0 || sent_ns > kMaxTimeNs) return false;
    if (last_packet_ < 0 && sent_ns < begins_ns_) return false;
    now_ns_ = std::max(now_ns_, sent_ns);
    give_up_and_forget();
    if (remembered() >= kMaxRemembered) give_up_oldest();
    detail::Scope& flow = flows_[what.flow_id];
    const std::int32_t index = pool_->take();
    record(index) = {packet, now_ns_, what, {&sender_, &queues_[what.queue], &flow}, {}, true};
    outstanding_.push(packet, index);
    for (int k = 0; k < kScopes; ++k) {
      detail::Scope& scope = *record(index).scopes[place(k)];
      if (scope.first_sent_ns == detail::kNever) scope.first_sent_ns = now_ns_;
      scope.sends.add(now_ns_);
      append(scope, k, index);
    }
    write(what, flow, now_ns_, x_F);
    if (last_packet_ >= 0)
      x_F[event_input("gap_us")] = detail::microseconds(now_ns_ - last_sent_ns_);
    last_packet_ = packet;
    last_sent_ns_ = now_ns_;
    return true;
  }

  // ACK: the first one that covers `packet`. `latency_us` is NaN where unknown; a negative or
  // infinite one counts as unknown. Writes the event's row x_F, the state just after it. Returns
  // false, and changes and writes nothing, for a packet never sent, acknowledged before, or
  // forgotten.
  bool acked(std::int64_t packet, std::int64_t acked_ns, float latency_us, float* x_F) {
    if (acked_ns < 0 || acked_ns > kMaxTimeNs) return false;
    const std::int64_t now_ns = std::max(now_ns_, acked_ns);
    std::int32_t index = outstanding_.take(packet);
    if (index == detail::kNone) index = given_up_.take(packet);
    if (index == detail::kNone) return false;
    if (record(index).in_flight) settle(index);
    const Packet acknowledged = record(index);
    pool_->give_back(index);
    if (now_ns - acknowledged.sent_ns > kForgetNs) return false;

    now_ns_ = now_ns;
    give_up_and_forget();
    std::int64_t gap_ns = 0;
    if (sender_.last_ack_ns != detail::kNever) {
      gap_ns = now_ns - sender_.last_ack_ns;
      if (gap_ns >= kHoleNs && now_ns > holes_until_ns_) {
        hole_ns_ = gap_ns;
        hole_end_ns_ = now_ns;
      }
    }
    const bool visible = std::isfinite(latency_us) && latency_us >= 0;
    const float previous_us = acknowledged.scopes[2]->last_us;
    float queueing_us = 0;
    if (visible) {
      float& least_us =
          receivers_.try_emplace(acknowledged.what.receiver_id, latency_us).first->second;
      least_us = std::min(least_us, latency_us);
      queueing_us = latency_us - least_us;
    }
    for (detail::Scope* scope : acknowledged.scopes) {
      scope->last_ack_ns = now_ns;
      scope->acks.add(now_ns);
      if (visible) see(*scope, latency_us, queueing_us);
    }
    write(acknowledged.what, *acknowledged.scopes[2], now_ns, x_F);
    x_F[event_input("gap_us")] = detail::microseconds(gap_ns);
    x_F[event_input("latency_us")] = visible ? latency_us : 0;
    x_F[event_input("latency_visible")] = visible;
    x_F[event_input("previous_latency_flow_us")] = previous_us;
    return true;
  }

  // Writes the row x_F of packet number `place` (0 … 7) of the batch that is decided at
  // `decision_ns`. Returns false, and writes nothing, for a packet that `sent` would refuse.
  bool query(std::int64_t decision_ns, const Candidate& what, int place, float* x_F) const {
    if (!valid(what)) return false;
    const std::int64_t now_ns = std::max(now_ns_, std::min(decision_ns, kMaxTimeNs));
    const auto known = flows_.find(what.flow_id);
    write(what, known == flows_.end() ? kNewFlow : known->second, now_ns, x_F);
    if (place == 0 && last_packet_ >= 0) {  // the send times of the others are unknown
      x_F[event_input("gap_us")] = detail::microseconds(now_ns - last_sent_ns_);
    }
    x_F[event_input("place")] = static_cast<float>(place);
    return true;
  }

  // Packets remembered because an ACK may come: in flight, or given up and not forgotten.
  std::int32_t remembered() const { return outstanding_.size() + given_up_.size(); }
  // Packets given up and forgotten before their time, for want of room.
  std::int64_t overflowed() const { return overflowed_; }
  std::size_t flows() const { return flows_.size(); }
  // Receivers whose least latency is remembered.
  std::size_t receivers() const { return receivers_.size(); }

  // Gives up and forgets the oldest packet that is remembered, before its time. False: none is.
  bool give_up_oldest() {
    if (given_up_.front() == detail::kNone) {
      if (sender_.oldest == detail::kNone) return false;
      give_up(sender_.oldest);
    }
    forget(given_up_.front());
    ++overflowed_;
    return true;
  }

 private:
  using Packet = detail::EventRecord;
  using Link = Packet::Link;

  static constexpr int kScopes = detail::kScopes;
  static inline const detail::Scope kNewFlow{};

  static bool valid(const Candidate& c) { return c.size_bytes > 0 && c.queue < kQueues; }
  static std::size_t place(int k) { return static_cast<std::size_t>(k); }
  Packet& record(std::int32_t i) { return (*pool_)[i]; }
  const Packet& record(std::int32_t i) const { return (*pool_)[i]; }
  const Link& link(std::int32_t i, int k) const { return record(i).links[place(k)]; }
  Link& link(std::int32_t i, int k) { return record(i).links[place(k)]; }

  void append(detail::Scope& scope, int k, std::int32_t index) {
    link(index, k).older = scope.newest;
    (scope.newest == detail::kNone ? scope.oldest : link(scope.newest, k).newer) = index;
    scope.newest = index;
    if (scope.live == detail::kNone) scope.live = index;
    ++scope.in_flight;
  }

  // Takes a packet out of the lists in flight.
  void settle(std::int32_t index) {
    Packet& packet = record(index);
    packet.in_flight = false;
    for (int k = 0; k < kScopes; ++k) {
      detail::Scope& scope = *packet.scopes[place(k)];
      const Link& own = link(index, k);
      if (own.overdue) --scope.overdue;
      if (scope.live == index) scope.live = own.newer;
      (own.older == detail::kNone ? scope.oldest : link(own.older, k).newer) = own.newer;
      (own.newer == detail::kNone ? scope.newest : link(own.newer, k).older) = own.older;
      --scope.in_flight;
    }
  }

  void give_up(std::int32_t index) {
    outstanding_.take(record(index).packet);
    given_up_.push(record(index).packet, index);
    settle(index);
  }
  void forget(std::int32_t index) {
    given_up_.take(record(index).packet);
    pool_->give_back(index);
  }
  void give_up_and_forget() {
    while (sender_.oldest != detail::kNone && given_up_by(now_ns_, sender_.oldest)) {
      give_up(sender_.oldest);
    }
    for (std::int32_t i = given_up_.front();
         i != detail::kNone && now_ns_ - record(i).sent_ns > kForgetNs; i = given_up_.front()) {
      forget(i);
    }
  }
  bool given_up_by(std::int64_t now_ns, std::int32_t i) const {
    return now_ns - record(i).sent_ns >= kGiveUpNs;
  }

  // Counts the packets of a scope that are given up at a query; each is looked at once.
  void mark_overdue(const detail::Scope& scope, int k, std::int64_t now_ns) const {
    for (; scope.live != detail::kNone && given_up_by(now_ns, scope.live);
         scope.live = link(scope.live, k).newer) {
      link(scope.live, k).overdue = true;
      ++scope.overdue;
    }
    const auto newest = [&] {
      return scope.live == detail::kNone ? scope.newest : link(scope.live, k).older;
    };
    for (std::int32_t i = newest(); i != detail::kNone && !given_up_by(now_ns, i); i = newest()) {
      link(i, k).overdue = false;
      --scope.overdue;
      scope.live = i;
    }
  }

  static void least(detail::Scope& scope, float latency_us) {
    scope.min_us = scope.least_known ? std::min(scope.min_us, latency_us) : latency_us;
    scope.least_known = true;
  }

  static void see(detail::Scope& scope, float latency_us, float queueing_us) {
    const double x = latency_us;
    const double waited = queueing_us;
    scope.mean8_us = scope.seen ? scope.mean8_us + (x - scope.mean8_us) / 8 : x;
    scope.mean2_us = scope.seen ? scope.mean2_us + (x - scope.mean2_us) / 2 : x;
    least(scope, latency_us);
    scope.last_us = latency_us;
    scope.mean2_queueing_us =
        scope.seen ? scope.mean2_queueing_us + (waited - scope.mean2_queueing_us) / 2 : waited;
    scope.last_queueing_us = queueing_us;
    scope.seen = true;
  }

  // Writes all inputs but the gap and those of ACKs or queries alone.
  void write(const Candidate& what, const detail::Scope& flow, std::int64_t now_ns,
             float* x_F) const {
    using detail::kNever;
    using detail::microseconds;
    std::fill_n(x_F, kEventInputCount, 0.0F);
    x_F[event_input("size_bytes")] = static_cast<float>(what.size_bytes);
    x_F[event_input("queue_l4s")] = what.queue;
    detail::write_code(x_F + event_input("flow_code_0"), 4, what.flow_id);
    detail::write_code(x_F + event_input("receiver_code_0"), 2, what.receiver_id);
    x_F[event_input("flow_age_us")] =
        microseconds(flow.first_sent_ns == kNever ? 0 : now_ns - flow.first_sent_ns);
    x_F[event_input("hole_us")] = microseconds(std::min(hole_ns_, kHoleCapNs));
    // Only a lead-in has a hole that has not ended yet.
    const std::int64_t hole_age_ns = std::max<std::int64_t>(now_ns - hole_end_ns_, 0);
    x_F[event_input("hole_age_us")] =
        microseconds(hole_end_ns_ == kNever ? kHoleAgeCapNs : std::min(hole_age_ns, kHoleAgeCapNs));
    if (const auto known = receivers_.find(what.receiver_id); known != receivers_.end()) {
      x_F[event_input("min_latency_receiver_us")] = known->second;
      x_F[event_input("expected_latency_us")] =
          known->second + queues_[what.queue].last_queueing_us;
    }
    const std::array<const detail::Scope*, kScopes> scopes{&sender_, &queues_[what.queue], &flow};
    for (int k = 0; k < kScopes; ++k) {
      const detail::Scope& scope = *scopes[place(k)];
      mark_overdue(scope, k, now_ns);
      const std::int64_t quiet_since =
          scope.last_ack_ns == kNever ? scope.first_sent_ns : scope.last_ack_ns;
      x_F[event_input("in_flight") + k] = static_cast<float>(scope.in_flight - scope.overdue);
      x_F[event_input("last_latency_us") + k] = scope.last_us;
      x_F[event_input("mean8_latency_us") + k] = static_cast<float>(scope.mean8_us);
      x_F[event_input("mean2_latency_us") + k] = static_cast<float>(scope.mean2_us);
      x_F[event_input("min_latency_us") + k] = scope.min_us;
      x_F[event_input("last_queueing_us") + k] = scope.last_queueing_us;
      x_F[event_input("mean2_queueing_us") + k] = static_cast<float>(scope.mean2_queueing_us);
      x_F[event_input("ack_silence_us") + k] =
          microseconds(quiet_since == kNever ? 0 : now_ns - quiet_since);
      x_F[event_input("oldest_unacked_us") + k] =
          microseconds(scope.live == detail::kNone ? 0 : now_ns - record(scope.live).sent_ns);
      x_F[event_input("send_rate") + k] = static_cast<float>(scope.sends.at(now_ns));
      x_F[event_input("ack_rate") + k] = static_cast<float>(scope.acks.at(now_ns));
    }
  }

  std::int64_t now_ns_ = 0;
  std::int64_t begins_ns_ = detail::kNever;  // start of the last flow that `begin` was told of
  std::int64_t last_packet_ = -1;
  std::int64_t last_sent_ns_ = detail::kNever;
  std::int64_t overflowed_ = 0;
  std::int64_t hole_ns_ = 0;
  std::int64_t hole_end_ns_ = detail::kNever;
  std::int64_t holes_until_ns_ = detail::kNever;  // until then `begin_holes` gives the last hole
  detail::Scope sender_;
  std::array<detail::Scope, kQueues> queues_{};
  std::unordered_map<std::int32_t, detail::Scope> flows_;  // its elements stay where they are
  std::unordered_map<std::int32_t, float> receivers_;      // least latency of each receiver
  Pool pool_;
  detail::PacketIndex outstanding_;  // the packets in flight
  detail::PacketIndex given_up_;     // given up, not acknowledged, not forgotten
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_EVENT_STREAM_H_
