// SPDX-License-Identifier: Apache-2.0
//
// Rules that take packets of ECT(1) to the classic queue at its door: what the laboratory's
// controls `random` and `oracle` do (simulation/programs/laboratory/simple-controls.h), for packets
// of a kernel. No sender could know what the second one sees.
#ifndef SWIFTQUEUE_TESTBED_ROUTER_RULES_H_
#define SWIFTQUEUE_TESTBED_ROUTER_RULES_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "dual_queue.h"

namespace swiftqueue::testbed {

struct Rule {
  enum class Kind : std::uint8_t { kStay, kChance, kShorter };
  Kind kind = Kind::kStay;
  double share = 0;      // kChance: of the bursts
  double margin_us = 0;  // kShorter: by at least so much
};

class Mover {
 public:
  Mover(const Rule& rule, double rate_bps, std::uint64_t seed)
      : rule_(rule), bytes_per_us_(rate_bps / 8e6), random_(seed) {}

  // Whether a packet that comes now is moved.
  bool moves(std::int64_t now_ns, const DualQueue& link) {
    if (rule_.kind == Rule::Kind::kStay) return false;
    if (rule_.kind == Rule::Kind::kChance) {
      if (left_ == 0) {
        left_ = kBurstPackets;
        moved_ = uniform_(random_) < rule_.share;
      }
      --left_;
      return moved_;
    }
    tick(now_ns);
    const double weight = link.arithmetic().parameters().c_weight;
    const auto l4s = static_cast<double>(link.bytes_of(dual_pi2::kL4s));
    const auto classic = static_cast<double>(link.bytes_of(dual_pi2::kClassic));
    return wait_us(l4s, classic, 1 - weight, arrivals_[dual_pi2::kClassic]) -
               wait_us(classic, l4s, weight, arrivals_[dual_pi2::kL4s]) >
           rule_.margin_us;
  }

  // Said of every packet that came, after `moves`.
  void arrived(std::int64_t now_ns, dual_pi2::Queue queue, std::uint32_t bytes) {
    if (rule_.kind != Rule::Kind::kShorter) return;
    tick(now_ns);
    bytes_[queue] += bytes;
  }

 private:
  static constexpr int kBurstPackets = 8;
  static constexpr double kEveryUs = 1'000;
  static constexpr double kRateUs = 20'000;  // over which arrivals are averaged

  // As the laboratory's oracle reckons it (queue-view.h): at the weights until the other queue is
  // empty, with what its arrivals leave from then on. us = bytes / (bytes/us)
  double wait_us(double ahead, double other, double weight, double other_arrivals) const {
    const double other_share = (1 - weight) * bytes_per_us_;
    const double both_us = other_arrivals < other_share ? other / (other_share - other_arrivals)
                                                        : std::numeric_limits<double>::infinity();
    const double alone_us = ahead / (weight * bytes_per_us_);
    if (alone_us <= both_us) return alone_us;
    return both_us + (ahead - weight * bytes_per_us_ * both_us) / (bytes_per_us_ - other_arrivals);
  }

  void tick(std::int64_t now_ns) {
    if (next_ns_ == 0) next_ns_ = now_ns;
    const double share = 1 - std::exp(-kEveryUs / kRateUs);
    for (; next_ns_ <= now_ns; next_ns_ += static_cast<std::int64_t>(kEveryUs * 1e3)) {
      for (std::size_t q = 0; q < bytes_.size(); ++q) {
        arrivals_[q] += share * (static_cast<double>(bytes_[q]) / kEveryUs - arrivals_[q]);
        bytes_[q] = 0;
      }
    }
  }

  const Rule rule_;
  const double bytes_per_us_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  int left_ = 0;
  bool moved_ = false;
  std::int64_t next_ns_ = 0;
  std::array<std::uint64_t, 2> bytes_{};  // that came since the last tick
  std::array<double, 2> arrivals_{};      // bytes/us
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_ROUTER_RULES_H_
