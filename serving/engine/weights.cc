// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>

#include "feature_store/events/event_window.h"

namespace swiftqueue::engine {
namespace {

const std::vector<float>& values_of(const Artifact& artifact, const std::string& name) {
  return artifact.tensors.at(name).values;
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

// Rounds to the nearest bfloat16, as _mm512_cvtne2ps_pbh does; the value is finite.
std::uint16_t bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Scales a query's weight: exp(q.k / sqrt(d)) = 2^(q.k * log2(e) / sqrt(d)).
float for_softmax(float value) {
  return static_cast<float>(value * (std::numbers::log2e / std::sqrt(double{kHeadWidth})));
}

}  // namespace

void pack(const std::vector<float>& matrix, std::size_t columns, float* panels) {
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t row = i / columns;
    const std::size_t column = i % columns;
    panels[(row / kPanel * columns + column) * kPanel + row % kPanel] = matrix[i];
  }
}

const float* EncoderWeights::keep(AlignedFloats floats) {
  storage_.push_back(std::move(floats));
  return storage_.back().data();
}

// Keeps a matrix [rows][columns] as bfloat16; null where its columns do not fill tiles.
const std::uint16_t* EncoderWeights::keep_rounded(const std::vector<float>& matrix,
                                                  std::size_t columns) {
  if (columns % kWidth != 0) return nullptr;
  AlignedFloats kept(matrix.size() / 2);
  auto* const numbers = reinterpret_cast<std::uint16_t*>(kept.data());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t row = i / columns;
    const std::size_t column = i % columns;
    const std::size_t pair = row / kPanel * columns / 2 + column / 2;
    numbers[(pair * kPanel + row % kPanel) * 2 + column % 2] = bfloat16(matrix[i]);
  }
  keep(std::move(kept));
  return numbers;
}

SeenInputs EncoderWeights::keep_inputs(const Inputs& inputs) {
  const std::vector<int>& columns = columns_.emplace_back(inputs.columns);
  const std::size_t padded = (columns.size() + kPanel - 1) / kPanel * kPanel;
  AlignedFloats logarithm(padded);
  AlignedFloats shift(padded);
  AlignedFloats inverse_scale(padded);
  for (std::size_t k = 0; k < columns.size(); ++k) {
    const Scaling& scaling = inputs.scaling[k];
    logarithm.data()[k] = scaling.logarithm ? 1.0F : 0.0F;
    shift.data()[k] = scaling.shift;
    inverse_scale.data()[k] = 1.0F / scaling.scale;
  }
  return {
      static_cast<int>(columns.size()), static_cast<int>(padded), columns.data(),
      keep(std::move(logarithm)),       keep(std::move(shift)),   keep(std::move(inverse_scale))};
}

Linear EncoderWeights::keep_linear(const Artifact& artifact, const std::string& name,
                                   std::size_t columns) {
  const std::vector<float>& weight = values_of(artifact, name + ".weight");
  return {keep(packed(weight, columns)), keep(copied(values_of(artifact, name + ".bias"))),
          keep_rounded(weight, columns)};
}

Norm EncoderWeights::keep_norm(const Artifact& artifact, const std::string& name) {
  return {keep(copied(values_of(artifact, name + ".weight"))),
          keep(copied(values_of(artifact, name + ".bias")))};
}

// Returns a layer's queries, keys and values as one matrix.
Linear EncoderWeights::keep_projection(const Artifact& artifact, const std::string& layer) {
  const auto joined = [&](const std::string& part) {
    std::vector<float> all = values_of(artifact, layer + "query." + part);
    std::transform(all.begin(), all.end(), all.begin(), for_softmax);
    const std::vector<float>& others = values_of(artifact, layer + "key_value." + part);
    all.insert(all.end(), others.begin(), others.end());
    return all;
  };
  const std::vector<float> weight = joined("weight");
  return {keep(packed(weight, kWidth)), keep(copied(joined("bias"))), keep_rounded(weight, kWidth)};
}

EncoderWeights::EncoderWeights(const Artifact& artifact) {
  const Description& described = artifact.description;
  const std::size_t seen = described.events.columns.size();
  const int hidden = described.feed_forward;
  for (int i = 0; i < described.layers; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".";
    const std::vector<float>& sink = values_of(artifact, name + "sink");
    layers_.push_back({keep_norm(artifact, name + "norm1"), keep_norm(artifact, name + "norm2"),
                       keep_projection(artifact, name), keep_linear(artifact, name + "out", kWidth),
                       keep_linear(artifact, name + "linear1", kWidth),
                       keep_linear(artifact, name + "linear2", static_cast<std::size_t>(hidden)),
                       keep(copied({sink.begin(), sink.begin() + kWidth})),
                       keep(copied({sink.begin() + kWidth, sink.end()}))});
  }
  view_ = {kEventWindowFeatureCount,
           kEventWindowFeatureCount - 1,
           keep_linear(artifact, "send", seen),
           keep_linear(artifact, "ack", seen),
           keep_linear(artifact, "ask_about", described.queries.columns.size()),
           keep_inputs(described.events),
           keep_inputs(described.queries),
           keep_norm(artifact, "norm"),
           layers_.data(),
           described.layers,
           described.band,
           hidden};
}

HeadWeights::HeadWeights()
    : first_weight_(kWidth * kWidth),
      first_bias_(kWidth),
      second_weight_(kWidth * kMaxLevels),
      second_bias_(kMaxLevels) {}

void HeadWeights::assign(const Artifact& artifact) {
  pack(values_of(artifact, "head.0.weight"), kWidth, first_weight_.data());
  const std::vector<float>& second_weight = values_of(artifact, "head.2.weight");
  std::copy(second_weight.begin(), second_weight.end(), second_weight_.data());
  const std::vector<float>& first_bias = values_of(artifact, "head.0.bias");
  std::copy(first_bias.begin(), first_bias.end(), first_bias_.data());
  const std::vector<float>& second_bias = values_of(artifact, "head.2.bias");
  std::copy(second_bias.begin(), second_bias.end(), second_bias_.data());
}

Scratch::Scratch(const Description& description) {
  constexpr std::size_t kTwoKinds = kTile + 4;  // events of either kind fill up a register tile
  const auto panels = [](std::size_t size) { return (size + kPanel - 1) / kPanel * kPanel; };
  const std::size_t inputs =
      std::max(description.events.columns.size(), description.queries.columns.size());
  const std::size_t slots = panels(static_cast<std::size_t>(description.band));
  const std::pair<float**, std::size_t> parts[] = {
      {&view_.scaled, kTwoKinds * panels(inputs)},
      {&view_.embedded, kTwoKinds * kWidth},
      {&view_.x, kTile * kWidth},
      {&view_.normal, kTile * kWidth},
      {&view_.query, kTile * kWidth},
      {&view_.fresh, kTile * 2 * kWidth},
      {&view_.fresh_keys, kWidth * kTile},
      {&view_.fresh_scores, kTile * kTile},
      {&view_.seen, slots},
      {&view_.scores, kTile * (slots + kPanel)},
      {&view_.mixed, kTile * kWidth},
      {&view_.inner, kTile * static_cast<std::size_t>(description.feed_forward)},
  };
  // Each has memory of its own, so that the address sanitizer sees a step from one into another.
  for (const auto& [part, floats] : parts) {
    storage_.emplace_back(floats);
    *part = storage_.back().data();
  }
}

}  // namespace swiftqueue::engine
