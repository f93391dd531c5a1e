// SPDX-License-Identifier: Apache-2.0
//
// Defines the C ABI of event_stream.h and event_window.h for Python's ctypes: a live sender's
// stream, and the replay that drives the same stream through a packet table. No exception crosses
// it; a null pointer or a negative result is an error.
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "feature_store/events/event_stream.h"
#include "feature_store/events/event_window.h"
#include "feature_store/events/packet_table.h"

namespace {

using swiftqueue::AckLog;
using swiftqueue::Candidate;
using swiftqueue::EventStream;
using swiftqueue::EventWindow;
using swiftqueue::kEventInputCount;
using swiftqueue::kHorizon;
using swiftqueue::KnownBefore;
using swiftqueue::PacketColumns;
using swiftqueue::Told;

// Columns for the rows of the events, in time order.
struct EventColumns {
  std::uint8_t* ack;  // 1: an ACK, 0: a SEND
  std::int64_t* packet;
  std::int64_t* time_ns;
  float* x_EF;
};

// Decisions, each about the 8 packets from `first` on, at the send time of the first.
struct Decisions {
  std::int64_t count;
  const std::int64_t* first;  // in ascending order, each with 8 packets
  int queue;                  // queue of the candidates; -1: the one they were sent in
  Told told;
  std::int64_t* cut;  // events before the decision
  float* x_DHF;
};

// Columns of the knowledge from before the log.
struct Beginning {
  std::int64_t count;
  const std::uint8_t* of;  // KnownBefore::Of
  const std::int32_t* id;
  const std::int64_t* first_sent_ns;
  const float* least_us;
  std::int64_t hole_ns, hole_end_ns, until_ns;  // as in `begin_holes`; `until_ns` negative: unknown
};

constexpr std::int64_t kNoBeginning = std::numeric_limits<std::int64_t>::min() + 1;

// Result for an invalid beginning: kNoBeginning + row; for the hole, + the number of rows.
std::int64_t replay(const PacketColumns& columns, bool previous, const Beginning& beginning,
                    const EventColumns& out, const Decisions& decisions) {
  EventStream stream;
  if (beginning.until_ns >= 0 &&
      !stream.begin_holes(beginning.hole_ns, beginning.hole_end_ns, beginning.until_ns)) {
    return kNoBeginning + beginning.count;
  }
  for (std::int64_t k = 0; k < beginning.count; ++k) {
    const auto of = static_cast<KnownBefore::Of>(beginning.of[k]);
    if (!stream.begin({of, beginning.id[k], beginning.first_sent_ns[k], beginning.least_us[k]})) {
      return kNoBeginning + k;
    }
  }
  AckLog acks(columns, previous);
  std::int64_t events = 0;
  std::int64_t now_ns = 0;
  std::int64_t decision = 0;
  const auto said = [&](bool ack, std::int64_t packet, std::int64_t ns) {
    now_ns = ns > now_ns ? ns : now_ns;
    out.ack[events] = ack;
    out.packet[events] = packet;
    out.time_ns[events] = now_ns;
    ++events;
  };
  for (std::int64_t p = 0; p < columns.packets; ++p) {
    const std::int64_t sent_ns = columns.sent_ns[p];
    acks.take_until(sent_ns, p, [&](std::int64_t packet, std::int64_t acked_ns, float latency_us) {
      if (stream.acked(packet, acked_ns, latency_us, out.x_EF + events * kEventInputCount)) {
        said(true, packet, acked_ns);
      }
    });
    for (; decision < decisions.count && decisions.first[decision] == p; ++decision) {
      decisions.cut[decision] = events;
      float* x_F = decisions.x_DHF + decision * kHorizon * kEventInputCount;
      for (int i = 0; i < kHorizon; ++i, x_F += kEventInputCount) {
        const Candidate what = columns.asked(p, i, decisions.told, decisions.queue);
        if (!stream.query(sent_ns, what, i, x_F)) return -1 - (p + i);
      }
    }
    if (!stream.sent(p, sent_ns, columns.candidate(p), out.x_EF + events * kEventInputCount)) {
      return -1 - p;
    }
    said(false, p, sent_ns);
  }
  // No decision sees the ACKs after the last SEND, but a live sender's next one would.
  acks.take_until(
      swiftqueue::kMaxTimeNs, columns.packets,
      [&](std::int64_t packet, std::int64_t acked_ns, float latency_us) {
        if (stream.acked(packet, acked_ns, latency_us, out.x_EF + events * kEventInputCount)) {
          said(true, packet, acked_ns);
        }
      });
  return events;
}

}  // namespace

extern "C" {

int sq_event_inputs() { return kEventInputCount; }
const char* sq_event_schema() {
  static const std::string text = swiftqueue::event_schema_text();
  return text.c_str();
}

EventStream* sq_events_new() { return new (std::nothrow) EventStream; }
void sq_events_free(EventStream* stream) { delete stream; }

// Returns 1 taken, 0 refused, -1 out of memory (as below).
int sq_event_sent(EventStream* stream, std::int64_t packet, std::int64_t sent_ns,
                  std::int32_t size_bytes, std::int32_t flow_id, std::int32_t receiver_id,
                  std::uint8_t queue, float* x_F) {
  try {
    return stream->sent(packet, sent_ns, {size_bytes, flow_id, receiver_id, queue}, x_F);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
int sq_event_acked(EventStream* stream, std::int64_t packet, std::int64_t acked_ns,
                   float latency_us, float* x_F) {
  try {
    return stream->acked(packet, acked_ns, latency_us, x_F);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
int sq_event_query(const EventStream* stream, std::int64_t decision_ns, std::int32_t size_bytes,
                   std::int32_t flow_id, std::int32_t receiver_id, std::uint8_t queue, int place,
                   float* x_F) {
  return stream->query(decision_ns, {size_bytes, flow_id, receiver_id, queue}, place, x_F);
}

// Returns the events written (at most twice the packets), -1 - packet for a packet refused,
// INT64_MIN when out of memory, INT64_MIN + 1 + row for an invalid row of the beginning (for its
// hole, + the number of rows).
std::int64_t sq_events_replay(std::int64_t packets, const std::int64_t* sent_ns,
                              const std::int32_t* size_bytes, const std::int32_t* flow_id,
                              const std::int32_t* receiver_id, const std::uint8_t* queue,
                              const std::int64_t* acked_ns, const float* latency_us, int previous,
                              std::int64_t known, const std::uint8_t* known_of,
                              const std::int32_t* known_id, const std::int64_t* known_first_sent_ns,
                              const float* known_least_us, std::int64_t hole_ns,
                              std::int64_t hole_end_ns, std::int64_t holes_until_ns,
                              std::uint8_t* ack, std::int64_t* packet, std::int64_t* time_ns,
                              float* x_EF, std::int64_t decisions, const std::int64_t* first,
                              int candidate_queue, int told, std::int64_t* cut, float* x_DHF) {
  try {
    return replay({packets, sent_ns, size_bytes, flow_id, receiver_id, queue, acked_ns, latency_us},
                  previous != 0,
                  {known, known_of, known_id, known_first_sent_ns, known_least_us, hole_ns,
                   hole_end_ns, holes_until_ns},
                  {ack, packet, time_ns, x_EF},
                  {decisions, first, candidate_queue, static_cast<Told>(told), cut, x_DHF});
  } catch (const std::bad_alloc&) {
    return std::numeric_limits<std::int64_t>::min();
  }
}

// Functions of the event window return 1 taken, 0 refused, -1 out of memory. A new one is null for
// an invalid number of tokens.
int sq_event_window_features() { return swiftqueue::kEventWindowFeatureCount; }
const char* sq_event_window_schema() {
  static const std::string text = swiftqueue::event_window_schema_text();
  return text.c_str();
}

EventWindow* sq_event_window_new(int tokens) {
  try {
    return std::make_unique<EventWindow>(tokens).release();
  } catch (
      const std::exception&) {  // bad_alloc, or tokens out of range (Python checks them before)
    return nullptr;
  }
}
void sq_event_window_free(EventWindow* window) { delete window; }

int sq_event_window_sent(EventWindow* window, std::int64_t packet, std::int64_t sent_ns,
                         std::int32_t size_bytes, std::int32_t flow_id, std::int32_t receiver_id,
                         std::uint8_t queue) {
  try {
    return window->sent(packet, sent_ns, {size_bytes, flow_id, receiver_id, queue});
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
int sq_event_window_acked(EventWindow* window, std::int64_t packet, std::int64_t acked_ns,
                          float latency_us) {
  try {
    return window->acked(packet, acked_ns, latency_us);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
// Counts packets that the window remembers, and those it gave up for lack of room.
void sq_event_window_costs(const EventWindow* window, std::int64_t* remembered,
                           std::int64_t* overflowed) {
  *remembered = window->remembered();
  *overflowed = window->overflowed();
}

// Returns packets in flight, or -1 for a packet that `sent` would refuse.
int sq_event_window(const EventWindow* window, std::int64_t decision_ns,
                    const std::int32_t* size_bytes, const std::int32_t* flow_id,
                    const std::int32_t* receiver_id, const std::uint8_t* queue, float* x_WF) {
  std::array<Candidate, kHorizon> candidates;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates[i] = {size_bytes[i], flow_id[i], receiver_id[i], queue[i]};
  }
  return window->window(decision_ns, candidates, x_WF);
}

}  // extern "C"
