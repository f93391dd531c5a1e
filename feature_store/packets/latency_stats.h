// Counts statistics of a trace's latencies in bounded memory while rows go by.
#ifndef FEATURE_STORE_LATENCY_STATS_H_
#define FEATURE_STORE_LATENCY_STATS_H_

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

namespace swiftqueue {

// A histogram like HdrHistogram, with buckets of 1 us below 131 ms and of at most 2^-16 of the
// value above, so quantiles of any number of packets cost at most 13 MB.
class LatencyStats {
 public:
  static constexpr int kSubBits =
      17;  // 2^17 us is linear; each power of two above has half as many
  static constexpr int kMaxBits = 41;  // more than 25 days count as 25 days

  // A change is sharp if two successive latencies differ by `sharp_ns` and by `sharp_share` of the
  // first.
  LatencyStats(std::int64_t sharp_ns, double sharp_share)
      : sharp_ns_(sharp_ns), sharp_share_(sharp_share) {}

  void Add(std::int64_t latency_ns) {
    if (known_ > 0) {
      const std::int64_t change = std::llabs(latency_ns - previous_ns_);
      sharp_ += change >= sharp_ns_ &&
                static_cast<double>(change) >= sharp_share_ * static_cast<double>(previous_ns_);
    }
    previous_ns_ = latency_ns;
    ++known_;
    if (latency_ns < min_ns_) min_ns_ = latency_ns;
    if (latency_ns > max_ns_) max_ns_ = latency_ns;
    const std::size_t bucket = Bucket(static_cast<std::uint64_t>(latency_ns) / 1000);
    if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
    ++buckets_[bucket];
  }

  static std::size_t Bucket(std::uint64_t us) {
    if (us >> kMaxBits) us = (std::uint64_t{1} << kMaxBits) - 1;
    const int shift = static_cast<int>(std::bit_width(us)) - kSubBits;
    if (shift <= 0) return us;
    // us >> shift lies in [2^16, 2^17).
    return (static_cast<std::size_t>(shift) << (kSubBits - 1)) + (us >> shift);
  }

  std::int64_t known() const { return known_; }
  std::int64_t sharp() const { return sharp_; }
  std::int64_t min_ns() const { return min_ns_; }
  std::int64_t max_ns() const { return max_ns_; }
  const std::vector<std::int64_t>& buckets() const { return buckets_; }

 private:
  std::int64_t sharp_ns_;
  double sharp_share_;
  std::int64_t known_ = 0;
  std::int64_t sharp_ = 0;
  std::int64_t previous_ns_ = 0;
  std::int64_t min_ns_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_ns_ = -1;
  std::vector<std::int64_t> buckets_;
};

}  // namespace swiftqueue

#endif  // FEATURE_STORE_LATENCY_STATS_H_
