// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// LFQ (Bachl, Fabini, Zseby: Learned Fair Queuing): what a fair queue knows of a flow, from which a
// network says how many packets the flow may have waiting. No packets, no clock, no network here.
//
// Six signals, ten moving averages of each, so a flow costs the same memory however long it lives.
// docs/LABORATORY.md says where the slides leave something open, and what was chosen.

#ifndef SWIFTQUEUE_TESTBED_ROUTER_LFQ_H_
#define SWIFTQUEUE_TESTBED_ROUTER_LFQ_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace swiftqueue::lfq {

inline constexpr std::size_t kSignals = 6;
inline constexpr std::array<const char*, kSignals> kNames = {
    "queue", "queue_deviation", "limit", "arrival_rate", "departure_rate", "since_loss"};
inline constexpr std::size_t kAverages = 10;
inline constexpr int kFastest = 5;  // coefficients 2^-5, 2^-6 ... 2^-14
inline constexpr std::size_t kInputs = kSignals * kAverages;

inline constexpr double kPackets = 100;         // a queue or a limit of this is 1
inline constexpr double kPacketsPerS = 10'000;  // a rate of this is 1
inline constexpr double kLongestS = 10;         // since a loss, at most; this is 1
inline constexpr double kMostPacketsPerS = 1e6;

inline constexpr uint32_t kLeastLimit = 1;
inline constexpr uint32_t kMostLimit = 1000;

// A flow's limit is asked for at each 10th packet, or when the last answer is 100 ms old.
inline constexpr uint32_t kAskPackets = 10;
inline constexpr int64_t kAskNs = 100'000'000;
inline constexpr int64_t kForgetNs = 10'000'000'000;  // a flow that was silent for so long is new

using Inputs = std::array<float, kInputs>;  // signal by signal, the fastest average first

/** The limit that a network's answer, in hundreds of packets, stands for. */
inline uint32_t limit_of(float answer) {
  const double packets = std::round(static_cast<double>(answer) * kPackets);
  return static_cast<uint32_t>(std::clamp<double>(packets, kLeastLimit, kMostLimit));
}

/**
 * Ten moving averages of one value. The n-th sample weighs 1/n, but never less than the
 * coefficient: so an average is the mean until there are 2^5 ... 2^14 samples, and knows no start.
 */
class Averages {
 public:
  void add(double value) {
    ++m_samples;
    const double whole = 1.0 / static_cast<double>(m_samples);
    for (std::size_t k = 0; k < kAverages; ++k) {
      m_mean[k] += weight(k, whole) * (value - m_mean[k]);
    }
  }

  /** Adds the squared distance from each of `others`' averages. */
  void add_square(double value, const Averages& others) {
    ++m_samples;
    const double whole = 1.0 / static_cast<double>(m_samples);
    for (std::size_t k = 0; k < kAverages; ++k) {
      const double away = value - others.m_mean[k];
      m_mean[k] += weight(k, whole) * (away * away - m_mean[k]);
    }
  }

  double operator[](std::size_t k) const { return m_mean[k]; }
  uint64_t samples() const { return m_samples; }

 private:
  static double weight(std::size_t k, double whole) {
    return std::max(whole, std::ldexp(1.0, -(kFastest + static_cast<int>(k))));
  }

  std::array<double, kAverages> m_mean{};
  uint64_t m_samples{0};
};

/** What is known of one flow. Times are ns of any clock; nothing may come before what came. */
class Flow {
 public:
  /** A packet comes and finds `queue` packets of its flow, of which `limit` may wait. */
  void arrive(int64_t now_ns, uint32_t queue, uint32_t limit) {
    if (m_arrived_ns >= 0 && now_ns - m_arrived_ns > kForgetNs) {
      *this = Flow();
    }
    if (m_arrived_ns < 0) {
      m_lost_ns = m_asked_ns = now_ns;  // as if the flow had begun with a loss
    } else {
      m_arrival_gap_s.add(seconds(now_ns - m_arrived_ns));
    }
    m_arrived_ns = now_ns;
    m_queue.add(queue);
    m_queue_square.add_square(queue, m_queue);
    m_limit.add(std::min(limit, kMostLimit));
    m_since_loss_s.add(std::min(seconds(now_ns - m_lost_ns), kLongestS));
    ++m_unasked;
  }

  /** A packet leaves for the link. */
  void depart(int64_t now_ns) {
    if (m_departed_ns >= 0) {
      m_departure_gap_s.add(seconds(now_ns - m_departed_ns));
    }
    m_departed_ns = now_ns;
  }

  /** A packet was dropped. */
  void lose(int64_t now_ns) { m_lost_ns = now_ns; }

  /** Whether the network is to be asked now, behind an arrival; if so, counts from here. */
  bool ask() {
    if (m_unasked < kAskPackets && m_arrived_ns - m_asked_ns < kAskNs) {
      return false;
    }
    m_unasked = 0;
    m_asked_ns = m_arrived_ns;
    return true;
  }

  Inputs inputs() const {
    Inputs x{};
    for (std::size_t k = 0; k < kAverages; ++k) {
      const std::array<double, kSignals> signals = {
          m_queue[k] / kPackets,
          std::sqrt(m_queue_square[k]) / kPackets,
          m_limit[k] / kPackets,
          rate(m_arrival_gap_s, k) / kPacketsPerS,
          rate(m_departure_gap_s, k) / kPacketsPerS,
          m_since_loss_s[k] / kLongestS,
      };
      for (std::size_t s = 0; s < kSignals; ++s) {
        x[s * kAverages + k] = static_cast<float>(signals[s]);
      }
    }
    return x;
  }

  /** Packets per second that left, by the fastest average; 0 before the second one. */
  double departure_rate() const { return rate(m_departure_gap_s, 0); }

 private:
  static double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

  /** The rate that a mean gap stands for; a mean of rates would be ruled by bursts. */
  static double rate(const Averages& gap_s, std::size_t k) {
    if (gap_s.samples() == 0) {
      return 0;
    }
    return gap_s[k] * kMostPacketsPerS <= 1 ? kMostPacketsPerS : 1 / gap_s[k];
  }

  Averages m_queue, m_queue_square, m_limit, m_arrival_gap_s, m_departure_gap_s, m_since_loss_s;
  int64_t m_arrived_ns{-1};
  int64_t m_departed_ns{-1};
  int64_t m_lost_ns{0};
  int64_t m_asked_ns{0};
  uint32_t m_unasked{0};
};

}  // namespace swiftqueue::lfq

#endif  // SWIFTQUEUE_TESTBED_ROUTER_LFQ_H_
