// SPDX-License-Identifier: GPL-2.0-only
#include "dense.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "serving/engine/error.h"
#include "serving/engine/json.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SWIFTQUEUE_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SWIFTQUEUE_FOR_EACH_CPU
#endif

namespace swiftqueue {
namespace {

// sums[o] += inputs[i] * weights[i][o], with each output in a lane of its own, whatever the number
// of lanes.
SWIFTQUEUE_FOR_EACH_CPU
void accumulate(const float* __restrict weights, const float* __restrict inputs, std::size_t in,
                float* __restrict sums, std::size_t out) {
  for (std::size_t i = 0; i < in; ++i) {
    const float x = inputs[i];
    const float* __restrict row = weights + i * out;
    for (std::size_t o = 0; o < out; ++o) sums[o] += x * row[o];
  }
}

}  // namespace

std::vector<float> take_tensor(engine::Tensors& tensors, const std::string& name,
                               const std::vector<std::int64_t>& shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end())
    throw engine::InvalidError("tensor " + engine::json::quoted(name) + " is missing");
  if (found->second.shape != shape) {
    throw engine::InvalidError("tensor " + engine::json::quoted(name) + " has the shape " +
                               engine::shape_text(found->second.shape) + ", expected " +
                               engine::shape_text(shape));
  }
  std::vector<float> values = std::move(found->second.values);
  tensors.erase(found);
  return values;
}

Dense::Dense(const std::vector<std::size_t>& sizes, engine::Tensors& tensors) {
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    const auto in = static_cast<std::int64_t>(sizes[i]);
    const auto out = static_cast<std::int64_t>(sizes[i + 1]);
    const std::string name = "layers." + std::to_string(i);
    const std::vector<float> rows = take_tensor(tensors, name + ".weight", {out, in});
    Layer layer{std::vector<float>(rows.size()), take_tensor(tensors, name + ".bias", {out})};
    for (std::size_t o = 0; o < sizes[i + 1]; ++o) {
      for (std::size_t k = 0; k < sizes[i]; ++k) {
        layer.weights[k * sizes[i + 1] + o] = rows[o * sizes[i] + k];
      }
    }
    layers_.push_back(std::move(layer));
  }
}

std::span<const float> Dense::forward(std::span<const float> inputs) {
  now_.assign(inputs.begin(), inputs.end());
  for (const Layer& layer : layers_) {
    next_ = layer.biases;
    accumulate(layer.weights.data(), now_.data(), now_.size(), next_.data(), next_.size());
    std::swap(now_, next_);
    if (&layer != &layers_.back()) {
      for (float& value : now_) value = std::max(value, kLeak * value);
    }
  }
  return now_;
}

}  // namespace swiftqueue
