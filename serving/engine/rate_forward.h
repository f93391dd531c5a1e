// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// One token of the network that forecasts rates (rate_transformer.py): a causal pre-norm
// Transformer with the keys and values of earlier tokens kept, so that an ACK costs one token.
// Included by kernel_*.cc after forward.h, whose vectors it uses.
//
// Shapes: S samples (kRateSamples places), F inputs (32), D width, N rows of a matrix, K columns.
#include "serving/engine/rate_kernel.h"

namespace swiftqueue::engine::SWIFTQUEUE_ISA {
namespace {

constexpr int kRatePlaceVectors = kRatePlaces / kLanes;

// y[N] = weight * x[K] + bias (+ start) in panels of 16 rows; N a multiple of 16.
template <int kPanels, Finish kFinish>
SWIFTQUEUE_INLINE void rate_panels(const Linear& layer, int depth, int first, const float* start,
                                   const float* x, float* y) {
  constexpr int kVectors = kPanel / kLanes;
  Vec sum[2][kPanels * kVectors] = {};  // of even and odd k, to hide latency
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
SWIFTQUEUE_INLINE void rate_linear(const Linear& layer, int rows, int depth, const float* start,
                                   const float* x, float* y) {
  constexpr int kMost = kLanes == 16 ? 6 : kLanes == 8 ? 3 : 1;
  int panel = 0;
  for (; panel + kMost <= rows / kPanel; panel += kMost) {
    rate_panels<kMost, kFinish>(layer, depth, panel, start, x, y);
  }
  for (; panel < rows / kPanel; ++panel) {
    rate_panels<1, kFinish>(layer, depth, panel, start, x, y);
  }
}

void rate_normalise(const Norm& norm, int width, const float* x, float* y) {
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
void rate_attend(const RateEncoder& encoder, const float* query, const float* keys,
                 const float* values, int count, float* mixed) {
  const int head_width = encoder.width / encoder.heads;
  const int vectors = (count + kLanes - 1) / kLanes;
  alignas(64) float scores[kRatePlaces];
  for (int head = 0; head < encoder.heads; ++head) {
    const int first = head * head_width;
    Vec score[kRatePlaceVectors] = {};
    for (int d = first; d < first + head_width; ++d) {
      const float* key = keys + d * kRatePlaces;
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
      const float* value = values + d * kRatePlaces;
      Vec total = {};
      for (int v = 0; v < vectors; ++v)
        total += load(scores + v * kLanes) * load(value + v * kLanes);
      mixed[d] = reduce_add(total) * inverse;
    }
  }
}

void rate_token(const RateEncoder& encoder, float* cache, int place, const float* x_F,
                float* answer) {
  alignas(64) float scaled[kRateInputs];
  for (int f = 0; f < kRateInputs; f += kLanes) {
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
  alignas(64) float x[kRateMostWidth];
  alignas(64) float normal[kRateMostWidth];
  alignas(64) float wide[3 * kRateMostWidth];
  alignas(64) float mixed[kRateMostWidth];
  rate_linear(encoder.embedding, width, kRateInputs, encoder.place + place * width, scaled, x);
  for (int l = 0; l < encoder.layer_count; ++l) {
    const RateLayer& layer = encoder.layers[l];
    float* keys = cache + static_cast<std::ptrdiff_t>(l) * 2 * width * kRatePlaces;
    float* values = keys + width * kRatePlaces;
    rate_normalise(layer.norm1, width, x, normal);
    rate_linear(layer.qkv, 3 * width, width, nullptr, normal, wide);
    for (int d = 0; d < width; ++d) {
      keys[d * kRatePlaces + place] = wide[width + d];
      values[d * kRatePlaces + place] = wide[2 * width + d];
    }
    rate_attend(encoder, wide, keys, values, place + 1, mixed);
    rate_linear(layer.out, width, width, x, mixed, x);
    rate_normalise(layer.norm2, width, x, normal);
    rate_linear<Finish::kRelu>(layer.expand, 2 * width, width, nullptr, normal, wide);
    rate_linear(layer.contract, width, 2 * width, x, wide, x);
  }
  rate_normalise(encoder.norm, width, x, normal);
  rate_linear(encoder.out, kPanel, width, nullptr, normal, answer);
}

}  // namespace
}  // namespace swiftqueue::engine::SWIFTQUEUE_ISA
