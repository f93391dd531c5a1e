// SPDX-License-Identifier: GPL-2.0-only
//
// What decides which of S1's L4S packets are moved to the classic queue, or from one uplink to the
// other: simulation/doc/lab.md.

#ifndef SWIFTQUEUE_LABORATORY_CONTROL_H
#define SWIFTQUEUE_LABORATORY_CONTROL_H

#include <cstdint>
#include <memory>
#include <vector>

#include "json-text.h"
#include "network.h"
#include "run.h"

namespace swiftqueue::lab {

/** A data packet as the sender knows it. */
struct DataPacket {
  int64_t number;  // in send order, all flows together
  uint16_t flow;   // number of the flow in the run
  uint32_t receiver;
  uint32_t sizeBytes;  // IP length
  uint8_t defaultQueue;
  bool movable;       // it goes to the classic queue instead, or over the other uplink
  bool acknowledged;  // by its protocol: not UDP
};

/** The data packets that wait behind the one that leaves, in the sender's own disc. */
class Waiting {
 public:
  virtual ~Waiting() = default;
  virtual std::vector<DataPacket> First(std::size_t most) const = 0;
};

class QueueControl {
 public:
  virtual ~QueueControl() = default;

  /**
   * Whether `packet`, about to leave now, is moved; called for every data packet in send order,
   * those of classic flows too, whose answer is not used.
   */
  virtual bool Move(const DataPacket& packet, const Waiting& behind) = 0;

  /** It left in `queue`. */
  virtual void Sent(const DataPacket& packet, uint8_t queue) {
    (void)packet;
    (void)queue;
  }

  /** The first ACK that covers a packet came; `latencyUs` is NaN where unknown (Karn). */
  virtual void Acked(int64_t packet, uint16_t flow, uint8_t queue, float latencyUs) {
    (void)packet;
    (void)flow;
    (void)queue;
    (void)latencyUs;
  }

  /** Adds what only this control knows to the summary and to what the run cost. */
  virtual void AddTo(JsonObject& summary, JsonObject& cost) const {
    (void)summary;
    (void)cost;
  }
};

/** The control of a run. Throws engine::InvalidError or FileError for its artifact. */
std::unique_ptr<QueueControl> MakeControl(const Run& run, const Network& network);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_CONTROL_H
