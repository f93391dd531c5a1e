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
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "feature_store/events/sizes.h"

namespace swiftqueue {

inline constexpr int kLayoutVersion = 1;  // of the token layout and the rules; part of the schema
inline constexpr int kQueues = 2;         // 0 classic, 1 l4s (RFC 9332 section 2.1)

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
  std::int32_t overdue = 0;  // of those in flight: see SenderWindow::overdue_
};

enum class Status : std::uint8_t { kInFlight, kGivenUp, kAcked };

// One packet sent; records live in a pool and are referred to by their index.
struct Record {
  std::int64_t packet;
  std::int64_t sent_ns;
  Flow* flow;
  std::int32_t older;  // neighbours in the list of packets in flight
  std::int32_t newer;  // of a free record: the next free one
  std::uint8_t queue;
  Status status;
  bool in_view;  // among the newest settled packets
  bool overdue;  // in flight, but given up as of the last decision
  Token token;

  std::int32_t& next_free() { return newer; }
};

// Records of any number of windows or streams. Grows by whole chunks, so that nothing is copied,
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
using RecordPool = ChunkPool<Record>;

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
  // To a power of two that holds what is not erased.
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

}  // namespace detail

// A sender's log of SEND and ACK events, viewed as windows. Feed events in time order, at one
// instant ACKs before sends; a time before the last event's counts as that event's time. Not
// thread-safe. A window costs O(W) and an event O(1) (an ACK out of send order O(W)); packets are
// given up at O(1) each, where decision times do not fall. Memory is allocated only when more
// packets are remembered, or more flows exist, than before.
class SenderWindow {
 public:
  using Pool = std::shared_ptr<detail::RecordPool>;

  // `tokens` W: history of W - 8 packets, then the 8 candidates. Windows of one thread may share a
  // pool.
  explicit SenderWindow(int tokens, Pool pool = std::make_shared<detail::RecordPool>())
      : tokens_(tokens), history_(tokens - kHorizon), pool_(std::move(pool)) {
    if (tokens <= kHorizon || tokens > kMaxTokens || tokens % 8 != 0) {
      throw std::invalid_argument("tokens must be a multiple of 8 in 16..4096");
    }
    view_.reserve(2 * static_cast<std::size_t>(history_) + 1);
  }
  ~SenderWindow() {
    if (pool_.use_count() == 1) return;
    const auto give_back = [this](std::int32_t i) {
      if (!record(i).in_view) pool_->give_back(i);
    };
    outstanding_.each(give_back);
    given_up_.each(give_back);
    for (std::size_t i = view_begin_; i < view_.size(); ++i) pool_->give_back(view_[i]);
  }
  SenderWindow(const SenderWindow&) = delete;
  SenderWindow& operator=(const SenderWindow&) = delete;

  int tokens() const { return tokens_; }
  const Pool& pool() const { return pool_; }
  // Packets remembered because an ACK may come: in flight, or given up and not forgotten.
  std::int32_t remembered() const { return outstanding_.size() + given_up_.size(); }
  // Packets given up and forgotten before their time, for want of room.
  std::int64_t overflowed() const { return overflowed_; }
  std::size_t flows() const { return flows_.size(); }
  // Packets looked at so far because they were, or might be, given up: what expiry has cost.
  std::int64_t expiry_steps() const { return expiry_steps_; }

  // Gives up and forgets the oldest packet that is remembered, before its time. False: none is.
  bool give_up_oldest() {
    if (given_up_.front() == detail::kNone) {
      if (head_ == detail::kNone) return false;
      give_up(head_);
    }
    forget(given_up_.front());
    ++overflowed_;
    return true;
  }

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
    detail::Flow& flow = touch(flows_[what.flow_id]);
    if (flow.now.first_sent_ns == detail::kNever) flow.now.first_sent_ns = now_ns_;

    if (remembered() >= kMaxRemembered) give_up_oldest();
    const std::int32_t index = pool_->take();
    detail::Record& r = record(index);
    r = {packet, now_ns_, &flow, tail_, detail::kNone, what.queue, detail::Status::kInFlight,
         false,  false,   {}};
    write_token(r.token.data(), what, now_ns_ - flow.now.first_sent_ns);
    write_derived(r.token.data(), at_decision_, flow.at_decision, what.queue, decision_ns_);
    if (last_packet_ >= 0) {
      r.token[feature("gap_us")] = detail::microseconds(now_ns_ - last_sent_ns_);
    }

    (tail_ == detail::kNone ? head_ : record(tail_).newer) = index;
    tail_ = index;
    if (live_ == detail::kNone) live_ = index;
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
  // changes nothing, for a packet never sent, acknowledged before, or forgotten: sent over 60 s
  // ago.
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
    if (!r.in_view) pool_->give_back(index);  // its fields stay valid until the next send
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
      touch(*r.flow).now.last_latency_us = latency_us;
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
    mark_overdue(now_ns);
    detail::SenderState state = state_;
    for (std::size_t q = 0; q < kQueues; ++q) {
      state.in_flight -= overdue_[q];
      state.in_flight_queue[q] -= overdue_[q];
    }
    state.oldest_unacked_ns = live_ == detail::kNone ? detail::kNever : record(live_).sent_ns;
    write_history(x_WF, now_ns, state.in_flight, newest_overdue());

    float* token = x_WF + static_cast<std::ptrdiff_t>(history_) * kFeatureCount;
    for (std::size_t i = 0; i < candidates.size(); ++i, token += kFeatureCount) {
      const Candidate& what = candidates[i];
      const auto known = flows_.find(what.flow_id);
      detail::FlowState flow = known == flows_.end() ? detail::FlowState{} : known->second.now;
      if (known != flows_.end()) flow.in_flight -= known->second.overdue;
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

  detail::Record& record(std::int32_t i) { return (*pool_)[i]; }
  const detail::Record& record(std::int32_t i) const { return (*pool_)[i]; }

  // A flow about to be changed: keeps its state at the current batch's decision time.
  detail::Flow& touch(detail::Flow& flow) {
    if (flow.batch_number != batch_number_) {
      flow.at_decision = flow.now;
      flow.batch_number = batch_number_;
    }
    return flow;
  }

  // Which packets in flight are given up as of a decision is remembered from one decision to the
  // next, so that each is counted once, and not by every window after a silence. What a window
  // says does not depend on it.
  void mark_overdue(std::int64_t now_ns) const {
    const auto given_up = [&](std::int32_t i) {
      ++expiry_steps_;
      return now_ns - record(i).sent_ns >= kGiveUpNs;
    };
    for (; live_ != detail::kNone && given_up(live_); live_ = record(live_).newer) {
      count_overdue((*pool_)[live_], true);
    }
    for (std::int32_t i = newest_overdue(); i != detail::kNone && !given_up(i);
         i = newest_overdue()) {
      count_overdue((*pool_)[i], false);
      live_ = i;
    }
  }

  void count_overdue(detail::Record& r, bool overdue) const {
    r.overdue = overdue;
    overdue_[r.queue] += overdue ? 1 : -1;
    r.flow->overdue += overdue ? 1 : -1;
  }

  std::int32_t newest_overdue() const {
    return live_ == detail::kNone ? tail_ : record(live_).older;
  }

  // Takes a packet out of the list in flight, and into the view of settled ones if new enough.
  void settle(std::int32_t index) {
    detail::Record& r = record(index);
    if (r.overdue) count_overdue(r, false);
    if (index == live_) live_ = r.newer;
    (r.older == detail::kNone ? head_ : record(r.older).newer) = r.newer;
    (r.newer == detail::kNone ? tail_ : record(r.newer).older) = r.older;
    --state_.in_flight;
    --state_.in_flight_queue[r.queue];
    --touch(*r.flow).now.in_flight;

    auto place = view_.end();
    const auto begin = view_.begin() + static_cast<std::ptrdiff_t>(view_begin_);
    while (place != begin && record(*(place - 1)).packet > r.packet) --place;
    const bool full = viewed() == static_cast<std::size_t>(history_);
    if (full && place == begin) return;  // older than all in view, so never in view
    view_.insert(place, index);
    r.in_view = true;
    if (!full) return;
    const std::int32_t oldest = view_[view_begin_++];
    if (view_begin_ == static_cast<std::size_t>(history_)) {
      view_.erase(view_.begin(), view_.begin() + history_);
      view_begin_ = 0;
    }
    record(oldest).in_view = false;
    if (record(oldest).status == detail::Status::kAcked) pool_->give_back(oldest);
  }

  std::size_t viewed() const { return view_.size() - view_begin_; }

  void give_up(std::int32_t index) {
    outstanding_.take(record(index).packet);
    record(index).status = detail::Status::kGivenUp;
    given_up_.push(record(index).packet, index);
    settle(index);
  }

  // A packet that was given up: no ACK of it counts any more.
  void forget(std::int32_t index) {
    given_up_.take(record(index).packet);
    record(index).status = detail::Status::kAcked;
    if (!record(index).in_view) pool_->give_back(index);
  }

  void give_up_and_forget() {
    for (; head_ != detail::kNone && now_ns_ - record(head_).sent_ns >= kGiveUpNs;
         ++expiry_steps_) {
      give_up(head_);
    }
    for (std::int32_t index = given_up_.front();
         index != detail::kNone && now_ns_ - record(index).sent_ns > kForgetNs;
         index = given_up_.front(), ++expiry_steps_) {
      forget(index);
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
    const int settled = static_cast<int>(viewed()) + (linked - in_flight);
    int u = std::min(in_flight, std::max(history_ / 2, history_ - settled));
    int a = std::min(settled, history_ - u);
    float* const first = x_WF + static_cast<std::ptrdiff_t>(history_ - u - a) * kFeatureCount;
    std::fill(x_WF, first, 0.0F);

    std::int32_t unacked = tail_;
    std::size_t seen = view_.size();  // view_[seen - 1] comes next, down to view_begin_
    for (float* end = x_WF + static_cast<std::ptrdiff_t>(history_) * kFeatureCount; end != first;
         end -= kFeatureCount) {
      // Three lists, newest first: in flight, settled, just given up (the latter two share `a`).
      std::int32_t next = u > 0 ? unacked : detail::kNone;
      std::int32_t old = seen > view_begin_ ? view_[seen - 1] : detail::kNone;
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
  Pool pool_;
  std::int32_t head_ = detail::kNone;  // oldest packet in flight
  std::int32_t tail_ = detail::kNone;  // newest
  // As of the last decision: the oldest packet in flight that is not overdue, and how many are, by
  // queue.
  mutable std::int32_t live_ = detail::kNone;
  mutable std::array<std::int32_t, kQueues> overdue_{};
  mutable std::int64_t expiry_steps_ = 0;
  std::int64_t overflowed_ = 0;
  detail::PacketIndex outstanding_;  // the packets in flight
  detail::PacketIndex given_up_;     // given up, not acknowledged, not forgotten
  std::vector<std::int32_t> view_;  // from view_begin_: the newest K settled packets, in send order
  std::size_t view_begin_ = 0;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_WINDOW_H_
