// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#ifndef SWIFTQUEUE_SERVING_ENGINE_ALIGNED_H_
#define SWIFTQUEUE_SERVING_ENGINE_ALIGNED_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace swiftqueue::engine {

// Zeroed floats on a cache line's boundary.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(std::size_t size)
      : floats_(static_cast<float*>(::operator new(size * sizeof(float), kAlignment))),
        size_(size) {
    std::fill_n(floats_.get(), size, 0.0F);
  }

  float* data() const { return floats_.get(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{64};

  struct Free {
    void operator()(float* floats) const { ::operator delete(floats, kAlignment); }
  };
  std::unique_ptr<float[], Free> floats_;
  std::size_t size_ = 0;
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_ALIGNED_H_
