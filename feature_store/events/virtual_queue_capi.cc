// SPDX-License-Identifier: Apache-2.0
//
// C ABI of virtual_queue.h for Python's ctypes: the replay that drives a virtual queue through a
// packet table, and the forecasts of its rows. No exception crosses it.
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <string>

#include "feature_store/events/packet_table.h"
#include "feature_store/events/virtual_queue.h"

namespace {

using swiftqueue::Candidate;
using swiftqueue::kHorizon;
using swiftqueue::kQueues;
using swiftqueue::PacketColumns;
using swiftqueue::Told;
using swiftqueue::VirtualQueue;
using swiftqueue::VirtualQueueRow;
using swiftqueue::VirtualQueueRule;

// The receivers whose least latency was known when the log began.
struct Receivers {
  std::int64_t count;
  const std::int32_t* id;
  const float* least_us;
};

// Decisions, each about the 8 packets from `first` on, at the send time of the first.
struct Decisions {
  std::int64_t count;
  const std::int64_t* first;  // in ascending order, each with 8 packets
  int queue;                  // queue of the candidates; -1: the one they were sent in
  Told told;
  std::uint8_t* queue_DH;
  VirtualQueueRow* row_DH;
};

// 0, or -1 - packet for a packet refused, or kNoReceiver for a receiver that cannot be.
constexpr std::int64_t kNoReceiver = std::numeric_limits<std::int64_t>::min() + 1;
std::int64_t replay(const PacketColumns& columns, bool previous, const Receivers& receivers,
                    const Decisions& decisions) {
  VirtualQueue queues;
  for (std::int64_t k = 0; k < receivers.count; ++k) {
    if (!queues.begin(receivers.id[k], receivers.least_us[k])) return kNoReceiver;
  }
  swiftqueue::AckLog acks(columns, previous);
  std::int64_t decision = 0;
  for (std::int64_t p = 0; p < columns.packets; ++p) {
    const std::int64_t sent_ns = columns.sent_ns[p];
    acks.take_until(sent_ns, p, [&](std::int64_t packet, std::int64_t acked_ns, float latency_us) {
      queues.acked(packet, acked_ns, latency_us);
    });
    for (; decision < decisions.count && decisions.first[decision] == p; ++decision) {
      std::array<double, kQueues> ahead_bytes{};
      for (int i = 0; i < kHorizon; ++i) {
        const Candidate what = columns.asked(p, i, decisions.told, decisions.queue);
        if (what.size_bytes <= 0) return -1 - (p + i);
        const std::int64_t at = decision * kHorizon + i;
        decisions.queue_DH[at] = what.queue;
        decisions.row_DH[at] =
            queues.query(sent_ns, what.receiver_id, what.queue, ahead_bytes[what.queue]);
        ahead_bytes[what.queue] += what.size_bytes;
      }
    }
    if (!queues.sent(p, sent_ns, columns.candidate(p))) return -1 - p;
  }
  return 0;
}

}  // namespace

extern "C" {

const char* sq_virtual_queue_schema() {
  static const std::string text = swiftqueue::virtual_queue_schema_text();
  return text.c_str();
}
int sq_virtual_queue_columns() { return static_cast<int>(swiftqueue::kVirtualQueueColumns.size()); }

// Returns 0, -1 - packet for a packet refused, INT64_MIN when out of memory, INT64_MIN + 1 for a
// receiver whose least latency cannot be.
std::int64_t sq_virtual_queue_replay(std::int64_t packets, const std::int64_t* sent_ns,
                                     const std::int32_t* size_bytes, const std::int32_t* flow_id,
                                     const std::int32_t* receiver_id, const std::uint8_t* queue,
                                     const std::int64_t* acked_ns, const float* latency_us,
                                     int previous, std::int64_t receivers,
                                     const std::int32_t* known_id, const float* known_least_us,
                                     std::int64_t decisions, const std::int64_t* first,
                                     int candidate_queue, int told, std::uint8_t* queue_DH,
                                     VirtualQueueRow* row_DH) {
  try {
    return replay({packets, sent_ns, size_bytes, flow_id, receiver_id, queue, acked_ns, latency_us},
                  previous != 0, {receivers, known_id, known_least_us},
                  {decisions, first, candidate_queue, static_cast<Told>(told), queue_DH, row_DH});
  } catch (const std::bad_alloc&) {
    return std::numeric_limits<std::int64_t>::min();
  }
}

// Writes the rule whose rates are estimated online.
void sq_virtual_queue_online(VirtualQueueRule* rule) { *rule = VirtualQueueRule::online(); }

// Writes the forecasts of rows, each by its queue's rule; NaN where no latency is known.
void sq_virtual_queue_us(std::int64_t rows, const std::uint8_t* queue, const VirtualQueueRow* row,
                         const VirtualQueueRule* rules, double* us) {
  for (std::int64_t i = 0; i < rows; ++i) {
    us[i] = swiftqueue::virtual_queue_us(row[i], rules[queue[i]]);
  }
}

}  // extern "C"
