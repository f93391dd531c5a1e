// SPDX-License-Identifier: Apache-2.0
//
// The Prometheus endpoint of the agent. A scrape reads the loop's counters; the loop
// does nothing for it.
#ifndef SWIFTQUEUE_SERVING_AGENT_METRICS_H_
#define SWIFTQUEUE_SERVING_AGENT_METRICS_H_

#include <memory>
#include <string>

#include "serving/agent/decision/statistics.h"
#include "serving/agent/io/frame_sink.h"
#include "serving/agent/io/http_page.h"
#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

class Metrics {
 public:
  // Port 0 takes a free one. `telemetry` may be null. Throws std::runtime_error with one line if
  // the port cannot be had at that IPv4 address.
  Metrics(const std::string& address, int port, const Statistics& statistics,
          const Predictor& predictor, const FrameSink* telemetry);

  int port() const { return page_->port(); }

 private:
  std::unique_ptr<HttpPage> page_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_METRICS_H_
