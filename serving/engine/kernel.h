// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The boundary between the engine and its forward passes, one per instruction set: plain pointers
// and sizes. A kernel's source is compiled for its instruction set, so it must not instantiate
// anything inline from the standard library: the linker might keep that copy for everyone.
//
// Shapes: W window rows, F features of a row, D model width (64), H horizon (8 packets), N rows of
// a matrix, K columns of it.
#ifndef SWIFTQUEUE_SERVING_ENGINE_KERNEL_H_
#define SWIFTQUEUE_SERVING_ENGINE_KERNEL_H_

#include <cstddef>
#include <cstdint>

#include "feature_store/events/sizes.h"

namespace swiftqueue::engine {

// The one architecture the kernels know; sizes the artifact is free in are run-time values.
inline constexpr int kWidth = 64;
inline constexpr int kHeads = 4;
inline constexpr int kHeadWidth = kWidth / kHeads;
inline constexpr int kMaxFeedForward = 1024;  // a multiple of the width
inline constexpr int kMaxLevels = 16;         // most quantiles of a latency
inline constexpr int kMaxFeatures = 256;
inline constexpr float kNormEpsilon = 1e-5F;  // torch.nn.LayerNorm's default

// Activations are feature-major in blocks of 64 tokens, x[block][feature][token]: tokens lie in
// vector lanes, so LayerNorm and softmax need no shuffle.
inline constexpr int kBlock = 64;
// Weights are cut into panels of 16 rows, w[panel][k][row]: a matrix product broadcasts from them
// without a stride, and a product with one vector loads 16 outputs at once.
inline constexpr int kPanel = 16;

struct Linear {
  const float* weight;  // [N / 16][K][16]
  const float* bias;    // [N]
};

struct Norm {
  const float* gain;  // [D]
  const float* bias;  // [D]
};

// Scaling of K inputs.
struct Scales {
  const std::uint8_t* log1p;  // whether the input's logarithm is taken
  const float* shift;
  const float* inverse_scale;
};

// The inputs of a row that a network sees, and their scaling.
struct SeenInputs {
  int count;           // K
  const int* columns;  // columns of the row
  Scales scales;
};

// A pre-norm layer of the event stream. Its sink is a key and a value that are always seen.
struct EventLayer {
  Norm norm1;
  Norm norm2;
  Linear query;  // scaled by log2(e) / sqrt(head width): the softmax is in base 2
  Linear key_value;
  Linear out;
  Linear expand;  // D -> feed_forward
  Linear contract;
  const float* sink_key;    // [heads][16][16]: the first row of a panel, the others are 0
  const float* sink_value;  // [D]
};

// The event stream (event_window.py): an event sees the `band` events that end with it, a query the
// last `band`, and both the sink.
struct EventEncoder {
  int ack;             // column of a row: whether an event is an ACK
  Linear send;         // embedding of SENDs, K = events.count
  Linear acknowledge;  // embedding of ACKs, K = events.count
  Linear ask;          // embedding of queries, K = queries.count
  SeenInputs events;
  SeenInputs queries;
  Norm norm;
  const EventLayer* layers;
  int layer_count;
  int band;
  int feed_forward;
};

// Scratch memory for windows of up to `64 * blocks` tokens; 64-byte aligned.
struct Workspace {
  float* scaled;  // [K][64]
  float* x;       // [blocks][D][64]
  float* fresh;   // [2 D][64]: keys and values of new events
  float* scores;  // [blocks * 64 keys, and a panel][64 queries]
  float* mixed;   // [D][64]
  float* hidden;  // [64][64]: a part of the feed-forward layer
  float* sum;     // [D][64]
  float* last;    // [D][64]: the packets about to be sent
  float* query;   // [D][64]: attention's queries
};

// Keys and values of the events of a window (event_log.h), each at its number modulo `slots`.
struct KeptEvents {
  float* states;  // [layers][slots / 64][2 D][64]
  int slots;      // a multiple of 64, the events of a window or more
  int end;        // number after the last event
  int fresh;      // number of the last events that are not kept yet
};

struct Kernel {
  const char* name;
  // Encodes an event window given by its rows: the last H are queries, those before them events.
  // Only the fresh events are computed. feature_HD is the same, bit for bit, whatever was kept.
  void (*encode)(const EventEncoder& encoder, const float* const* rows, int count,
                 const KeptEvents& kept, Workspace& work, float* feature_HD);
  // Computes scaled_L = second(relu(first(feature_D))); `second` is padded to 16 rows.
  void (*head)(const Linear& first, const Linear& second, const float* feature_D, float* scaled_L);
  bool (*all_finite)(const float* values, std::size_t count);
};

extern const Kernel kPortableKernel;
#ifdef __x86_64__
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
#endif

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_KERNEL_H_
