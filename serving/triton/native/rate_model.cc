// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/rate_model.h"

#include <algorithm>
#include <functional>

#include "serving/engine/reading.h"
#include "serving/engine/safetensors.h"

namespace swiftqueue::backend {
namespace {

constexpr int kSamples = rate::kMostSamples;
constexpr int kFields = rate::kFieldCount;

std::vector<std::string> names_of(const std::vector<engine::Scaling>& features) {
  std::vector<std::string> names;
  for (const engine::Scaling& feature : features) names.push_back(feature.name);
  return names;
}

}  // namespace

Rates::Rates(const std::string& folder)
    : model_(folder, "auto"),
      limits_(read_limits(folder + "/limits.json", names_of(model_.features()))),
      hash_(std::hash<std::string>{}(
          engine::read_file(folder + "/model.safetensors", engine::kMaxWeightBytes))) {}

void Rates::check_config(std::string_view json) const {
  check_promised(json,
                 {kSamples, kFields, output(), static_cast<std::int64_t>(rate::kHorizons.size()),
                  model_.schema_hash(), false});
}

std::unique_ptr<AnyWorker> Rates::worker() const { return std::make_unique<RateWorker>(*this); }

std::span<const float> RateWorker::predict(std::span<const std::int64_t> shape,
                                           std::span<const Piece> pieces) {
  require_windows(shape, pieces, kSamples, kFields);
  const float* x_SF = x_BWF_.of(pieces);
  served_.limits().check(x_SF, shape[0], kSamples);
  y_BH_.clear();
  for (std::int64_t flow = 0; flow < shape[0]; ++flow, x_SF += kSamples * kFields) {
    int samples = 0;
    for (int s = 0; s < kSamples; ++s) samples += x_SF[s * kFields + rate::At::snd_cwnd] > 0;
    flow_.reset();
    for (int s = 0; s < std::max(samples, 1); ++s) flow_.push_inputs(x_SF + s * kFields);
    y_BH_.insert(y_BH_.end(), flow_.raw().begin(), flow_.raw().end());
  }
  return y_BH_;
}

}  // namespace swiftqueue::backend
