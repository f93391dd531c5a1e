// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/engine.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
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
  bool exact = true;  // false: it rounds what it multiplies to bfloat16
};

#ifdef __x86_64__
// Returns whether this CPU has AMX tiles of bfloat16 and Linux lets this process use them: it keeps
// their registers, 8 KB a thread, only for processes that ask.
bool may_use_tiles() {
  constexpr int kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  constexpr int kTileData = 18;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __builtin_cpu_supports("avx512bf16") != 0 &&
         __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & bit_AMX_TILE) != 0 &&
         (edx & bit_AMX_BF16) != 0 && ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

// Returns the kernels, the best first. Tiles are asked for where they are `wanted`.
auto kernels([[maybe_unused]] bool wanted) {
#ifdef __x86_64__
  // The compiler's own checks ask the operating system for the wide registers as well.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  return std::array{Candidate{&kAmxKernel, wanted && avx512 && may_use_tiles(), false},
                    Candidate{&kAvx512Kernel, avx512}, Candidate{&kAvx2Kernel, avx2},
                    Candidate{&kPortableKernel, true}};
#else
  return std::array{Candidate{&kPortableKernel, true}};
#endif
}

// Returns the name of the feature at a place of rows[...][F].
std::string feature_at(std::ptrdiff_t at) {
  return std::string(kEventWindowFeatures[static_cast<std::size_t>(at % kFeatures)]);
}

}  // namespace

const Kernel& select_kernel(std::string_view isa) {
  const bool rounded = isa == "bf16" || isa == "amx";
  for (const auto& [kernel, runs_here, exact] : kernels(rounded)) {
    const bool best = runs_here && (isa == "bf16" || (isa == "auto" && exact));
    if (best || isa == kernel->name) {
      if (runs_here) return *kernel;
      throw InvalidError("this CPU lacks " + std::string(isa) + "; use auto");
    }
  }
  throw InvalidError("unknown instruction set " + json::quoted(isa) +
                     " (known: auto, bf16, amx, avx512, avx2, portable)");
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
      windows_(open_session()) {}

Engine::Engine(const Engine& other, int)
    : kernel_(other.kernel_),
      description_(other.description_),
      encoder_(other.encoder_),
      head_(other.head_),
      scratch_(description_),
      windows_(open_session()) {}

Engine::~Engine() = default;

std::unique_ptr<Engine> Engine::share() const {
  return std::unique_ptr<Engine>(new Engine(*this, 0));
}

std::int64_t Engine::version() const { return SharedHead::Reader(*head_)->version; }

std::unique_ptr<Session> Engine::open_session() const {
  return std::unique_ptr<Session>(
      new Session(head_->encoder_hash(), description_.layers, description_.band));
}

bool Engine::take(Session& session, std::uint64_t first, const float* rows, int count) {
  if (session.encoder_hash_ != head_->encoder_hash() || first > session.next_) return false;
  const std::uint64_t known = session.next_ - first;
  if (count <= 0 || known >= static_cast<std::uint64_t>(count)) return true;
  rows += static_cast<std::ptrdiff_t>(known) * kFeatures;
  count -= static_cast<int>(known);
  if (const std::ptrdiff_t at = not_finite(rows, count); at >= 0) {
    const std::uint64_t number = session.next_ + static_cast<std::uint64_t>(at / kFeatures);
    throw InvalidError("event " + std::to_string(number) + ": " + feature_at(at) +
                       " is NaN or infinite");
  }
  if (!add(session, rows, count)) {
    throw InvalidError("events from " + std::to_string(session.next_) +
                       " on: their values are too large to predict from");
  }
  return true;
}

// Adds events to a session. It forgets all, and the return value is false, if their values are too
// large.
bool Engine::add(Session& session, const float* rows, int count) {
  const std::uint64_t before = session.next_;
  while (count > 0) {
    const Ring ring = session.ring();
    const int tile = std::min({kTile, count, ring.band - ring.slot});
    count -= tile;
    // A layer needs so many bands of events before the end: later layers see no further back.
    const int layers = description_.layers - std::min(description_.layers, count / ring.band);
    if (layers > 0 && !kernel_.take(encoder_->view(), rows, tile, layers, ring, scratch_.view())) {
      session.begin(before);
      return false;
    }
    rows += std::ptrdiff_t{tile} * kFeatures;
    session.next_ += static_cast<std::uint64_t>(tile);
  }
  return true;
}

std::int64_t Engine::answer(const Session& session, const float* queries, int count, float* y,
                            float* feature, int outputs) {
  if (count < 1 || count > kMostQueries) {
    throw InvalidError(std::to_string(count) + " queries: a call answers 1 to " +
                       std::to_string(kMostQueries));
  }
  require_outputs(outputs);
  if (session.encoder_hash_ != head_->encoder_hash()) {
    throw InvalidError("the session belongs to another encoder");
  }
  const auto name = [](int row) { return "query " + std::to_string(row) + ": "; };
  if (const std::ptrdiff_t at = not_finite(queries, count); at >= 0) {
    throw InvalidError(name(static_cast<int>(at / kFeatures)) + feature_at(at) +
                       " is NaN or infinite");
  }
  const SharedHead::Reader head(*head_);
  answer_with(head->weights.view(), session, queries, count, y, feature, name);
  return head->version;
}

template <typename Name>
void Engine::answer_with(const Head& head, const Session& session, const float* queries, int count,
                         float* y, float* feature, Name name) {
  alignas(64) float features[kTile * kWidth];
  alignas(64) float scaled[kTile * kMaxLevels];
  const int outputs = description_.outputs();
  kernel_.answer(encoder_->view(), queries, count, session.ring(), scratch_.view(), features);
  // The head's ReLU would swallow a NaN, so it is looked for before.
  if (!kernel_.all_finite(features, static_cast<std::size_t>(count) * kWidth)) {
    int q = 0;
    while (kernel_.all_finite(features + q * kWidth, kWidth)) ++q;
    throw InvalidError(name(q) + "its values are too large to predict from");
  }
  kernel_.head(head, features, count, outputs, scratch_.view(), scaled);
  for (int q = 0; q < count; ++q) {
    const float known = anchor(queries + q * kFeatures);
    float* y_L = y + q * outputs;
    for (int l = 0; l < outputs; ++l) {
      y_L[l] = to_us(scaled[q * outputs + l] + known);
      if (std::isnan(y_L[l])) throw InvalidError(name(q) + "the head overflows");
    }
    std::sort(y_L, y_L + outputs);  // prediction.py: levels that cross change places
  }
  if (feature != nullptr) std::copy_n(features, count * kWidth, feature);
}

std::int64_t Engine::forward(const float* x_BWF, std::int64_t windows, int tokens, float* y_BHL,
                             int outputs) {
  require_outputs(outputs);
  if (tokens < kHorizon || tokens > description_.tokens) {
    throw InvalidError("windows of " + std::to_string(tokens) + " tokens: this model takes " +
                       std::to_string(kHorizon) + ".." + std::to_string(description_.tokens));
  }
  const SharedHead::Reader head(*head_);
  const std::ptrdiff_t stride = std::ptrdiff_t{tokens} * kFeatures;
  const std::ptrdiff_t history = std::ptrdiff_t{tokens - kHorizon} * kFeatures;
  for (std::int64_t window = 0; window < windows; ++window) {
    const float* x_WF = x_BWF + window * stride;
    const auto name = [&](int) { return "window " + std::to_string(window) + ": "; };
    if (const std::ptrdiff_t at = not_finite(x_WF, tokens); at >= 0) {
      throw InvalidError(name(0) + feature_at(at) + " of token " + std::to_string(at / kFeatures) +
                         " is NaN or infinite");
    }
    // The two queues of a batch are asked about after the same events.
    if (window == 0 ||
        std::memcmp(x_WF, x_WF - stride, static_cast<std::size_t>(history) * sizeof(float)) != 0) {
      const int padding = padding_of(x_WF, tokens, window);
      windows_->begin(0);
      if (!add(*windows_, x_WF + std::ptrdiff_t{padding} * kFeatures,
               tokens - kHorizon - padding)) {
        throw InvalidError(name(0) + "its values are too large to predict from");
      }
    }
    answer_with(head->weights.view(), *windows_, x_WF + history, kHorizon,
                y_BHL + window * kHorizon * outputs, nullptr, name);
  }
  return head->version;
}

void Engine::require_outputs(int outputs) const {
  if (outputs != description_.outputs()) {
    throw InvalidError("one answer has " + std::to_string(description_.outputs()) +
                       " values of each latency, and there is room for " + std::to_string(outputs));
  }
}

// Returns the number of rows of padding, which are before a window's events.
int Engine::padding_of(const float* x_WF, int tokens, std::int64_t window) const {
  int padding = 0;
  bool events = false;
  for (int token = 0; token < tokens - kHorizon; ++token) {
    if (x_WF[std::ptrdiff_t{token} * kFeatures + event_input("size_bytes")] > 0) {
      events = true;
    } else if (events) {  // a band would have other events than a whole log
      throw InvalidError("window " + std::to_string(window) + ": token " + std::to_string(token) +
                         " is padding, and events are before it");
    } else {
      ++padding;
    }
  }
  return padding;
}

// Returns the place of the first value of rows[count][F] that is NaN or infinite; -1: none is.
std::ptrdiff_t Engine::not_finite(const float* rows, int count) const {
  const std::ptrdiff_t values = std::ptrdiff_t{count} * kFeatures;
  if (kernel_.all_finite(rows, static_cast<std::size_t>(values))) return -1;
  return std::find_if(rows, rows + values, [](float x) { return !std::isfinite(x); }) - rows;
}

// Returns one query row's anchor, as query_network.py does.
float Engine::anchor(const float* row) const {
  if (description_.anchor < 0) return 0;
  const float own = row[description_.anchor];
  const float latency_us = own > 0 ? own : row[event_input("last_latency_us")];
  if (!(latency_us > 0)) return 0;
  const Scaling& target = description_.target;
  const float value = std::max(latency_us, kMinLatencyUs);
  return ((target.logarithm ? std::log(value) : value) - target.shift) / target.scale;
}

// Returns a latency in us, like query_network.py's `to_us`.
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
