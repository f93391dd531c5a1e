// SPDX-License-Identifier: Apache-2.0
//
// Forecasts of TCP connections' rates: the interface between the agent's socket and the network in
// this process or Triton. The agent's thread calls everything.
#ifndef SWIFTQUEUE_STUDIES_RATE_RATES_H_
#define SWIFTQUEUE_STUDIES_RATE_RATES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "serving/agent/predictors/triton_options.h"
#include "studies/rate/native/frames.h"

namespace swiftqueue::agent {

// Connections of all senders that are remembered, and of one. Then the oldest is forgotten.
inline constexpr std::size_t kAllConnections = 4096;
inline constexpr std::size_t kMostConnections = 1024;

struct RateAnswer {
  std::uint32_t sender = 0;
  std::int64_t arrived_ns = 0;  // time when its question came
  ForecastFrame frame;
};

class Rates {
 public:
  virtual ~Rates() = default;
  // A sample of a sender's connection; an answer comes later if it is asked for.
  virtual void sample(std::uint32_t sender, const SampleFrame& frame, std::int64_t arrived_ns) = 0;
  // A sender went: its connections are forgotten.
  virtual void close(std::uint32_t sender) = 0;
  // Takes an answer that is there; false: there is none.
  virtual bool next(RateAnswer& answer) = 0;
  // Takes a line that says why there is no model, or why a question failed; false: there is none.
  virtual bool next_problem(std::string& line) = 0;
  // Connections that are remembered.
  virtual std::size_t connections() const = 0;
};

// The engine, on the artifact in `folder`; another one that appears there is taken up by
// connections that begin then, and `woken` is called. Throws std::runtime_error, in one line, if
// there is none to begin with.
std::unique_ptr<Rates> make_local_rates(const std::string& folder, std::function<void()> woken);

// Triton's model of rates, asked by a thread of its own, which calls `woken` when there is an
// answer. Servers in order of preference.
std::unique_ptr<Rates> make_triton_rates(const TritonOptions& options, std::function<void()> woken);

inline RateAnswer rate_answer(std::uint32_t sender, const SampleFrame& asked,
                              std::int64_t arrived_ns, RateOutcome outcome) {
  RateAnswer answer{sender, arrived_ns, {}};
  answer.frame.connection = asked.connection;
  answer.frame.sample = asked.sample;
  answer.frame.outcome = outcome;
  answer.frame.rates.fill(std::numeric_limits<float>::quiet_NaN());
  return answer;
}

// The state of each connection, within the bounds.
template <typename State>
class Connections {
 public:
  // Null: it was never begun, or is forgotten.
  State* find(std::uint32_t sender, std::int64_t connection) {
    const auto at = places_.find({sender, connection});
    return at == places_.end() ? nullptr : &at->second->state;
  }

  template <typename... Given>
  State& begin(std::uint32_t sender, std::int64_t connection, Given&&... given) {
    forget(sender, connection);
    if (counts_[sender] >= kMostConnections) {
      forget_oldest(sender);
    } else if (places_.size() >= kAllConnections) {
      forget_oldest(std::max_element(counts_.begin(), counts_.end(), [](auto& a, auto& b) {
                      return a.second < b.second;
                    })->first);
    }
    auto& order = of_[sender];
    order.emplace_back(connection, std::forward<Given>(given)...);
    places_[{sender, connection}] = std::prev(order.end());
    ++counts_[sender];
    return order.back().state;
  }

  void forget(std::uint32_t sender, std::int64_t connection) {
    const auto at = places_.find({sender, connection});
    if (at == places_.end()) return;
    of_[sender].erase(at->second);
    places_.erase(at);
    --counts_[sender];
  }

  void close(std::uint32_t sender) {
    for (const auto& each : of_[sender]) places_.erase({sender, each.connection});
    of_.erase(sender);
    counts_.erase(sender);
  }

  std::size_t size() const { return places_.size(); }

 private:
  struct Known {
    template <typename... Given>
    explicit Known(std::int64_t number, Given&&... given)
        : connection(number), state(std::forward<Given>(given)...) {}
    std::int64_t connection;
    State state;
  };
  void forget_oldest(std::uint32_t sender) { forget(sender, of_[sender].front().connection); }

  std::map<std::uint32_t, std::list<Known>> of_;  // by sender, the oldest first
  std::map<std::uint32_t, std::size_t> counts_;
  std::map<std::pair<std::uint32_t, std::int64_t>, typename std::list<Known>::iterator> places_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_STUDIES_RATE_RATES_H_
