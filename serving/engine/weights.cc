// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/weights.h"

#include <algorithm>
#include <cmath>
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

SeenInputs EncoderWeights::keep_inputs(const Inputs& inputs) {
  std::vector<float> shift;
  std::vector<float> inverse_scale;
  std::vector<std::uint8_t>& log1p = log1p_.emplace_back();
  for (const Scaling& input : inputs.scaling) {
    log1p.push_back(input.logarithm ? 1 : 0);
    shift.push_back(input.shift);
    inverse_scale.push_back(1.0F / input.scale);
  }
  const std::vector<int>& columns = columns_.emplace_back(inputs.columns);
  return {static_cast<int>(columns.size()),
          columns.data(),
          {log1p.data(), keep(copied(shift)), keep(copied(inverse_scale))}};
}

Linear EncoderWeights::keep_linear(const Artifact& artifact, const std::string& name,
                                   std::size_t columns) {
  return {keep(packed(values_of(artifact, name + ".weight"), columns)),
          keep(copied(values_of(artifact, name + ".bias")))};
}

Norm EncoderWeights::keep_norm(const Artifact& artifact, const std::string& name) {
  return {keep(copied(values_of(artifact, name + ".weight"))),
          keep(copied(values_of(artifact, name + ".bias")))};
}

EncoderWeights::EncoderWeights(const Artifact& artifact) {
  const Description& described = artifact.description;
  const std::size_t seen = described.events.columns.size();
  const int hidden = described.feed_forward;
  for (int i = 0; i < described.layers; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".";
    std::vector<float> query = values_of(artifact, name + "query.weight");
    std::vector<float> query_bias = values_of(artifact, name + "query.bias");
    std::transform(query.begin(), query.end(), query.begin(), for_softmax);
    std::transform(query_bias.begin(), query_bias.end(), query_bias.begin(), for_softmax);
    const std::vector<float>& sink = values_of(artifact, name + "sink");
    AlignedFloats sink_key(kWidth * kPanel);
    for (std::size_t d = 0; d < kWidth; ++d) sink_key.data()[d * kPanel] = sink[d];
    layers_.push_back({keep_norm(artifact, name + "norm1"),
                       keep_norm(artifact, name + "norm2"),
                       {keep(packed(query, kWidth)), keep(copied(query_bias))},
                       keep_linear(artifact, name + "key_value", kWidth),
                       keep_linear(artifact, name + "out", kWidth),
                       keep_linear(artifact, name + "linear1", kWidth),
                       keep_linear(artifact, name + "linear2", static_cast<std::size_t>(hidden)),
                       keep(std::move(sink_key)),
                       keep(copied({sink.begin() + kWidth, sink.end()}))});
  }
  view_ = {kEventWindowFeatureCount - 1,
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
  pack(values_of(artifact, "head.2.weight"), kWidth, second_weight_.data());
  const std::vector<float>& first_bias = values_of(artifact, "head.0.bias");
  std::copy(first_bias.begin(), first_bias.end(), first_bias_.data());
  const std::vector<float>& second_bias = values_of(artifact, "head.2.bias");
  std::copy(second_bias.begin(), second_bias.end(), second_bias_.data());
}

Scratch::Scratch(const Description& description)
    : rows_(static_cast<std::size_t>(description.tokens)) {
  const std::size_t blocks = (rows_.size() + kBlock - 1) / kBlock;
  const std::size_t keys = blocks * kBlock;
  const std::pair<float**, std::size_t> parts[] = {
      {&view_.scaled,
       std::max(description.events.columns.size(), description.queries.columns.size()) * kBlock},
      {&view_.x, keys * kWidth},
      {&view_.fresh, 2 * kWidth * kBlock},
      {&view_.scores, (keys + kPanel) * kBlock},
      {&view_.mixed, kWidth * kBlock},
      {&view_.hidden, kWidth * kBlock},
      {&view_.sum, kWidth * kBlock},
      {&view_.last, kWidth * kBlock},
      {&view_.query, kWidth * kBlock},
  };
  // Each has memory of its own, so that the address sanitizer sees a step from one into another.
  for (const auto& [part, floats] : parts) {
    storage_.emplace_back(floats);
    *part = storage_.back().data();
  }
}

}  // namespace swiftqueue::engine
