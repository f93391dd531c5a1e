// SPDX-License-Identifier: Apache-2.0
//
// A served version and a request's answer. Nothing here knows Triton, so that sanitizers can drive
// it (stress.cc).
//
// Shapes: B windows, W rows, F features of a row, H horizon.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/engine.h"
#include "serving/triton/native/encoder_cache.h"
#include "serving/triton/native/limits.h"

namespace swiftqueue::backend {

// A part of a request's input, in the order of the whole; its address need not be aligned.
struct Piece {
  const void* data;
  std::size_t bytes;
};

inline constexpr char kOutput[] = "latency_us";  // name of the output tensor

// One version: head and limits of its own, the encoder shared with the other versions that have it.
class Model {
 public:
  // Loads version folder `folder`: model.json, model.safetensors, limits.json. Throws FileError or
  // InvalidError, naming the file.
  Model(const std::string& folder, std::int64_t version, EncoderCache& encoders);

  // Throws InvalidError unless Triton's configuration (JSON) promises clients the inputs and
  // outputs of this version.
  void check_config(std::string_view json) const;
  // Hash of the encoder that versions may share.
  std::uint64_t encoder_hash() const { return encoder_hash_; }

  const engine::Engine& engine() const { return *engine_; }
  const Limits& limits() const { return limits_; }

 private:
  Model(const std::string& folder, const engine::Artifact& artifact, std::int64_t version,
        EncoderCache& encoders);

  std::unique_ptr<engine::Engine> engine_;
  Limits limits_;
  std::uint64_t encoder_hash_;
};

// One thread's use of a model.
class Session {
 public:
  // `model` must outlive it.
  explicit Session(const Model& model) : model_(model), engine_(model.engine().share()) {}

  // Answers a request whose input has `shape` and consists of `pieces` with latencies in us, y_BH,
  // which stay until the next call. Throws InvalidError if the request cannot be answered.
  std::span<const float> predict(std::span<const std::int64_t> shape,
                                 std::span<const Piece> pieces);

 private:
  // Returns the pieces as one array, which stays until the next call.
  const float* gather(std::span<const Piece> pieces, std::size_t bytes);

  const Model& model_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<float> x_BWF_;  // used when the input is in pieces or not aligned
  std::vector<float> y_BH_;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_
