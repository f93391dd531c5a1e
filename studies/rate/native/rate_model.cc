// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "studies/rate/native/rate_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "serving/engine/engine.h"
#include "serving/engine/error.h"
#include "serving/engine/reading.h"
#include "serving/engine/weights.h"
#include "studies/rate/_build/schema_hash.h"
#include "studies/rate/samples/feedback.h"

namespace swiftqueue::rate {
namespace {

using engine::AlignedFloats;
using engine::bounded;
using engine::InvalidError;
using engine::kPanel;
using engine::Scaling;
using engine::Shapes;
namespace json = engine::json;

constexpr std::string_view kFormat = "swiftqueue-rate/2";
constexpr std::string_view kTransformer = "transformer";
constexpr double kCenter = 14.0;     // model/transformer.py: CENTER
constexpr double kTripOffset = 4.0;  // brings a packet a round trip near the dispersion
constexpr double kUsPerS = 1e6;
constexpr int kHorizonCount = static_cast<int>(kHorizons.size());

// Returns the forward pass for the instruction set that the engine chooses.
const Kernel& kernel_for(std::string_view isa) {
  const std::string_view chosen = engine::select_kernel(isa).name;
#ifdef __x86_64__
  for (const Kernel* kernel : {&kAvx512Kernel, &kAvx2Kernel}) {
    if (chosen == kernel->name) return *kernel;
  }
#endif
  return kPortableKernel;
}

void check_fields(const std::vector<Scaling>& features) {
  bool same = features.size() == kFields.size();
  for (std::size_t f = 0; same && f < features.size(); ++f) {
    same = features[f].name == kFields[f].name;
  }
  if (!same) throw InvalidError("the features are not the fields of a TCP sample, in their order");
}

void check_horizons(const json::Value& target) {
  const json::Array& horizons = target.at("horizons", "target").array("target: horizons");
  bool same = horizons.size() == kHorizons.size();
  for (std::size_t h = 0; same && h < horizons.size(); ++h) {
    same = horizons[h].count("target: horizons") == kHorizons[h];
  }
  if (!same) throw InvalidError("target: other horizons than those of a TCP sample's definition");
}

}  // namespace

RateModel::RateModel(const std::string& folder, std::string_view isa) : kernel_(kernel_for(isa)) {
  engine::with_file(folder + "/model.json", engine::kMaxDescriptionBytes,
                    [&](std::string_view text) { read_description(text); });
  engine::with_file(folder + "/model.safetensors", engine::kMaxWeightBytes,
                    [&](std::string_view bytes) { read_weights(bytes); });
}

RateModel::RateModel(std::string_view description, std::string_view safetensors,
                     std::string_view isa)
    : kernel_(kernel_for(isa)) {
  read_description(description);
  read_weights(safetensors);
}

void RateModel::read_description(std::string_view text) {
  const json::Value described = engine::parse_json(text);
  const std::string what = "the description";
  if (const std::string& format = described.at("format", what).string("format");
      format != kFormat) {
    throw InvalidError("format " + json::quoted(format) + " is not " + json::quoted(kFormat));
  }
  const std::string& hash = described.at("schema_hash", what).string("schema_hash");
  if (hash != kSchemaHash) {
    throw InvalidError("made for samples " + json::quoted(hash) + ", not " +
                       std::string(kSchemaHash) + "; train again");
  }
  const json::Value& sizes = described.at("architecture", what);
  const std::string& name = sizes.at("name", "architecture").string("architecture: name");
  if (name != kTransformer) {
    throw InvalidError("unknown architecture " + json::quoted(name) + " (known: " +
                       std::string(kTransformer) + "); serve this model with ONNX Runtime");
  }
  sizes.require_keys({"name", "width", "layers", "heads", "dropout"}, "architecture");
  encoder_.width = bounded(sizes, "width", "architecture", 1, kMostWidth);
  encoder_.heads = bounded(sizes, "heads", "architecture", 1, kMostWidth);
  encoder_.layer_count = bounded(sizes, "layers", "architecture", 1, kMostLayers);
  if (encoder_.width % kPanel != 0 || encoder_.width % encoder_.heads != 0) {
    throw InvalidError("architecture: width is " + std::to_string(encoder_.width) +
                       ", the engine knows only multiples of 16 and of the heads; serve this "
                       "model with ONNX Runtime");
  }
  features_ = engine::read_features(described.at("features", what).array("features"));
  check_fields(features_);
  check_horizons(described.at("target", what));
}

const float* RateModel::keep(const std::vector<float>& values) {
  AlignedFloats& kept = storage_.emplace_back(values.size());
  std::copy(values.begin(), values.end(), kept.data());
  return kept.data();
}

const float* RateModel::keep_packed(const std::vector<float>& matrix, int columns,
                                    int padded_columns) {
  const std::size_t rows = matrix.size() / static_cast<std::size_t>(columns);
  std::vector<float> wide(rows * static_cast<std::size_t>(padded_columns));
  for (std::size_t row = 0; row < rows; ++row) {
    std::copy_n(matrix.begin() + static_cast<std::ptrdiff_t>(row) * columns, columns,
                wide.begin() + static_cast<std::ptrdiff_t>(row) * padded_columns);
  }
  const std::size_t panels = (rows + kPanel - 1) / kPanel;
  AlignedFloats& kept =
      storage_.emplace_back(panels * kPanel * static_cast<std::size_t>(padded_columns));
  engine::pack(wide, static_cast<std::size_t>(padded_columns), kept.data());
  return kept.data();
}

void RateModel::read_weights(std::string_view safetensors) {
  const int width = encoder_.width;
  Shapes shapes{{"embedding.weight", {width, kFieldCount + 2}},
                {"embedding.bias", {width}},
                {"place", {kMostSamples, width}},
                {"norm.weight", {width}},
                {"norm.bias", {width}},
                {"out.weight", {kHorizonCount, width}},
                {"out.bias", {kHorizonCount}},
                {"of_dispersion", {kHorizonCount}},
                {"of_window", {kHorizonCount}}};
  for (int i = 0; i < encoder_.layer_count; ++i) {
    engine::add_layer_shapes(shapes, "layers." + std::to_string(i) + ".", width, 2 * width);
  }
  const engine::Tensors tensors = engine::parse_safetensors(safetensors);
  engine::require_shapes(tensors, shapes);
  const auto values = [&](const std::string& name) -> const std::vector<float>& {
    return tensors.at(name).values;
  };
  const auto linear = [&](const std::string& name, int columns, int padded) -> Linear {
    std::vector<float> bias = values(name + ".bias");
    bias.resize((bias.size() + kPanel - 1) / kPanel * kPanel);
    return {keep_packed(values(name + ".weight"), columns, padded), keep(bias)};
  };
  const auto norm = [&](const std::string& name) -> Norm {
    return {keep(values(name + ".weight")), keep(values(name + ".bias"))};
  };

  std::vector<float> shift(kInputs);
  std::vector<float> inverse(kInputs);
  for (int f = 0; f < kFieldCount; ++f) {
    const Scaling& feature = features_[static_cast<std::size_t>(f)];
    log1p_[static_cast<std::size_t>(f)] = feature.logarithm ? 1 : 0;
    shift[static_cast<std::size_t>(f)] = feature.shift;
    inverse[static_cast<std::size_t>(f)] = 1.0F / feature.scale;
  }
  inverse[kFieldCount] = inverse[kFieldCount + 1] =
      1.0F;  // the two guesses are in their scale already
  encoder_.scales = {log1p_.data(), keep(shift), keep(inverse)};
  encoder_.embedding = linear("embedding", kFieldCount + 2, kInputs);
  encoder_.place = keep(values("place"));
  const double for_softmax =
      std::numbers::log2e / std::sqrt(static_cast<double>(width / encoder_.heads));
  for (int i = 0; i < encoder_.layer_count; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".";
    std::vector<float> qkv = values(name + "self_attn.in_proj_weight");
    std::vector<float> qkv_bias = values(name + "self_attn.in_proj_bias");
    const auto scaled = [&](float value) { return static_cast<float>(value * for_softmax); };
    std::transform(qkv.begin(), qkv.begin() + width * width, qkv.begin(), scaled);
    std::transform(qkv_bias.begin(), qkv_bias.begin() + width, qkv_bias.begin(), scaled);
    layers_.push_back({{keep_packed(qkv, width, width), keep(qkv_bias)},
                       linear(name + "self_attn.out_proj", width, width),
                       linear(name + "linear1", width, width),
                       linear(name + "linear2", 2 * width, 2 * width),
                       norm(name + "norm1"),
                       norm(name + "norm2")});
  }
  encoder_.layers = layers_.data();
  encoder_.norm = norm("norm");
  encoder_.out = linear("out", width, width);
  std::copy_n(values("of_dispersion").begin(), of_dispersion_.size(), of_dispersion_.begin());
  std::copy_n(values("of_window").begin(), of_window_.size(), of_window_.begin());
}

RateFlow::RateFlow(const RateModel& model)
    : model_(model),
      cache_(static_cast<std::size_t>(model.encoder_.layer_count) * 2 *
             static_cast<std::size_t>(model.encoder_.width) * kPlaces) {}

void RateFlow::reset() {
  stream_ = {};
  samples_ = gaps_ = 0;
  sent_bytes_ = packets_ = 0;
  rates_ = {};
}

// The path's own estimate from the samples (model/network.py: path_guess).
void RateFlow::guess(const float* x_F) {
  sent_bytes_ += x_F[At::bytes_sent];
  packets_ += x_F[At::segs_out];
  const double size = std::max(sent_bytes_ / std::max(packets_, 1.0), 1.0);  // bytes
  const double gap_us = x_F[At::ts];
  const double delivered = x_F[At::delivered];
  if (gap_us > 0 && delivered > 0) {
    // bytes/s = packets * bytes/packet * us/s / us
    const double found = delivered * size * kUsPerS / std::max(gap_us, 1.0);
    double* end = gap_rates_.data() + gaps_;
    double* at = std::upper_bound(gap_rates_.data(), end, found);
    std::copy_backward(at, end, end + 1);
    *at = found;
    ++gaps_;
  }
  const double dispersion = gaps_ > 0 ? gap_rates_[static_cast<std::size_t>((gaps_ - 1) / 2)]
                                      : std::max<double>(x_F[At::bbr_bw], 1.0);
  log_dispersion_ = std::log(dispersion);
  log_trip_ = std::log(size * kUsPerS / std::max<double>(x_F[At::min_rtt], 1.0));
}

void RateFlow::push(const std::int64_t* sample) {
  if (samples_ == kMostSamples) {
    throw InvalidError("the flow has more than " + std::to_string(kMostSamples) +
                       " samples; a forecast takes no more");
  }
  alignas(64) float x_F[kInputs] = {};
  if (!stream_.push(sample, x_F)) {
    throw InvalidError("sample " + std::to_string(samples_) +
                       ": a field is negative, a count falls, or a flag is not 0 or 1");
  }
  guess(x_F);
  x_F[kFieldCount] = static_cast<float>(log_dispersion_ - kCenter);
  x_F[kFieldCount + 1] = static_cast<float>(log_trip_ + kTripOffset - kCenter);
  alignas(64) float correction[kPanel];
  model_.kernel_.token(model_.encoder_, cache_.data(), samples_, x_F, correction);
  for (std::size_t h = 0; h < rates_.size(); ++h) {
    const double full = -4.0 * (log_dispersion_ + model_.of_dispersion_[h]);
    const double growing = -4.0 * (log_trip_ + model_.of_window_[h]);
    const double most = std::max(full, growing);
    const double smaller = -(most + std::log1p(std::exp(-std::abs(full - growing)))) / 4;
    rates_[h] = static_cast<float>(std::exp(smaller + correction[h]));
  }
  ++samples_;
}

const Rates& RateFlow::forecast() const {
  const int least = *std::min_element(kPrefixes.begin(), kPrefixes.end());
  if (samples_ < least) {
    throw InvalidError("the flow has " + std::to_string(samples_) + " samples; a forecast takes " +
                       std::to_string(least) + " to " + std::to_string(kMostSamples));
  }
  for (const float rate : rates_) {
    if (sq_rate_of(rate) == 0) {
      throw InvalidError("the forecast is " + std::to_string(rate) +
                         " bytes/s: not a rate; the sender goes on without it");
    }
  }
  return rates_;
}

}  // namespace swiftqueue::rate
