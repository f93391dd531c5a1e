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
  // Returns the next batch to ask about, with the time its first packet is due on the source's
  // clock as `now_ns`; null at the end.
  virtual const BatchFrame* batch() = 0;
  virtual void next_batch() = 0;
  // Feeds the loop the events until `until_ns`, which is before `batch()` is sent.
  virtual void feed(DecisionLoop& loop, std::uint32_t sender, std::int64_t until_ns) = 0;
  // Takes the decision about a batch.
  virtual void decided(const DecisionFrame& decision) = 0;
};

// Opens a file of frames: HELLO, then SENT, ACKED and BATCH in time order. A BATCH stands before
// the SENT of its first packet. Packets are logged in the queue of the file. Throws
// std::runtime_error with one line, here or while it is read, for any other file.
std::unique_ptr<Source> open_replay(const std::string& path);

struct Synthetic {
  double rate_bps = 0;
  int flows = 4;  // all L4S-capable, with packets in turn
  double seconds = 0;
};
// Makes packets of 1,500 bytes at an even pace, each acknowledged about 40 ms later and sent in the
// queue that was chosen.
std::unique_ptr<Source> make_synthetic(const Synthetic& what);

struct Pace {
  double speed = 1;  // times real time; 0: the next batch as soon as the last one is answered
  std::int64_t deadline_ns = 0;
};

// Asks about each batch `deadline_ns` before it is due, as of then; at speed 0 as of its due time.
// `stop` ends it early.
void run_schedule(Source& source, DecisionLoop& loop, std::uint32_t sender, const Pace& pace,
                  Statistics& statistics, const std::atomic<bool>& stop);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SCHEDULE_H_
