// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Computes forecasts of a TCP connection's rate from an artifact (model/transformer.py): exactly
// PyTorch's answer after each sample, one token an ACK. A model is shared by threads and never
// changes; a flow is one connection's state, of a fixed size, and allocates nothing once made.
#ifndef SWIFTQUEUE_STUDIES_RATE_MODEL_H_
#define SWIFTQUEUE_STUDIES_RATE_MODEL_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/aligned.h"
#include "serving/engine/artifact.h"
#include "studies/rate/native/kernel.h"
#include "studies/rate/samples/tcp_sample.h"

namespace swiftqueue::rate {

using Rates = std::array<float, kHorizons.size()>;  // bytes/s at each horizon

class RateModel {
 public:
  // Reads and checks an artifact. Throws FileError or InvalidError; the line names the file.
  RateModel(const std::string& folder, std::string_view isa);
  RateModel(std::string_view description, std::string_view safetensors, std::string_view isa);
  RateModel(const RateModel&) = delete;
  RateModel& operator=(const RateModel&) = delete;

  const char* isa() const { return kernel_.name; }

 private:
  friend class RateFlow;

  void read_description(std::string_view text);
  void read_weights(std::string_view safetensors);
  const float* keep(const std::vector<float>& values);
  const float* keep_packed(const std::vector<float>& matrix, int columns, int padded_columns);

  const Kernel& kernel_;
  std::vector<engine::Scaling> features_;
  std::vector<engine::AlignedFloats> storage_;
  std::array<std::uint8_t, kInputs> log1p_{};
  std::vector<Layer> layers_;
  Encoder encoder_{};
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
  int samples() const { return samples_; }
  // Returns the network's answer after the last sample, even if it is not valid.
  const Rates& raw() const { return rates_; }
  // Likewise, if a sender may use it: enough samples, finite, above 0 and below 1 Tbit/s. Throws
  // InvalidError otherwise; the sender goes on without a forecast.
  const Rates& forecast() const;

 private:
  void guess(const float* x_F);

  const RateModel& model_;
  SampleStream stream_;
  engine::AlignedFloats cache_;
  int samples_{0};
  double sent_bytes_{0};
  double packets_{0};
  int gaps_{0};
  std::array<double, kMostSamples> gap_rates_{};  // ascending; bytes/s
  double log_dispersion_{0};
  double log_trip_{0};
  Rates rates_{};
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_STUDIES_RATE_MODEL_H_
