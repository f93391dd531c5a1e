// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/model.h"

#include <cstring>
#include <utility>

#include "feature_store/events/event_window.h"
#include "serving/engine/error.h"
#include "serving/engine/json.h"
#include "serving/engine/reading.h"
#include "serving/engine/safetensors.h"

namespace swiftqueue::backend {
namespace {

using engine::InvalidError;
using engine::json::Value;

constexpr std::size_t kMaxLimitsBytes = std::size_t{1} << 20;

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

// Checks the only tensor of a configuration's `input` or `output`.
void check_tensor(const Value& config, const std::string& side, const std::string& name,
                  const std::vector<std::int64_t>& sizes) {
  const engine::json::Array& tensors = config.at(side, "config").array(side);
  if (tensors.size() != 1 || tensors[0].at("name", side).string(side + " name") != name) {
    throw InvalidError("config: " + side + " must be one tensor, " + name);
  }
  if (tensors[0].at("data_type", side).string(side + " data_type") != "TYPE_FP32") {
    throw InvalidError("config: " + name + " must be TYPE_FP32");
  }
  const engine::json::Array& dims = tensors[0].at("dims", side).array(side + " dims");
  bool same = dims.size() == sizes.size();
  for (std::size_t i = 0; same && i < sizes.size(); ++i) {
    same = dims[i].number(side + " dims") == static_cast<double>(sizes[i]);
  }
  if (!same) {
    throw InvalidError("config: this version's " + name + " has dims " + shape_text(sizes) +
                       ", the configuration says otherwise");
  }
}

// Triton leaves out unset members.
const Value* member(const Value& object, std::string_view key) {
  for (const auto& [name, value] : object.object("config")) {
    if (name == key) return &value;
  }
  return nullptr;
}

// Throws InvalidError unless `pieces` are windows [shape[0], tokens, features].
std::size_t bytes_of(std::span<const std::int64_t> shape, std::span<const Piece> pieces,
                     std::int64_t tokens, std::int64_t features) {
  if (shape.size() != 3 || shape[0] < 1 || shape[1] != tokens || shape[2] != features) {
    throw InvalidError("window has shape " + shape_text(shape) + ", this version takes " +
                       shape_text(std::vector<std::int64_t>{-1, tokens, features}));
  }
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  const auto window_bytes = static_cast<std::size_t>(tokens * features) * sizeof(float);
  // It divides instead of multiplying: the number of windows is the client's and could overflow.
  if (bytes % window_bytes != 0 || bytes / window_bytes != static_cast<std::size_t>(shape[0])) {
    throw InvalidError("window has " + std::to_string(bytes) + " bytes, which does not fit shape " +
                       shape_text(shape));
  }
  return bytes;
}

// Reads `limits.json` of rows with the features `names`; errors name the file.
Limits read_limits(const std::string& path, std::vector<std::string> names) {
  const std::string text = engine::read_file(path, kMaxLimitsBytes);
  try {
    return {text, std::move(names)};
  } catch (const InvalidError& error) {
    throw InvalidError(path + ": " + error.what());
  }
}

}  // namespace

Model::Model(const std::string& folder, std::int64_t version, EncoderCache& encoders)
    : Model(folder, engine::load_artifact(folder), version, encoders) {}

Model::Model(const std::string& folder, const engine::Artifact& artifact, std::int64_t version,
             EncoderCache& encoders)
    : engine_(std::make_unique<engine::Engine>(artifact, encoders.get(artifact), "auto", version)),
      limits_(read_limits(folder + "/limits.json",
                          {kEventWindowFeatures.begin(), kEventWindowFeatures.end()})),
      encoder_hash_(artifact.encoder_hash) {
  engine::require_one_latency(artifact.description);
}

void Model::check_config(std::string_view json) const {
  const engine::Description& description = engine_->description();
  const Value config = engine::json::parse(json);
  check_tensor(config, "input", "window", {description.tokens, kEventWindowFeatureCount});
  check_tensor(config, "output", kOutput, {kHorizon});
  const Value* most = member(config, "max_batch_size");
  if (most == nullptr || !(most->number("max_batch_size") >= 1)) {
    throw InvalidError("config: max_batch_size must be at least 1, a request has B windows");
  }
  const Value* parameters = member(config, "parameters");
  const Value* hash = parameters == nullptr ? nullptr : member(*parameters, "schema_hash");
  if (hash != nullptr &&
      hash->at("string_value", "schema_hash").string("schema_hash") != description.schema_hash) {
    throw InvalidError("config: made for features of another schema_hash than the artifact's " +
                       description.schema_hash);
  }
}

std::span<const float> Session::predict(std::span<const std::int64_t> shape,
                                        std::span<const Piece> pieces) {
  const int tokens = engine_->description().tokens;
  const float* x_BWF = gather(pieces, bytes_of(shape, pieces, tokens, kEventWindowFeatureCount));
  model_.limits().check(x_BWF, shape[0], tokens);
  y_BH_.resize(static_cast<std::size_t>(shape[0] * kHorizon));
  engine_->forward(x_BWF, shape[0], tokens, y_BH_.data(), nullptr);
  return y_BH_;
}

const float* Session::gather(std::span<const Piece> pieces, std::size_t bytes) {
  if (pieces.size() == 1 &&
      reinterpret_cast<std::uintptr_t>(pieces[0].data) % alignof(float) == 0) {
    return static_cast<const float*>(pieces[0].data);
  }
  x_BWF_.resize(bytes / sizeof(float));
  auto* to = reinterpret_cast<std::byte*>(x_BWF_.data());
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;  // its address may be null
    std::memcpy(to, piece.data, piece.bytes);
    to += piece.bytes;
  }
  return x_BWF_.data();
}

}  // namespace swiftqueue::backend
