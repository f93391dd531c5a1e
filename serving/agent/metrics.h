// SPDX-License-Identifier: Apache-2.0
//
// The Prometheus endpoint of the agent, on loopback. A scrape reads the loop's counters; the loop
// does nothing for it.
#ifndef SWIFTQUEUE_SERVING_AGENT_METRICS_H_
#define SWIFTQUEUE_SERVING_AGENT_METRICS_H_

#include <memory>

#include "serving/agent/predictor.h"
#include "serving/agent/statistics.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace swiftqueue::agent {

class Metrics {
 public:
  // Port 0: any free one. Throws std::runtime_error with one line if the port cannot be had.
  Metrics(int port, const Statistics& statistics, const Predictor& predictor);
  ~Metrics();

  int port() const;

 private:
  std::shared_ptr<prometheus::Collectable> collector_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_METRICS_H_
