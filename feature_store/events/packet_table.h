// SPDX-License-Identifier: Apache-2.0
//
// Reads a packet table as a log of SEND and ACK events in time order, for the offline builder.
#ifndef SWIFTQUEUE_FEATURE_STORE_PACKET_TABLE_H_
#define SWIFTQUEUE_FEATURE_STORE_PACKET_TABLE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "feature_store/events/event_stream.h"

namespace swiftqueue {

// Attributes that a sender gives for packets 2 to 8 of a batch; others are the first packet's.
enum class Told : int { kAll, kFlows, kFirst };

// Columns in send order; the caller keeps them alive.
struct PacketColumns {
  std::int64_t packets;
  const std::int64_t* sent_ns;
  const std::int32_t* size_bytes;
  const std::int32_t* flow_id;
  const std::int32_t* receiver_id;
  const std::uint8_t* queue;
  const std::int64_t* acked_ns;  // negative: never
  const float* latency_us;       // NaN: unknown

  Candidate candidate(std::int64_t p) const {
    return {size_bytes[p], flow_id[p], receiver_id[p], queue[p]};
  }
  // Packet `place` (0 … 7) of the batch that begins with packet `first`, as the sender tells of it;
  // `in_queue` -1: in the queue that it was sent in.
  Candidate asked(std::int64_t first, int place, Told told, int in_queue) const {
    Candidate what = candidate(told == Told::kFirst ? first : first + place);
    if (told == Told::kFlows) what.size_bytes = size_bytes[first];
    if (in_queue >= 0) what.queue = static_cast<std::uint8_t>(in_queue);
    return what;
  }
};

// The ACKs of a packet table, which are taken up to a time.
class AckLog {
 public:
  // `previous`: a packet with a known latency counts as acknowledged at its own send instant.
  AckLog(const PacketColumns& columns, bool previous) : columns_(columns) {
    std::int64_t sent_ns = 0;
    for (std::int64_t p = 0; p < columns.packets; ++p) {
      sent_ns = std::max(sent_ns, columns.sent_ns[p]);  // as EventStream counts it
      if (columns.acked_ns[p] < 0) continue;
      const bool known = std::isfinite(columns.latency_us[p]) && columns.latency_us[p] >= 0;
      acks_.push_back({previous && known ? sent_ns : std::max(columns.acked_ns[p], sent_ns), p});
    }
    std::sort(acks_.begin(), acks_.end(), [](const Ack& a, const Ack& b) {
      return a.acked_ns != b.acked_ns ? a.acked_ns < b.acked_ns : a.packet < b.packet;
    });
  }

  // Calls `acked(packet, acked_ns, latency_us)` for the packets acknowledged up to `ns`. At one
  // instant ACKs come before the next send, but never before their own packet's: `sent` packets
  // are.
  template <typename Acked>
  void take_until(std::int64_t ns, std::int64_t sent, Acked acked) {
    now_ns_ = std::max(now_ns_, ns);
    for (; next_ < acks_.size() && acks_[next_].acked_ns <= now_ns_ && acks_[next_].packet < sent;
         ++next_) {
      acked(acks_[next_].packet, acks_[next_].acked_ns, columns_.latency_us[acks_[next_].packet]);
    }
  }

 private:
  struct Ack {
    std::int64_t acked_ns;
    std::int64_t packet;
  };

  PacketColumns columns_;
  std::vector<Ack> acks_;  // in time order
  std::size_t next_ = 0;
  std::int64_t now_ns_ = 0;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_PACKET_TABLE_H_
