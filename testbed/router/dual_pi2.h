// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The arithmetic of DualPI2, the dual-queue coupled AQM of RFC 9332 appendix A, and nothing else:
// it holds no packet, reads no clock, draws no random number of its own. The kernel test bed's
// router and the simulator's queue disc (simulation/model/dual-pi2-queue-disc.h) are adapters of
// it, so both decide alike (docs/decisions/0009).
//
// Whoever has the packets asks, in this order:
//
//   refusal(queue, bytes, waiting)                       before a packet joins a queue
//   schedule(now_ns, waiting)                            which queue sends next; take its head out,
//   then pass(queue, ecn, sojourn_ns, found, short, draw)     send it, mark it or drop it; of what
//   is sent charge(queue, bytes, contended)                      the scheduler's account
//   reset_credit()                                       when both queues were found empty
//   update(now_ns, waiting)                              every t_update_ns
//
// Names, as in RFC 9332:
//   p'    base probability, output of a PI controller on the queueing delay, every Tupdate
//   p_C   = p'^2, marks ECN-capable packets of C and drops the others
//   p_CL  = k p', couples C's congestion to L
//   p'_L  native L4S AQM, a ramp or a step of L's own queueing delay
//   p_L   = max(p'_L, p_CL), marks packets of L
#ifndef SWIFTQUEUE_TESTBED_ROUTER_DUAL_PI2_H_
#define SWIFTQUEUE_TESTBED_ROUTER_DUAL_PI2_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace swiftqueue::dual_pi2 {

enum Queue : std::size_t { kL4s = 0, kClassic = 1 };
enum class LAqm : std::uint8_t { kRamp, kStep };
enum class Scheduler : std::uint8_t { kWeightedRoundRobin, kTimeShiftedFifo };
enum class Overload : std::uint8_t { kDrop, kDelay };
enum class DelayInput : std::uint8_t { kGreater, kClassicOnly };
enum class Draw : std::uint8_t { kRecur, kRandom };

inline constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint32_t>::max();
inline constexpr unsigned kNotEct = 0b00;

// What each means and where its default comes from stands beside the attributes of
// simulation/model/dual-pi2-queue-disc.cc.
struct Parameters {
  std::uint64_t max_bytes = 3'125'000;  // RFC 9332 A.1: 250 ms of the link, here of 100 Mbit/s
  std::uint64_t l_max_bytes = kUnlimited;
  std::uint64_t c_max_bytes = kUnlimited;
  std::uint32_t mtu_bytes = 1500;
  std::uint64_t min_backlog_bytes = 0;
  std::int64_t target_ns = 15'000'000;
  std::int64_t t_update_ns = 16'000'000;
  double alpha_hz = 0.16;
  double beta_hz = 3.2;
  double coupling = 2;  // k
  DelayInput delay_input = DelayInput::kGreater;
  LAqm l_aqm = LAqm::kRamp;
  std::int64_t l_min_threshold_ns = 800'000;
  std::int64_t l_range_ns = 400'000;
  std::int64_t l_step_ns = 1'000'000;
  std::uint32_t l_min_packets = 1;  // Th_len
  double l_max_probability = 1;     // p_Lmax
  Scheduler scheduler = Scheduler::kWeightedRoundRobin;
  double c_weight = 1.0 / 16;
  std::int64_t time_shift_ns = 50'000'000;
  Overload overload = Overload::kDrop;
  Draw draw = Draw::kRecur;
};

// Of one queue: what waits in it, and when its head came (without meaning while it is empty).
struct Waiting {
  std::uint64_t bytes = 0;
  std::uint32_t packets = 0;
  std::int64_t head_ns = 0;
};
using Backlog = std::array<Waiting, 2>;  // by Queue

enum class Refusal : std::uint8_t { kNone, kSharedLimit, kLLimit, kCLimit };

// What becomes of a packet that has left its queue, and why: sent as it is, marked, or dropped.
enum class Verdict : std::uint8_t {
  kSend,
  kLNativeMark,    // p'_L was the greater
  kLCoupledMark,   // p_CL was the greater
  kLOverloadMark,  // A.2, p_CL >= p_Lmax
  kCMark,          // ECN-capable, with p_C
  kLOverloadDrop,  // A.2, with p_C
  kCDrop,          // Not-ECT, with p_C
  kCOverloadDrop,  // A.2, ECN-capable, with p_C
};
constexpr bool is_drop(Verdict verdict) { return verdict >= Verdict::kLOverloadDrop; }
constexpr bool is_mark(Verdict verdict) { return verdict != Verdict::kSend && !is_drop(verdict); }

// ECT(1) is 01 and CE is 11: the low bit of the codepoint alone decides.
constexpr Queue queue_of(unsigned ecn) { return (ecn & 1) != 0 ? kL4s : kClassic; }

// ns / 10^9, to the bit as ns-3's Time::GetSeconds() gives it: a multiplication by the inverse in
// Q64.64, cut off. In 0.7 % of the values a division of doubles differs in the last bit, and
// published results hang on that bit.
inline double seconds(std::int64_t ns) {
  using Wide = unsigned __int128;
  constexpr Wide kInverse = ~Wide{0} / 1'000'000'000 + 1;  // 2^128 / 10^9, rounded up
  const Wide u = ns < 0 ? -static_cast<Wide>(ns) : static_cast<Wide>(ns);
  const Wide q = u * (kInverse >> 64) + (u * static_cast<std::uint64_t>(kInverse) >> 64);
  constexpr long double kTwoTo64 = 18446744073709551616.0L;
  const long double s = static_cast<long double>(static_cast<std::uint64_t>(q >> 64)) +
                        static_cast<long double>(static_cast<std::uint64_t>(q)) / kTwoTo64;
  return static_cast<double>(ns < 0 ? -s : s);
}

class DualPi2 {
 public:
  explicit DualPi2(const Parameters& parameters = {}) : parameters_(parameters) { reset_credit(); }

  const Parameters& parameters() const { return parameters_; }
  double p_base() const { return p_base_; }  // p', 0 to 1
  double p_coupled() const {
    return p_coupled_;
  }  // p_CL, 0 to k; not clamped: p_C = (p_CL / k)^2 always holds
  double p_classic() const { return p_classic_; }      // p_C, 0 to 1
  double p_l4s() const { return p_l4s_; }              // p_L of the packet that left L last
  std::int64_t delay_ns() const { return delay_ns_; }  // the controller's last input

  Refusal refusal(Queue queue, std::uint32_t bytes, const Backlog& waiting) const {
    const std::uint64_t needed = std::max(bytes, parameters_.mtu_bytes);
    if (waiting[kL4s].bytes + waiting[kClassic].bytes + needed > parameters_.max_bytes) {
      return Refusal::kSharedLimit;
    }
    if (queue == kL4s && waiting[kL4s].bytes + needed > parameters_.l_max_bytes) {
      return Refusal::kLLimit;
    }
    if (queue == kClassic && waiting[kClassic].bytes + needed > parameters_.c_max_bytes) {
      return Refusal::kCLimit;
    }
    return Refusal::kNone;
  }

  // --- the scheduler ---

  // From now on; its share of the bytes while both queues wait.
  void set_c_weight(double c_weight) { parameters_.c_weight = c_weight; }

  Queue schedule(std::int64_t now_ns, const Backlog& waiting) const {
    if (waiting[kL4s].packets == 0) return kClassic;
    if (waiting[kClassic].packets == 0) return kL4s;
    if (parameters_.scheduler == Scheduler::kTimeShiftedFifo) {
      const std::int64_t l_ns = head_delay_ns(now_ns, waiting[kL4s]);
      return l_ns + parameters_.time_shift_ns >= head_delay_ns(now_ns, waiting[kClassic])
                 ? kL4s
                 : kClassic;
    }
    return credit_ <= 0 ? kL4s : kClassic;
  }

  // A queue alone on the link neither gains nor loses a claim. The credit stays within one packet
  // of 0, so an idle queue keeps no more than that.
  void charge(Queue queue, std::uint32_t bytes, bool contended) {
    if (contended) {
      credit_ += queue == kL4s ? parameters_.c_weight * bytes : -(1 - parameters_.c_weight) * bytes;
    }
  }

  // As in Linux: after an idle time L goes first if its weight is the greater.
  void reset_credit() {
    credit_ = parameters_.mtu_bytes * (parameters_.c_weight - (1 - parameters_.c_weight));
  }

  // --- the AQMs ---

  // Too little waits for p_C and p_CL to be applied; asked after the packet was taken out.
  bool is_short(const Backlog& waiting) const {
    return waiting[kL4s].bytes + waiting[kClassic].bytes < parameters_.min_backlog_bytes;
  }

  /**
   * What becomes of a packet that has just left its queue.
   *
   * ecn: its codepoint, 0 where it has none. sojourn_ns: how long it waited. found: packets that
   * its queue held, itself counted. is_short: of what waits now. draw(): uniform in [0, 1); asked
   * only under Draw::kRandom.
   */
  template <typename Uniform>
  Verdict pass(Queue queue, unsigned ecn, std::int64_t sojourn_ns, std::uint32_t found,
               bool is_short, Uniform&& draw) {
    return queue == kL4s ? pass_l4s(sojourn_ns, found, is_short, draw)
                         : pass_classic(ecn, is_short, draw);
  }

  // --- the controller ---

  void update(std::int64_t now_ns, const Backlog& waiting) {
    const Parameters& p = parameters_;
    std::int64_t delay_ns = head_delay_ns(now_ns, waiting[kClassic]);
    if (p.delay_input == DelayInput::kGreater) {
      delay_ns = std::max(delay_ns, head_delay_ns(now_ns, waiting[kL4s]));
    }
    // 1 = Hz · s + Hz · s
    const double change =
        p.alpha_hz * seconds(delay_ns - p.target_ns) + p.beta_hz * seconds(delay_ns - delay_ns_);
    // Where overload may only delay, p_CL ends at 1: more would push C further without moving L.
    const double most = p.overload == Overload::kDelay && p.coupling > 1 ? 1 / p.coupling : 1;
    p_base_ = std::clamp(p_base_ + change, 0.0, most);
    p_coupled_ = p.coupling * p_base_;
    p_classic_ = p_base_ * p_base_;
    delay_ns_ = delay_ns;
  }

 private:
  // Decides with a likelihood, evenly spaced or at random.
  class Chooser {
   public:
    template <typename Uniform>
    bool choose(double likelihood, Draw how, Uniform& draw) {
      if (how == Draw::kRandom) return draw() < likelihood;
      // A.1's recur(), with p_CL > 1 clamped, as otherwise the sum would grow without bound.
      sum_ += std::min(likelihood, 1.0);
      if (sum_ < 1) return false;
      sum_ -= 1;
      return true;
    }

   private:
    double sum_ = 0;  // likelihoods since the last `true`, less 1 for each `true`
  };

  static std::int64_t head_delay_ns(std::int64_t now_ns, const Waiting& queue) {
    return queue.packets > 0 ? now_ns - queue.head_ns : 0;
  }

  double native(std::int64_t sojourn_ns, std::uint32_t found) const {
    const Parameters& p = parameters_;
    if (found <= p.l_min_packets) return 0;
    if (p.l_aqm == LAqm::kStep) return sojourn_ns > p.l_step_ns ? 1 : 0;
    if (sojourn_ns >= p.l_min_threshold_ns + p.l_range_ns) return 1;
    return std::max(0.0, seconds(sojourn_ns - p.l_min_threshold_ns) / seconds(p.l_range_ns));
  }

  template <typename Uniform>
  Verdict pass_l4s(std::int64_t sojourn_ns, std::uint32_t found, bool is_short, Uniform& draw) {
    const double p_coupled = is_short ? 0 : p_coupled_;
    Verdict reason{};
    const bool saturated = p_coupled_ >= parameters_.l_max_probability;
    if (parameters_.overload == Overload::kDrop && saturated && !is_short) {
      if (l_drops_.choose(p_classic_, parameters_.draw, draw)) return Verdict::kLOverloadDrop;
      p_l4s_ = std::min(p_coupled, 1.0);
      reason = Verdict::kLOverloadMark;
    } else {
      const double p_native = native(sojourn_ns, found);
      p_l4s_ = std::min(std::max(p_native, p_coupled), 1.0);
      reason = p_native > p_coupled ? Verdict::kLNativeMark : Verdict::kLCoupledMark;
    }
    return l_marks_.choose(p_l4s_, parameters_.draw, draw) ? reason : Verdict::kSend;
  }

  template <typename Uniform>
  Verdict pass_classic(unsigned ecn, bool is_short, Uniform& draw) {
    if (is_short || !c_signals_.choose(p_classic_, parameters_.draw, draw)) return Verdict::kSend;
    if (ecn == kNotEct) return Verdict::kCDrop;
    // p_Cmax = min(1 / k^2, 1), where p_CL reaches 1; above it marks have lost their effect (A.2).
    const double k = parameters_.coupling;
    const double p_classic_max = k > 1 ? 1 / (k * k) : 1;
    return parameters_.overload == Overload::kDrop && p_classic_ >= p_classic_max
               ? Verdict::kCOverloadDrop
               : Verdict::kCMark;
  }

  Parameters parameters_;
  double p_base_ = 0;
  double p_coupled_ = 0;
  double p_classic_ = 0;
  double p_l4s_ = 0;
  double credit_ = 0;          // bytes · weight that L is ahead of its share
  std::int64_t delay_ns_ = 0;  // at the last update
  Chooser l_marks_;
  Chooser l_drops_;
  Chooser c_signals_;
};

}  // namespace swiftqueue::dual_pi2

#endif  // SWIFTQUEUE_TESTBED_ROUTER_DUAL_PI2_H_
