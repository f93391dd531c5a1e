// SPDX-License-Identifier: GPL-2.0-only
//
// Google congestion control (draft-ietf-rmcat-gcc-02), its arithmetic alone: no socket, no clock.
// What is read in which way, and why: simulation/doc/gcc.md. Times in ms, rates in bit/s.

#ifndef SWIFTQUEUE_GCC_CONTROLLER_H
#define SWIFTQUEUE_GCC_CONTROLLER_H

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace swiftqueue::gcc {

/** A packet that has arrived, as the receiver's feedback tells of it. */
struct Arrival {
  double sentMs;
  double arrivedMs;
  uint32_t bytes;  // payload
};

/** How much later a group came than the one before it, beside how much later it was sent. */
struct GroupDelta {
  double arrivalMs;                                               // t(i) - t(i-1)
  double departureMs;                                             // T(i) - T(i-1)
  double VariationMs() const { return arrivalMs - departureMs; }  // d(i)
};

/** 5.2: packets become groups. */
class Grouping {
 public:
  static constexpr double kBurstMs = 5;
  static constexpr double kLongestMs = 100;  // length of a group's arrivals; none in the draft

  /** The group before the one that this packet begins, against its own predecessor. */
  std::optional<GroupDelta> Add(const Arrival& packet);

 private:
  struct Group {
    double burstSentMs;  // send time of the first packet of its last burst
    double firstArrivedMs;
    double sentMs;  // send time of the last packet, as is the next one
    double arrivedMs;
  };
  bool BelongsTo(const Group& group, const Arrival& packet) const;

  std::optional<Group> m_current;
  std::optional<Group> m_previous;
};

/** 5.3: a scalar Kalman filter on the variation d(i); its state m(i) is the queue's growth. */
class ArrivalFilter {
 public:
  static constexpr double kStateNoise = 1e-3;        // q, ms^2
  static constexpr double kFirstError = 0.1;         // e(0), ms^2
  static constexpr double kLeastVariance = 1;        // ms^2
  static constexpr double kOutlier = 3;              // standard deviations
  static constexpr double kNoiseCoefficient = 0.01;  // chi: the draft has 0.1 to 0.001
  static constexpr std::size_t kGroups = 30;         // K, which the draft leaves open

  /** Returns m(i), ms. */
  double Update(const GroupDelta& delta);

  double Variance() const { return m_variance; }
  double Error() const { return m_error; }

 private:
  double m_growthMs{0};
  double m_error{kFirstError};
  double m_variance{kLeastVariance};
  std::deque<double> m_departuresMs;  // send times of the last K groups
};

enum class Usage { kNormal, kOver, kUnder };

/** 5.4: compares m(i) with a threshold that adapts. */
class OveruseDetector {
 public:
  static constexpr double kFirstThresholdMs = 12.5;
  static constexpr double kLeastThresholdMs = 6;
  static constexpr double kMostThresholdMs = 600;
  static constexpr double kFarMs = 15;  // beyond it the threshold stays
  static constexpr double kUp = 0.01;   // K_u, 1/ms
  static constexpr double kDown = 0.00018;
  static constexpr double kOveruseMs = 10;
  static constexpr double kLongestStepMs = 100;  // longest step by one group
  static constexpr uint32_t kScale = 60;         // groups: code has it, the draft does not

  /** `scale`: by how much m(i) is multiplied at most, before it is compared. */
  explicit OveruseDetector(uint32_t scale = kScale) : m_scale(scale) {}

  Usage Update(double growthMs, double arrivalMs);
  double ThresholdMs() const { return m_thresholdMs; }

 private:
  uint32_t m_scale;
  uint32_t m_groups{0};
  double m_thresholdMs{kFirstThresholdMs};
  double m_lastMs{0};              // m(i-1)
  std::optional<double> m_overMs;  // how long it has been above
};

/** 5.5: the rate by delay, A_hat. */
class DelayRate {
 public:
  enum class State { kIncrease, kHold, kDecrease };
  static constexpr double kBeta = 0.85;
  static constexpr double kEta = 1.08;  // a second
  static constexpr double kOverIncoming = 1.5;
  static constexpr double kSmoothing = 0.95;
  static constexpr double kDeviations = 3;
  static constexpr uint32_t kFewestDecreases = 3;  // decreases that make an average

  DelayRate(double startBps, double leastBps, double mostBps)
      : m_bps(startBps), m_leastBps(leastBps), m_mostBps(mostBps) {}

  /** `incomingBps`: R_hat, none while it is not known. */
  void Update(Usage usage, std::optional<double> incomingBps, double rttMs, double nowMs);

  double Bps() const { return m_bps; }
  State GetState() const { return m_state; }
  bool IsNearConvergence(double incomingBps) const;

 private:
  void Increase(std::optional<double> incomingBps, double rttMs, double sinceMs);
  void Remember(double incomingBps);
  bool IsKnown() const;
  /** How many standard deviations above the mean of earlier decreases. */
  double Deviations(double incomingBps) const;

  double m_bps;
  double m_leastBps;
  double m_mostBps;
  State m_state{State::kIncrease};
  std::optional<double> m_lastMs;
  uint32_t m_decreases{0};  // decreases behind the mean and the variance of incoming rates
  double m_meanBps{0};
  double m_variance{0};  // variance of them, (bit/s)^2
};

/** 6: the rate by loss, As_hat. */
class LossRate {
 public:
  static constexpr double kLow = 0.02;
  static constexpr double kHigh = 0.10;
  static constexpr double kGrowth = 1.05;

  LossRate(double startBps, double leastBps) : m_bps(startBps), m_leastBps(leastBps) {}

  /** `mostBps`: A_hat, beyond which it need not grow. */
  void Update(double lost, double mostBps);
  double Bps() const { return m_bps; }

 private:
  double m_bps;
  double m_leastBps;
};

/** All of it, at the sender: feedback in, rate out. */
class Controller {
 public:
  static constexpr double kWindowMs = 500;    // T of R_hat
  static constexpr double kReactionMs = 100;  // response time = round trip + this

  Controller(double startBps, double leastBps, double mostBps,
             uint32_t scale = OveruseDetector::kScale);

  /** A feedback message: the packets that came, in the order in which they were sent, and how many
   * were lost among them. */
  void Feedback(const std::vector<Arrival>& came, uint32_t lost, double rttMs, double nowMs);

  double TargetBps() const;

 private:
  std::optional<double> IncomingBps() const;

  double m_leastBps;
  double m_mostBps;
  Grouping m_grouping;
  ArrivalFilter m_filter;
  OveruseDetector m_detector;
  DelayRate m_delay;
  LossRate m_loss;
  Usage m_usage{Usage::kNormal};
  std::deque<Arrival> m_window;
  uint64_t m_windowBytes{0};
  std::optional<double> m_firstArrivedMs;
  uint64_t m_came{0};  // since the loss was looked at
  uint64_t m_lost{0};
  std::optional<double> m_lossLookedMs;
};

}  // namespace swiftqueue::gcc

#endif  // SWIFTQUEUE_GCC_CONTROLLER_H
