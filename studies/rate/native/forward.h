// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// One token of the network that forecasts rates (model/transformer.py): a causal pre-norm
// Transformer with the keys and values of earlier tokens kept, so that an ACK costs one token.
// Included by kernel_*.cc with SWIFTQUEUE_ISA (a namespace) and SWIFTQUEUE_LANES set.
//
// Shapes: S samples (kPlaces places), F inputs (32), D width, N rows of a matrix, K columns.
#if SWIFTQUEUE_LANES > 4
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>  // integer_sequence: types only

#include "studies/rate/native/kernel.h"

namespace swiftqueue::rate::SWIFTQUEUE_ISA {
namespace {

using engine::kNormEpsilon;
using engine::kPanel;

#include "serving/engine/vector.h"

template <int kHalf = kLanes / 2>
SWIFTQUEUE_INLINE float reduce_max(Vec v) {
  if constexpr (kHalf == 0) {
    return v[0];
  } else {
    return reduce_max<kHalf / 2>(max(v, Halves<kHalf, 1>::of(v, v)));
  }
}

// The end of a matrix product.
enum class Finish { kStore, kRelu };

constexpr int kPlaceVectors = kPlaces / kLanes;

// y[N] = weight * x[K] + bias (+ start) in panels of 16 rows; N a multiple of 16.
template <int kPanels, Finish kFinish>
SWIFTQUEUE_INLINE void panels(const Linear& layer, int depth, int first, const float* start,
                              const float* x, float* y) {
  constexpr int kVectors = kPanel / kLanes;
  Vec sum[2][kPanels * kVectors] = {};  // sums over even and odd k, to hide latency
  for (int k = 0; k < depth; k += 2) {
#pragma GCC unroll 2
    for (int phase = 0; phase < 2; ++phase) {
      const Vec input = splat(x[k + phase]);
#pragma GCC unroll 12
      for (int i = 0; i < kPanels * kVectors; ++i) {
        const float* at =
            layer.weight +
            (static_cast<std::ptrdiff_t>(first + i / kVectors) * depth + k + phase) * kPanel +
            i % kVectors * kLanes;
        sum[phase][i] += input * load(at);
      }
    }
  }
  for (int i = 0; i < kPanels * kVectors; ++i) {
    const int n = first * kPanel + i * kLanes;
    Vec total = sum[0][i] + sum[1][i] + load(layer.bias + n);
    if (start != nullptr) total += load(start + n);
    store(y + n, kFinish == Finish::kRelu ? max(total, Vec{}) : total);
  }
}

template <Finish kFinish = Finish::kStore>
SWIFTQUEUE_INLINE void linear(const Linear& layer, int rows, int depth, const float* start,
                              const float* x, float* y) {
  constexpr int kMost = kLanes == 16 ? 6 : kLanes == 8 ? 3 : 1;
  int panel = 0;
  for (; panel + kMost <= rows / kPanel; panel += kMost) {
    panels<kMost, kFinish>(layer, depth, panel, start, x, y);
  }
  for (; panel < rows / kPanel; ++panel) {
    panels<1, kFinish>(layer, depth, panel, start, x, y);
  }
}

void normalise(const Norm& norm, int width, const float* x, float* y) {
  Vec sum = {};
  for (int d = 0; d < width; d += kLanes) sum += load(x + d);
  const float mean = reduce_add(sum) / static_cast<float>(width);
  Vec square = {};
  for (int d = 0; d < width; d += kLanes) {
    const Vec apart = load(x + d) - mean;
    square += apart * apart;
  }
  const float variance = reduce_add(square) / static_cast<float>(width);
  const float inverse = 1.0F / __builtin_sqrtf(variance + kNormEpsilon);
  for (int d = 0; d < width; d += kLanes) {
    store(y + d, (load(x + d) - mean) * inverse * load(norm.gain + d) + load(norm.bias + d));
  }
}

// Attention of one token's queries to itself and those before it; keys and values are [D][places].
void attend(const Encoder& encoder, const float* query, const float* keys, const float* values,
            int count, float* mixed) {
  const int head_width = encoder.width / encoder.heads;
  const int vectors = (count + kLanes - 1) / kLanes;
  alignas(64) float scores[kPlaces];
  for (int head = 0; head < encoder.heads; ++head) {
    const int first = head * head_width;
    Vec score[kPlaceVectors] = {};
    for (int d = first; d < first + head_width; ++d) {
      const float* key = keys + d * kPlaces;
      for (int v = 0; v < vectors; ++v) score[v] += query[d] * load(key + v * kLanes);
    }
    for (int v = 0; v < vectors; ++v) store(scores + v * kLanes, score[v]);
    for (int place = count; place < vectors * kLanes; ++place) scores[place] = -1e30F;
    Vec most = load(scores);
    for (int v = 1; v < vectors; ++v) most = max(most, load(scores + v * kLanes));
    const float top = reduce_max(most);
    Vec sum = {};
    for (int v = 0; v < vectors; ++v) {
      const Vec power = exp2_negative(load(scores + v * kLanes) - top);
      store(scores + v * kLanes, power);
    }
    for (int place = count; place < vectors * kLanes; ++place) scores[place] = 0;
    for (int v = 0; v < vectors; ++v) sum += load(scores + v * kLanes);
    const float inverse = 1.0F / reduce_add(sum);
    for (int d = first; d < first + head_width; ++d) {
      const float* value = values + d * kPlaces;
      Vec total = {};
      for (int v = 0; v < vectors; ++v)
        total += load(scores + v * kLanes) * load(value + v * kLanes);
      mixed[d] = reduce_add(total) * inverse;
    }
  }
}

void token(const Encoder& encoder, float* cache, int place, const float* x_F, float* answer) {
  alignas(64) float scaled[kInputs];
  for (int f = 0; f < kInputs; f += kLanes) {
    alignas(64) float chosen[kLanes];
    const Vec value = load(x_F + f);
    store(chosen, log1p_positive(max(value, Vec{})));
    for (int i = 0; i < kLanes; ++i) {
      if (encoder.scales.log1p[f + i] == 0) chosen[i] = x_F[f + i];
    }
    store(scaled + f,
          (load(chosen) - load(encoder.scales.shift + f)) * load(encoder.scales.inverse_scale + f));
  }
  const int width = encoder.width;
  alignas(64) float x[kMostWidth];
  alignas(64) float normal[kMostWidth];
  alignas(64) float wide[3 * kMostWidth];
  alignas(64) float mixed[kMostWidth];
  linear(encoder.embedding, width, kInputs, encoder.place + place * width, scaled, x);
  for (int l = 0; l < encoder.layer_count; ++l) {
    const Layer& layer = encoder.layers[l];
    float* keys = cache + static_cast<std::ptrdiff_t>(l) * 2 * width * kPlaces;
    float* values = keys + width * kPlaces;
    normalise(layer.norm1, width, x, normal);
    linear(layer.qkv, 3 * width, width, nullptr, normal, wide);
    for (int d = 0; d < width; ++d) {
      keys[d * kPlaces + place] = wide[width + d];
      values[d * kPlaces + place] = wide[2 * width + d];
    }
    attend(encoder, wide, keys, values, place + 1, mixed);
    linear(layer.out, width, width, x, mixed, x);
    normalise(layer.norm2, width, x, normal);
    linear<Finish::kRelu>(layer.expand, 2 * width, width, nullptr, normal, wide);
    linear(layer.contract, width, 2 * width, x, wide, x);
  }
  normalise(encoder.norm, width, x, normal);
  linear(encoder.out, kPanel, width, nullptr, normal, answer);
}

}  // namespace
}  // namespace swiftqueue::rate::SWIFTQUEUE_ISA
