// SPDX-License-Identifier: Apache-2.0
//
// Who is told of flows' samples and may answer with forecasts: nobody here, a pipe (rate_pipe.h) or
// the agent (rate_agent.h).
#ifndef SWIFTQUEUE_STUDIES_RATE_TESTBED_FORECASTER_H_
#define SWIFTQUEUE_STUDIES_RATE_TESTBED_FORECASTER_H_

#include <time.h>

#include <cstdint>
#include <string>

#include "rate.h"
#include "studies/rate/samples/tcp_sample.h"

namespace swiftqueue::testbed {

constexpr timespec kLook{0, 20'000'000};  // between looks at the ring, which the kernel seldom says

/** Of a record, CLOCK_MONOTONIC: in whole us, so at most 1 us too early. */
inline std::uint64_t sampled_ns(const sq_rate_record& record) {
  return record.since_ns + 1000 * static_cast<std::uint64_t>(record.fields[rate::At::ts]);
}

class Forecaster {
 public:
  Forecaster() = default;
  Forecaster(const Forecaster&) = delete;
  Forecaster& operator=(const Forecaster&) = delete;
  virtual ~Forecaster() = default;

  /** A flow's next ACK; one that the ring had no room for is missing. */
  virtual void sampled(const sq_rate_record&) {}
  /** Nothing more comes of a flow. */
  virtual void ended(std::uint64_t /*flow*/) {}
  /** Waits a moment for what comes out of the ring, and puts answers into the map of forecasts. */
  virtual void wait(int /*ring*/, int /*forecasts*/) { ::nanosleep(&kLook, nullptr); }
  /** What the summary says of it: members of a JSON object, each behind a comma. */
  virtual std::string said() const { return {}; }
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_STUDIES_RATE_TESTBED_FORECASTER_H_
