// SPDX-License-Identifier: Apache-2.0
//
// C interface of controller.h and guard.h for Python's ctypes (serving/agent/bindings/controller.py
// and guard.py). No exception crosses it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>

#include "serving/agent/decision/controller.h"

using swiftqueue::kHorizon;
using swiftqueue::agent::Batch;
using swiftqueue::agent::BatchAnswer;
using swiftqueue::agent::ControllerParams;
using swiftqueue::agent::Guard;
using swiftqueue::agent::GuardParams;
using swiftqueue::agent::HelpTest;
using swiftqueue::agent::QueueController;

extern "C" {

void sq_controller_defaults(double* margin_us, double* margin_share,
                            std::int32_t* max_moved_unacked, double* max_moved_share) {
  const ControllerParams params;
  *margin_us = params.margin_us;
  *margin_share = params.margin_share;
  *max_moved_unacked = params.max_moved_unacked;
  *max_moved_share = params.max_moved_share;
}

void sq_guard_defaults(double* alpha, double* most_growth, double* most_advantage) {
  const GuardParams params;
  *alpha = params.alpha;
  *most_growth = params.most_growth;
  *most_advantage = params.most_advantage;
}

// Null for parameters that cannot be, or when out of memory.
QueueController* sq_controller_new(double margin_us, double margin_share,
                                   std::int32_t max_moved_unacked, double max_moved_share,
                                   int guarded) {
  try {
    GuardParams guard;
    guard.on = guarded != 0;
    guard.most_growth = guard.most_advantage = 0;  // nobody says here what was sent
    return new QueueController(
        {margin_us, margin_share, max_moved_unacked, max_moved_share, guard});
  } catch (const std::exception&) {
    return nullptr;
  }
}
void sq_controller_free(QueueController* controller) { delete controller; }

std::int64_t sq_controller_moved_unacked(const QueueController* controller) {
  return static_cast<std::int64_t>(controller->moved_unacked());
}

// Takes a batch of 8: flows, default queues and predicted_us_2HL (classic, then default queue).
// Writes the chosen queues. With the quantiles `levels` predicted_us_2HL has as many values of each
// latency; without, it has one. Returns 0, or -1 when out of memory.
int sq_controller_choose(QueueController* controller, std::int64_t first_packet,
                         std::int64_t now_ns, std::int32_t in_flight, const std::int32_t* flow_id,
                         const std::uint8_t* default_queue, const float* predicted_us_2HL,
                         const double* levels, std::size_t level_count, std::uint8_t* chosen) {
  Batch batch{};
  BatchAnswer answered{{levels, level_count}, predicted_us_2HL, nullptr};
  answered.default_us_HL = predicted_us_2HL + kHorizon * answered.outputs();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i].flow_id = flow_id[i];
    batch[i].queue = default_queue[i];
  }
  try {
    const auto queues = controller->choose(first_packet, now_ns, batch, answered, in_flight).queues;
    for (std::size_t i = 0; i < queues.size(); ++i) chosen[i] = queues[i];
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return 0;
}

void sq_controller_keep_default(QueueController* controller, const std::int32_t* flow_id,
                                std::int64_t packets) {
  for (std::int64_t i = 0; i < packets; ++i) controller->keep_default(flow_id[i]);
}

void sq_controller_acked(QueueController* controller, std::int64_t packet) {
  controller->acked(packet, 0, true);  // only the guard reads the rest
}

// Returns how many of `values` a trial's test at `alpha` looks at before it ends; `verdict` is 1
// where their mean is settled above 0, -1 where it gave up, 0 where they did not suffice.
std::int64_t sq_guard_test(double alpha, const double* values, std::int64_t count, int* verdict) {
  HelpTest test(alpha, Guard::kMostPairs[0], Guard::kHopeless[0]);
  *verdict = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto found = test.add(values[i]);
    if (found == HelpTest::Verdict::kOpen) continue;
    *verdict = found == HelpTest::Verdict::kAbove ? 1 : -1;
    return i + 1;
  }
  return count;
}

// Null for parameters that cannot be, or when out of memory.
Guard* sq_guard_new(double alpha, std::uint64_t seed, double most_growth, double most_advantage) {
  try {
    return new Guard({.on = true,
                      .alpha = alpha,
                      .seed = seed,
                      .most_advantage = most_advantage,
                      .most_growth = most_growth});
  } catch (const std::exception&) {
    return nullptr;
  }
}
void sq_guard_free(Guard* guard) { delete guard; }

// Returns 1 where the packets are to be moved, else 0; -1 when out of memory.
int sq_guard_rule(Guard* guard, std::int32_t receiver, std::int64_t now_ns, std::int64_t* arm) {
  try {
    const auto ruling = guard->rule(receiver, now_ns);
    *arm = ruling.arm;
    return ruling.move ? 1 : 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
int sq_guard_moves(Guard* guard, std::int32_t receiver, int decided, std::int64_t arm) {
  return guard->moves(receiver, decided != 0, arm) ? 1 : 0;
}

// Notes a packet of a flow that may be moved, or not. Returns 0, or -1 when out of memory.
int sq_guard_carried(Guard* guard, std::int32_t receiver, std::int64_t sent_ns,
                     std::int64_t before_ns, int movable, double bytes) {
  try {
    guard->carried(receiver, sent_ns, before_ns, movable != 0, bytes);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return 0;
}

// 0, or -1 when out of memory.
int sq_guard_sent(Guard* guard, std::int64_t packet, std::int64_t sent_ns, std::int32_t receiver,
                  std::uint8_t queue, std::int64_t arm) {
  try {
    guard->sent(packet, sent_ns, receiver, queue, arm);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return 0;
}
void sq_guard_acked(Guard* guard, std::int64_t packet, std::int64_t acked_ns, int known) {
  guard->acked(packet, acked_ns, known != 0);
}
// Writes the receivers on trial, moved to and stopped; then trials, trials passed, stops, pairs,
// stops by growth and by advantage.
void sq_guard_counts(const Guard* guard, std::int64_t* counts_9) {
  const Guard::Counts& counts = guard->counts();
  std::copy(counts.receivers.begin(), counts.receivers.end(), counts_9);
  counts_9[3] = counts.trials;
  counts_9[4] = counts.admitted;
  counts_9[5] = counts.stops;
  counts_9[6] = counts.pairs;
  counts_9[7] = counts.grown;
  counts_9[8] = counts.advantage;
}

}  // extern "C"
