#include "match.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace swiftqueue {
namespace {

// How long a packet takes through a host at most; a retransmission comes a round trip later.
constexpr std::int64_t kCopyNs = 5'000'000;
// A row waits this long for its ACK. RFC 1122 4.2.3.5: a TCP gives up after at least 100 s.
constexpr std::int64_t kMaxWaitNs = 120'000'000'000;
constexpr std::int64_t kMaxWaiting = std::int64_t{1} << 21;  // rows; 150 MB with their bookkeeping
constexpr std::int64_t kMaxWindow = std::int64_t{1} << 30;   // RFC 7323 2.3
constexpr std::int64_t kShortFlow = 8;                       // one batch: HORIZON of schema.py
constexpr double kControlShare = 1e-4;
constexpr std::size_t kCompactFrom = 1024;

// The sequence number `low` carries 32 bits; the one nearest to `reference` is meant.
std::int64_t Unwrap(std::int64_t reference, std::uint32_t low) {
  return reference + static_cast<std::int32_t>(low - static_cast<std::uint32_t>(reference));
}

}  // namespace

void Matcher::Push(std::span<const Segment> segments) {
  for (const Segment& segment : segments) {
    if (segment.kind != kTcp) continue;
    const TraceClock::Reading now = clock_.Read(segment.time_ns);
    ForgetOldest(now.time_ns);
    if (segment.destination == sender_ && segment.flags & kAck) Ack(segment, now);
    if (segment.source == sender_ && (segment.payload_bytes > 0 || segment.flags & kSyn)) {
      Data(segment, now);
    }
  }
}

Matcher::Flow& Matcher::FlowFor(const Segment& segment) {
  const auto [entry, fresh] = flows_.try_emplace(FlowOf(segment));
  Flow& flow = entry->second;
  if (fresh) {
    const auto receivers = static_cast<std::int32_t>(receivers_.size());
    flow.id = static_cast<std::int32_t>(flow_of_id_.size());
    flow.receiver_id = receivers_.try_emplace(segment.destination, receivers).first->second;
    flow.link = segment.link;
    flow.sent_end = segment.sequence;
    flow_of_id_.push_back(&flow);  // stable: unordered_map does not move its elements
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
  if (segment.flags & kSyn) {
    // The 5-tuple starts anew, with another sequence space; a flow begins with its first payload.
    const auto known = flows_.find(FlowOf(segment));
    if (known != flows_.end()) {
      Abandon(known->second);
      known->second.sent_end = segment.sequence + 1;
    }
    if (segment.payload_bytes == 0) return;
  }
  if (!left_out_.empty() && left_out_.contains(FlowOf(segment))) {
    ++left_out_packets_;
    return;
  }
  Flow& flow = FlowFor(segment);
  // A SYN takes the sequence number before its payload (TCP Fast Open).
  const std::uint32_t sequence = segment.sequence + (segment.flags & kSyn ? 1u : 0u);
  const std::int64_t start = Unwrap(flow.sent_end, sequence);
  const std::int64_t end = start + segment.payload_bytes;
  const bool in_order = start >= flow.sent_end;
  const bool again = !in_order && !(at_receiver_ && Reordered(flow, segment));
  if (segment.link != flow.link) {
    if (!in_order && IsCopy(flow, end, now)) {
      ++copies_;
      return;
    }
    flow.link = segment.link;
  }
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
    flow.first.push_back({start, end, row});
  } else {
    flow.again.emplace(end, Resent{start, row});
    flow.SentAgainTo(end);
  }
  if (end > flow.sent_end) flow.newest_timestamp = segment.timestamp_value;
  flow.sent_end = std::max(flow.sent_end, end);
}

// The same packet, captured once more on its way through the host's interfaces.
bool Matcher::IsCopy(Flow& flow, std::int64_t end, TraceClock::Reading now) {
  const auto recent = [&](std::int64_t row) { return now.time_ns - At(row).sent_ns < kCopyNs; };
  const auto packet = flow.FirstFrom(end);
  if (packet != flow.first.end() && packet->end == end && packet->row != kSacked &&
      recent(packet->row)) {
    return true;
  }
  const auto [first, last] = flow.again.equal_range(end);
  return first != last && recent(std::prev(last)->second.row);
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
  const auto known = flows_.find(ReverseFlowOf(segment));
  if (known == flows_.end()) return;
  ++acks_;
  Flow& flow = known->second;
  const std::int64_t acked = Unwrap(flow.sent_end, segment.acknowledgment);
  if (acked > flow.sent_end + kMaxWindow) return;  // of no byte that can have been sent
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
  if (selective_) {
    for (std::size_t i = 0; i < segment.sacks; ++i) Sack(flow, segment.sack[i], now);
  }
  flow.Compact();
}

// Looks at the parts of a block that no earlier block covered, so that many ACKs of the same
// packets cost no more than one.
void Matcher::Sack(Flow& flow, const SackBlock& block, TraceClock::Reading now) {
  const std::int64_t left = Unwrap(flow.sent_end, block.left);
  const std::int64_t right = Unwrap(flow.sent_end, block.right);
  if (left >= right || right > flow.sent_end) return;  // of no byte that was sent
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
  if (!any && ranges < 2) return;  // of two ranges with nothing between them one is left
  flow.sacked.erase(merged, known);
  flow.sacked.emplace(begins, ends);
}

// Acknowledges the packets whose last byte lies in [left, right); whether there were any.
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
  row.early_ack = latency_ns < 0 || row.steps != clock_.steps();
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
// after it. Asked at every record, so that a table does not depend on how the capture was cut into
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
