// SPDX-License-Identifier: Apache-2.0
//
// C interface of controller.h for Python's ctypes (serving/agent/controller.py). No exception
// crosses it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>

#include "serving/agent/controller.h"

using swiftqueue::kHorizon;
using swiftqueue::agent::Batch;
using swiftqueue::agent::ControllerParams;
using swiftqueue::agent::Predicted;
using swiftqueue::agent::QueueController;

extern "C" {

void sq_controller_defaults(double* margin_us, double* margin_share,
                            std::int32_t* max_moved_unacked) {
  const ControllerParams params;
  *margin_us = params.margin_us;
  *margin_share = params.margin_share;
  *max_moved_unacked = params.max_moved_unacked;
}

// Null for parameters that cannot be, or when out of memory.
QueueController* sq_controller_new(double margin_us, double margin_share,
                                   std::int32_t max_moved_unacked) {
  try {
    return new QueueController({margin_us, margin_share, max_moved_unacked});
  } catch (const std::exception&) {
    return nullptr;
  }
}
void sq_controller_free(QueueController* controller) { delete controller; }

std::int64_t sq_controller_moved_unacked(const QueueController* controller) {
  return static_cast<std::int64_t>(controller->moved_unacked());
}

// Of a batch of 8: flow and default queue in, predicted_us_2H in (classic, then default queue),
// chosen queue out. 0, or -1 when out of memory.
int sq_controller_choose(QueueController* controller, std::int64_t first_packet,
                         std::int64_t now_ns, const std::int32_t* flow_id,
                         const std::uint8_t* default_queue, const float* predicted_us_2H,
                         std::uint8_t* chosen) {
  Batch batch{};
  Predicted predicted;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i].flow_id = flow_id[i];
    batch[i].queue = default_queue[i];
    predicted.classic_us_H[i] = predicted_us_2H[i];
    predicted.default_us_H[i] = predicted_us_2H[kHorizon + i];
  }
  try {
    const auto queues = controller->choose(first_packet, now_ns, batch, predicted);
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
  controller->acked(packet);
}

}  // extern "C"
