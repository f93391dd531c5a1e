// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Forecasts of a TCP connection's rate (transformer.py) from an artifact:
// exactly its answer after each sample, one token an ACK. A model is shared by threads and never
// changes; a flow is one connection's state, of a fixed size, and allocates nothing once made.
#ifndef SWIFTQUEUE_SERVING_ENGINE_RATE_H_
#define SWIFTQUEUE_SERVING_ENGINE_RATE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "feature_store/rate/tcp_sample.h"
#include "serving/engine/artifact.h"
#include "serving/engine/rate_kernel.h"
#include "serving/engine/weights.h"

namespace swiftqueue::engine {

using Rates = std::array<float, rate::kHorizons.size()>;  // bytes/s at each horizon

class RateModel {
 public:
  // Reads and checks an artifact. Throws FileError or InvalidError; the line names the file.
  RateModel(const std::string& folder, std::string_view isa);
  RateModel(std::string_view description, std::string_view safetensors, std::string_view isa);
  RateModel(const RateModel&) = delete;
  RateModel& operator=(const RateModel&) = delete;

  const std::string& schema_hash() const { return schema_hash_; }
  const std::vector<Scaling>& features() const { return features_; }
  const Kernel& kernel() const { return kernel_; }

 private:
  friend class RateFlow;

  void read_description(std::string_view text);
  void read_weights(std::string_view safetensors);
  const float* keep(const std::vector<float>& values);
  const float* keep_packed(const std::vector<float>& matrix, int columns, int padded_columns);

  const Kernel& kernel_;
  std::string schema_hash_;
  std::vector<Scaling> features_;
  std::vector<AlignedFloats> storage_;
  std::array<std::uint8_t, kRateInputs> log1p_{};
  std::vector<RateLayer> layers_;
  RateEncoder encoder_{};
  Rates of_dispersion_{};
  Rates of_window_{};
};

class RateFlow {
 public:
  explicit RateFlow(const RateModel& model);

  // Forgets everything: another connection.
  void reset();
  // Adds the next sample, one in tcp_info's units. Throws InvalidError, and nothing changed, where
  // there are 35 already or the sample cannot be.
  void push(const std::int64_t* sample);
  // Likewise of the next sample's inputs (kFieldCount of them), as rate::SampleStream makes them.
  void push_inputs(const float* input_F);
  int samples() const { return samples_; }
  // What the network says after the last sample, whatever it is.
  const Rates& raw() const { return rates_; }
  // Likewise, if a sender may use it: enough samples, finite, above 0 and below 1 Tbit/s. Throws
  // InvalidError otherwise; the sender goes on without a forecast.
  const Rates& forecast() const;

 private:
  void require_room() const;
  void add(float* x_F);
  void guess(const float* x_F);

  const RateModel& model_;
  rate::SampleStream stream_;
  AlignedFloats cache_;
  int samples_{0};
  double sent_bytes_{0};
  double packets_{0};
  int gaps_{0};
  std::array<double, rate::kMostSamples> gap_rates_{};  // ascending; bytes/s
  double log_dispersion_{0};
  double log_trip_{0};
  Rates rates_{};
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_RATE_H_
