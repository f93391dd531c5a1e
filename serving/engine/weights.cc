// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/weights.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

namespace swiftqueue::engine {
namespace {

constexpr std::align_val_t kAlignment{64};

const std::vector<float>& values_of(const Artifact& artifact, const std::string& name) {
  return artifact.tensors.at(name).values;
}

// Writes a row-major [rows][columns] matrix as panels [rows / 16][columns][16]; rows that fill up
// the last panel stay as they are.
void pack(const std::vector<float>& matrix, std::size_t columns, float* panels) {
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t row = i / columns;
    const std::size_t column = i % columns;
    panels[(row / kPanel * columns + column) * kPanel + row % kPanel] = matrix[i];
  }
}

AlignedFloats packed(const std::vector<float>& matrix, std::size_t columns) {
  AlignedFloats panels(matrix.size());
  pack(matrix, columns, panels.data());
  return panels;
}

AlignedFloats copied(const std::vector<float>& values) {
  AlignedFloats floats(values.size());
  std::copy(values.begin(), values.end(), floats.data());
  return floats;
}

}  // namespace

AlignedFloats::AlignedFloats(std::size_t size)
    : floats_(static_cast<float*>(::operator new(size * sizeof(float), kAlignment))), size_(size) {
  std::fill_n(floats_.get(), size, 0.0F);
}

void AlignedFloats::Free::operator()(float* floats) const { ::operator delete(floats, kAlignment); }

const float* EncoderWeights::keep(AlignedFloats floats) {
  storage_.push_back(std::move(floats));
  return storage_.back().data();
}

EncoderWeights::EncoderWeights(const Artifact& artifact) {
  const std::vector<Scaling>& features = artifact.description.features;
  std::vector<float> shift;
  std::vector<float> inverse_scale;
  for (const Scaling& feature : features) {
    log1p_.push_back(feature.logarithm ? 1 : 0);
    shift.push_back(feature.shift);
    inverse_scale.push_back(1.0F / feature.scale);
  }
  const auto linear = [&](const std::string& weight, const std::string& bias, std::size_t columns) {
    return Linear{keep(packed(values_of(artifact, weight), columns)),
                  keep(copied(values_of(artifact, bias)))};
  };
  const auto norm = [&](const std::string& name) {
    return Norm{keep(copied(values_of(artifact, name + ".weight"))),
                keep(copied(values_of(artifact, name + ".bias")))};
  };
  for (int i = 0; i < artifact.description.layers; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".";
    std::vector<float> qkv = values_of(artifact, name + "self_attn.in_proj_weight");
    std::vector<float> qkv_bias = values_of(artifact, name + "self_attn.in_proj_bias");
    const float* key_rows =
        keep(copied({qkv.begin() + kWidth * kWidth, qkv.begin() + 2 * kWidth * kWidth}));
    // exp(q.k / sqrt(d)) = 2^(q.k * log2(e) / sqrt(d))
    const double factor = std::numbers::log2e / std::sqrt(double{kHeadWidth});
    const auto scale = [&](float value) { return static_cast<float>(value * factor); };
    std::transform(qkv.begin(), qkv.begin() + kWidth * kWidth, qkv.begin(), scale);
    std::transform(qkv_bias.begin(), qkv_bias.begin() + kWidth, qkv_bias.begin(), scale);
    layers_.push_back(
        {{keep(packed(qkv, kWidth)), keep(copied(qkv_bias))},
         linear(name + "self_attn.out_proj.weight", name + "self_attn.out_proj.bias", kWidth),
         linear(name + "linear1.weight", name + "linear1.bias", kWidth),
         linear(name + "linear2.weight", name + "linear2.bias", kFeedForward),
         norm(name + "norm1"),
         norm(name + "norm2"),
         key_rows});
  }
  view_ = {static_cast<int>(features.size()),
           linear("embedding.weight", "embedding.bias", features.size()),
           log1p_.data(),
           keep(copied(shift)),
           keep(copied(inverse_scale)),
           layers_.data(),
           artifact.description.layers,
           artifact.description.read};
}

HeadWeights::HeadWeights()
    : first_weight_(kWidth * kWidth),
      first_bias_(kWidth),
      second_weight_(kWidth * kMaxHorizon),
      second_bias_(kMaxHorizon) {}

void HeadWeights::assign(const Artifact& artifact) {
  pack(values_of(artifact, "head.0.weight"), kWidth, first_weight_.data());
  pack(values_of(artifact, "head.2.weight"), kWidth, second_weight_.data());
  const std::vector<float>& first_bias = values_of(artifact, "head.0.bias");
  const std::vector<float>& second_bias = values_of(artifact, "head.2.bias");
  std::copy(first_bias.begin(), first_bias.end(), first_bias_.data());
  std::copy(second_bias.begin(), second_bias.end(), second_bias_.data());
}

Scratch::Scratch(int tokens, int features) : rows_(static_cast<std::size_t>(tokens)) {
  const std::size_t blocks = (static_cast<std::size_t>(tokens) + kBlock - 1) / kBlock;
  const std::size_t keys = blocks * kBlock;
  const std::pair<float**, std::size_t> parts[] = {
      {&view_.scaled, static_cast<std::size_t>(features) * kBlock},
      {&view_.x, keys * kWidth},
      {&view_.qkv, keys * 3 * kWidth},
      {&view_.scores, keys * kBlock},
      {&view_.mixed, kWidth * kBlock},
      {&view_.hidden, kWidth * kBlock},
      {&view_.sum, kWidth * kBlock},
      {&view_.last, kWidth * kBlock},
      {&view_.query, kWidth * kBlock},
      {&view_.weights, keys * kHeads},
  };
  // Memory of its own for each, so that the address sanitizer sees a step from one into another.
  for (const auto& [part, floats] : parts) {
    storage_.emplace_back(floats);
    *part = storage_.back().data();
  }
}

}  // namespace swiftqueue::engine
