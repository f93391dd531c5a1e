#include "match.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>

namespace swiftqueue {
namespace {

// Longest time of a packet through a host; a retransmission comes a round trip later.
constexpr std::int64_t kCopyNs = 5'000'000;
// No timer retransmits so soon, so two equal packets without an ACK between them are one.
constexpr std::int64_t kNoTimerNs = 1'000'000;
constexpr int kMostLooks = 1024;  // recent packets of a flow that are looked at
// A row waits this long for its ACK. RFC 1122 4.2.3.5: a TCP gives up after at least 100 s.
constexpr std::int64_t kMaxWaitNs = 120'000'000'000;
constexpr std::int64_t kMaxWaiting = std::int64_t{1} << 21;  // rows; 150 MB with their bookkeeping
constexpr std::int64_t kMaxWindow = std::int64_t{1} << 30;   // RFC 7323 2.3
constexpr std::int64_t kOpeningNs = 1'000'000'000;           // limit for the answers to a SYN
constexpr std::int64_t kFarther = 4;    // ratio of answer times from which an end is the far one
constexpr std::int64_t kShortFlow = 8;  // one batch: HORIZON of schema.py
constexpr double kControlShare = 1e-4;
constexpr std::size_t kCompactFrom = 1024;

// Returns the sequence number nearest to `reference` whose lower 32 bits are `low`.
std::int64_t Unwrap(std::int64_t reference, std::uint32_t low) {
  return reference + static_cast<std::int32_t>(low - static_cast<std::uint32_t>(reference));
}

// A SYN takes the sequence number before its payload (TCP Fast Open).
std::uint32_t FirstByte(const Segment& segment) {
  return segment.sequence + (segment.flags & kSyn ? 1u : 0u);
}

}  // namespace

void Matcher::Push(std::span<const Segment> segments, std::span<const Segment> captured) {
  for (const Segment& segment : captured) {
    if (segment.kind != kTcp) continue;
    const TraceClock::Reading now = captures_clock_.Read(segment.time_ns);
    if (IsOpening(segment, now)) Open(segment, now);
  }
  for (const Segment& segment : segments) {
    if (segment.kind != kTcp) continue;
    const TraceClock::Reading now = clock_.Read(segment.time_ns);
    if (first_ns_ < 0) first_ns_ = now.time_ns;
    evidence_.span_ns = now.time_ns - first_ns_;
    ForgetOldest(now.time_ns);
    if (!at_receiver_ && IsOpening(segment, now)) Open(segment, now);
    if (segment.destination == sender_ && segment.flags & kAck) Ack(segment, now);
    if (segment.source == sender_ && (segment.payload_bytes > 0 || segment.flags & kSyn)) {
      Data(segment, now);
    }
  }
}

// Follows the first three segments of a connection: the answers of the end that is near come at
// once, those of the far end after a round trip.
void Matcher::Open(const Segment& segment, TraceClock::Reading now) {
  const bool from_sender = segment.source == sender_;
  const FlowKey key = from_sender ? FlowOf(segment) : ReverseFlowOf(segment);
  if (!from_sender && segment.destination != sender_) return;
  const bool syn = segment.flags & kSyn, ack = segment.flags & kAck;
  if (syn && !ack) {
    if (handshakes_.size() >= kMostHandshakes) {  // a flood of SYNs tells nothing
      handshakes_.clear();
    }
    handshakes_.try_emplace(key, Handshake{.syn_ns = now.stamp_ns, .from_sender = from_sender});
    opening_until_ns_ = now.time_ns + kOpeningNs;
    return;
  }
  const auto known = handshakes_.find(key);
  if (known == handshakes_.end()) {
    if (syn && from_sender) handshakes_.try_emplace(key, Handshake{.done = true});
    return;
  }
  Handshake& handshake = known->second;
  if (handshake.done) return;
  if (syn) {
    if (handshake.answer_ns < 0) handshake.answer_ns = now.stamp_ns;
    return;
  }
  if (handshake.answer_ns < 0 || from_sender != handshake.from_sender) return;
  handshake.done = true;
  const std::int64_t first = handshake.answer_ns - handshake.syn_ns;
  const std::int64_t second = now.stamp_ns - handshake.answer_ns;
  const std::int64_t receivers = from_sender ? first : second;
  const std::int64_t senders = from_sender ? second : first;
  evidence_.handshakes_near_sender += receivers > kFarther * senders;
  evidence_.handshakes_near_receiver += senders > kFarther * receivers;
}

// Numbers VLANs so that the first one seen, mostly the only one, is 0.
std::uint16_t Matcher::VlanOf(const Segment& segment) {
  if (first_vlan_ < 0) first_vlan_ = segment.vlan;
  if (segment.vlan == first_vlan_) return 0;
  return segment.vlan == 0 ? static_cast<std::uint16_t>(first_vlan_) : segment.vlan;
}

Matcher::Flow& Matcher::FlowFor(const FlowKey& key, const Segment& segment, std::int64_t now_ns) {
  const auto [entry, fresh] = flows_.try_emplace(key);
  Flow& flow = entry->second;
  if (fresh) {
    const auto receivers = static_cast<std::int32_t>(receivers_.size());
    flow.id = static_cast<std::int32_t>(flow_of_id_.size());
    flow.receiver_id = receivers_.try_emplace(segment.destination, receivers).first->second;
    flow.first_number = FirstByte(segment) - 1u;
    flow.began_ns = now_ns;
    flow.sent_end = segment.sequence;
    flow_of_id_.push_back(&flow);  // stable: unordered_map does not move its elements
    if (!handshakes_.empty()) {
      const auto handshake = handshakes_.find(FlowOf(segment));
      flow.opened = handshake != handshakes_.end();
      if (flow.opened && handshake->second.done) handshakes_.erase(handshake);
    }
  }
  return flow;
}

void Matcher::Flow::Compact() {
  // Nothing before the oldest packet is looked for again.
  const std::int64_t oldest = first_head < first.size() ? first[first_head].start
                                                        : std::numeric_limits<std::int64_t>::max();
  while (!sacked.empty() && sacked.begin()->second <= oldest) sacked.erase(sacked.begin());
  if (first_head <= kCompactFrom || first_head * 2 <= first.size()) return;
  first.erase(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(first_head));
  first_head = 0;
}

void Matcher::Flow::SentAgainTo(std::int64_t end) {
  auto range = sacked.lower_bound(end);
  if (range == sacked.begin() || (--range)->second < end) return;
  const std::int64_t right = range->second;
  if (range->first < end - 1) {
    range->second = end - 1;
  } else {
    sacked.erase(range);
  }
  if (right > end) sacked.emplace(end, right);
}

std::vector<Matcher::Outstanding>::iterator Matcher::Flow::FirstFrom(std::int64_t end) {
  return std::lower_bound(first.begin() + static_cast<std::ptrdiff_t>(first_head), first.end(), end,
                          [](const Outstanding& sent, std::int64_t at) { return sent.end < at; });
}

void Matcher::Data(const Segment& segment, TraceClock::Reading now) {
  FlowKey key = FlowOf(segment);
  key.vlan = VlanOf(segment);
  if ((key.vlan != 0 || !elsewhere_.empty()) && segment.payload_bytes > 0 &&
      IsCopyElsewhere(key, segment, now)) {
    ++copies_;
    return;
  }
  if (segment.flags & kSyn) {
    const auto known = flows_.find(key);
    if (known != flows_.end()) {
      // Sent again while nothing was answered, or seen again at once, it is the SYN of this
      // connection.
      Flow& flow = known->second;
      const bool same = segment.sequence == flow.first_number &&
                        (flow.acks == 0 || now.time_ns - flow.began_ns < kCopyNs);
      if (!same) Restart(flow, segment.sequence, now.time_ns);
      flow.opened = true;
    }
    if (segment.payload_bytes == 0) return;  // a flow begins with its first payload
  }
  if (!left_out_.empty() && left_out_.contains(key)) {
    ++left_out_packets_;
    return;
  }
  Flow& flow = FlowFor(key, segment, now.time_ns);
  const std::uint32_t sequence = FirstByte(segment);
  std::int64_t start = Unwrap(flow.sent_end, sequence);
  // No connection's window is so large, so the ports are used anew and the SYN is not in the
  // capture.
  if (std::llabs(start - flow.sent_end) > kMaxWindow) {
    Restart(flow, sequence - 1, now.time_ns);
    start = flow.sent_end;
  }
  const std::int64_t end = start + segment.payload_bytes;
  const bool in_order = start >= flow.sent_end;
  if (!in_order && IsCopy(flow, segment, start, end, now)) {
    ++copies_;
    return;
  }
  const bool again = !in_order && !(at_receiver_ && Reordered(flow, segment));
  ++flow.packets;
  flow.payload_bytes += segment.payload_bytes;
  const std::int64_t row = first_row_ + static_cast<std::int64_t>(rows_.size());
  rows_.push_back({.sent_ns = now.time_ns,
                   .stamp_ns = now.stamp_ns,
                   .end = end,
                   .flow_id = flow.id,
                   .size_bytes = static_cast<std::int32_t>(std::min<std::uint32_t>(
                       segment.ip_bytes, std::numeric_limits<std::int32_t>::max())),
                   .steps = static_cast<std::int32_t>(clock_.steps()),
                   .ecn = segment.ecn,
                   .in_order = in_order,
                   .retransmitted = again});
  if (again) {
    ++retransmitted_;
    SentAgain(flow, start, end);
  }
  if (in_order) {
    const bool acked =
        flow.ahead_ns == now.stamp_ns && flow.ahead_steps == clock_.steps() && end <= flow.ahead;
    flow.first.push_back({start, end, acked ? kSacked : row});
    if (acked) Acknowledge(row, now);
  } else {
    flow.again.emplace(end, Resent{start, row});
    flow.SentAgainTo(end);
  }
  recent_[static_cast<std::size_t>(sent_) % kRecent] = {.start = start,
                                                        .end = end,
                                                        .time_ns = now.time_ns,
                                                        .previous = flow.newest,
                                                        .acknowledgment = segment.acknowledgment,
                                                        .timestamp_value = segment.timestamp_value,
                                                        .timestamp_echo = segment.timestamp_echo,
                                                        .link = segment.link,
                                                        .ip_id = segment.ip_id,
                                                        .vlan = segment.vlan,
                                                        .in_order = in_order};
  flow.newest = sent_++;
  if (end > flow.sent_end) flow.newest_timestamp = segment.timestamp_value;
  flow.sent_end = std::max(flow.sent_end, end);
}

// The connection is over, and its ports carry another one with a sequence space of its own.
void Matcher::Restart(Flow& flow, std::uint32_t first_number, std::int64_t now_ns) {
  Abandon(flow);
  flow.first_number = first_number;
  flow.began_ns = now_ns;
  flow.sent_end = first_number + 1u;
  flow.acks = 0;
  flow.acked_ns = flow.ahead_ns = -1;
  flow.newest = -1;
}

// Returns whether recent packets of the flow show all of the segment's bytes: the same packet seen
// once more on its way through the host, a piece of a super-segment that was seen before the card
// split it, or the other way round.
bool Matcher::IsCopy(const Flow& flow, const Segment& segment, std::int64_t start, std::int64_t end,
                     TraceClock::Reading now) const {
  std::int64_t missing = end;  // bytes from here on were found
  for (bool found = true; found;) {
    found = false;
    std::int64_t number = flow.newest;
    for (int looks = 0; looks < kMostLooks; ++looks) {
      if (number < 0 || number < sent_ - static_cast<std::int64_t>(kRecent)) break;
      const Recent& recent = recent_[static_cast<std::size_t>(number) % kRecent];
      const std::int64_t age_ns = now.time_ns - recent.time_ns;
      if (age_ns >= kCopyNs) break;
      if (recent.start < missing && recent.end >= missing &&
          Shows(recent, flow, segment, start, age_ns)) {
        missing = recent.start;
        found = true;
        if (missing <= start) return true;
      }
      if (recent.in_order && recent.end <= start) break;  // and so are all before it
      number = recent.previous;
    }
  }
  return false;
}

// Returns whether a segment can be the recent packet, a piece of it, or a whole with it as a piece.
bool Matcher::Shows(const Recent& recent, const Flow& flow, const Segment& segment,
                    std::int64_t start, std::int64_t age_ns) {
  if (recent.acknowledgment != segment.acknowledgment ||
      recent.timestamp_value != segment.timestamp_value ||
      recent.timestamp_echo != segment.timestamp_echo) {
    return false;
  }
  const bool has_ids = recent.ip_id != 0 && segment.ip_id != 0;
  const std::int64_t size = recent.end - recent.start;
  const bool same_size = size == segment.payload_bytes && recent.start == start;
  // The pieces of a super-segment are numbered from its own number on, where they are numbered.
  const bool piece = start >= recent.start;
  const std::uint16_t numbers = piece ? segment.ip_id - recent.ip_id : recent.ip_id - segment.ip_id;
  const bool same_id = has_ids && numbers <= (piece ? (start - recent.start) / segment.payload_bytes
                                                    : (recent.start - start) / size);
  if (same_id) return true;
  if (recent.vlan != segment.vlan) return !has_ids;
  if (recent.link != segment.link) return true;
  if (has_ids && same_size) return false;
  return age_ns < kNoTimerNs && flow.acked_ns <= recent.time_ns;
}

// Returns whether a packet was seen in another VLAN a moment ago. A flow whose packets were is one
// flow in both; otherwise equal addresses and ports in two VLANs are two connections. Sets `key` to
// the flow meant.
bool Matcher::IsCopyElsewhere(FlowKey& key, const Segment& segment, TraceClock::Reading now) {
  FlowKey first = key;
  first.vlan = 0;
  const auto copy_of = [&](std::uint16_t vlan) {
    FlowKey other = first;
    other.vlan = vlan;
    const auto known = flows_.find(other);
    if (known == flows_.end()) return false;
    const std::int64_t start = Unwrap(known->second.sent_end, FirstByte(segment));
    return IsCopy(known->second, segment, start, start + segment.payload_bytes, now);
  };
  if (key.vlan == 0) {
    const auto others = elsewhere_.find(first);
    if (others == elsewhere_.end()) return false;
    for (Elsewhere& other : others->second) {
      if (copy_of(other.vlan)) return other.same = true;
    }
    return false;
  }
  std::vector<Elsewhere>& others = elsewhere_[first];
  auto own = std::find_if(others.begin(), others.end(),
                          [&](const Elsewhere& other) { return other.vlan == key.vlan; });
  if (own == others.end()) own = others.insert(own, {key.vlan, false});
  if (copy_of(0)) return own->same = true;
  if (own->same) key.vlan = 0;
  return false;
}

// Returns the flow that an ACK acknowledges, or null.
Matcher::Flow* Matcher::Acknowledged(const Segment& segment) {
  FlowKey key = ReverseFlowOf(segment);
  const FlowKey first = key;
  key.vlan = VlanOf(segment);
  auto known = flows_.find(key);
  if (known == flows_.end() && key.vlan != 0) known = flows_.find(first);
  if (known != flows_.end()) return &known->second;
  if (elsewhere_.empty()) return nullptr;
  const auto others = elsewhere_.find(first);
  if (others == elsewhere_.end()) return nullptr;
  for (const Elsewhere& other : others->second) {
    key.vlan = other.vlan;
    known = flows_.find(key);
    if (known != flows_.end()) return &known->second;
  }
  return nullptr;
}

// At the receiver a packet below the highest number may just have been overtaken: it left the
// sender no later than the one that did.
bool Matcher::Reordered(const Flow& flow, const Segment& segment) {
  return static_cast<std::int32_t>(segment.timestamp_value - flow.newest_timestamp) <= 0;
}

void Matcher::SentAgain(Flow& flow, std::int64_t start, std::int64_t end) {
  // Packets sent once do not overlap, so those that reach beyond `start` are in one piece.
  auto packet = flow.FirstFrom(start + 1);
  for (; packet != flow.first.end() && packet->start < end; ++packet) {
    if (packet->row == kSacked) continue;
    At(packet->row).lost = true;
    At(packet->row).ambiguous |= packet->end <= end;
  }
  for (auto packet = flow.again.upper_bound(start); packet != flow.again.end();) {
    if (packet->second.start >= end) {
      ++packet;
      continue;
    }
    At(packet->second.row).lost = true;
    if (packet->first > end) {  // another piece of it may be sent again
      ++packet;
      continue;
    }
    At(packet->second.row).ambiguous = true;
    flow.again_lost.insert(flow.again.extract(packet++));
  }
}

void Matcher::Ack(const Segment& segment, TraceClock::Reading now) {
  Flow* const known = Acknowledged(segment);
  if (known == nullptr) return;
  ++acks_;
  Flow& flow = *known;
  const std::int64_t acked = Unwrap(flow.sent_end, segment.acknowledgment);
  if (acked > flow.sent_end + kMaxWindow) return;  // a byte that cannot have been sent
  if (flow.acks++ == 0 || acked > flow.acked) {
    flow.acked = acked;
    ++evidence_.new_acks;
    evidence_.full_acks += acked >= flow.sent_end;
  }
  flow.acked_ns = now.time_ns;
  if (acked > flow.sent_end) {
    flow.ahead = acked;
    flow.ahead_ns = now.stamp_ns;
    flow.ahead_steps = clock_.steps();
  }
  Cumulative(flow, acked, now);
  if (selective_) {
    cut_sacks_ += segment.cut_options;
    for (std::size_t i = 0; i < segment.sacks; ++i) Sack(flow, segment.sack[i], now);
  }
  flow.Compact();
}

void Matcher::Cumulative(Flow& flow, std::int64_t acked, TraceClock::Reading now) {
  for (; flow.first_head < flow.first.size() && flow.first[flow.first_head].end <= acked;
       ++flow.first_head) {
    if (flow.first[flow.first_head].row == kSacked) continue;
    Acknowledge(flow.first[flow.first_head].row, now);
  }
  for (auto* resent : {&flow.again, &flow.again_lost}) {
    while (!resent->empty() && resent->begin()->first <= acked) {
      Acknowledge(resent->begin()->second.row, now);
      resent->erase(resent->begin());
    }
  }
}

// Looks at the parts of a block that no earlier block covered, so that many ACKs of the same
// packets cost no more than one.
void Matcher::Sack(Flow& flow, const SackBlock& block, TraceClock::Reading now) {
  const std::int64_t left = Unwrap(flow.sent_end, block.left);
  const std::int64_t right = Unwrap(flow.sent_end, block.right);
  if (left >= right || right > flow.sent_end) return;  // a byte that was not sent
  auto known = flow.sacked.upper_bound(left);
  if (known != flow.sacked.begin() && std::prev(known)->second >= left) --known;
  std::int64_t from = left, begins = left, ends = right;
  bool any = false;
  int ranges = 0;
  const auto merged = known;
  for (; known != flow.sacked.end() && known->first <= right; ++known) {
    any |= Covered(flow, from, known->first, now);
    from = std::max(from, known->second);
    begins = std::min(begins, known->first);
    ends = std::max(ends, known->second);
    ++ranges;
  }
  any |= Covered(flow, from, right, now);
  if (!any && ranges < 2) return;  // two ranges with nothing between them become one
  flow.sacked.erase(merged, known);
  flow.sacked.emplace(begins, ends);
}

// Acknowledges the packets whose last byte lies in [left, right); returns whether there were any.
bool Matcher::Covered(Flow& flow, std::int64_t left, std::int64_t right, TraceClock::Reading now) {
  if (left >= right) return false;
  bool any = false;
  for (auto packet = flow.FirstFrom(left + 1); packet != flow.first.end() && packet->end <= right;
       ++packet) {
    if (packet->row == kSacked) continue;
    Acknowledge(std::exchange(packet->row, kSacked), now);
    any = true;
  }
  for (auto* resent : {&flow.again, &flow.again_lost}) {
    const auto beyond = resent->upper_bound(right);
    for (auto packet = resent->upper_bound(left); packet != beyond;) {
      Acknowledge(packet->second.row, now);
      packet = resent->erase(packet);
      any = true;
    }
  }
  return any;
}

void Matcher::Acknowledge(std::int64_t number, TraceClock::Reading now) {
  Row& row = At(number);
  const std::int64_t latency_ns = now.stamp_ns - row.stamp_ns;
  // Before the first two stamps that differ nothing tells a clock that stands still from one that
  // runs.
  row.early_ack = latency_ns < 0 || row.steps != clock_.steps() || now.stamp_ns == first_ns_;
  row.acked_ns = row.early_ack ? std::max(now.time_ns, row.sent_ns) : row.sent_ns + latency_ns;
  row.done = true;
}

void Matcher::Abandon(Flow& flow) {
  for (; flow.first_head < flow.first.size(); ++flow.first_head) {
    if (flow.first[flow.first_head].row == kSacked) continue;
    At(flow.first[flow.first_head].row).done = true;
  }
  for (auto* resent : {&flow.again, &flow.again_lost}) {
    for (const auto& [end, packet] : *resent) At(packet.row).done = true;
    resent->clear();
  }
  flow.first.clear();
  flow.sacked.clear();
  flow.first_head = 0;
}

// Gives up rows that waited too long, so that a dead connection cannot hold all that were sent
// after it. Called at every record, so that a table does not depend on how the capture was cut into
// pieces.
void Matcher::ForgetOldest(std::int64_t now_ns) {
  const std::int64_t next = first_row_ + static_cast<std::int64_t>(rows_.size());
  for (oldest_ = std::max(oldest_, first_row_); oldest_ < next; ++oldest_) {
    Row& row = At(oldest_);
    if (next - oldest_ <= kMaxWaiting && now_ns - row.sent_ns <= kMaxWaitNs) break;
    if (row.done) continue;
    row.done = true;
    Flow& flow = *flow_of_id_[static_cast<std::size_t>(row.flow_id)];
    if (row.in_order) {
      while (flow.first[flow.first_head].row == kSacked) ++flow.first_head;
      ++flow.first_head;  // rows of one flow are in the same order in both
      flow.Compact();
      continue;
    }
    const auto is_row = [this](const auto& packet) { return packet.second.row == oldest_; };
    for (auto* resent : {&flow.again, &flow.again_lost}) {
      const auto [first, last] = resent->equal_range(row.end);
      const auto packet = std::find_if(first, last, is_row);
      if (packet != last) resent->erase(packet);
    }
  }
}

std::vector<FlowKey> Matcher::ControlFlows() const {
  std::vector<FlowKey> control;
  std::int64_t all_bytes = 0, short_bytes = 0;
  for (const auto& [key, flow] : flows_) {
    all_bytes += flow.payload_bytes;
    if (flow.packets >= kShortFlow) continue;
    short_bytes += flow.payload_bytes;
    control.push_back(key);
  }
  if (static_cast<double>(short_bytes) >= kControlShare * static_cast<double>(all_bytes)) return {};
  return control;
}

Matcher::Evidence Matcher::evidence() const {
  Evidence evidence = evidence_;
  for (const auto& [key, flow] : flows_) {
    if (flow.acks == 0) evidence.silent_packets += flow.packets;
    evidence.midway_flows += !flow.opened;
  }
  return evidence;
}

void Matcher::Finish() {
  for (Row& row : rows_) row.done = true;
}

std::size_t Matcher::Drain(const Columns& out, std::size_t capacity) {
  std::size_t n = 0;
  for (; n < capacity && !rows_.empty() && rows_.front().done; ++n) {
    const Row& row = rows_.front();
    const bool known = row.acked_ns >= 0 && !row.early_ack && !row.retransmitted && !row.ambiguous;
    out.sent_ns[n] = row.sent_ns;
    out.acked_ns[n] = row.acked_ns;
    out.latency_us[n] = std::numeric_limits<float>::quiet_NaN();
    if (!known && !row.retransmitted) {
      evidence_.unacknowledged += row.acked_ns < 0;
      evidence_.off_clock += row.acked_ns >= 0 && row.early_ack;
      evidence_.sent_again += row.acked_ns >= 0 && !row.early_ack && row.ambiguous;
    }
    if (known) {
      const std::int64_t latency_ns = row.acked_ns - row.sent_ns;
      out.latency_us[n] = static_cast<float>(static_cast<double>(latency_ns) / 1000.0);
      stats_.Add(latency_ns);
    }
    out.flow_id[n] = row.flow_id;
    out.receiver_id[n] = flow_of_id_[static_cast<std::size_t>(row.flow_id)]->receiver_id;
    out.size_bytes[n] = row.size_bytes;
    out.ecn[n] = row.ecn;
    out.retransmitted[n] = row.retransmitted;
    out.lost[n] = row.lost;
    rows_.pop_front();
    ++first_row_;
  }
  return n;
}

}  // namespace swiftqueue
