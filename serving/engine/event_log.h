// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The keys and values of events that an engine still has, so that a sender's next decision computes
// only the events since the last. Events are known by their inputs alone, which never change: no
// name of a sender is needed, and an answer is the same, bit for bit, whether they were kept or
// not.
#ifndef SWIFTQUEUE_SERVING_ENGINE_EVENT_LOG_H_
#define SWIFTQUEUE_SERVING_ENGINE_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "serving/engine/aligned.h"
#include "serving/engine/artifact.h"
#include "serving/engine/kernel.h"

namespace swiftqueue::engine {

class EventLogs {
 public:
  explicit EventLogs(const Description& description);

  // Returns the place of the states of events rows[count]: beside those of the log that they
  // continue, else in place of the log that was asked for longest ago. The caller computes the
  // fresh ones at once.
  KeptEvents take(const float* const* rows, int count);

 private:
  struct Log {
    std::vector<float> rows;  // [count][F]
    int count = 0;
    int end = 0;
    std::uint64_t asked = 0;  // number of the last call that asked
    AlignedFloats states;
  };

  int matched(const Log& log, const float* const* rows, int count) const;

  int reach_;  // events that a full window reaches back
  int slots_;
  std::uint64_t calls_ = 0;
  std::vector<Log> logs_;
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_EVENT_LOG_H_
