// SPDX-License-Identifier: Apache-2.0
//
// A served version of the model that forecasts rates (README.md of the study of rates).
//
// Shapes: B flows, S samples (35), F fields, H horizons (6).
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_RATE_MODEL_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_RATE_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/rate.h"
#include "serving/triton/native/limits.h"
#include "serving/triton/native/model.h"

namespace swiftqueue::backend {

class Rates final : public AnyModel {
 public:
  // Loads a version folder, as `Model` does.
  explicit Rates(const std::string& folder);

  void check_config(std::string_view json) const override;
  std::unique_ptr<AnyWorker> worker() const override;
  std::uint64_t encoder_hash() const override { return hash_; }
  const engine::Kernel& kernel() const override { return model_.kernel(); }
  const char* output() const override { return "rate_bytes_per_s"; }

  const engine::RateModel& model() const { return model_; }
  const Limits& limits() const { return limits_; }

 private:
  engine::RateModel model_;
  Limits limits_;
  std::uint64_t hash_;  // of the weights, which no other version shares
};

class RateWorker final : public AnyWorker {
 public:
  explicit RateWorker(const Rates& served) : served_(served), flow_(served.model()) {}

  // Rates in bytes/s after each flow's last sample, y_BH.
  std::span<const float> predict(std::span<const std::int64_t> shape,
                                 std::span<const Piece> pieces) override;

 private:
  const Rates& served_;
  engine::RateFlow flow_;
  std::vector<float> y_BH_;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_RATE_MODEL_H_
