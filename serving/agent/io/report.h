// SPDX-License-Identifier: Apache-2.0
//
// The agent's standard output: a JSON object per line (docs/AGENT.md), from a thread of its own,
// since a pipe that nobody reads would hold up decisions.
#ifndef SWIFTQUEUE_SERVING_AGENT_REPORT_H_
#define SWIFTQUEUE_SERVING_AGENT_REPORT_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "serving/agent/decision/statistics.h"

namespace swiftqueue::agent {

// Returns `text` as a JSON string, quotes included.
std::string json_string(std::string_view text);

class Report {
 public:
  // Prints a `progress` line every `every_ms` (0: none).
  Report(const Statistics& statistics, std::int64_t every_ms);
  ~Report() { stop(); }

  // Ends the `progress` lines.
  void stop();
  // Prints a whole line, from any thread. Blocks as long as nobody reads.
  void say(const std::string& line);
  // Returns the fields that `progress` and `summary` share, without braces.
  std::string counts() const;

 private:
  void run(std::int64_t every_ms);

  const Statistics& statistics_;
  std::mutex writing_;
  std::mutex mutex_;
  std::condition_variable closed_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_REPORT_H_
