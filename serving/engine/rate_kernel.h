// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// What the kernels see of the network that forecasts rates: pointers and sizes, as in kernel.h.
#ifndef SWIFTQUEUE_SERVING_ENGINE_RATE_KERNEL_H_
#define SWIFTQUEUE_SERVING_ENGINE_RATE_KERNEL_H_

#include "serving/engine/kernel.h"

namespace swiftqueue::engine {

inline constexpr int kRateInputs = 32;      // 28 fields and two guesses, padded
inline constexpr int kRatePlaces = 48;      // 35 samples, padded
inline constexpr int kRateMostWidth = 128;  // a multiple of 16
inline constexpr int kRateMostLayers = 8;

struct RateLayer {
  Linear qkv;  // queries are scaled by log2(e) / sqrt(head width)
  Linear out;
  Linear expand;  // D -> 2 D
  Linear contract;
  Norm norm1;
  Norm norm2;
};

struct RateEncoder {
  int width;
  int heads;
  Linear embedding;    // K = kRateInputs
  Scales scales;       // kRateInputs of them; what pads is 0
  const float* place;  // [S][D]
  const RateLayer* layers;
  int layer_count;
  Norm norm;
  Linear out;  // N padded to 16
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_RATE_KERNEL_H_
