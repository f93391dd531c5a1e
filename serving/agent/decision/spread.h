// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Probabilities from quantiles of a latency: that it is above a bound, or below another latency.
// The definitions are those of models/forecasters/spread.py, which explains them; a test holds one
// against the other. Pure, and nothing allocates.
//
// Shapes: L levels.
#ifndef SWIFTQUEUE_SERVING_AGENT_SPREAD_H_
#define SWIFTQUEUE_SERVING_AGENT_SPREAD_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>

namespace swiftqueue::agent {

inline constexpr std::size_t kMostLevels = 16;
inline constexpr double kMedian = 0.5;

class Spread {
 public:
  // `levels` ascend between 0 and 1, two at least and kMostLevels at most, and must live as long as
  // this; us_L ascend.
  Spread(std::span<const double> levels, const float* us_L) : levels_(levels) {
    for (std::size_t n = 0; n < levels.size(); ++n) {
      logs_[n] = std::log(std::max(static_cast<double>(us_L[n]), kLeastUs));
    }
    const std::size_t last = levels.size() - 1;
    lower_ = std::max(logs_[1] - logs_[0], kLeastSlope) / std::log(levels[1] / levels[0]);
    upper_ = std::max(logs_[last] - logs_[last - 1], kLeastSlope) /
             std::log((1 - levels[last - 1]) / (1 - levels[last]));
  }

  // Returns the probability that the latency is at least so much.
  double above(double us) const { return above_log(std::log(std::max(us, kLeastUs))); }

  // Returns the probability that this latency is below the other one, as if they were independent.
  double sooner_than(const Spread& other) const {
    double later = 0;
    for (int point = 0; point < kPoints; ++point) {
      later += above_log(std::max(other.log_quantile((point + 0.5) / kPoints), 0.0));
    }
    return 1 - later / kPoints;
  }

 private:
  static constexpr double kLeastUs = 1;        // scaling.py: MIN_LATENCY_US; its logarithm is 0
  static constexpr double kLeastSlope = 1e-3;  // LEAST_SLOPE
  static constexpr int kPoints = 40;           // POINTS

  double above_log(double at) const {
    const std::size_t last = levels_.size() - 1;
    if (at > logs_[last]) return (1 - levels_[last]) * std::exp(-(at - logs_[last]) / upper_);
    if (at < logs_[0]) return 1 - levels_[0] * std::exp(-(logs_[0] - at) / lower_);
    std::size_t n = last - 1;
    while (logs_[n] > at) --n;
    const double share =
        std::clamp((at - logs_[n]) / std::max(logs_[n + 1] - logs_[n], 1e-12), 0.0, 1.0);
    return (1 - levels_[n]) + share * (levels_[n] - levels_[n + 1]);
  }

  // Returns the logarithm of the latency below which this share lies.
  double log_quantile(double share) const {
    const std::size_t last = levels_.size() - 1;
    if (share < levels_[0]) return logs_[0] - lower_ * std::log(levels_[0] / share);
    if (share > levels_[last]) {
      return logs_[last] + upper_ * std::log((1 - levels_[last]) / (1 - share));
    }
    std::size_t n = 1;
    while (n < last && levels_[n] <= share) ++n;
    const double part = (share - levels_[n - 1]) / (levels_[n] - levels_[n - 1]);
    return (1 - part) * logs_[n - 1] + part * logs_[n];
  }

  std::span<const double> levels_;
  std::array<double, kMostLevels> logs_;
  double lower_;  // fall of the log-latency below the first level, for a factor e of the share
  double upper_;  // rise of the log-latency above the last level
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SPREAD_H_
