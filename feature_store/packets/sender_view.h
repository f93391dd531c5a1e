// Turns a capture made at the receiver into what its sender saw, by TCP timestamps (RFC 7323).
//
// A data packet carries the sender's clock (TSval); an ACK carries the receiver's, and the sender
// echoes it (TSecr) in what it sends next. So the first packet that echoes an ACK tells, in the
// sender's clock, when that ACK had come. Both ends of a latency are then readings of one clock,
// wherever they are seen.
#ifndef FEATURE_STORE_SENDER_VIEW_H_
#define FEATURE_STORE_SENDER_VIEW_H_

#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "flow_key.h"
#include "segment.h"

namespace swiftqueue {

class SenderView {
 public:
  // `tick_ns` is the length of one count of the sender's TSval.
  SenderView(const Address& sender, std::int64_t tick_ns) : sender_(sender), tick_ns_(tick_ns) {}

  // Returns the sender's segments stamped with its own clock, and the ACKs to it at the time and
  // place of their first echo. The clock of a flow starts at the capture's time of its first
  // segment, so stamps leave out that segment's one-way delay. Valid until the next call.
  std::span<const Segment> Translate(std::span<const Segment> segments);

  std::int64_t without_timestamps() const { return without_timestamps_; }

 private:
  static constexpr std::size_t kMaxHeld = 1 << 16;  // ACKs of a flow that nothing echoes; 6 MB

  struct Flow {
    std::int64_t start_ns = 0;
    std::int64_t ticks = 0;  // ticks of `last_value` since the flow's first segment
    std::uint32_t last_value = 0;
    bool started = false;
    std::deque<Segment> held;  // ACKs not echoed yet
  };

  void FromSender(const Segment& segment);
  void ToSender(const Segment& segment);

  Address sender_;
  std::int64_t tick_ns_;
  std::unordered_map<FlowKey, Flow, FlowKeyHash> flows_;
  std::vector<Segment> out_;
  std::int64_t without_timestamps_ = 0;
};

}  // namespace swiftqueue

#endif  // FEATURE_STORE_SENDER_VIEW_H_
