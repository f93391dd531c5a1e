// SPDX-License-Identifier: Apache-2.0
//
// The library that Python loads (samples/definition.py, engine.py): the definition of a sample and
// the network that forecasts rates. Statuses are those of engine_capi.h.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "serving/engine/capi_guard.h"
#include "studies/rate/native/rate_model.h"
#include "studies/rate/samples/tcp_sample.h"

using swiftqueue::engine::guarded;
using swiftqueue::rate::kFieldCount;
using swiftqueue::rate::RateFlow;
using swiftqueue::rate::RateModel;
using Clock = std::chrono::steady_clock;

namespace {

void push_all(RateFlow& flow, const std::int64_t* sample_SF, std::int64_t samples) {
  for (std::int64_t s = 0; s < samples; ++s) flow.push(sample_SF + s * kFieldCount);
}

}  // namespace

extern "C" {

SWIFTQUEUE_API const char* sq_rate_schema() {
  static const std::string text = swiftqueue::rate::schema_text();
  return text.c_str();
}

// Makes the inputs x_NF of a flow's first samples; returns their number, or -1 - row of the first
// sample that is refused.
SWIFTQUEUE_API std::int64_t sq_rate_inputs(std::int64_t samples, const std::int64_t* raw_NF,
                                           float* x_NF) {
  swiftqueue::rate::SampleStream stream;
  for (std::int64_t row = 0; row < samples; ++row) {
    const std::int64_t at = row * kFieldCount;
    if (!stream.push(raw_NF + at, x_NF + at)) return -1 - row;
  }
  return samples;
}

// Loads the artifact in `folder`.
SWIFTQUEUE_API int sq_rate_create(const char* folder, const char* isa, RateModel** model,
                                  char* error, std::size_t error_size) {
  *model = nullptr;
  return guarded(error, error_size, [&] { *model = new RateModel(folder, isa); });
}

SWIFTQUEUE_API void sq_rate_destroy(RateModel* model) { delete model; }

SWIFTQUEUE_API const char* sq_rate_isa(const RateModel* model) { return model->isa(); }

// Computes the network's answer after each of a flow's samples, whatever it is: rate_SH in bytes/s.
SWIFTQUEUE_API int sq_rate_forward(const RateModel* model, const std::int64_t* sample_SF,
                                   std::int64_t samples, float* rate_SH, char* error,
                                   std::size_t error_size) {
  return guarded(error, error_size, [&] {
    RateFlow flow(*model);
    for (std::int64_t s = 0; s < samples; ++s) {
      flow.push(sample_SF + s * kFieldCount);
      rate_SH = std::copy(flow.raw().begin(), flow.raw().end(), rate_SH);
    }
  });
}

// Computes the forecast rate_H of a flow's samples; SWIFTQUEUE_INVALID if there is none to use.
SWIFTQUEUE_API int sq_rate_forecast(const RateModel* model, const std::int64_t* sample_SF,
                                    std::int64_t samples, float* rate_H, char* error,
                                    std::size_t error_size) {
  return guarded(error, error_size, [&] {
    RateFlow flow(*model);
    push_all(flow, sample_SF, samples);
    std::copy(flow.forecast().begin(), flow.forecast().end(), rate_H);
  });
}

// Times `repeats` forecasts of one flow: those of all its samples, and of the last one alone.
SWIFTQUEUE_API int sq_rate_time(const RateModel* model, const std::int64_t* sample_SF,
                                std::int64_t samples, std::int64_t repeats, double* whole_us,
                                double* last_us, char* error, std::size_t error_size) {
  return guarded(error, error_size, [&] {
    RateFlow flow(*model);
    const auto us = [](Clock::duration d) {
      return std::chrono::duration<double, std::micro>(d).count();
    };
    for (std::int64_t i = 0; i < repeats; ++i) {
      flow.reset();
      const auto begin = Clock::now();
      push_all(flow, sample_SF, samples - 1);
      const auto before = Clock::now();
      push_all(flow, sample_SF + (samples - 1) * kFieldCount, 1);
      flow.forecast();
      const auto end = Clock::now();
      whole_us[i] = us(end - begin);
      last_us[i] = us(end - before);
    }
  });
}

}  // extern "C"
