// SPDX-License-Identifier: GPL-2.0-only
//
// A small network of dense layers with leaky ReLU between them (PyTorch's `Linear`, `LeakyReLU`),
// one input at a time. An output is summed in the order of the inputs and without fused
// multiply-adds, so every CPU gives the same bits.
#ifndef SWIFTQUEUE_DENSE_H
#define SWIFTQUEUE_DENSE_H

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "serving/engine/safetensors.h"

namespace swiftqueue {

inline constexpr float kLeak = 0.01F;  // slope below 0: PyTorch's default

class Dense {
 public:
  // Takes `layers.I.weight` (out, in) and `layers.I.bias` (out) for each step of `sizes` out of
  // `tensors`. Throws InvalidError, naming the tensor, where one is missing or of another shape.
  Dense(const std::vector<std::size_t>& sizes, engine::Tensors& tensors);

  // Returns the last layer's outputs, valid until the next call; `inputs` has sizes.front() values.
  std::span<const float> forward(std::span<const float> inputs);

 private:
  struct Layer {
    std::vector<float> weights;  // ordered by input, then output
    std::vector<float> biases;
  };

  std::vector<Layer> layers_;
  std::vector<float> now_, next_;
};

// Takes a tensor of just this shape out of `tensors`. Throws InvalidError, naming it.
std::vector<float> take_tensor(engine::Tensors& tensors, const std::string& name,
                               const std::vector<std::int64_t>& shape);

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_DENSE_H
