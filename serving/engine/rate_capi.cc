// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/rate_capi.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "serving/engine/capi_guard.h"
#include "serving/engine/rate.h"

struct swiftqueue_rate {
  swiftqueue::engine::RateModel model;
};

namespace {

using swiftqueue::engine::guarded;
using swiftqueue::engine::RateFlow;
using swiftqueue::rate::kFieldCount;
using Clock = std::chrono::steady_clock;

void push_all(RateFlow& flow, const int64_t* sample_SF, int64_t samples) {
  for (int64_t s = 0; s < samples; ++s) flow.push(sample_SF + s * kFieldCount);
}

}  // namespace

int swiftqueue_engine_rate_create(const char* folder, const char* isa, swiftqueue_rate** model,
                                  char* error, size_t error_size) {
  *model = nullptr;
  return guarded(error, error_size, [&] { *model = new swiftqueue_rate{{folder, isa}}; });
}

void swiftqueue_engine_rate_destroy(swiftqueue_rate* model) { delete model; }

const char* swiftqueue_engine_rate_isa(const swiftqueue_rate* model) {
  return model->model.kernel().name;
}

int swiftqueue_engine_rate_forward(const swiftqueue_rate* model, const int64_t* sample_SF,
                                   int64_t samples, float* rate_SH, char* error,
                                   size_t error_size) {
  return guarded(error, error_size, [&] {
    RateFlow flow(model->model);
    for (int64_t s = 0; s < samples; ++s) {
      flow.push(sample_SF + s * kFieldCount);
      rate_SH = std::copy(flow.raw().begin(), flow.raw().end(), rate_SH);
    }
  });
}

int swiftqueue_engine_rate_forecast(const swiftqueue_rate* model, const int64_t* sample_SF,
                                    int64_t samples, float* rate_H, char* error,
                                    size_t error_size) {
  return guarded(error, error_size, [&] {
    RateFlow flow(model->model);
    push_all(flow, sample_SF, samples);
    std::copy(flow.forecast().begin(), flow.forecast().end(), rate_H);
  });
}

int swiftqueue_engine_rate_time(const swiftqueue_rate* model, const int64_t* sample_SF,
                                int64_t samples, int64_t repeats, double* whole_us, double* last_us,
                                char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    RateFlow flow(model->model);
    const auto us = [](Clock::duration d) {
      return std::chrono::duration<double, std::micro>(d).count();
    };
    for (int64_t i = 0; i < repeats; ++i) {
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
