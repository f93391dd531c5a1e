// SPDX-License-Identifier: Apache-2.0
//
// Lines on the standard error about senders or a server, at most so many in a time: a client that
// is refused a thousand times a second must not fill the log. Lines left out are counted, and the
// count is printed.
#ifndef SWIFTQUEUE_SERVING_AGENT_COMPLAINTS_H_
#define SWIFTQUEUE_SERVING_AGENT_COMPLAINTS_H_

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "serving/agent/io/clock.h"

namespace swiftqueue::agent {

class Complaints {
 public:
  static constexpr int kLines = 50;
  static constexpr std::int64_t kPeriodNs = 10'000'000'000;

  ~Complaints() { say_left_out(); }

  // Any thread may call it.
  void say(const std::string& line) {
    const std::lock_guard lock(mutex_);
    const std::int64_t now_ns = monotonic_ns();
    if (now_ns - since_ns_ > kPeriodNs) {
      say_left_out();
      since_ns_ = now_ns;
      lines_ = left_out_ = 0;
    }
    if (++lines_ > kLines) {
      ++left_out_;
    } else {
      std::fprintf(stderr, "swiftqueue-agent: %s\n", line.c_str());
    }
  }

 private:
  void say_left_out() {
    if (left_out_ > 0) std::fprintf(stderr, "swiftqueue-agent: %d lines left out\n", left_out_);
  }

  std::mutex mutex_;
  std::int64_t since_ns_ = -kPeriodNs;
  int lines_ = 0;
  int left_out_ = 0;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_COMPLAINTS_H_
