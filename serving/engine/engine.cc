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

std::unique_ptr<Session> Engine::open_session() const {
  const auto floats = static_cast<std::size_t>(reach()) * kFeatures;
  return std::unique_ptr<Session>(new Session(head_->encoder_hash(), floats));
}

bool Engine::take(Session& session, std::uint64_t first, const float* rows, int count) {
  if (session.encoder_hash_ != head_->encoder_hash() || first > session.next_) return false;
  const std::uint64_t known = session.next_ - first;
  if (count <= 0 || known >= static_cast<std::uint64_t>(count)) return true;
  const auto skipped = static_cast<int>(known);
  require_finite_rows(rows + skipped * kFeatures, count - skipped, "event", session.next_);
  for (int i = skipped; i < count; ++i) {
    const auto slot = session.next_++ % static_cast<std::uint64_t>(reach());
    std::copy_n(rows + i * kFeatures, kFeatures, session.rows_.data() + slot * kFeatures);
  }
  return true;
}

std::int64_t Engine::answer(const Session& session, const float* queries, int count, float* y,
                            float* feature, int outputs) {
  if (outputs != description_.outputs()) {
    throw InvalidError("one answer has " + std::to_string(description_.outputs()) +
                       " values of each latency, and there is room for " + std::to_string(outputs));
  }
  if (count < 1 || count > kMostQueries) {
    throw InvalidError(std::to_string(count) + " queries: a call answers 1 to " +
                       std::to_string(kMostQueries));
  }
  if (session.encoder_hash_ != head_->encoder_hash()) {
    throw InvalidError("the session belongs to another encoder");
  }
  require_finite_rows(queries, count, "query", 0);
  const auto most = static_cast<std::uint64_t>(reach());
  const int events = static_cast<int>(std::min(most, session.next_ - session.first_));
  for (int i = 0; i < events; ++i) {
    const std::uint64_t number = session.next_ - static_cast<std::uint64_t>(events - i);
    scratch_.rows()[i] = session.rows_.data() + number % most * kFeatures;
  }
  const SharedHead::Reader head(*head_);
  alignas(64) float feature_HD[kHorizon * kWidth];
  alignas(64) float scaled_L[kMaxLevels];
  for (int from = 0; from < count; from += kHorizon) {
    for (int h = 0; h < kHorizon; ++h) {
      scratch_.rows()[events + h] = queries + std::min(from + h, count - 1) * kFeatures;
    }
    const KeptEvents kept = event_logs_.take(scratch_.rows(), events);
    kernel_.encode(encoder_->view(), scratch_.rows(), events + kHorizon, kept, scratch_.view(),
                   feature_HD);
    for (int h = 0; h < std::min(kHorizon, count - from); ++h) {
      const float* feature_D = feature_HD + h * kWidth;
      if (!kernel_.all_finite(feature_D, kWidth)) {
        throw InvalidError("query " + std::to_string(from + h) +
                           ": its values, or those of the events, are too large to predict from");
      }
      if (feature != nullptr) std::copy_n(feature_D, kWidth, feature + (from + h) * kWidth);
      kernel_.head(head->weights.first(), head->weights.second(), feature_D, scaled_L);
      const float known = anchor(queries + (from + h) * kFeatures);
      float* y_L = y + (from + h) * outputs;
      for (int l = 0; l < outputs; ++l) {
        y_L[l] = to_us(scaled_L[l] + known);
        if (std::isnan(y_L[l])) {
          throw InvalidError("query " + std::to_string(from + h) + ": the head overflows");
        }
      }
      std::sort(y_L, y_L + outputs);  // prediction.py: levels that cross change places
    }
  }
  return head->version;
}

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

// Throws, naming the first value of rows[count][F] that is NaN or infinite; `number` is the first
// row's.
void Engine::require_finite_rows(const float* rows, int count, const char* what,
                                 std::uint64_t number) const {
  if (kernel_.all_finite(rows, static_cast<std::size_t>(count) * kFeatures)) return;
  for (int i = 0; i < count * kFeatures; ++i) {
    if (std::isfinite(rows[i])) continue;
    throw InvalidError(
        std::string(what) + " " +
        std::to_string(number + static_cast<std::uint64_t>(i / kFeatures)) + ": " +
        std::string(kEventWindowFeatures[static_cast<std::size_t>(i % kFeatures)]) +
        " is NaN or infinite");
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
