// SPDX-License-Identifier: Apache-2.0
//
// Senders whose packets are known beforehand: a replay file, or packets made up for a measurement.
// They are driven on the monotonic clock, in real time, at N times, or as fast as answers come.
#ifndef SWIFTQUEUE_SERVING_AGENT_SCHEDULE_H_
#define SWIFTQUEUE_SERVING_AGENT_SCHEDULE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "serving/agent/decision/decision_loop.h"

namespace swiftqueue::agent {

class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;
  // The next batch to ask about, its `now_ns` the time its first packet is due on the source's
  // clock; null at the end.
  virtual const BatchFrame* batch() = 0;
  virtual void next_batch() = 0;
  // Tells the loop what happened until `until_ns`, and before `batch()` is sent.
  virtual void feed(DecisionLoop& loop, std::uint32_t sender, std::int64_t until_ns) = 0;
  // What became of a batch.
  virtual void decided(const DecisionFrame& decision) = 0;
};

// A file of frames: HELLO, then SENT, ACKED and BATCH in time order. A BATCH stands before the SENT
// of its first packet. Packets are logged in the queue the file says. Throws std::runtime_error
// with one line, here or while it is read, for a file that is not such a one.
std::unique_ptr<Source> open_replay(const std::string& path);

struct Synthetic {
  double rate_bps = 0;
  int flows = 4;  // all L4S-capable, packets in turn
  double seconds = 0;
};
// Packets of 1,500 bytes at an even pace, each acknowledged about 40 ms later and sent in the queue
// that was chosen.
std::unique_ptr<Source> make_synthetic(const Synthetic& what);

struct Pace {
  double speed = 1;  // times real time; 0: the next batch as soon as the last one is answered
  std::int64_t deadline_ns = 0;
};

// Asks about each batch `deadline_ns` before it is due, as of then; at speed 0 as of when it is
// due. `stop` ends it early.
void run_schedule(Source& source, DecisionLoop& loop, std::uint32_t sender, const Pace& pace,
                  Statistics& statistics, const std::atomic<bool>& stop);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SCHEDULE_H_
