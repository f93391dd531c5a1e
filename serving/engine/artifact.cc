// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/artifact.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "feature_store/_build/schema_hash.h"
#include "feature_store/events/event_window.h"
#include "serving/engine/error.h"
#include "serving/engine/json.h"
#include "serving/engine/kernel.h"
#include "serving/engine/old_form.h"
#include "serving/engine/reading.h"

namespace swiftqueue::engine {
namespace {

constexpr std::string_view kFormat = "swiftqueue-artifact/2";
constexpr std::string_view kEventStream = "event-stream";
constexpr std::string_view kLevels = "levels";  // artifact.py: LEVELS
constexpr double kMedian = 0.5;
constexpr int kMaxLayers = 16;

float finite_float(const json::Value& parent, std::string_view key, const std::string& what) {
  const std::string name = what + ": " + std::string(key);
  const double value = parent.at(key, what).number(name);
  if (std::abs(value) > std::numeric_limits<float>::max()) {
    throw InvalidError(name + " is out of range");
  }
  return static_cast<float>(value);
}

Scaling read_scaling(const json::Value& value, const std::string& what, std::string_view linear,
                     std::string_view logarithm) {
  const std::string& transform = value.at("transform", what).string(what + ": transform");
  if (transform != linear && transform != logarithm) {
    throw InvalidError(what + ": unknown transform " + json::quoted(transform));
  }
  Scaling scaling{"", transform == logarithm, finite_float(value, "shift", what),
                  finite_float(value, "scale", what)};
  if (!(scaling.scale > 0) || !std::isfinite(1.0F / scaling.scale)) {
    throw InvalidError(what + ": the scale must be above zero");
  }
  return scaling;
}

// The sizes that the kernels are written for.
void require_known_sizes(const json::Value& sizes) {
  const std::string what = "architecture";
  sizes.require_keys(
      {"name", "width", "heads", "feed_forward", "layers", "dropout", "band", "anchor"}, what);
  for (const auto& [key, size] : {std::pair{"width", kWidth}, std::pair{"heads", kHeads}}) {
    const std::string name = what + ": " + key;
    if (const std::int64_t found = sizes.at(key, what).count(name); found != size) {
      throw InvalidError(name + " is " + std::to_string(found) + ", the engine knows only " +
                         std::to_string(size) + "; serve this model with ONNX Runtime");
    }
  }
}

// Returns the column of a feature in an event window's row.
int column_of(std::string_view name) {
  const auto found = std::find(kEventWindowFeatures.begin(), kEventWindowFeatures.end(), name);
  if (found == kEventWindowFeatures.end()) {
    throw InvalidError("feature " + json::quoted(name) + " is none of an event window's row");
  }
  return static_cast<int>(found - kEventWindowFeatures.begin());
}

// Reads the inputs, and finds their columns in the row by their names.
Inputs read_inputs(const json::Value& described, std::string_view key) {
  Inputs inputs{read_features(described.at(key, "the description").array(std::string(key))), {}};
  for (const Scaling& scaling : inputs.scaling) inputs.columns.push_back(column_of(scaling.name));
  if (inputs.columns.empty()) throw InvalidError(std::string(key) + " names no feature");
  return inputs;
}

// Reads the sizes that an artifact may choose (models/event_stream/network.py).
void read_sizes(const json::Value& sizes, int horizon, Description& result) {
  result.feed_forward = bounded(sizes, "feed_forward", "architecture", 1, kMaxFeedForward);
  if (result.feed_forward % kWidth != 0) {
    throw InvalidError("architecture: feed_forward is " + std::to_string(result.feed_forward) +
                       ", the engine knows only multiples of " + std::to_string(kWidth) +
                       "; serve this model with ONNX Runtime");
  }
  result.layers = bounded(sizes, "layers", "architecture", 1, kMaxLayers);
  result.band = bounded(sizes, "band", "architecture", 1, kMaxTokens);
  const int reach = result.layers * result.band;
  if (horizon != kHorizon || result.tokens != reach + kHorizon) {
    throw InvalidError("the window must be " + std::to_string(reach) +
                       " events (a band for each layer) and " + std::to_string(kHorizon) +
                       " queries");
  }
  const json::Value& anchor = sizes.at("anchor", "architecture");
  result.anchor = anchor.is_null() ? -1 : column_of(anchor.string("architecture: anchor"));
}

// Reads the levels of a model that gives several quantiles of each latency
// (models/event_stream/network.py).
std::vector<double> read_levels(const json::Array& list) {
  std::vector<double> levels;
  for (const json::Value& value : list) {
    const double level = value.number(std::string(kLevels));
    if (!(level > (levels.empty() ? 0 : levels.back()) && level < 1)) {
      throw InvalidError("levels must ascend between 0 and 1");
    }
    levels.push_back(level);
  }
  if (levels.size() < 2 || levels.size() > kMaxLevels ||
      !std::binary_search(levels.begin(), levels.end(), kMedian)) {
    throw InvalidError("levels must be 2 to " + std::to_string(kMaxLevels) + ", 0.5 among them");
  }
  return levels;
}

Shapes expected_shapes(const Description& description) {
  const std::int64_t hidden = description.feed_forward;
  const std::int64_t values = description.outputs();
  Shapes shapes{{"head.0.weight", {kWidth, kWidth}},
                {"head.0.bias", {kWidth}},
                {"head.2.weight", {values, kWidth}},
                {"head.2.bias", {values}}};
  const auto add = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    shapes[name + ".weight"] = {outputs, inputs};
    shapes[name + ".bias"] = {outputs};
  };
  const auto add_norm = [&](const std::string& name) {
    shapes[name + ".weight"] = shapes[name + ".bias"] = {kWidth};
  };
  add("send", kWidth, std::ssize(description.events.columns));
  add("ack", kWidth, std::ssize(description.events.columns));
  add("ask_about", kWidth, std::ssize(description.queries.columns));
  for (int i = 0; i < description.layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    add(layer + "query", kWidth, kWidth);
    add(layer + "key_value", 2 * kWidth, kWidth);
    add(layer + "out", kWidth, kWidth);
    add(layer + "linear1", hidden, kWidth);
    add(layer + "linear2", kWidth, hidden);
    shapes[layer + "sink"] = {2, 1, kWidth};
    add_norm(layer + "norm1");
    add_norm(layer + "norm2");
  }
  add_norm("norm");
  return shapes;
}

// FNV-1a of all that an event's keys and values depend on: every weight but the head's, in order of
// their names, and how inputs are scaled. It identifies an encoder.
std::uint64_t hash_encoder(const Description& description, const Tensors& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&](std::uint32_t word) { hash = (hash ^ word) * 0x100000001b3U; };
  const auto add_float = [&](float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    add(bits);
  };
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with("head.")) continue;
    for (const float value : tensor.values) add_float(value);
  }
  for (const Inputs* inputs : {&description.events, &description.queries}) {
    for (std::size_t k = 0; k < inputs->columns.size(); ++k) {
      const Scaling& scaling = inputs->scaling[k];
      add(static_cast<std::uint32_t>(inputs->columns[k]));
      add(scaling.logarithm ? 1 : 0);
      add_float(scaling.shift);
      add_float(scaling.scale);
    }
  }
  for (const int size : {description.layers, description.band, description.feed_forward}) {
    add(static_cast<std::uint32_t>(size));
  }
  return hash;
}

}  // namespace

std::vector<Scaling> read_features(const json::Array& list) {
  std::vector<Scaling> features;
  for (const json::Value& value : list) {
    std::string what = "feature " + std::to_string(features.size());
    value.require_keys({"name", "unit", "transform", "shift", "scale"}, what);
    const std::string& name = value.at("name", what).string(what + ": name");
    what = "feature " + json::quoted(name);
    value.at("unit", what).string(what + ": unit");
    const bool known = std::any_of(features.begin(), features.end(),
                                   [&](const Scaling& f) { return f.name == name; });
    if (known) throw InvalidError(what + " stands twice");
    features.push_back(read_scaling(value, what, "identity", "log1p"));
    features.back().name = name;
    if (features.size() > kMaxFeatures) throw InvalidError("more than 256 features");
  }
  return features;
}

int bounded(const json::Value& parent, std::string_view key, const std::string& what, int least,
            int most) {
  const std::string name = what + ": " + std::string(key);
  const std::int64_t value = parent.at(key, what).count(name);
  if (value < least || value > most) {
    throw InvalidError(name + " is " + std::to_string(value) + ", must be in " +
                       std::to_string(least) + ".." + std::to_string(most));
  }
  return static_cast<int>(value);
}

void require_shapes(const Tensors& tensors, const Shapes& expected) {
  for (const auto& [name, shape] : expected) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw InvalidError("weight " + name + " is missing");
    if (found->second.shape != shape) {
      throw InvalidError("weight " + name + " has shape " + shape_text(found->second.shape) +
                         ", expected " + shape_text(shape));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!expected.contains(name)) throw InvalidError("unknown weight " + json::quoted(name));
  }
}

void add_layer_shapes(Shapes& shapes, const std::string& layer, std::int64_t width,
                      std::int64_t hidden) {
  shapes[layer + "self_attn.in_proj_weight"] = {3 * width, width};
  shapes[layer + "self_attn.in_proj_bias"] = {3 * width};
  shapes[layer + "self_attn.out_proj.weight"] = {width, width};
  shapes[layer + "self_attn.out_proj.bias"] = {width};
  shapes[layer + "linear1.weight"] = {hidden, width};
  shapes[layer + "linear1.bias"] = {hidden};
  shapes[layer + "linear2.weight"] = {width, hidden};
  shapes[layer + "linear2.bias"] = {width};
  for (const char* norm : {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}) {
    shapes[layer + norm] = {width};
  }
}

json::Value parse_json(std::string_view text) {
  try {
    return json::parse(text);
  } catch (const InvalidError& error) {
    throw InvalidError(std::string("truncated or not JSON: ") + error.what());
  }
}

Description parse_description(std::string_view text) {
  const json::Value described = parse_json(text);
  const std::string what = "the description";
  const std::string& format = described.at("format", what).string("format");
  const json::Value& sizes = described.at("architecture", what);
  const std::string& name = sizes.at("name", "architecture").string("architecture: name");
  Description result;
  result.schema_hash = described.at("schema_hash", what).string("schema_hash");
  if (const std::string why = why_old(name, result.schema_hash); !why.empty()) {
    throw InvalidError(why);
  }
  if (format != kFormat) {
    throw InvalidError("format " + json::quoted(format) + " is not " + json::quoted(kFormat));
  }
  if (name != kEventStream) {
    throw InvalidError("the engine knows no architecture " + json::quoted(name) + ", only " +
                       json::quoted(kEventStream) + "; serve this model with ONNX Runtime");
  }
  if (result.schema_hash != kEventWindowSchemaHash) {
    throw InvalidError("made for features " + json::quoted(result.schema_hash.substr(0, 12)) +
                       ", this engine reads " + std::string(kEventWindowSchemaHash, 12));
  }
  std::vector<std::string_view> keys{"format", "architecture", "window",     "features", "queries",
                                     "target", "schema_hash",  "visibility", "protocol"};
  const bool levels = described.has(kLevels, what);
  if (levels) keys.push_back(kLevels);
  described.require_keys(keys, what);
  require_known_sizes(sizes);
  const json::Value& window = described.at("window", what);
  window.require_keys({"tokens", "horizon"}, "window");
  const json::Value& target = described.at("target", what);
  target.require_keys({"transform", "shift", "scale"}, "target");

  const int horizon = bounded(window, "horizon", "window", 1, kMaxTokens);
  result.tokens = bounded(window, "tokens", "window", horizon, kMaxTokens);
  result.events = read_inputs(described, "features");
  result.queries = read_inputs(described, "queries");
  result.target = read_scaling(target, "target", "raw", "log");
  read_sizes(sizes, horizon, result);
  if (levels) result.levels = read_levels(described.at(kLevels, what).array("levels"));
  return result;
}

void require_one_latency(const Description& description) {
  if (!description.levels.empty()) {
    throw InvalidError("gives " + std::to_string(description.levels.size()) +
                       " quantiles of each latency (served_level: all), and only the laboratory's "
                       "senders act on several; serve one of them");
  }
}

Artifact parse_artifact(Description description, std::string_view safetensors) {
  Tensors tensors = parse_safetensors(safetensors);
  require_shapes(tensors, expected_shapes(description));
  const std::uint64_t hash = hash_encoder(description, tensors);
  return {std::move(description), std::move(tensors), hash};
}

Artifact load_artifact(const std::string& folder) {
  Description description =
      with_file(folder + "/model.json", kMaxDescriptionBytes,
                [](std::string_view text) { return parse_description(text); });
  return with_file(folder + "/model.safetensors", kMaxWeightBytes, [&](std::string_view bytes) {
    return parse_artifact(std::move(description), bytes);
  });
}

}  // namespace swiftqueue::engine
