// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "feature_store/events/event_window.h"
#include "serving/engine/json.h"
#include "serving/engine/shared_head.h"

namespace swiftqueue::engine {
namespace {

// scaling.py has the same range of predictions.
constexpr float kMinLatencyUs = 1.0F;
constexpr float kMaxLatencyUs = 60e6F;
constexpr int kFeatures = kEventWindowFeatureCount;

struct Candidate {
  const Kernel* kernel;
  bool runs_here;
};

// Returns the kernels, the best first.
auto kernels() {
#ifdef __x86_64__
  // The compiler's own checks ask the operating system for the wide registers as well.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  return std::array{Candidate{&kAvx512Kernel, avx512}, Candidate{&kAvx2Kernel, avx2},
                    Candidate{&kPortableKernel, true}};
#else
  return std::array{Candidate{&kPortableKernel, true}};
#endif
}

}  // namespace

const Kernel& select_kernel(std::string_view isa) {
  for (const auto& [kernel, runs_here] : kernels()) {
    if (isa == "auto" ? runs_here : isa == kernel->name) {
      if (runs_here) return *kernel;
      throw InvalidError("this CPU lacks " + std::string(isa) + "; use auto");
    }
  }
  throw InvalidError("unknown instruction set " + json::quoted(isa) +
                     " (known: auto, avx512, avx2, portable)");
}

Engine::Engine(const std::string& folder, std::string_view isa, std::int64_t version)
    : Engine(load_artifact(folder), nullptr, isa, version) {}

Engine::Engine(const Artifact& artifact, std::shared_ptr<const EncoderWeights> encoder,
               std::string_view isa, std::int64_t version)
    : kernel_(select_kernel(isa)),
      description_(artifact.description),
      encoder_(encoder != nullptr ? std::move(encoder)
                                  : std::make_shared<const EncoderWeights>(artifact)),
      head_(std::make_shared<SharedHead>(artifact, version)),
      scratch_(description_),
      event_logs_(description_) {}

Engine::Engine(const Engine& other, int)
    : kernel_(other.kernel_),
      description_(other.description_),
      encoder_(other.encoder_),
      head_(other.head_),
      scratch_(description_),
      event_logs_(description_) {}

Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::share() const {
  return std::unique_ptr<Engine>(new Engine(*this, 0));
}

std::int64_t Engine::version() const { return SharedHead::Reader(*head_)->version; }

std::int64_t Engine::forward(const float* x_BWF, std::int64_t windows, int tokens, float* y_BHL,
                             float* feature_BHD, int outputs) {
  if (outputs != description_.outputs()) {
    throw InvalidError("one answer has " + std::to_string(description_.outputs()) +
                       " values of each latency, and there is room for " + std::to_string(outputs));
  }
  if (tokens < kHorizon || tokens > description_.tokens) {
    throw InvalidError("windows of " + std::to_string(tokens) + " tokens: this model takes " +
                       std::to_string(kHorizon) + ".." + std::to_string(description_.tokens));
  }
  const SharedHead::Reader head(*head_);
  const std::int64_t stride = std::int64_t{tokens} * kFeatures;
  alignas(64) float feature_HD[kHorizon * kWidth];
  alignas(64) float scaled_L[kMaxLevels];
  for (std::int64_t window = 0; window < windows; ++window) {
    const float* x_WF = x_BWF + window * stride;
    if (!kernel_.all_finite(x_WF, static_cast<std::size_t>(stride))) {
      require_finite(x_WF, tokens, window);
    }
    const int rows = attended_rows(x_WF, tokens, window);
    const KeptEvents kept = event_logs_.take(scratch_.rows(), rows - kHorizon);
    kernel_.encode(encoder_->view(), scratch_.rows(), rows, kept, scratch_.view(), feature_HD);
    // The head's ReLU would swallow a NaN, so it is looked for before.
    if (!kernel_.all_finite(feature_HD, std::size(feature_HD))) {
      throw InvalidError("window " + std::to_string(window) +
                         ": its values are too large to predict from");
    }
    const float* queries = x_WF + (tokens - kHorizon) * kFeatures;
    for (int h = 0; h < kHorizon; ++h) {
      kernel_.head(head->weights.first(), head->weights.second(), feature_HD + h * kWidth,
                   scaled_L);
      const float known = anchor(queries + h * kFeatures);
      float* y_L = y_BHL + (window * kHorizon + h) * outputs;
      for (int l = 0; l < outputs; ++l) {
        y_L[l] = to_us(scaled_L[l] + known);
        if (std::isnan(y_L[l])) {
          throw InvalidError("window " + std::to_string(window) + ": the head overflows");
        }
      }
      std::sort(y_L, y_L + outputs);  // prediction.py: levels that cross change places
    }
    if (feature_BHD != nullptr) {
      std::copy_n(feature_HD, std::size(feature_HD), feature_BHD + window * std::ssize(feature_HD));
    }
  }
  return head->version;
}

// Lists the rows that are attended to: all but padding, and always the packets about to be sent.
// Other rows need not be computed.
int Engine::attended_rows(const float* x_WF, int tokens, std::int64_t window) {
  int count = 0;
  for (int token = 0; token < tokens; ++token) {
    const float* row = x_WF + std::ptrdiff_t{token} * kFeatures;
    scratch_.rows()[count] = row;
    if (row[event_input("size_bytes")] > 0 || token >= tokens - kHorizon) {
      ++count;
    } else if (count > 0) {  // a band would have other events than a whole log
      throw InvalidError("window " + std::to_string(window) + ": token " + std::to_string(token) +
                         " is padding, and events are before it");
    }
  }
  return count;
}

// Throws, naming the first value of a window that is NaN or infinite.
void Engine::require_finite(const float* x_WF, int tokens, std::int64_t window) const {
  for (int i = 0; i < tokens * kFeatures; ++i) {
    if (!std::isfinite(x_WF[i])) {
      throw InvalidError(
          "window " + std::to_string(window) + ": " +
          std::string(kEventWindowFeatures[static_cast<std::size_t>(i % kFeatures)]) +
          " of token " + std::to_string(i / kFeatures) + " is NaN or infinite");
    }
  }
}

// Returns one query row's anchor, as window_network.py does.
float Engine::anchor(const float* row) const {
  if (description_.anchor < 0) return 0;
  const float own = row[description_.anchor];
  const float latency_us = own > 0 ? own : row[event_input("last_latency_us")];
  if (!(latency_us > 0)) return 0;
  const Scaling& target = description_.target;
  const float value = std::max(latency_us, kMinLatencyUs);
  return ((target.logarithm ? std::log(value) : value) - target.shift) / target.scale;
}

// Returns a latency in us, like window_network.py's `to_us`.
float Engine::to_us(float scaled) const {
  const Scaling& target = description_.target;
  const float value = scaled * target.scale + target.shift;
  return target.logarithm
             ? std::exp(std::clamp(value, std::log(kMinLatencyUs), std::log(kMaxLatencyUs)))
             : std::clamp(value, 0.0F, kMaxLatencyUs);
}

void Engine::swap_head(const std::string& folder, std::int64_t version) {
  const Artifact artifact = load_artifact(folder);
  if (!(artifact.description == description_) || artifact.encoder_hash != head_->encoder_hash()) {
    throw InvalidError(folder +
                       ": differs from the served model in more than its head; load it as " +
                       "a new model");
  }
  head_->assign(artifact, version);
}

}  // namespace swiftqueue::engine
