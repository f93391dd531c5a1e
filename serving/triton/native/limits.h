// SPDX-License-Identifier: Apache-2.0
//
// The accepted values of each feature of a row of a version: `limits.json` beside the artifact,
// written from serving/triton/limits.py.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_LIMITS_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_LIMITS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swiftqueue::backend {

class Limits {
 public:
  // Reads the text of `limits.json`, {"FEATURE": {"low": L, "high": H}, ...}. Throws InvalidError
  // unless it names exactly the features of a row, which `names` has in order.
  Limits(std::string_view json, std::vector<std::string> names);

  // Throws InvalidError, naming the first value of x_BWF that is NaN or out of range.
  void check(const float* x_BWF, std::int64_t windows, std::int64_t tokens) const;
  // Likewise for rows x_RF, the first of which is number `first` of its kind: "event", "query".
  void check_rows(const float* x_RF, std::int64_t rows, const char* kind, std::int64_t first) const;
  // Returns whether `check_rows` throws nothing.
  bool within(const float* x_RF, std::int64_t rows) const;

 private:
  // Throws for the first value that is not in range; `name` tells the place of its row.
  template <typename Name>
  void refuse(const float* x_RF, std::int64_t rows, Name name) const;

  std::vector<std::string> names_;
  std::vector<float> low_F_;
  std::vector<float> high_F_;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_LIMITS_H_
