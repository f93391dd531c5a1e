// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The inference engine: the event stream's exact forward pass from an artifact, float32, on the
// calling thread, without allocating. docs/ENGINE.md says how it works and what it reaches.
#ifndef SWIFTQUEUE_SERVING_ENGINE_ENGINE_H_
#define SWIFTQUEUE_SERVING_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "serving/engine/artifact.h"
#include "serving/engine/error.h"
#include "serving/engine/kernel.h"
#include "serving/engine/session.h"
#include "serving/engine/weights.h"

namespace swiftqueue::engine {

// Returns the forward pass for `isa`: "avx512", "avx2", "portable", or "auto" for the CPU's best of
// them, which are exact. "amx" multiplies bfloat16; "bf16" is that where the CPU has it, or "auto".
// Throws InvalidError for another name, or an instruction set that this CPU lacks.
const Kernel& select_kernel(std::string_view isa);

inline constexpr int kMostQueries = 16;  // queries of one call: 8 packets in both queues
static_assert(kMostQueries <= kTile);

class SharedHead;

// A loaded model and one thread's scratch memory. One engine serves one call at a time; `share`
// gives another thread its own engine over the same weights and the same head.
class Engine {
 public:
  // Loads an artifact; `version` is the caller's number of it, returned with each answer.
  Engine(const std::string& folder, std::string_view isa = "auto", std::int64_t version = 0);
  // Takes an artifact already read. `encoder`, if not null, was made from an artifact of the same
  // encoder (hash and description): it is shared, and only the head is loaded.
  Engine(const Artifact& artifact, std::shared_ptr<const EncoderWeights> encoder,
         std::string_view isa, std::int64_t version);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::unique_ptr<Engine> share() const;

  // Returns a session without events, for this engine and all that have the same encoder.
  std::unique_ptr<Session> open_session() const;

  // Takes events numbered first, first + 1, ... with rows[count][F]; those that the session has
  // already are skipped. Returns false, and changes nothing, if the session lacks events before
  // `first` or belongs to another encoder: the caller must have the last `reach` events resent.
  // Throws InvalidError, naming the event, if a value is NaN or infinite; nothing is taken then. It
  // also does if values are too large to predict from; the session then has forgotten all.
  bool take(Session& session, std::uint64_t first, const float* rows, int count);

  // Answers queries[count][F], 1 to 16 of them, as they stand after the session's last event:
  // latencies y[count][outputs] in us, and the encoder's outputs feature[count][D] unless that is
  // null. The session stays as it is. Returns the version of the head that answered. Throws
  // InvalidError for a query that is NaN or infinite, and for a session of another encoder.
  std::int64_t answer(const Session& session, const float* queries, int count, float* y,
                      float* feature, int outputs = 1);

  // Returns the number of last events whose resending restores a session exactly.
  int reach() const { return description_.layers * description_.band; }

  // Computes latencies in us of the next H packets, y_BHL, for event windows x_BWF of `tokens` (W,
  // at most the artifact's; fewer means less history) rows each. For each latency y_BHL has room
  // for `outputs` (L) values: description().outputs(), which ascend where they are quantiles.
  // Returns the version of the head that answered all of them. Throws InvalidError, naming the
  // window, if a value is NaN or infinite.
  std::int64_t forward(const float* x_BWF, std::int64_t windows, int tokens, float* y_BHL,
                       int outputs = 1);

  // Puts another artifact's head in place, for all engines that share this one's; calls under way
  // end with the head they began with, and none waits. Any thread may call it. Throws, and leaves
  // the old head, if the artifact is not whole or anything but its head differs.
  void swap_head(const std::string& folder, std::int64_t version);

  // Returns the version of the head that the next call will use.
  std::int64_t version() const;
  const Description& description() const { return description_; }
  const Kernel& kernel() const { return kernel_; }

 private:
  Engine(const Engine& other, int);
  void require_outputs(int outputs) const;
  std::ptrdiff_t not_finite(const float* rows, int count) const;
  int padding_of(const float* x_WF, int tokens, std::int64_t window) const;
  bool add(Session& session, const float* rows, int count);
  // Answers queries; name(row) begins an error's line.
  template <typename Name>
  void answer_with(const Head& head, const Session& session, const float* queries, int count,
                   float* y, float* feature, Name name);
  float anchor(const float* row) const;
  float to_us(float scaled) const;

  const Kernel& kernel_;
  Description description_;
  std::shared_ptr<const EncoderWeights> encoder_;
  std::shared_ptr<SharedHead> head_;
  Scratch scratch_;
  std::unique_ptr<Session> windows_;  // session of `forward`: numbers its windows' events from 0
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_ENGINE_H_
