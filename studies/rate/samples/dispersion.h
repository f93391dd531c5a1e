// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// What a forecast is held against (feedback.h), in the simulator and in a kernel's loader: how
// closely the ACKs of the first ten packets, which leave unpaced, follow each other.
#ifndef SWIFTQUEUE_DISPERSION_H
#define SWIFTQUEUE_DISPERSION_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace swiftqueue::rate {

class Dispersion {
 public:
  static constexpr int kTrain = 10;  // packets of the initial window

  // An ACK, by its sample's `ts` and `bytes_acked`.
  void acked(std::int64_t us, std::int64_t bytes) {
    if (acks_++ > 0 && acks_ <= kTrain && us > us_ && bytes > bytes_) {
      rates_.push_back((bytes - bytes_) * 1'000'000 / (us - us_));
    }
    us_ = us;
    bytes_ = bytes;
  }

  // Bytes/s, the median of what an ACK delivered over the gap before it; 0: not known yet.
  std::uint64_t get() const {
    if (rates_.empty()) return 0;
    std::vector<std::int64_t> rates = rates_;
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    return static_cast<std::uint64_t>(*middle);
  }

 private:
  int acks_{0};
  std::int64_t us_{0};
  std::int64_t bytes_{0};
  std::vector<std::int64_t> rates_;
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_DISPERSION_H
