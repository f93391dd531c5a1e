#include "sender_view.h"

#include <algorithm>

namespace swiftqueue {
namespace {

// Returns the distance from `b` to `a` in the circular space of timestamps (RFC 7323, 5.2).
std::int32_t Since(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b); }

}  // namespace

std::span<const Segment> SenderView::Translate(std::span<const Segment> segments) {
  out_.clear();
  for (const Segment& segment : segments) {
    if (segment.kind != kTcp) continue;
    if (segment.source == sender_) FromSender(segment);
    if (segment.destination == sender_ && segment.flags & kAck) ToSender(segment);
  }
  return out_;
}

void SenderView::FromSender(const Segment& segment) {
  if (!segment.has_timestamps) {
    without_timestamps_ += segment.payload_bytes > 0;
    return;
  }
  Flow& flow = flows_[FlowOf(segment)];
  if (!flow.started || segment.flags & kSyn) {
    flow = Flow{.start_ns = segment.time_ns,
                .ticks = 0,
                .last_value = segment.timestamp_value,
                .started = true,
                .held = {}};
  }
  flow.ticks += Since(segment.timestamp_value, flow.last_value);
  flow.last_value = segment.timestamp_value;
  Segment stamped = segment;
  // ns = ns + counts · ns/count; a hostile clock is kept within the range of times.
  stamped.time_ns = static_cast<std::int64_t>(std::clamp<__int128>(
      static_cast<__int128>(flow.ticks) * tick_ns_ + flow.start_ns, 0, std::int64_t{1} << 62));
  if (segment.flags & kAck) {
    for (; !flow.held.empty() &&
           Since(segment.timestamp_echo, flow.held.front().timestamp_value) >= 0;
         flow.held.pop_front()) {
      out_.push_back(flow.held.front());
      out_.back().time_ns = stamped.time_ns;
    }
  }
  out_.push_back(stamped);
}

void SenderView::ToSender(const Segment& segment) {
  const auto known = flows_.find(ReverseFlowOf(segment));
  if (known == flows_.end() || !segment.has_timestamps) return;
  std::deque<Segment>& held = known->second.held;
  // The last of the ACKs within one tick of the receiver's clock replaces the others.
  if (!held.empty() && held.back().timestamp_value == segment.timestamp_value &&
      Since(segment.acknowledgment, held.back().acknowledgment) >= 0) {
    held.back() = segment;
    return;
  }
  if (held.size() == kMaxHeld) held.pop_front();
  held.push_back(segment);
}

}  // namespace swiftqueue
