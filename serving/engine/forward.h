// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The event stream's forward pass (models/event_stream/network.py), once for every instruction set:
// included by kernel_*.cc with SWIFTQUEUE_ISA (a namespace), SWIFTQUEUE_LANES, SWIFTQUEUE_TILE_ROWS
// and SWIFTQUEUE_TILE_PANELS set, and SWIFTQUEUE_AMX for products of bfloat16.
//
// A call works on a tile: up to 16 rows, one for each event or query. A matrix product reads each
// weight once for a tile. A row's sums have the same order wherever the row stands in a tile, so an
// answer does not depend on how events were cut into tiles.
#if SWIFTQUEUE_LANES > 4
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>  // integer_sequence: types only

#include "serving/engine/kernel.h"

namespace swiftqueue::engine::SWIFTQUEUE_ISA {
namespace {

#include "serving/engine/vector.h"
#ifdef SWIFTQUEUE_AMX
#include "serving/engine/amx.h"
#else
struct Tiles {
  Tiles() {}  // not trivial, so that a variable of it is not unused
};
#endif

constexpr int kTileRows = SWIFTQUEUE_TILE_ROWS;      // rows whose sums are in registers at once
constexpr int kTilePanels = SWIFTQUEUE_TILE_PANELS;  // panels of columns, likewise
constexpr int kPanelVectors = kPanel / kLanes;
constexpr float kHidden = -1e30F;  // score of a key that is not seen

// The end of a matrix product.
enum class Finish { kStore, kRelu };

// A matrix in panels of 16 columns: element (k, 16 * p + c) is at data[p * panel + k * row + c].
struct Matrix {
  const float* data;
  std::ptrdiff_t panel;
  std::ptrdiff_t row;

  Matrix from_panel(int number) const { return {data + number * panel, panel, row}; }
};

// The sums of R rows and P panels of columns, which the compiler keeps in registers.
template <int R, int P>
using Sums = Vec[R][P * kPanelVectors];

// Adds x[r][k] * matrix[k][...] for `depth` values of k, in their order.
template <int R, int P>
SWIFTQUEUE_INLINE void accumulate(Sums<R, P>& sums, const float* x, std::ptrdiff_t x_row,
                                  const Matrix& matrix, int depth) {
#pragma GCC unroll 4
  for (int k = 0; k < depth; ++k) {
    Vec column[P * kPanelVectors];
#pragma GCC unroll 16
    for (int v = 0; v < P * kPanelVectors; ++v) {
      column[v] = load(matrix.data + v / kPanelVectors * matrix.panel + k * matrix.row +
                       v % kPanelVectors * kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec value = splat(x[r * x_row + k]);
#pragma GCC unroll 16
      for (int v = 0; v < P * kPanelVectors; ++v) sums[r][v] += value * column[v];
    }
  }
}

// Sets the sums to begin(row, column), lets `add` add to them, and hands each to end(row, column,
// sum).
template <int R, int P, typename Begin, typename Add, typename End>
SWIFTQUEUE_INLINE void tile(Begin begin, Add add, End end) {
  Sums<R, P> sums;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < P * kPanelVectors; ++v) sums[r][v] = begin(r, v * kLanes);
  }
  add(sums);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < P * kPanelVectors; ++v) end(r, v * kLanes, sums[r][v]);
  }
}

// Calls part(first row) for the rows of one panel, in tiles of twice as many rows as usual: one
// panel has too few sums to hide the latency of a multiply-add. `part` has R as template argument.
template <typename Part>
SWIFTQUEUE_INLINE void by_narrow_tiles(int rows, Part part) {
  constexpr int kRows = kTilePanels > 1 ? 2 * kTileRows : kTileRows;
  int row = 0;
  for (; row + kRows <= rows; row += kRows) part.template operator()<kRows>(row);
  if constexpr (kRows > kTileRows) {
    for (; row < rows; row += kTileRows) part.template operator()<kTileRows>(row);
  }
}

#ifdef SWIFTQUEUE_AMX
// `linear` where the weights are there as bfloat16; always of 16 rows of x.
template <Finish kFinish>
void linear_rounded(const Linear& layer, int first, int panels, int depth, const float* x,
                    int x_row, int rows, const float* start, float* y, int y_row) {
  alignas(64) std::uint16_t rounded[kTile * kMaxFeedForward];
  alignas(64) float sums[kTile * 4 * kPanel];
  round_rows(x, x_row, depth, rounded);
  for (int panel = 0; panel < panels; panel += 4) {
    const std::ptrdiff_t column = static_cast<std::ptrdiff_t>(first + panel) * kPanel;
    multiply_tiles(rounded, layer.rounded + column * depth, depth, sums);
    for (int r = 0; r < rows; ++r) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * y_row + panel * kPanel;
      for (int c = 0; c < 4 * kPanel; c += kLanes) {
        Vec sum = load(sums + r * 4 * kPanel + c) + load(layer.bias + column + c);
        if (start != nullptr) sum += load(start + at + c);
        store(y + at + c, kFinish == Finish::kRelu ? max(sum, Vec{}) : sum);
      }
    }
  }
}
#endif

// y[r][n] = finish(bias[n] + start[r][n] + sum_k x[r][k] * weight[k][n]) for `panels` panels of
// columns n, a multiple of 4, beginning at `first`. `start`, if not null, has the rows of y.
template <Finish kFinish = Finish::kStore>
void linear(const Linear& layer, int first, int panels, int depth, const float* x, int x_row,
            int rows, const float* start, float* y, int y_row) {
#ifdef SWIFTQUEUE_AMX
  if (layer.rounded != nullptr) {
    return linear_rounded<kFinish>(layer, first, panels, depth, x, x_row, rows, start, y, y_row);
  }
#endif
  const Matrix weight = {layer.weight, static_cast<std::ptrdiff_t>(depth) * kPanel, kPanel};
  for (int panel = 0; panel < panels; panel += kTilePanels) {
    const Matrix part = weight.from_panel(first + panel);
    const float* bias = layer.bias + (first + panel) * kPanel;
    for (int row = 0; row < rows; row += kTileRows) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * y_row + panel * kPanel;
      tile<kTileRows, kTilePanels>(
          [&](int r, int c) {
            return start == nullptr ? load(bias + c)
                                    : load(bias + c) + load(start + at + r * y_row + c);
          },
          [&](Sums<kTileRows, kTilePanels>& sums) {
            accumulate<kTileRows, kTilePanels>(sums, x + static_cast<std::ptrdiff_t>(row) * x_row,
                                               x_row, part, depth);
          },
          [&](int r, int c, Vec sum) {
            store(y + at + r * y_row + c, kFinish == Finish::kRelu ? max(sum, Vec{}) : sum);
          });
    }
  }
}

SWIFTQUEUE_INLINE Vec sum_each(Vec (&rows)[kLanes]) {
  return total_each(rows, [](Vec a, Vec b) { return a + b; });
}

// y = LayerNorm(x), of each row. Two passes: E[x^2] - E[x]^2 would cancel.
void normalise(const Norm& norm, const float* x, int rows, float* y) {
  for (int from = 0; from < rows; from += kLanes) {
    alignas(64) float mean[kLanes];
    alignas(64) float inverse[kLanes];
    Vec part[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const float* row = x + (from + r) * kWidth;
      part[r] = load(row);
      for (int d = kLanes; d < kWidth; d += kLanes) part[r] += load(row + d);
    }
    store(mean, sum_each(part) * (1.0F / kWidth));
    for (int r = 0; r < kLanes; ++r) {
      const float* row = x + (from + r) * kWidth;
      part[r] = Vec{};
      for (int d = 0; d < kWidth; d += kLanes) {
        const Vec apart = load(row + d) - mean[r];
        part[r] += apart * apart;
      }
    }
    store(inverse, inverse_sqrt(sum_each(part) * (1.0F / kWidth) + kNormEpsilon));
    for (int r = 0; r < kLanes; ++r) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(from + r) * kWidth;
      for (int d = 0; d < kWidth; d += kLanes) {
        const Vec apart = (load(x + row + d) - mean[r]) * inverse[r];
        store(y + row + d, apart * load(norm.gain + d) + load(norm.bias + d));
      }
    }
  }
}

// Transforms, shifts and scales a row's seen columns.
void scale(const SeenInputs& seen, const float* row, float* scaled) {
  for (int k = 0; k < seen.count; ++k) scaled[k] = row[seen.columns[k]];
  for (int k = 0; k < seen.padded; k += kLanes) {
    const Vec raw = load(scaled + k);
    const Vec logarithm = log1p_positive(max(raw, Vec{}));
    const Vec value = load(seen.logarithm + k) > Vec{} ? logarithm : raw;
    store(scaled + k, (value - load(seen.shift + k)) * load(seen.inverse_scale + k));
  }
}

// Returns `rows` rounded up to whole register tiles.
SWIFTQUEUE_INLINE int whole_tiles(int rows) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Embeds events as SENDs or as ACKs. Each kind's rows are scaled side by side, so that only its own
// weights multiply them.
void embed_events(const EventEncoder& encoder, const float* rows, int count,
                  const Workspace& work) {
  const SeenInputs& seen = encoder.events;
  int place[kTile];
  int sends = 0;
  for (int t = 0; t < count; ++t) {
    if (!(rows[t * encoder.row + encoder.ack] > 0)) place[t] = sends++;
  }
  const int acks_from = whole_tiles(sends);
  int acks = 0;
  for (int t = 0; t < count; ++t) {
    if (rows[t * encoder.row + encoder.ack] > 0) place[t] = acks_from + acks++;
    scale(seen, rows + t * encoder.row, work.scaled + place[t] * seen.padded);
  }
  linear(encoder.send, 0, kWidth / kPanel, seen.count, work.scaled, seen.padded, acks_from, nullptr,
         work.embedded, kWidth);
  linear(encoder.acknowledge, 0, kWidth / kPanel, seen.count, work.scaled + acks_from * seen.padded,
         seen.padded, whole_tiles(acks), nullptr, work.embedded + acks_from * kWidth, kWidth);
  for (int t = 0; t < count; ++t) {
    for (int d = 0; d < kWidth; d += kLanes) {
      store(work.x + t * kWidth + d, load(work.embedded + place[t] * kWidth + d));
    }
  }
}

// Computes the softmax over keys of scores[row][slot] in place, but for the division:
// inverse_sum[row]. sink[row] is a score of its own, and becomes its weight. With kSomeHidden, keys
// of score kHidden get weight 0.
template <bool kSomeHidden>
void softmax(float* scores, int slots, int rows, float* sink, float* inverse_sum) {
  const int stride = slots + kPanel;
  for (int from = 0; from < rows; from += kLanes) {
    alignas(64) float top[kLanes];
    Vec part[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const float* row = scores + (from + r) * stride;
      part[r] = load(row);
      for (int s = kLanes; s < slots; s += kLanes) part[r] = max(part[r], load(row + s));
    }
    const Vec sink_score = load(sink + from);
    const Vec most = max(total_each(part, [](Vec a, Vec b) { return max(a, b); }), sink_score);
    store(top, most);
    for (int r = 0; r < kLanes; ++r) {
      float* row = scores + (from + r) * stride;
      part[r] = Vec{};
      for (int s = 0; s < slots; s += kLanes) {
        const Vec score = load(row + s);
        Vec power = exp2_negative(score - top[r]);
        if constexpr (kSomeHidden) power = score > kHidden ? power : Vec{};
        part[r] += power;
        store(row + s, power);
      }
    }
    const Vec sink_weight = exp2_negative(sink_score - most);
    store(sink + from, sink_weight);
    store(inverse_sum + from, 1.0F / (sum_each(part) + sink_weight));
  }
}

// Writes the scores of queries and 16 keys of each panel: scores[row][16 * panel + key].
SWIFTQUEUE_INLINE void score(const float* query, int rows, const Matrix& keys, int panels,
                             float* scores, int stride) {
  int panel = 0;
  if constexpr (kTilePanels > 1) {
    for (; panel + kTilePanels <= panels; panel += kTilePanels) {
      for (int row = 0; row < rows; row += kTileRows) {
        float* to = scores + row * stride + panel * kPanel;
        tile<kTileRows, kTilePanels>(
            [](int, int) { return Vec{}; },
            [&](Sums<kTileRows, kTilePanels>& sums) {
              accumulate<kTileRows, kTilePanels>(sums, query + row * kWidth, kWidth,
                                                 keys.from_panel(panel), kHeadWidth);
            },
            [&](int r, int c, Vec sum) { store(to + r * stride + c, sum); });
      }
    }
  }
  for (; panel < panels; ++panel) {
    by_narrow_tiles(rows, [&]<int R>(int row) {
      float* to = scores + row * stride + panel * kPanel;
      tile<R, 1>([](int, int) { return Vec{}; },
                 [&](Sums<R, 1>& sums) {
                   accumulate<R, 1>(sums, query + row * kWidth, kWidth, keys.from_panel(panel),
                                    kHeadWidth);
                 },
                 [&](int r, int c, Vec sum) { store(to + r * stride + c, sum); });
    });
  }
}

// Sets sink[row] to the score of a head's queries and the sink.
SWIFTQUEUE_INLINE void score_sink(const float* query, int rows, const float* sink_key,
                                  float* sink) {
  for (int from = 0; from < rows; from += kLanes) {
    Vec part[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      const float* row = query + (from + r) * kWidth;
      part[r] = load(row) * load(sink_key);
      for (int d = kLanes; d < kHeadWidth; d += kLanes) {
        part[r] += load(row + d) * load(sink_key + d);
      }
    }
    store(sink + from, sum_each(part));
  }
}

// The new events of a tile: event t of it sees the first t + 1 of them in place of the ring's.
struct Fresh {
  int count;            // 0: there are none
  const float* keys;    // [D][16]
  const float* values;  // [16][2 D], the values in the second half
};

// Puts scores of new events in place of those of the events that they displace.
SWIFTQUEUE_INLINE void displace_scores(const float* fresh, int count, int slot, float* scores,
                                       int stride) {
  for (int t = 0; t < count; ++t) {
    for (int f = 0; f < kPanel; f += kLanes) {
      float* at = scores + t * stride + slot + f;
      store_loose(at, lane_numbers(f) <= t ? load(fresh + t * kPanel + f) : load_loose(at));
    }
  }
}

// Moves the weights of new events out of the ring's row: the ring still has the displaced values.
SWIFTQUEUE_INLINE void move_weights(int count, int slot, float* weights, int stride, float* fresh) {
  for (int t = 0; t < count; ++t) {
    for (int f = 0; f < kPanel; f += kLanes) {
      float* at = weights + t * stride + slot + f;
      const IntVec seen = lane_numbers(f) <= t;
      const Vec both = load_loose(at);
      store(fresh + t * kPanel + f, seen ? both : Vec{});
      store_loose(at, seen ? Vec{} : both);
    }
  }
}

// Attention of a tile's queries to the ring, to new events and to the sink: work.mixed, heads side
// by side. Values are added in the order of their slots, which depends on their numbers alone: new
// events up to the row's own, then what the later ones are about to displace.
void attend(const EventLayer& layer, const Ring& ring, int number, int rows, const Fresh& fresh,
            const Workspace& work) {
  alignas(64) float sink[kTile];
  alignas(64) float inverse_sum[kTile];
  const int stride = ring.slots + kPanel;
  const float* keys = ring.keys(number);
  const float* values = ring.values(number);
  const bool hidden = ring.held < ring.slots;
  for (int head = 0; head < kHeads; ++head) {
    const int first = head * kHeadWidth;
    const float* query = work.query + first;
    score(query, rows, {keys + first * ring.slots, kPanel, ring.slots}, ring.slots / kPanel,
          work.scores, stride);
    score_sink(query, rows, layer.sink_key + first, sink);
    if (hidden) {
      for (int t = 0; t < rows; ++t) {
        for (int s = 0; s < ring.slots; s += kLanes) {
          float* at = work.scores + t * stride + s;
          store(at, load(work.seen + s) > Vec{} ? load(at) : splat(kHidden));
        }
      }
    }
    if (fresh.count > 0) {
      score(query, rows, {fresh.keys + first * kPanel, kPanel, kPanel}, 1, work.fresh_scores,
            kPanel);
      displace_scores(work.fresh_scores, fresh.count, ring.slot, work.scores, stride);
    }
    if (hidden) {
      softmax<true>(work.scores, ring.slots, rows, sink, inverse_sum);
    } else {
      softmax<false>(work.scores, ring.slots, rows, sink, inverse_sum);
    }
    if (fresh.count > 0) {
      move_weights(fresh.count, ring.slot, work.scores, stride, work.fresh_scores);
    }
    const int before = fresh.count > 0 ? ring.slot : 0;  // slots before those of the new events
    by_narrow_tiles(rows, [&]<int R>(int row) {
      const float* weights = work.scores + row * stride;
      const Matrix kept = {values + first, 0, kWidth};
      tile<R, 1>([&](int r, int c) { return sink[row + r] * load(layer.sink_value + first + c); },
                 [&](Sums<R, 1>& sums) {
                   if (fresh.count > 0) {
                     accumulate<R, 1>(sums, weights, stride, kept, before);
                     accumulate<R, 1>(sums, work.fresh_scores + row * kPanel, kPanel,
                                      {fresh.values + first, 0, 2 * kWidth}, fresh.count);
                   }
                   accumulate<R, 1>(sums, weights + before, stride,
                                    {kept.data + before * kWidth, 0, kWidth}, ring.slots - before);
                 },
                 [&](int r, int c, Vec sum) {
                   store(work.mixed + (row + r) * kWidth + first + c, sum * inverse_sum[row + r]);
                 });
    });
  }
}

// Applies the rest of a layer to work.x, in place, where work.query has its queries.
SWIFTQUEUE_INLINE void finish_layer(const EventEncoder& encoder, const EventLayer& layer,
                                    const Ring& ring, int number, int rows, const Fresh& fresh,
                                    const Workspace& work) {
  constexpr int kPanels = kWidth / kPanel;
  attend(layer, ring, number, rows, fresh, work);
  linear(layer.out, 0, kPanels, kWidth, work.mixed, kWidth, rows, work.x, work.x, kWidth);
  normalise(layer.norm2, work.x, rows, work.normal);
  const int inner = encoder.feed_forward;
  linear<Finish::kRelu>(layer.expand, 0, inner / kPanel, kWidth, work.normal, kWidth, rows, nullptr,
                        work.inner, inner);
  linear(layer.contract, 0, kPanels, inner, work.inner, inner, rows, work.x, work.x, kWidth);
}

// Marks the slots that hold an event: work.seen.
void mark_seen(const Ring& ring, const Workspace& work) {
  for (int s = 0; s < ring.slots; ++s) {
    const int age = s < ring.slot ? ring.slot - s : ring.slot - s + ring.band;
    work.seen[s] = s < ring.band && age <= ring.held ? 1.0F : 0.0F;
  }
}

// Sets fresh_keys[d][t] to fresh[t][d].
void turn_keys(const float* fresh, float* fresh_keys) {
  for (int t = 0; t < kTile; t += kLanes) {
    for (int d = 0; d < kWidth; d += kLanes) {
      Vec part[kLanes];
      for (int r = 0; r < kLanes; ++r) part[r] = load(fresh + (t + r) * 2 * kWidth + d);
      transpose(part);
      for (int r = 0; r < kLanes; ++r) store(fresh_keys + (d + r) * kPanel + t, part[r]);
    }
  }
}

// Puts keys and values of new events into the ring, in place of the oldest.
void keep(const Ring& ring, int number, const Fresh& fresh) {
  float* keys = ring.keys(number) + ring.slot;
  for (int d = 0; d < kWidth; ++d) {
    for (int f = 0; f < kPanel; f += kLanes) {
      float* at = keys + d * ring.slots + f;  // values after the last event are written unchanged
      store_loose(
          at, lane_numbers(f) < fresh.count ? load(fresh.keys + d * kPanel + f) : load_loose(at));
    }
  }
  float* values = ring.values(number) + ring.slot * kWidth;
  for (int t = 0; t < fresh.count; ++t) {
    for (int d = 0; d < kWidth; d += kLanes) {
      store(values + t * kWidth + d, load(fresh.values + t * 2 * kWidth + d));
    }
  }
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

bool take(const EventEncoder& encoder, const float* rows, int count, int layers, const Ring& ring,
          const Workspace& work) {
  constexpr int kPanels = kWidth / kPanel;
  const int whole = whole_tiles(count);
  const Fresh fresh = {count, work.fresh_keys, work.fresh + kWidth};
  const Tiles tiles;
  if (ring.held < ring.slots) mark_seen(ring, work);
  embed_events(encoder, rows, count, work);
  for (int number = 0; number < layers; ++number) {
    const EventLayer& layer = encoder.layers[number];
    normalise(layer.norm1, work.x, whole, work.normal);
    linear(layer.projection, kPanels, 2 * kPanels, kWidth, work.normal, kWidth, whole, nullptr,
           work.fresh, 2 * kWidth);
    if (!all_finite(work.fresh, static_cast<std::size_t>(count) * 2 * kWidth)) return false;
    turn_keys(work.fresh, work.fresh_keys);
    if (number + 1 < layers) {
      linear(layer.projection, 0, kPanels, kWidth, work.normal, kWidth, whole, nullptr, work.query,
             kWidth);
      finish_layer(encoder, layer, ring, number, whole, fresh, work);
    }
    keep(ring, number, fresh);
  }
  return true;
}

void answer(const EventEncoder& encoder, const float* rows, int count, const Ring& ring,
            const Workspace& work, float* features) {
  constexpr int kPanels = kWidth / kPanel;
  const SeenInputs& seen = encoder.queries;
  const int whole = whole_tiles(count);
  const Tiles tiles;
  if (ring.held < ring.slots) mark_seen(ring, work);
  for (int t = 0; t < count; ++t) {
    scale(seen, rows + t * encoder.row, work.scaled + t * seen.padded);
  }
  linear(encoder.ask, 0, kPanels, seen.count, work.scaled, seen.padded, whole, nullptr, work.x,
         kWidth);
  for (int number = 0; number < encoder.layer_count; ++number) {
    const EventLayer& layer = encoder.layers[number];
    normalise(layer.norm1, work.x, whole, work.normal);
    linear(layer.projection, 0, kPanels, kWidth, work.normal, kWidth, whole, nullptr, work.query,
           kWidth);
    finish_layer(encoder, layer, ring, number, whole, {0, nullptr, nullptr}, work);
  }
  normalise(encoder.norm, work.x, whole, features);
}

void head(const Head& weights, const float* features, int count, int outputs, const Workspace& work,
          float* scaled) {
  const int whole = whole_tiles(count);
  linear<Finish::kRelu>(weights.first, 0, kWidth / kPanel, kWidth, features, kWidth, whole, nullptr,
                        work.normal, kWidth);
  for (int output = 0; output < outputs; ++output) {
    const float* weight = weights.second.weight + output * kWidth;
    for (int from = 0; from < whole; from += kLanes) {
      alignas(64) float sums[kLanes];
      Vec part[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        const float* row = work.normal + (from + r) * kWidth;
        part[r] = load(row) * load(weight);
        for (int d = kLanes; d < kWidth; d += kLanes) part[r] += load(row + d) * load(weight + d);
      }
      store(sums, sum_each(part) + weights.second.bias[output]);
      for (int r = 0; r < kLanes && from + r < count; ++r) {
        scaled[(from + r) * outputs + output] = sums[r];
      }
    }
  }
}

}  // namespace
}  // namespace swiftqueue::engine::SWIFTQUEUE_ISA
