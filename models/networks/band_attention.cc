// SPDX-License-Identifier: Apache-2.0
//
// Computes the two products of attention in which each row sees consecutive keys and the sink, and
// their gradients (band_attention.py). Key 0 is the sink. Row r sees it, and the seen[r] keys that
// end with key end[r]. Of the K + 1 weights of a row, the last is the sink's, and those of the
// other keys come right before it in their order.
//
// Shapes: R rows, A heads, W width of a head, E keys with the sink, K band. Rows and keys
// (…, A * W) hold one head after the other.
#include <cstdint>

#if defined(__x86_64__)
#define SWIFTQUEUE_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SWIFTQUEUE_FOR_EACH_CPU
#endif

namespace {

using Index = std::int64_t;
constexpr Index kLanes = 16;
typedef float Vec __attribute__((vector_size(kLanes * 4), may_alias, aligned(4)));

inline const Vec& at(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline Vec& at(float* p) { return *reinterpret_cast<Vec*>(p); }

}  // namespace

extern "C" {

struct SqRuns {
  Index rows, heads, width, band;
  const Index *end, *seen;  // R
};

// Writes to weights (R, A, K + 1) the rows (R, A * W) times the keys (A * W, E) that each sees.
SWIFTQUEUE_FOR_EACH_CPU
void sq_band_products(const SqRuns* runs, const float* row, const float* keys, Index count,
                      float* weights) {
  const auto [rows, heads, width, band, end, seen] = *runs;
  for (Index r = 0; r < rows; ++r) {
    const Index n = seen[r];
    for (Index a = 0; a < heads; ++a, row += width, weights += band + 1) {
      const float* key = keys + a * width * count;
      const float* run = key + 1 + end[r] - n;
      float* out = weights + band - n;
      Index j = 0;
      for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
        Vec sum[4] = {};
        for (Index d = 0; d < width; ++d)
          for (int v = 0; v < 4; ++v) sum[v] += row[d] * at(run + d * count + j + v * kLanes);
        for (int v = 0; v < 4; ++v) at(out + j + v * kLanes) = sum[v];
      }
      for (; j <= n; ++j) {
        const float* one = j < n ? run + j : key;
        out[j] = 0;
        for (Index d = 0; d < width; ++d) out[j] += row[d] * one[d * count];
      }
    }
  }
}

// Writes to rows (R, A * W) the sums of the keys (E, A * W) that each sees, by weights
// (R, A, K + 1).
SWIFTQUEUE_FOR_EACH_CPU
void sq_band_sums(const SqRuns* runs, const float* weights, const float* keys, float* row) {
  const auto [rows, heads, width, band, end, seen] = *runs;
  const Index stride = heads * width;
  for (Index r = 0; r < rows; ++r) {
    const Index n = seen[r];
    for (Index a = 0; a < heads; ++a, row += width, weights += band + 1) {
      const float* weight = weights + band - n;
      const float* key = keys + a * width;
      const float* run = key + (1 + end[r] - n) * stride;
      Index d = 0;
      for (; d + kLanes <= width; d += kLanes) {
        Vec sum[4] = {weight[n] * at(key + d)};
        Index j = 0;
        for (; j + 4 <= n; j += 4)
          for (int v = 0; v < 4; ++v) sum[v] += weight[j + v] * at(run + (j + v) * stride + d);
        for (; j < n; ++j) sum[0] += weight[j] * at(run + j * stride + d);
        at(row + d) = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      }
      for (; d < width; ++d) {
        row[d] = weight[n] * key[d];
        for (Index j = 0; j < n; ++j) row[d] += weight[j] * run[j * stride + d];
      }
    }
  }
}

// Adds to keys (E, A * W) the rows (R, A * W) that see each, by weights (R, A, K + 1).
SWIFTQUEUE_FOR_EACH_CPU
void sq_band_spread(const SqRuns* runs, const float* weights, const float* row, float* keys) {
  const auto [rows, heads, width, band, end, seen] = *runs;
  const Index stride = heads * width;
  for (Index r = 0; r < rows; ++r) {
    const Index n = seen[r];
    for (Index a = 0; a < heads; ++a, row += width, weights += band + 1) {
      const float* weight = weights + band - n;
      float* key = keys + a * width;
      float* run = key + (1 + end[r] - n) * stride;
      Index d = 0;
      for (; d + kLanes <= width; d += kLanes) {
        const Vec one = at(row + d);
        for (Index j = 0; j < n; ++j) at(run + j * stride + d) += weight[j] * one;
        at(key + d) += weight[n] * one;
      }
      for (; d < width; ++d) {
        for (Index j = 0; j < n; ++j) run[j * stride + d] += weight[j] * row[d];
        key[d] += weight[n] * row[d];
      }
    }
  }
}

}  // extern "C"
