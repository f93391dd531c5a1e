// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The boundary between the engine and its forward passes, one per instruction set: plain pointers
// and sizes. A kernel's source is compiled for its instruction set, so it must not instantiate
// anything inline from the standard library: the linker might keep that copy for everyone.
//
// Shapes: F features of a row, D model width (64), N rows of a matrix, K columns of it.
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

// Rows that a kernel works on at once. Activations are x[row][feature].
inline constexpr int kTile = 16;
// Weights are cut into panels of 16 outputs, w[panel][k][output]: a product loads whole vectors.
inline constexpr int kPanel = 16;

struct Linear {
  const float* weight;  // [N / 16][K][16]
  const float* bias;    // [N]
  // The weight as bfloat16, [N / 16][K / 2][16][2]; null where it was not made.
  const std::uint16_t* rounded = nullptr;
};

struct Norm {
  const float* gain;  // [D]
  const float* bias;  // [D]
};

// The inputs of a row that a network sees, and their scaling: (x - shift) * inverse_scale, of
// log1p(x) where `logarithm` is 1. Arrays are filled up with zeros to a multiple of 16.
struct SeenInputs {
  int count;           // K
  int padded;          // K rounded up to a multiple of 16
  const int* columns;  // columns of the row
  const float* logarithm;
  const float* shift;
  const float* inverse_scale;
};

// A pre-norm layer of the event stream. Its sink is a key and a value that are always seen.
struct EventLayer {
  Norm norm1;
  Norm norm2;
  Linear projection;  // queries, keys, values: 64 outputs each; queries are scaled by
                      // log2(e) / sqrt(head width), for a softmax in base 2
  Linear out;
  Linear expand;  // D -> feed_forward
  Linear contract;
  const float* sink_key;    // [D]
  const float* sink_value;  // [D]
};

// The event stream (models/event_stream/network.py): an event sees the `band` events that end with
// it, a query the last `band`, and both the sink.
struct EventEncoder {
  int row;             // F
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

// The two last linear layers.
struct Head {
  Linear first;
  Linear second;  // its weight is [outputs][D], not in panels
};

// Scratch memory, 64-byte aligned.
struct Workspace {
  float* scaled;        // [20][K rounded up to 16]: each kind of event fills up a register tile
  float* embedded;      // [20][D]
  float* x;             // [16][D]
  float* normal;        // [16][D]
  float* query;         // [16][D]: attention's queries
  float* fresh;         // [16][2 D]: keys and values of new events
  float* fresh_keys;    // [D][16]
  float* fresh_scores;  // [16][16]: scores, then weights, of new events
  float* seen;          // [slots]: 1 where a slot holds an event, else 0
  float* scores;        // [16][slots and a panel]
  float* mixed;         // [16][D]
  float* inner;         // [16][feed_forward]
};

// Keys and values of a sender's last events (session.h): an event lies at its number modulo `band`.
struct Ring {
  float* states;  // for each layer keys [D][slots], then values [slots][D]
  int band;
  int slots;  // band rounded up to a multiple of 16
  int slot;   // slot of the next event
  int held;   // events that it has, up to `band`

  float* keys(int layer) const {
    return states + static_cast<std::ptrdiff_t>(layer) * 2 * kWidth * slots;
  }
  float* values(int layer) const { return keys(layer) + kWidth * slots; }
};

struct Kernel {
  const char* name;
  // Computes keys and values of events rows[count][F] in the first `layers` layers and puts them
  // into the ring: 16 at most, and none of them beyond the ring's end. Returns false, and the ring
  // is not to be used, if one is NaN or infinite.
  bool (*take)(const EventEncoder& encoder, const float* rows, int count, int layers,
               const Ring& ring, const Workspace& work);
  // Computes the encoder's outputs features[16][D] for 16 queries rows[count][F] at most.
  void (*answer)(const EventEncoder& encoder, const float* rows, int count, const Ring& ring,
                 const Workspace& work, float* features);
  // Computes scaled[count][outputs] = second(relu(first(features[16][D]))).
  void (*head)(const Head& weights, const float* features, int count, int outputs,
               const Workspace& work, float* scaled);
  bool (*all_finite)(const float* values, std::size_t count);
};

extern const Kernel kPortableKernel;
#ifdef __x86_64__
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
extern const Kernel kAmxKernel;  // its matrix products take weights and activations as bfloat16
#endif

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_KERNEL_H_
