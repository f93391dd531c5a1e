// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The event stream's forward pass (event_window.py), once for every instruction set: included by
// kernel_*.cc with SWIFTQUEUE_ISA (a namespace), SWIFTQUEUE_LANES and SWIFTQUEUE_TILE_VECTORS set.
#if SWIFTQUEUE_LANES > 4
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // integer_sequence: types only

#include "serving/engine/kernel.h"

namespace swiftqueue::engine::SWIFTQUEUE_ISA {
namespace {

#include "serving/engine/vector.h"

constexpr int kTileVectors = SWIFTQUEUE_TILE_VECTORS;
constexpr int kBlockVectors = kBlock / kLanes;

// The end of a tile of a matrix product.
enum class Finish { kStore, kRelu };

// y[r][token] = bias[r] + start[r][token] + sum_k a[r * kRow + k * kColumn] * x[k][token], for R
// rows and V vectors of tokens, all sums in registers. `bias` and `start` may be null.
template <int R, int V, int kRow, int kColumn, Finish kFinish>
SWIFTQUEUE_INLINE void tile(const float* a, const float* bias, const float* start, const float* x,
                            int depth, float* y) {
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum[r][v] = bias != nullptr ? splat(bias[r]) : Vec{};
      if (start != nullptr) sum[r][v] += load(start + r * kBlock + v * kLanes);
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < depth; ++k) {
    Vec token[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) token[v] = load(x + k * kBlock + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec weight = splat(a[r * kRow + k * kColumn]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += weight * token[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      store(y + r * kBlock + v * kLanes,
            kFinish == Finish::kRelu ? max(sum[r][v], Vec{}) : sum[r][v]);
    }
  }
}

// Rows of a tile of V vectors: enough sums to hide the latency of a multiply-add, few enough for
// the registers. A panel's 16 rows are a multiple of each.
constexpr int tile_rows(int vectors) {
  if (kLanes == 16) return vectors >= 3 ? 4 : vectors == 2 ? 8 : 16;
  return vectors >= 2 ? 4 : 8;
}

template <int V, int kRow, int kColumn, Finish kFinish>
SWIFTQUEUE_INLINE void panel_tile(const float* a, const float* bias, const float* start,
                                  const float* x, int depth, float* y) {
  constexpr int kRows = tile_rows(V);
  for (int r = 0; r < kPanel; r += kRows) {
    tile<kRows, V, kRow, kColumn, kFinish>(a + r * kRow, bias == nullptr ? nullptr : bias + r,
                                           start == nullptr ? nullptr : start + r * kBlock, x,
                                           depth, y + r * kBlock);
  }
}

// Multiplies `panels` panels of 16 rows, `panel_stride` floats apart, with a block's first
// `vectors` vectors of tokens.
template <int kRow, int kColumn, Finish kFinish = Finish::kStore>
SWIFTQUEUE_INLINE void product(const float* a, std::ptrdiff_t panel_stride, int panels,
                               const float* bias, const float* start, const float* x, int depth,
                               int vectors, float* y) {
  for (int panel = 0; panel < panels; ++panel) {
    const float* rows = a + panel * panel_stride;
    const float* row_bias = bias == nullptr ? nullptr : bias + panel * kPanel;
    const float* from = start == nullptr ? nullptr : start + panel * kPanel * kBlock;
    float* to = y + panel * kPanel * kBlock;
    int v = 0;
    const auto at = [&](const float* p) { return p == nullptr ? nullptr : p + v * kLanes; };
    for (; v + kTileVectors <= vectors; v += kTileVectors) {
      panel_tile<kTileVectors, kRow, kColumn, kFinish>(rows, row_bias, at(from), x + v * kLanes,
                                                       depth, to + v * kLanes);
    }
    if constexpr (kTileVectors > 2) {
      if (vectors - v == 3) {
        panel_tile<3, kRow, kColumn, kFinish>(rows, row_bias, at(from), x + v * kLanes, depth,
                                              to + v * kLanes);
      } else if (vectors - v == 2) {
        panel_tile<2, kRow, kColumn, kFinish>(rows, row_bias, at(from), x + v * kLanes, depth,
                                              to + v * kLanes);
      }
    }
    if (vectors - v == 1) {
      panel_tile<1, kRow, kColumn, kFinish>(rows, row_bias, at(from), x + v * kLanes, depth,
                                            to + v * kLanes);
    }
  }
}

template <int N, int K, Finish kFinish = Finish::kStore>
SWIFTQUEUE_INLINE void linear(const Linear& layer, const float* start, const float* x, int vectors,
                              float* y) {
  product<1, kPanel, kFinish>(layer.weight, K * kPanel, N / kPanel, layer.bias, start, x, K,
                              vectors, y);
}

// y = LayerNorm(x) over features, of every token of a block. Two passes: E[x^2] - E[x]^2 would
// cancel.
void normalise(const Norm& norm, const float* x, int vectors, float* y) {
  for (int v = 0; v < vectors; ++v) {
    Vec sum[4] = {};
    for (int d = 0; d < kWidth; d += 4) {
      for (int i = 0; i < 4; ++i) sum[i] += load(x + (d + i) * kBlock + v * kLanes);
    }
    const Vec mean = (sum[0] + sum[1] + (sum[2] + sum[3])) * (1.0F / kWidth);
    Vec square[4] = {};
    for (int d = 0; d < kWidth; d += 4) {
      for (int i = 0; i < 4; ++i) {
        const Vec apart = load(x + (d + i) * kBlock + v * kLanes) - mean;
        square[i] += apart * apart;
      }
    }
    const Vec variance = (square[0] + square[1] + (square[2] + square[3])) * (1.0F / kWidth);
    const Vec inverse = inverse_sqrt(variance + kNormEpsilon);
    for (int d = 0; d < kWidth; ++d) {
      const Vec apart = (load(x + d * kBlock + v * kLanes) - mean) * inverse;
      store(y + d * kBlock + v * kLanes, apart * norm.gain[d] + norm.bias[d]);
    }
  }
}

// Returns the number of vectors that hold a block's tokens when `tokens` are left.
SWIFTQUEUE_INLINE int vectors_for(int tokens) {
  return tokens >= kBlock ? kBlockVectors : (tokens + kLanes - 1) / kLanes;
}

// Transforms, shifts and scales the seen columns of a block's rows.
void scale(const SeenInputs& seen, const float* const* rows, int tokens, float* scaled) {
  const int vectors = vectors_for(tokens);
  const Scales& scales = seen.scales;
  for (int k = 0; k < seen.count; ++k) {
    float* input = scaled + k * kBlock;
    const int column = seen.columns[k];
    for (int t = 0; t < tokens; ++t) input[t] = rows[t][column];
    for (int t = tokens; t < vectors * kLanes; ++t) input[t] = 0;
    for (int v = 0; v < vectors; ++v) {
      Vec value = load(input + v * kLanes);
      if (scales.log1p[k] != 0) value = log1p_positive(max(value, Vec{}));
      store(input + v * kLanes, (value - scales.shift[k]) * scales.inverse_scale[k]);
    }
  }
}

// Embeds a block's scaled inputs.
SWIFTQUEUE_INLINE void embed(const Linear& embedding, int inputs, const float* scaled, int vectors,
                             float* x) {
  product<1, kPanel>(embedding.weight, inputs * kPanel, kWidth / kPanel, embedding.bias, nullptr,
                     scaled, inputs, vectors, x);
}

// Computes the softmax over keys of scores[key][query] in place, but for the division:
// inverse_sum[query]. The sum has `S` parts: with one, hidden keys at the ends change no bit of it.
template <int S>
SWIFTQUEUE_INLINE void softmax(float* scores, int keys, int vectors, float* inverse_sum) {
  for (int v = 0; v < vectors; ++v) {
    float* column = scores + v * kLanes;
    Vec most[4];
    for (Vec& m : most) m = load(column);
    int key = 0;
    for (; key + 4 <= keys; key += 4) {
      for (int i = 0; i < 4; ++i) most[i] = max(most[i], load(column + (key + i) * kBlock));
    }
    for (; key < keys; ++key) most[0] = max(most[0], load(column + key * kBlock));
    const Vec top = max(max(most[0], most[1]), max(most[2], most[3]));
    Vec sum[4] = {};
    for (key = 0; key + 4 <= keys; key += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        float* at = column + (key + i) * kBlock;
        const Vec power = exp2_negative(load(at) - top);
        sum[i % S] += power;
        store(at, power);
      }
    }
    for (; key < keys; ++key) {
      const Vec power = exp2_negative(load(column + key * kBlock) - top);
      sum[0] += power;
      store(column + key * kBlock, power);
    }
    store(inverse_sum + v * kLanes, 1.0F / (sum[0] + sum[1] + (sum[2] + sum[3])));
  }
}

// Tokens [first, end) to attend to: their keys and values, and perhaps a sink.
struct SeenTokens {
  const float* keys;      // [slots / 64][stride][64], a head's rows 16 apart
  const float* values;    // likewise
  std::ptrdiff_t stride;  // rows from one block to the next
  int slots;              // a token's slot is its number modulo this
  int first;
  int end;
  const float* sink_key = nullptr;
  const float* sink_value = nullptr;
};

// Calls part(offset in its block's memory, number of the first key, keys) for each block of `seen`.
template <typename Part>
SWIFTQUEUE_INLINE void by_blocks(const SeenTokens& seen, Part part) {
  for (int key = seen.first; key < seen.end;) {
    const int slot = key % seen.slots;
    const int at = slot % kBlock;
    const int keys = kBlock - at < seen.end - key ? kBlock - at : seen.end - key;
    part(slot / kBlock * seen.stride * kBlock + at, key - seen.first, keys);
    key += keys;
  }
}

// Hides no score.
struct NoMask {
  void operator()(float* /*scores*/) const {}
};

// Attention of a block's queries[D][64] to the seen tokens: work.mixed, heads side by side. `hide`
// may lower scores[key][query] before the softmax.
template <typename Hide = NoMask>
void attend(const Workspace& work, const SeenTokens& seen, const float* queries, int vectors,
            Hide hide = {}) {
  alignas(64) float inverse_sum[kBlock];
  const int count = seen.end - seen.first;
  for (int head = 0; head < kHeads; ++head) {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(head) * kHeadWidth * kBlock;
    const float* query = queries + row;
    float* mixed = work.mixed + row;
    by_blocks(seen, [&](std::ptrdiff_t offset, int number, int keys) {
      product<1, kBlock>(seen.keys + row + offset, kPanel, (keys + kPanel - 1) / kPanel, nullptr,
                         nullptr, query, kHeadWidth, vectors, work.scores + number * kBlock);
    });
    hide(work.scores);
    if (seen.sink_key != nullptr) {  // the last score; 15 unused rows follow
      product<1, kPanel>(seen.sink_key + head * kPanel * kHeadWidth, 0, 1, nullptr, nullptr, query,
                         kHeadWidth, vectors, work.scores + count * kBlock);
    }
    constexpr int kSums = std::is_same_v<Hide, NoMask> ? 4 : 1;
    softmax<kSums>(work.scores, count + (seen.sink_key != nullptr ? 1 : 0), vectors, inverse_sum);
    const float* start = nullptr;
    if (seen.sink_value != nullptr) {
      product<1, kPanel>(seen.sink_value + head * kHeadWidth, 0, 1, nullptr, nullptr,
                         work.scores + count * kBlock, 1, vectors, mixed);
      start = mixed;
    }
    by_blocks(seen, [&](std::ptrdiff_t offset, int number, int keys) {
      product<kBlock, 1>(seen.values + row + offset, 0, 1, nullptr, start,
                         work.scores + number * kBlock, keys, vectors, mixed);
      start = mixed;
    });
    for (int d = 0; d < kHeadWidth; ++d) {
      for (int v = 0; v < vectors; ++v) {
        float* at = mixed + d * kBlock + v * kLanes;
        store(at, load(at) * load(inverse_sum + v * kLanes));
      }
    }
  }
}

SWIFTQUEUE_INLINE float* block_of(float* x, int block) {
  return x + static_cast<std::ptrdiff_t>(block) * kWidth * kBlock;
}

// y[N] = weight * x[K] + bias, for one token.
template <int N, int K, Finish kFinish = Finish::kStore>
SWIFTQUEUE_INLINE void linear_one(const Linear& layer, const float* x, float* y) {
  constexpr int kPanelVectors = kPanel / kLanes;
  constexpr int kPanels = N / kPanel < kLanes / 4 ? N / kPanel : kLanes / 4;
  constexpr int kPhases = 2;  // separate sums of even and odd k, to hide latency
  for (int panel = 0; panel < N / kPanel; panel += kPanels) {
    const float* weight = layer.weight + panel * kPanel * K;
    Vec sum[kPhases][kPanels * kPanelVectors] = {};
    for (int k = 0; k < K; k += kPhases) {
#pragma GCC unroll 2
      for (int phase = 0; phase < kPhases; ++phase) {
#pragma GCC unroll 4
        for (int i = 0; i < kPanels * kPanelVectors; ++i) {
          const float* at = weight + (i / kPanelVectors) * kPanel * K + (k + phase) * kPanel +
                            i % kPanelVectors * kLanes;
          sum[phase][i] += x[k + phase] * load(at);
        }
      }
    }
    for (int i = 0; i < kPanels * kPanelVectors; ++i) {
      const int n = panel * kPanel + i * kLanes;
      const Vec total = sum[0][i] + sum[1][i] + load(layer.bias + n);
      store(y + n, kFinish == Finish::kRelu ? max(total, Vec{}) : total);
    }
  }
}

// Embeds a block's events as SENDs or as ACKs.
void embed_events(const EventEncoder& encoder, const float* const* rows, int tokens,
                  const Workspace& work, float* x) {
  const int vectors = vectors_for(tokens);
  scale(encoder.events, rows, tokens, work.scaled);
  embed(encoder.send, encoder.events.count, work.scaled, vectors, x);
  embed(encoder.acknowledge, encoder.events.count, work.scaled, vectors, work.sum);
  alignas(64) float is_ack[kBlock] = {};
  for (int t = 0; t < tokens; ++t) is_ack[t] = rows[t][encoder.ack];
  for (int v = 0; v < vectors; ++v) {
    const IntVec ack = load(is_ack + v * kLanes) > Vec{};
    for (int d = 0; d < kWidth; ++d) {
      const int at = d * kBlock + v * kLanes;
      store(x + at, ack ? load(work.sum + at) : load(x + at));
    }
  }
}

// Returns the first row of a layer's kept keys; values follow those of each block.
SWIFTQUEUE_INLINE float* kept_rows(const KeptEvents& kept, int layer) {
  return kept.states + static_cast<std::ptrdiff_t>(layer) * kept.slots * 2 * kWidth;
}

// Returns keys and values of events [first, end) in a layer.
SWIFTQUEUE_INLINE SeenTokens kept_events(const KeptEvents& kept, const EventLayer& layer,
                                         int number, int first, int end) {
  const float* keys = kept_rows(kept, number);
  return {keys, keys + kWidth * kBlock, 2 * kWidth,      kept.slots, first,
          end,  layer.sink_key,         layer.sink_value};
}

// Applies a layer to a block x, in place, attending to the seen tokens.
template <typename Hide = NoMask>
void event_layer(const EventEncoder& encoder, const EventLayer& layer, const Workspace& work,
                 const SeenTokens& seen, int vectors, float* x, Hide hide = {}) {
  normalise(layer.norm1, x, vectors, work.hidden);
  linear<kWidth, kWidth>(layer.query, nullptr, work.hidden, vectors, work.query);
  attend(work, seen, work.query, vectors, hide);
  linear<kWidth, kWidth>(layer.out, x, work.mixed, vectors, x);
  normalise(layer.norm2, x, vectors, work.sum);
  for (int from = 0; from < encoder.feed_forward; from += kWidth) {
    const Linear expand = {layer.expand.weight + from * kWidth, layer.expand.bias + from};
    linear<kWidth, kWidth, Finish::kRelu>(expand, nullptr, work.sum, vectors, work.hidden);
    product<1, kPanel>(layer.contract.weight + from * kPanel, encoder.feed_forward * kPanel,
                       kWidth / kPanel, from == 0 ? layer.contract.bias : nullptr, x, work.hidden,
                       kWidth, vectors, x);
  }
}

// Hides from each event of a block the later ones, and those a band or more before it.
struct OutsideBand {
  int own;   // number of the block's first event
  int band;  // events
  int first;
  int end;  // end of the keys

  void operator()(float* scores) const {
    for (int key = first; key < end; ++key) {
      float* score = scores + static_cast<std::ptrdiff_t>(key - first) * kBlock;
      for (int event = 0; event < key - own && event < kBlock; ++event) score[event] = kHidden;
      for (int event = key + band - own; event < kBlock; ++event) score[event] = kHidden;
    }
  }

  static constexpr float kHidden = -1e30F;
};

// Stores keys and values of new events from work.fresh; the first is event `own`.
SWIFTQUEUE_INLINE void keep(const KeptEvents& kept, int layer, int own, int events,
                            const Workspace& work) {
  float* rows = kept_rows(kept, layer);
  for (int event = 0; event < events; ++event) {
    const int slot = (own + event) % kept.slots;
    float* to = rows + slot / kBlock * (2 * kWidth * kBlock) + slot % kBlock;
    for (int d = 0; d < 2 * kWidth; ++d) to[d * kBlock] = work.fresh[d * kBlock + event];
  }
}

// Computes keys and values of the fresh events in all layers, block by block. A layer computes only
// those that queries or the next layer may need: so many bands before the end.
void keep_events(const EventEncoder& encoder, const float* const* rows, int events,
                 const KeptEvents& kept, const Workspace& work) {
  const int begin = kept.end - events;
  const int fresh = kept.end - kept.fresh;
  for (int number = 0; number < encoder.layer_count; ++number) {
    const EventLayer& layer = encoder.layers[number];
    const int bands = encoder.layer_count - number;
    for (int own = fresh; own < kept.end; own += kBlock) {
      const int count = kept.end - own < kBlock ? kept.end - own : kBlock;
      if (own + count <= kept.end - bands * encoder.band) continue;
      const int vectors = vectors_for(count);
      float* x = block_of(work.x, (own - fresh) / kBlock);
      if (number == 0) embed_events(encoder, rows + (own - begin), count, work, x);
      normalise(layer.norm1, x, vectors, work.hidden);
      linear<2 * kWidth, kWidth>(layer.key_value, nullptr, work.hidden, vectors, work.fresh);
      keep(kept, number, own, count, work);
    }
    if (bands == 1) break;
    for (int own = fresh; own < kept.end; own += kBlock) {
      const int count = kept.end - own < kBlock ? kept.end - own : kBlock;
      if (own + count <= kept.end - (bands - 1) * encoder.band) continue;
      const int first = own - encoder.band + 1 < begin ? begin : own - encoder.band + 1;
      event_layer(encoder, layer, work, kept_events(kept, layer, number, first, own + count),
                  vectors_for(count), block_of(work.x, (own - fresh) / kBlock),
                  OutsideBand{own, encoder.band, first, own + count});
    }
  }
}

void encode(const EventEncoder& encoder, const float* const* rows, int count,
            const KeptEvents& kept, Workspace& work, float* feature_HD) {
  const int events = count - kHorizon;
  keep_events(encoder, rows, events, kept, work);
  const int vectors = vectors_for(kHorizon);
  scale(encoder.queries, rows + events, kHorizon, work.scaled);
  embed(encoder.ask, encoder.queries.count, work.scaled, vectors, work.last);
  const int first = kept.end - (events < encoder.band ? events : encoder.band);
  for (int number = 0; number < encoder.layer_count; ++number) {
    const EventLayer& layer = encoder.layers[number];
    event_layer(encoder, layer, work, kept_events(kept, layer, number, first, kept.end), vectors,
                work.last);
  }
  normalise(encoder.norm, work.last, vectors, work.sum);
  for (int i = 0; i < kHorizon; ++i) {
    for (int d = 0; d < kWidth; ++d) feature_HD[i * kWidth + d] = work.sum[d * kBlock + i];
  }
}

void head(const Linear& first, const Linear& second, const float* feature_D, float* scaled_L) {
  alignas(64) float hidden[kWidth];
  linear_one<kWidth, kWidth, Finish::kRelu>(first, feature_D, hidden);
  linear_one<kMaxLevels, kWidth>(second, hidden, scaled_L);
}

bool all_finite(const float* values, std::size_t count) {
  Vec sum[4] = {};  // sum of x * 0, which stays 0 unless an x is NaN or infinite
  std::size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int v = 0; v < 4; ++v) sum[v] += load_loose(values + i + v * kLanes) * 0.0F;
  }
  float rest = 0;
  for (; i < count; ++i) rest += values[i] * 0.0F;
  return reduce_add(sum[0] + sum[1] + (sum[2] + sum[3])) + rest == 0.0F;
}

}  // namespace
}  // namespace swiftqueue::engine::SWIFTQUEUE_ISA
