// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/engine_capi.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "feature_store/events/event_window.h"
#include "serving/engine/capi_guard.h"
#include "serving/engine/engine.h"

struct swiftqueue_engine {
  std::unique_ptr<swiftqueue::engine::Engine> engine;
};

struct swiftqueue_session {
  std::unique_ptr<swiftqueue::engine::Session> session;
};

namespace {

using swiftqueue::engine::guarded;
using Clock = std::chrono::steady_clock;

int checked(int64_t count) {
  return static_cast<int>(std::clamp<int64_t>(count, -1, std::numeric_limits<int>::max()));
}

// Returns the time of `action` in us.
template <typename Action>
double timed_us(Action action) {
  const Clock::time_point start = Clock::now();
  action();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

int swiftqueue_engine_create(const char* folder, const char* isa, int64_t version,
                             swiftqueue_engine** engine, char* error, size_t error_size) {
  *engine = nullptr;
  return guarded(error, error_size, [&] {
    auto made = std::make_unique<swiftqueue::engine::Engine>(folder, isa, version);
    *engine = new swiftqueue_engine{std::move(made)};
  });
}

int swiftqueue_engine_share(const swiftqueue_engine* engine, swiftqueue_engine** other, char* error,
                            size_t error_size) {
  *other = nullptr;
  return guarded(error, error_size,
                 [&] { *other = new swiftqueue_engine{engine->engine->share()}; });
}

void swiftqueue_engine_destroy(swiftqueue_engine* engine) { delete engine; }

int swiftqueue_engine_forward(swiftqueue_engine* engine, const float* x_BWF, int64_t windows,
                              int64_t tokens, float* y_BHL, int64_t* version, char* error,
                              size_t error_size) {
  return guarded(error, error_size, [&] {
    swiftqueue::engine::Engine& asked = *engine->engine;
    const std::int64_t answered =
        asked.forward(x_BWF, windows, checked(tokens), y_BHL, asked.description().outputs());
    if (version != nullptr) *version = answered;
  });
}

int swiftqueue_engine_swap_head(swiftqueue_engine* engine, const char* folder, int64_t version,
                                char* error, size_t error_size) {
  return guarded(error, error_size, [&] { engine->engine->swap_head(folder, version); });
}

int64_t swiftqueue_engine_version(const swiftqueue_engine* engine) {
  return engine->engine->version();
}

const char* swiftqueue_engine_schema_hash(const swiftqueue_engine* engine) {
  return engine->engine->description().schema_hash.c_str();
}

const char* swiftqueue_engine_isa(const swiftqueue_engine* engine) {
  return engine->engine->kernel().name;
}

int swiftqueue_engine_tokens(const swiftqueue_engine* engine) {
  return engine->engine->description().tokens;
}

int swiftqueue_engine_features(const swiftqueue_engine*) {
  return swiftqueue::kEventWindowFeatureCount;
}

int swiftqueue_engine_horizon(const swiftqueue_engine*) { return swiftqueue::kHorizon; }

int swiftqueue_engine_width(const swiftqueue_engine*) { return swiftqueue::engine::kWidth; }

int swiftqueue_engine_levels(const swiftqueue_engine* engine, const double** levels) {
  const std::vector<double>& of = engine->engine->description().levels;
  *levels = of.data();
  return static_cast<int>(of.size());
}

int swiftqueue_engine_reach(const swiftqueue_engine* engine) { return engine->engine->reach(); }

int swiftqueue_engine_open_session(const swiftqueue_engine* engine, swiftqueue_session** session,
                                   char* error, size_t error_size) {
  *session = nullptr;
  return guarded(error, error_size,
                 [&] { *session = new swiftqueue_session{engine->engine->open_session()}; });
}

void swiftqueue_engine_close_session(swiftqueue_session* session) { delete session; }

uint64_t swiftqueue_engine_session_next(const swiftqueue_session* session) {
  return session->session->next();
}

uint64_t swiftqueue_engine_session_first(const swiftqueue_session* session) {
  return session->session->first();
}

size_t swiftqueue_engine_session_bytes(const swiftqueue_session* session) {
  return session->session->bytes();
}

void swiftqueue_engine_session_begin(swiftqueue_session* session, uint64_t first) {
  session->session->begin(first);
}

int swiftqueue_engine_take(swiftqueue_engine* engine, swiftqueue_session* session, uint64_t first,
                           const float* rows, int64_t count, int* taken, char* error,
                           size_t error_size) {
  return guarded(error, error_size, [&] {
    *taken = engine->engine->take(*session->session, first, rows, checked(count)) ? 1 : 0;
  });
}

int swiftqueue_engine_answer(swiftqueue_engine* engine, const swiftqueue_session* session,
                             const float* queries, int64_t count, float* y, int64_t* version,
                             char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    swiftqueue::engine::Engine& asked = *engine->engine;
    const std::int64_t answered = asked.answer(*session->session, queries, checked(count), y,
                                               nullptr, asked.description().outputs());
    if (version != nullptr) *version = answered;
  });
}

int swiftqueue_engine_features_of_log(swiftqueue_engine* engine, const float* rows, int64_t events,
                                      const int64_t* cuts, int64_t decisions,
                                      const float* queries_DHF, float* feature_DHD, char* error,
                                      size_t error_size) {
  return guarded(error, error_size, [&] {
    using swiftqueue::kHorizon;
    swiftqueue::engine::Engine& asked = *engine->engine;
    const auto session = asked.open_session();
    const int outputs = asked.description().outputs();
    const std::ptrdiff_t width = swiftqueue_engine_features(engine);
    float y[kHorizon * swiftqueue::engine::kMaxLevels];
    for (int64_t d = 0; d < decisions; ++d) {
      const auto known = static_cast<int64_t>(session->next());
      if (cuts[d] < known || cuts[d] > events) {
        throw swiftqueue::engine::InvalidError("decision " + std::to_string(d) +
                                               ": it sees other events than those before it");
      }
      asked.take(*session, session->next(), rows + known * width, checked(cuts[d] - known));
      asked.answer(*session, queries_DHF + d * kHorizon * width, kHorizon, y,
                   feature_DHD + d * kHorizon * swiftqueue::engine::kWidth, outputs);
    }
  });
}

int swiftqueue_engine_time_session(swiftqueue_engine* engine, swiftqueue_session* session,
                                   const float* rows, int64_t count, int64_t events,
                                   const float* queries, int64_t asked, int64_t repeats, double* us,
                                   char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    using swiftqueue::engine::kMostQueries;
    float y[kMostQueries * swiftqueue::engine::kMaxLevels];
    swiftqueue::engine::Engine& answering = *engine->engine;
    for (int64_t i = 0; i < repeats; ++i) {
      const float* next = rows + i * events % count * swiftqueue_engine_features(engine);
      us[i] = timed_us([&] {
        answering.take(*session->session, session->session->next(), next, checked(events));
        answering.answer(*session->session, queries, checked(asked), y, nullptr,
                         answering.description().outputs());
      });
    }
  });
}

int swiftqueue_engine_time(swiftqueue_engine* engine, const float* x_BWF, int64_t windows,
                           int64_t tokens, int64_t repeats, double* us, char* error,
                           size_t error_size) {
  return guarded(error, error_size, [&] {
    float y_HL[swiftqueue::kHorizon * swiftqueue::engine::kMaxLevels];
    const int64_t stride = tokens * swiftqueue_engine_features(engine);
    for (int64_t i = 0; i < repeats; ++i) {
      us[i] = timed_us([&] {
        engine->engine->forward(x_BWF + i % windows * stride, 1, checked(tokens), y_HL,
                                engine->engine->description().outputs());
      });
    }
  });
}
