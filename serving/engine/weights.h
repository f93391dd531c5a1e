// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// An artifact's weights in the layout that the kernels read (kernel.h), with constant parts
// computed once.
#ifndef SWIFTQUEUE_SERVING_ENGINE_WEIGHTS_H_
#define SWIFTQUEUE_SERVING_ENGINE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "serving/engine/aligned.h"
#include "serving/engine/artifact.h"
#include "serving/engine/kernel.h"

namespace swiftqueue::engine {

// Writes a row-major [rows][columns] matrix as panels [rows / 16][columns][16]; rows that fill up
// the last panel stay as they are.
void pack(const std::vector<float>& matrix, std::size_t columns, float* panels);

// The weights before the head; never changes once built.
class EncoderWeights {
 public:
  explicit EncoderWeights(const Artifact& artifact);
  EncoderWeights(const EncoderWeights&) = delete;
  EncoderWeights& operator=(const EncoderWeights&) = delete;

  const EventEncoder& view() const { return view_; }

 private:
  const float* keep(AlignedFloats floats);
  const std::uint16_t* keep_rounded(const std::vector<float>& matrix, std::size_t columns);
  SeenInputs keep_inputs(const Inputs& inputs);
  Linear keep_linear(const Artifact& artifact, const std::string& name, std::size_t columns);
  Linear keep_projection(const Artifact& artifact, const std::string& layer);
  Norm keep_norm(const Artifact& artifact, const std::string& name);

  std::vector<AlignedFloats> storage_;
  std::vector<std::vector<int>> columns_;
  std::vector<EventLayer> layers_;
  EventEncoder view_{};
};

// The two last linear layers; can be overwritten in place without allocation.
class HeadWeights {
 public:
  HeadWeights();
  void assign(const Artifact& artifact);

  Head view() const {
    return {{first_weight_.data(), first_bias_.data()},
            {second_weight_.data(), second_bias_.data()}};
  }

 private:
  AlignedFloats first_weight_;
  AlignedFloats first_bias_;
  AlignedFloats second_weight_;  // [outputs][D], not in panels
  AlignedFloats second_bias_;
};

// One thread's scratch memory for a model.
class Scratch {
 public:
  explicit Scratch(const Description& description);

  const Workspace& view() const { return view_; }

 private:
  std::vector<AlignedFloats> storage_;
  Workspace view_{};
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_WEIGHTS_H_
