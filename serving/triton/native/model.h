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

// One thread's use of a model, of either kind.
class AnySession {
 public:
  virtual ~AnySession() = default;
  // Answers a request whose input has `shape` and consists of `pieces`; the answers stay until the
  // next call. Throws InvalidError if the request cannot be answered.
  virtual std::span<const float> predict(std::span<const std::int64_t> shape,
                                         std::span<const Piece> pieces) = 0;

 protected:
  // Throws InvalidError unless `pieces` are windows [shape[0], tokens, features].
  static std::size_t bytes_of(std::span<const std::int64_t> shape, std::span<const Piece> pieces,
                              std::int64_t tokens, std::int64_t features);
  // Returns the pieces as one array, which stays until the next call.
  const float* gather(std::span<const Piece> pieces, std::size_t bytes);

 private:
  std::vector<float> x_BWF_;  // used when the input is in pieces or not aligned
};

// A version of either model: of latencies, or of rates (rate_model.h).
class AnyModel {
 public:
  virtual ~AnyModel() = default;
  // Throws InvalidError unless Triton's configuration (JSON) promises clients the inputs and
  // outputs of this version.
  virtual void check_config(std::string_view json) const = 0;
  // This object must outlive the session.
  virtual std::unique_ptr<AnySession> session() const = 0;
  // Hash of the weights that versions may share.
  virtual std::uint64_t encoder_hash() const = 0;
  virtual const engine::Kernel& kernel() const = 0;
  // Returns the name of the output tensor.
  virtual const char* output() const = 0;
};

// Loads a version folder, by the format that its model.json names. Throws as `Model` does.
std::unique_ptr<AnyModel> load_model(const std::string& folder, std::int64_t version,
                                     EncoderCache& encoders);

// A version's promises, which Triton's configuration must contain.
struct VersionPromise {
  std::int64_t tokens;
  std::int64_t features;
  const char* output;
  std::int64_t horizon;
  std::string_view schema_hash;
};
void check_promised(std::string_view json, const VersionPromise& promised);

// Reads `limits.json` of rows with the features `names`; errors name the file.
Limits read_limits(const std::string& path, std::vector<std::string> names);

// One version: head and limits of its own, the encoder shared with the other versions that have it.
class Model final : public AnyModel {
 public:
  // Loads version folder `folder`: model.json, model.safetensors, limits.json. Throws FileError or
  // InvalidError, naming the file.
  Model(const std::string& folder, std::int64_t version, EncoderCache& encoders);

  void check_config(std::string_view json) const override;
  std::unique_ptr<AnySession> session() const override;
  std::uint64_t encoder_hash() const override { return encoder_hash_; }
  const engine::Kernel& kernel() const override { return engine_->kernel(); }
  const char* output() const override { return "latency_us"; }

  const engine::Engine& engine() const { return *engine_; }
  const Limits& limits() const { return limits_; }

 private:
  Model(const std::string& folder, const engine::Artifact& artifact, std::int64_t version,
        EncoderCache& encoders);

  std::unique_ptr<engine::Engine> engine_;
  Limits limits_;
  std::uint64_t encoder_hash_;
};

class Session final : public AnySession {
 public:
  // `model` must outlive it.
  explicit Session(const Model& model) : model_(model), engine_(model.engine().share()) {}

  // Returns the latencies in us, y_BH.
  std::span<const float> predict(std::span<const std::int64_t> shape,
                                 std::span<const Piece> pieces) override;

 private:
  const Model& model_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<float> y_BH_;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_
