// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The boundary between the network and its forward passes, one per instruction set: pointers and
// sizes, as in the engine's kernel.h, whose rules hold here too.
#ifndef SWIFTQUEUE_STUDIES_RATE_KERNEL_H_
#define SWIFTQUEUE_STUDIES_RATE_KERNEL_H_

#include "serving/engine/kernel.h"

namespace swiftqueue::rate {

using engine::Linear;
using engine::Norm;
using engine::Scales;

inline constexpr int kInputs = 32;      // 28 fields and two guesses, padded
inline constexpr int kPlaces = 48;      // 35 samples, padded
inline constexpr int kMostWidth = 128;  // a multiple of 16
inline constexpr int kMostLayers = 8;

struct Layer {
  Linear qkv;  // queries are scaled by log2(e) / sqrt(head width)
  Linear out;
  Linear expand;  // D -> 2 D
  Linear contract;
  Norm norm1;
  Norm norm2;
};

struct Encoder {
  int width;
  int heads;
  Linear embedding;    // K = kInputs
  Scales scales;       // kInputs of them; what pads is 0
  const float* place;  // [S][D]
  const Layer* layers;
  int layer_count;
  Norm norm;
  Linear out;  // N padded to 16
};

struct Kernel {
  const char* name;
  // Computes one token: the sample at `place`, with inputs x_F, after those whose keys and values
  // are in `cache`; `answer` has 16 rows.
  void (*token)(const Encoder& encoder, float* cache, int place, const float* x_F, float* answer);
};

extern const Kernel kPortableKernel;
#ifdef __x86_64__
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
#endif

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_STUDIES_RATE_KERNEL_H_
