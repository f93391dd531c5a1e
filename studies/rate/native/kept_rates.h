// SPDX-License-Identifier: Apache-2.0
//
// What both kinds of forecasts of rates keep, and the end of the thread that each has.
#ifndef SWIFTQUEUE_STUDIES_RATE_KEPT_RATES_H_
#define SWIFTQUEUE_STUDIES_RATE_KEPT_RATES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "studies/rate/native/rates.h"

namespace swiftqueue::agent {

// `Known` is what is known of a connection. A derived class starts `thread_`, which ends once
// `closing_` is set, and calls `stop` in its destructor, before its members go.
template <typename Known>
class KeptRates : public Rates {
 public:
  static constexpr std::size_t kMostProblems = 64;  // lines that wait to be told

  void close(std::uint32_t sender) override { known_.close(sender); }

  bool next(RateAnswer& answer) override {
    const std::lock_guard lock(mutex_);
    if (answers_.empty()) return false;
    answer = answers_.front();
    answers_.pop_front();
    return true;
  }

  bool next_problem(std::string& line) override {
    const std::lock_guard lock(mutex_);
    if (problems_.empty()) return false;
    line = problems_.front();
    problems_.pop_front();
    return true;
  }

  std::size_t connections() const override { return known_.size(); }

 protected:
  // Notes why a question failed, or that none did: empty. The same reason in a row is told once.
  void note(const std::string& problem) {
    const std::lock_guard lock(mutex_);
    if (!problem.empty() && problem != noted_ && problems_.size() < kMostProblems) {
      problems_.push_back(problem);
    }
    noted_ = problem;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Connections<Known> known_;
  // Shared with the thread:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RateAnswer> answers_;
  std::deque<std::string> problems_;
  std::string noted_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_STUDIES_RATE_KEPT_RATES_H_
