// Defines the C interface that pcaplib.py loads. Handles are opaque, and bad input throws nothing.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "match.h"
#include "pcap.h"
#include "sender_view.h"
#include "stamp_order.h"

static_assert(sizeof(swiftqueue::FlowKey) == 38);

using swiftqueue::Address;
using swiftqueue::Capture;
using swiftqueue::Columns;
using swiftqueue::Matcher;
using swiftqueue::Segment;
using swiftqueue::SenderView;
using swiftqueue::Skip;
using swiftqueue::StampOrder;

namespace {

// Counts of TCP payload by source address, to find the sender of a capture.
class Traffic {
 public:
  void Add(const Segment* segments, std::size_t n) {
    for (const Segment* segment = segments; segment != segments + n; ++segment) {
      if (segment->kind != swiftqueue::kTcp || segment->payload_bytes == 0) continue;
      if (last_ == nullptr || last_->first != segment->source) {
        last_ = &*bytes_.try_emplace(segment->source).first;
      }
      last_->second += segment->payload_bytes;
    }
  }

  // Returns the address that sent most; of two equals the lower one, so the answer is always the
  // same.
  std::int64_t Heaviest(Address* address) const {
    std::int64_t most = 0;
    for (const auto& [candidate, bytes] : bytes_) {
      if (bytes < most || (bytes == most && candidate > *address)) continue;
      most = bytes;
      *address = candidate;
    }
    return most;
  }

  std::int64_t BytesFrom(const Address& address) const {
    const auto known = bytes_.find(address);
    return known == bytes_.end() ? 0 : known->second;
  }

 private:
  std::unordered_map<Address, std::int64_t, swiftqueue::AddressHash> bytes_;
  std::pair<const Address, std::int64_t>* last_ = nullptr;
};

}  // namespace

extern "C" {

struct SqStats {
  std::int64_t known, sharp, min_ns, max_ns, clock_steps, acks, copies, left_out, retransmitted,
      flows, receivers, cut_sacks, unacknowledged, sent_again, off_clock, silent_packets,
      midway_flows, new_acks, full_acks, near_sender, near_receiver, span_ns;
};

Capture* sq_capture_new() { return new Capture; }
void sq_capture_free(Capture* capture) { delete capture; }

// Returns the number of segments written to `out`.
std::size_t sq_capture_feed(Capture* capture, const std::uint8_t* bytes, std::size_t size, int last,
                            Segment* out, std::size_t capacity, std::size_t* consumed) {
  const Capture::Fed fed = capture->Feed({bytes, size}, last != 0, {out, capacity});
  *consumed = fed.consumed;
  return fed.segments;
}

std::int32_t sq_capture_state(const Capture* capture) {
  return static_cast<std::int32_t>(capture->state());
}

// Writes one count per Skip, in its order; returns the number of records read.
std::int64_t sq_capture_counts(const Capture* capture, std::int64_t* skipped) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(Skip::kCount); ++i) {
    skipped[i] = capture->skipped(static_cast<Skip>(i));
  }
  return capture->records();
}

StampOrder* sq_order_new() { return new StampOrder; }
void sq_order_free(StampOrder* order) { delete order; }
// Returns how many of `held + fresh` segments are ready; sets `fresh` to how many were looked at.
std::size_t sq_order_take(StampOrder* order, Segment* segments, std::size_t held,
                          std::size_t* fresh, const Capture* capture, int last) {
  const StampOrder::Taken taken = order->Take({segments, held + *fresh}, held, capture->in_order(),
                                              capture->many_interfaces(), last != 0);
  *fresh = taken.fresh;
  return taken.ready;
}

Traffic* sq_traffic_new() { return new Traffic; }
void sq_traffic_free(Traffic* traffic) { delete traffic; }
void sq_traffic_add(Traffic* traffic, const Segment* segments, std::size_t n) {
  traffic->Add(segments, n);
}
std::int64_t sq_traffic_heaviest(const Traffic* traffic, std::uint8_t* address) {
  Address heaviest{};
  const std::int64_t bytes = traffic->Heaviest(&heaviest);
  std::memcpy(address, heaviest.data(), heaviest.size());
  return bytes;
}
std::int64_t sq_traffic_from(const Traffic* traffic, const std::uint8_t* address) {
  Address from;
  std::memcpy(from.data(), address, from.size());
  return traffic->BytesFrom(from);
}

SenderView* sq_sender_view_new(const std::uint8_t* sender, std::int64_t tick_ns) {
  Address address;
  std::memcpy(address.data(), sender, address.size());
  return new SenderView(address, tick_ns);
}
void sq_sender_view_free(SenderView* view) { delete view; }
std::int64_t sq_sender_view_without_timestamps(const SenderView* view) {
  return view->without_timestamps();
}

// Pushes the segments, or the sender's view of them if `view` is not null.
void sq_matcher_push(Matcher* matcher, SenderView* view, const Segment* segments, std::size_t n) {
  const std::span captured(segments, n);
  if (view == nullptr) {
    matcher->Push(captured);
  } else {
    matcher->Push(view->Translate(captured), captured);
  }
}

// `mode` is a value of Matcher::Mode.
Matcher* sq_matcher_new(const std::uint8_t* sender, int mode, std::int64_t sharp_ns,
                        double sharp_share) {
  Address address;
  std::memcpy(address.data(), sender, address.size());
  return new Matcher(address, static_cast<Matcher::Mode>(mode), sharp_ns, sharp_share);
}
void sq_matcher_free(Matcher* matcher) { delete matcher; }
void sq_matcher_finish(Matcher* matcher) { matcher->Finish(); }
std::size_t sq_matcher_drain(Matcher* matcher, const Columns* columns, std::size_t capacity) {
  return matcher->Drain(*columns, capacity);
}
void sq_matcher_stats(const Matcher* matcher, SqStats* out) {
  const auto& stats = matcher->stats();
  const Matcher::Evidence evidence = matcher->evidence();
  *out = {stats.known(),
          stats.sharp(),
          stats.min_ns(),
          stats.max_ns(),
          matcher->clock_steps(),
          matcher->acks(),
          matcher->copies(),
          matcher->left_out(),
          matcher->retransmitted(),
          matcher->flows(),
          matcher->receivers(),
          matcher->cut_sacks(),
          evidence.unacknowledged,
          evidence.sent_again,
          evidence.off_clock,
          evidence.silent_packets,
          evidence.midway_flows,
          evidence.new_acks,
          evidence.full_acks,
          evidence.handshakes_near_sender,
          evidence.handshakes_near_receiver,
          evidence.span_ns};
}
// Writes up to `capacity` flow keys of 38 bytes each; returns how many there are.
std::size_t sq_matcher_control_flows(const Matcher* matcher, swiftqueue::FlowKey* keys,
                                     std::size_t capacity) {
  const std::vector<swiftqueue::FlowKey> control = matcher->ControlFlows();
  std::copy_n(control.begin(), std::min(capacity, control.size()), keys);
  return control.size();
}
void sq_matcher_leave_out(Matcher* matcher, const swiftqueue::FlowKey* keys, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) matcher->LeaveOut(keys[i]);
}
std::size_t sq_matcher_buckets(const Matcher* matcher, const std::int64_t** buckets) {
  *buckets = matcher->stats().buckets().data();
  return matcher->stats().buckets().size();
}

}  // extern "C"
