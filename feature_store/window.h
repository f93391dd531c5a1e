// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The window: what the model sees at a decision time. This file is its only definition; the offline
// stage, the live sender and the simulator all compile it (docs/WINDOWS.md states the rules in
// words).
//
// Compile with -ffp-contract=off and without -ffast-math: windows are compared bit for bit. Times
// are int64 nanoseconds; a difference becomes float64 / 1000 and then float32 microseconds.
#ifndef SWIFTQUEUE_FEATURE_STORE_WINDOW_H_
#define SWIFTQUEUE_FEATURE_STORE_WINDOW_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace swiftqueue {

inline constexpr int kLayoutVersion = 1;  // of the token layout and the rules; part of the schema
inline constexpr int kHorizon = 8;        // packets decided at once (SwiftQueue, section 4)
inline constexpr int kQueues = 2;         // 0 classic, 1 l4s (RFC 9332 section 2.1)
inline constexpr int kMaxTokens = 4096;

// A packet without an ACK for this long is given up: it no longer counts as in flight, since a
// packet that never gets a latency must not count for ever. Twice the initial RTO of RFC 6298.
inline constexpr std::int64_t kGiveUpNs = 2'000'000'000;
// A given-up packet's ACK still makes its latency visible until this age; RFC 6298's maximum RTO.
inline constexpr std::int64_t kForgetNs = 60'000'000'000;
inline constexpr std::int64_t kHoleNs = 5'000'000;         // shortest silence called a hole
inline constexpr std::int64_t kHoleCapNs = 1'000'000'000;  // longest hole told apart
inline constexpr std::int64_t kHoleAgeCapNs =
    10'000'000'000;  // also the value while no hole was seen
inline constexpr std::int64_t kMaxTimeNs = std::int64_t{1} << 62;  // differences cannot overflow
inline constexpr std::uint32_t kHashMultiplier =
    2654435761U;  // Knuth, TAOCP 3, section 6.4: 2^32 / phi

struct Feature {
  std::string_view name;
  std::string_view unit;
};

// The features of a token, in order. Nothing else in the project writes this order down.
inline constexpr std::array kFeatures{
    Feature{"flow_age_us", "us"},        // since the flow's first packet was sent
    Feature{"age_us", "us"},             // since this packet was sent; candidates 0
    Feature{"latency_us", "us"},         // 0 unless visible
    Feature{"latency_visible", "flag"},  // 0 | 1
    Feature{"candidate", "flag"},        // 1: about to be sent
    Feature{"size_bytes", "bytes"},      // IP length; 0 marks a padding token
    Feature{"flow_code_0", "sign"},      // -1 | +1: bits of a multiplicative hash of flow_id
    Feature{"flow_code_1", "sign"},      //
    Feature{"flow_code_2", "sign"},      //
    Feature{"flow_code_3", "sign"},      //
    Feature{"receiver_code_0", "sign"},  // the same of receiver_id
    Feature{"receiver_code_1", "sign"},  //
    Feature{"queue_l4s", "flag"},        // 1: l4s; of a candidate, the candidate queue
    // As of the decision time of the packet's own batch:
    Feature{"in_flight", "packets"},         // of the sender
    Feature{"in_flight_flow", "packets"},    // of the packet's flow
    Feature{"in_flight_queue", "packets"},   // of the packet's queue
    Feature{"last_latency_us", "us"},        // last visible one; 0 while there is none
    Feature{"last_latency_flow_us", "us"},   //
    Feature{"last_latency_queue_us", "us"},  //
    Feature{"gap_us", "us"},                 // since the sender's previous packet (see Derived)
    Feature{"ack_silence_us", "us"},     // since the last ACK (before any: since the first packet)
    Feature{"oldest_unacked_us", "us"},  // age of the oldest packet in flight; 0 if none
    Feature{"hole_us", "us"},            // the last hole in the ACK stream, capped; 0 if none
    Feature{"hole_age_us", "us"},        // since that hole ended, capped; the cap if none
};
inline constexpr int kFeatureCount = static_cast<int>(kFeatures.size());

// Index of a feature by name, at compile time; a name that does not exist does not compile.
consteval int feature(std::string_view name) {
  for (int i = 0; i < kFeatureCount; ++i) {
    if (kFeatures[static_cast<std::size_t>(i)].name == name) return i;
  }
  throw "no such feature";
}

// Everything a model trained on these windows relies on, as text; the schema hash is its SHA-256.
inline std::string schema_text() {
  std::string text = "layout " + std::to_string(kLayoutVersion) + "\nhorizon " +
                     std::to_string(kHorizon) + "\ngive_up_ns " + std::to_string(kGiveUpNs) +
                     "\nforget_ns " + std::to_string(kForgetNs) + "\nhole_ns " +
                     std::to_string(kHoleNs) + "\nhole_cap_ns " + std::to_string(kHoleCapNs) +
                     "\nhole_age_cap_ns " + std::to_string(kHoleAgeCapNs) + "\nhash_multiplier " +
                     std::to_string(kHashMultiplier) + "\n";
  for (const Feature& f : kFeatures) {
    text.append(f.name).append(" ").append(f.unit).append("\n");
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
using Token = std::array<float, static_cast<std::size_t>(kFeatureCount)>;

inline float microseconds(std::int64_t ns) {
  return static_cast<float>(static_cast<double>(ns) / 1000.0);
}

// Writes the `count` highest bits of the hash of `id` as -1 | +1.
inline void write_code(float* out, int count, std::int32_t id) {
  const std::uint32_t hash = static_cast<std::uint32_t>(id) * kHashMultiplier;
  for (int bit = 0; bit < count; ++bit) out[bit] = (hash >> (31 - bit)) & 1U ? 1.0F : -1.0F;
}

// What is known of the sender, and of one flow, at an instant.
struct SenderState {
  std::int32_t in_flight = 0;
  std::array<std::int32_t, kQueues> in_flight_queue{};
  float last_latency_us = 0;
  std::array<float, kQueues> last_latency_queue_us{};
  std::int64_t first_sent_ns = kNever;
  std::int64_t last_ack_ns = kNever;
  std::int64_t hole_ns = 0;
  std::int64_t hole_end_ns = kNever;
  std::int64_t oldest_unacked_ns = kNever;  // send time
};
struct FlowState {
  std::int64_t first_sent_ns = kNever;
  std::int32_t in_flight = 0;
  float last_latency_us = 0;
};

// A flow now, and as it was at the decision time of batch `batch_number` (copied on first change).
struct Flow {
  FlowState now;
  FlowState at_decision;
  std::int64_t batch_number = kNever;
};

enum class Status : std::uint8_t { kInFlight, kGivenUp, kAcked };

// One packet sent; records live in a pool and are referred to by their index.
struct Record {
  std::int64_t packet;
  std::int64_t sent_ns;
  std::int32_t flow_id;
  std::int32_t older;  // neighbours in the list of packets in flight
  std::int32_t newer;
  std::uint8_t queue;
  Status status;
  bool in_view;  // among the newest settled packets
  Token token;
};

// Packet number -> record, for numbers that only grow: a ring searched by bisection. Erased entries
// stay until they reach the front, so it is as long as the span from its oldest packet to its
// newest.
class PacketIndex {
 public:
  struct Entry {
    std::int64_t packet;
    std::int32_t record;
  };

  void push(std::int64_t packet, std::int32_t record) {
    if (size_ == ring_.size()) grow();
    ring_[(head_ + size_++) & (ring_.size() - 1)] = {packet, record};
  }
  // The oldest entry's record, or kNone.
  std::int32_t front() const { return size_ == 0 ? kNone : ring_[head_].record; }
  // Removes a packet and gives its record, or kNone if it is not here.
  std::int32_t take(std::int64_t packet) {
    std::size_t low = 0;
    std::size_t high = size_;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (at(middle).packet < packet) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == size_ || at(low).packet != packet) return kNone;
    const std::int32_t record = at(low).record;
    at(low).record = kNone;
    while (size_ > 0 && ring_[head_].record == kNone) {
      head_ = (head_ + 1) & (ring_.size() - 1);
      --size_;
    }
    return record;
  }

 private:
  Entry& at(std::size_t i) { return ring_[(head_ + i) & (ring_.size() - 1)]; }
  void grow() {
    std::vector<Entry> larger(ring_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i) larger[i] = at(i);
    ring_ = std::move(larger);
    head_ = 0;
  }

  std::vector<Entry> ring_ = std::vector<Entry>(64);  // the length is a power of two
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace detail

// A sender's log of SEND and ACK events, viewed as windows. Feed events in time order, at one
// instant ACKs before sends; a time before the last event's counts as that event's time. Not
// thread-safe. A window costs O(W) and an event O(1) (an ACK out of send order O(W)); memory is
// allocated only when more packets are outstanding, or more flows exist, than ever before.
class SenderWindow {
 public:
  // `tokens` W: history of W - 8 packets, then the 8 candidates.
  explicit SenderWindow(int tokens) : tokens_(tokens), history_(tokens - kHorizon) {
    if (tokens <= kHorizon || tokens > kMaxTokens || tokens % 8 != 0) {
      throw std::invalid_argument("tokens must be a multiple of 8 in 16..4096");
    }
    view_.reserve(static_cast<std::size_t>(history_) + 1);
  }

  int tokens() const { return tokens_; }

  // SEND. Packets are numbered in send order; packets 8k..8k+7 are one batch, decided when its
  // first one is sent. Returns false, and changes nothing, for a number not above the last one, a
  // size below 1, a queue other than 0 and 1, or a time outside 0..2^62.
  bool sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what) {
    if (packet <= last_packet_ || !valid(what) || sent_ns < 0 || sent_ns > kMaxTimeNs) return false;
    now_ns_ = std::max(now_ns_, sent_ns);
    give_up_and_forget();
    if (packet / kHorizon != batch_number_) {
      batch_number_ = packet / kHorizon;
      at_decision_ = state_;
      at_decision_.oldest_unacked_ns =
          head_ == detail::kNone ? detail::kNever : record(head_).sent_ns;
      decision_ns_ = now_ns_;
    }
    detail::Flow& flow = touch(what.flow_id);
    if (flow.now.first_sent_ns == detail::kNever) flow.now.first_sent_ns = now_ns_;

    const std::int32_t index = new_record();
    detail::Record& r = record(index);
    r = {packet, now_ns_, what.flow_id, tail_, detail::kNone, what.queue, detail::Status::kInFlight,
         false,  {}};
    write_token(r.token.data(), what, now_ns_ - flow.now.first_sent_ns);
    write_derived(r.token.data(), at_decision_, flow.at_decision, what.queue, decision_ns_);
    if (last_packet_ >= 0) {
      r.token[feature("gap_us")] = detail::microseconds(now_ns_ - last_sent_ns_);
    }

    (tail_ == detail::kNone ? head_ : record(tail_).newer) = index;
    tail_ = index;
    outstanding_.push(packet, index);
    ++state_.in_flight;
    ++state_.in_flight_queue[what.queue];
    ++flow.now.in_flight;
    if (state_.first_sent_ns == detail::kNever) state_.first_sent_ns = now_ns_;
    last_sent_ns_ = now_ns_;
    last_packet_ = packet;
    return true;
  }

  // ACK: the first one that covers `packet`. `latency_us` is NaN where unknown (Karn); a negative
  // or infinite one counts as unknown. ACKs of one instant come in packet order. Returns false, and
  // changes nothing, for a packet never sent, acknowledged before, or sent over 60 s ago.
  bool acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    if (acked_ns < 0 || acked_ns > kMaxTimeNs) return false;
    const std::int64_t now_ns = std::max(now_ns_, acked_ns);
    std::int32_t index = outstanding_.take(packet);
    if (index == detail::kNone) index = given_up_.take(packet);
    if (index == detail::kNone) return false;
    detail::Record& r = record(index);
    const bool forgotten = now_ns - r.sent_ns > kForgetNs;
    if (r.status == detail::Status::kInFlight) settle(index);
    r.status = detail::Status::kAcked;
    if (!r.in_view) free_.push_back(index);  // its fields stay valid until the next send
    if (forgotten) return false;

    now_ns_ = now_ns;
    if (state_.last_ack_ns != detail::kNever && now_ns - state_.last_ack_ns >= kHoleNs) {
      state_.hole_ns = now_ns - state_.last_ack_ns;
      state_.hole_end_ns = now_ns;
    }
    state_.last_ack_ns = now_ns;
    if (std::isfinite(latency_us) && latency_us >= 0) {
      r.token[feature("latency_us")] = latency_us;
      r.token[feature("latency_visible")] = 1;
      state_.last_latency_us = latency_us;
      state_.last_latency_queue_us[r.queue] = latency_us;
      touch(r.flow_id).now.last_latency_us = latency_us;
    }
    return true;
  }

  // Writes the window x_WF (W tokens of F features) of a decision about `candidates` at
  // `decision_ns`, and returns the packets in flight then, or -1 for a candidate `sent` would
  // refuse. Changes nothing: the same decision can be asked for several candidate queues.
  int window(std::int64_t decision_ns, const std::array<Candidate, kHorizon>& candidates,
             float* x_WF) const {
    if (!std::all_of(candidates.begin(), candidates.end(), valid)) return -1;
    const std::int64_t now_ns = std::max(now_ns_, std::min(decision_ns, kMaxTimeNs));
    // Packets in flight at the last event that are given up by now are the oldest in the list.
    detail::SenderState state = state_;
    std::int32_t live = head_;  // the oldest packet in flight
    std::int32_t expired = detail::kNone;
    while (live != detail::kNone && now_ns - record(live).sent_ns >= kGiveUpNs) {
      --state.in_flight;
      --state.in_flight_queue[record(live).queue];
      expired = live;
      live = record(live).newer;
    }
    state.oldest_unacked_ns = live == detail::kNone ? detail::kNever : record(live).sent_ns;
    write_history(x_WF, now_ns, state.in_flight, expired);

    float* token = x_WF + static_cast<std::ptrdiff_t>(history_) * kFeatureCount;
    for (std::size_t i = 0; i < candidates.size(); ++i, token += kFeatureCount) {
      const Candidate& what = candidates[i];
      const auto known = flows_.find(what.flow_id);
      detail::FlowState flow = known == flows_.end() ? detail::FlowState{} : known->second.now;
      for (std::int32_t e = head_; e != live; e = record(e).newer) {
        if (record(e).flow_id == what.flow_id) --flow.in_flight;
      }
      std::fill_n(token, kFeatureCount, 0.0F);
      write_token(token, what,
                  flow.first_sent_ns == detail::kNever ? 0 : now_ns - flow.first_sent_ns);
      write_derived(token, state, flow, what.queue, now_ns);
      token[feature("candidate")] = 1;
      if (i == 0 && last_packet_ >= 0) {  // when the others will be sent is not known
        token[feature("gap_us")] = detail::microseconds(now_ns - last_sent_ns_);
      }
    }
    return state.in_flight;
  }

 private:
  static bool valid(const Candidate& c) { return c.size_bytes > 0 && c.queue < kQueues; }

  detail::Record& record(std::int32_t i) { return pool_[static_cast<std::size_t>(i)]; }
  const detail::Record& record(std::int32_t i) const { return pool_[static_cast<std::size_t>(i)]; }

  std::int32_t new_record() {
    if (free_.empty()) {
      pool_.emplace_back();
      return static_cast<std::int32_t>(pool_.size() - 1);
    }
    const std::int32_t index = free_.back();
    free_.pop_back();
    return index;
  }

  // The flow's entry, about to be changed: keeps its state at the current batch's decision time.
  detail::Flow& touch(std::int32_t flow_id) {
    detail::Flow& flow = flows_[flow_id];
    if (flow.batch_number != batch_number_) {
      flow.at_decision = flow.now;
      flow.batch_number = batch_number_;
    }
    return flow;
  }

  // Takes a packet out of the list in flight, and into the view of settled ones if new enough.
  void settle(std::int32_t index) {
    detail::Record& r = record(index);
    (r.older == detail::kNone ? head_ : record(r.older).newer) = r.newer;
    (r.newer == detail::kNone ? tail_ : record(r.newer).older) = r.older;
    --state_.in_flight;
    --state_.in_flight_queue[r.queue];
    --touch(r.flow_id).now.in_flight;

    auto place = view_.end();
    while (place != view_.begin() && record(*(place - 1)).packet > r.packet) --place;
    const bool full = view_.size() == static_cast<std::size_t>(history_);
    if (full && place == view_.begin()) return;  // older than all in view, so never in view
    view_.insert(place, index);
    r.in_view = true;
    if (!full) return;
    const std::int32_t oldest = view_.front();
    view_.erase(view_.begin());
    record(oldest).in_view = false;
    if (record(oldest).status == detail::Status::kAcked) free_.push_back(oldest);
  }

  void give_up_and_forget() {
    while (head_ != detail::kNone && now_ns_ - record(head_).sent_ns >= kGiveUpNs) {
      const std::int32_t index = head_;
      outstanding_.take(record(index).packet);
      record(index).status = detail::Status::kGivenUp;
      given_up_.push(record(index).packet, index);
      settle(index);
    }
    for (std::int32_t index = given_up_.front();
         index != detail::kNone && now_ns_ - record(index).sent_ns > kForgetNs;
         index = given_up_.front()) {
      given_up_.take(record(index).packet);
      record(index).status = detail::Status::kAcked;  // no more to come
      if (!record(index).in_view) free_.push_back(index);
    }
  }

  // What is known of a packet by itself.
  static void write_token(float* token, const Candidate& what, std::int64_t flow_age_ns) {
    token[feature("flow_age_us")] = detail::microseconds(flow_age_ns);
    token[feature("size_bytes")] = static_cast<float>(what.size_bytes);
    detail::write_code(token + feature("flow_code_0"), 4, what.flow_id);
    detail::write_code(token + feature("receiver_code_0"), 2, what.receiver_id);
    token[feature("queue_l4s")] = what.queue;
  }

  // The derived inputs of a packet as of its batch's decision time (all but gap_us).
  static void write_derived(float* token, const detail::SenderState& sender,
                            const detail::FlowState& flow, std::uint8_t queue,
                            std::int64_t decision_ns) {
    using detail::kNever;
    const auto since = [decision_ns](std::int64_t ns) {
      return detail::microseconds(ns == kNever ? 0 : decision_ns - ns);
    };
    token[feature("in_flight")] = static_cast<float>(sender.in_flight);
    token[feature("in_flight_flow")] = static_cast<float>(flow.in_flight);
    token[feature("in_flight_queue")] = static_cast<float>(sender.in_flight_queue[queue]);
    token[feature("last_latency_us")] = sender.last_latency_us;
    token[feature("last_latency_flow_us")] = flow.last_latency_us;
    token[feature("last_latency_queue_us")] = sender.last_latency_queue_us[queue];
    token[feature("ack_silence_us")] =
        since(sender.last_ack_ns == kNever ? sender.first_sent_ns : sender.last_ack_ns);
    token[feature("oldest_unacked_us")] = since(sender.oldest_unacked_ns);
    token[feature("hole_us")] = detail::microseconds(std::min(sender.hole_ns, kHoleCapNs));
    token[feature("hole_age_us")] = detail::microseconds(
        sender.hole_end_ns == kNever ? kHoleAgeCapNs
                                     : std::min(decision_ns - sender.hole_end_ns, kHoleAgeCapNs));
  }

  // Of K = W - 8 places, the newest u packets in flight and the newest a settled ones (acknowledged
  // or given up), both kinds always in view, merged in send order and padded on the left.
  // `expired`: the newest packet of the list in flight that is given up by now, or kNone.
  void write_history(float* x_WF, std::int64_t now_ns, int in_flight, std::int32_t expired) const {
    const auto linked = static_cast<int>(state_.in_flight);
    const int settled = static_cast<int>(view_.size()) + (linked - in_flight);
    int u = std::min(in_flight, std::max(history_ / 2, history_ - settled));
    int a = std::min(settled, history_ - u);
    float* const first = x_WF + static_cast<std::ptrdiff_t>(history_ - u - a) * kFeatureCount;
    std::fill(x_WF, first, 0.0F);

    std::int32_t unacked = tail_;
    std::size_t seen = view_.size();  // view_[seen - 1] comes next
    for (float* end = x_WF + static_cast<std::ptrdiff_t>(history_) * kFeatureCount; end != first;
         end -= kFeatureCount) {
      // Three lists, newest first: in flight, settled, just given up (the latter two share `a`).
      std::int32_t next = u > 0 ? unacked : detail::kNone;
      std::int32_t old = seen > 0 ? view_[seen - 1] : detail::kNone;
      bool from_view = old != detail::kNone;
      if (expired != detail::kNone && (!from_view || record(expired).packet > record(old).packet)) {
        old = expired;
        from_view = false;
      }
      if (a > 0 && (next == detail::kNone || record(old).packet > record(next).packet)) {
        next = old;
        --a;
        if (from_view) {
          --seen;
        } else {
          expired = record(expired).older;
        }
      } else {
        --u;
        unacked = record(unacked).older;
      }
      float* const token = end - kFeatureCount;
      std::memcpy(token, record(next).token.data(), sizeof(detail::Token));
      token[feature("age_us")] = detail::microseconds(now_ns - record(next).sent_ns);
    }
  }

  int tokens_;
  int history_;  // K
  std::int64_t now_ns_ = 0;
  std::int64_t last_packet_ = -1;
  std::int64_t last_sent_ns_ = detail::kNever;
  std::int64_t batch_number_ = detail::kNever;  // of the last packet sent
  std::int64_t decision_ns_ = detail::kNever;   // when that batch was decided
  detail::SenderState state_;                   // oldest_unacked_ns is filled in where it is read
  detail::SenderState at_decision_;
  std::unordered_map<std::int32_t, detail::Flow> flows_;
  std::vector<detail::Record> pool_;
  std::vector<std::int32_t> free_;
  std::int32_t head_ = detail::kNone;  // oldest packet in flight
  std::int32_t tail_ = detail::kNone;  // newest
  detail::PacketIndex outstanding_;    // the packets in flight
  detail::PacketIndex given_up_;       // given up, not acknowledged, not forgotten
  std::vector<std::int32_t> view_;     // the newest K settled packets, in send order
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_WINDOW_H_
