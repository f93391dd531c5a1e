// SPDX-License-Identifier: Apache-2.0
//
// C ABI of tcp_sample.h, for Python's ctypes.
#include <cstdint>
#include <string>

#include "feature_store/rate/tcp_sample.h"

extern "C" {

const char* sq_rate_schema() {
  static const std::string text = swiftqueue::rate::schema_text();
  return text.c_str();
}

// Inputs x_NF of a flow's first samples; returns their number, or -1 - row of the first one
// refused.
std::int64_t sq_rate_inputs(std::int64_t samples, const std::int64_t* raw_NF, float* x_NF) {
  swiftqueue::rate::SampleStream stream;
  for (std::int64_t row = 0; row < samples; ++row) {
    const std::int64_t at = row * swiftqueue::rate::kFieldCount;
    if (!stream.push(raw_NF + at, x_NF + at)) {
      return -1 - row;
    }
  }
  return samples;
}

}  // extern "C"
