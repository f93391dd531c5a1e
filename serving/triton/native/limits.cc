// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/limits.h"

#include <cstddef>
#include <cstdio>
#include <utility>

#include "serving/engine/error.h"
#include "serving/engine/json.h"

namespace swiftqueue::backend {

using engine::InvalidError;

Limits::Limits(std::string_view json, std::vector<std::string> names) : names_(std::move(names)) {
  const engine::json::Value described = engine::json::parse(json);
  described.require_keys({names_.begin(), names_.end()}, "the limits");
  for (const std::string& name : names_) {
    const engine::json::Value& range = described.at(name, "the limits");
    range.require_keys({"low", "high"}, name);
    low_F_.push_back(static_cast<float>(range.at("low", name).number(name + ": low")));
    high_F_.push_back(static_cast<float>(range.at("high", name).number(name + ": high")));
    if (!(low_F_.back() <= high_F_.back())) {
      throw InvalidError(name + ": low is above high");
    }
  }
}

// It has no branch per value, so that the compiler uses vectors. A NaN compares false with all.
bool Limits::within(const float* x_RF, std::int64_t rows) const {
  const std::size_t features = names_.size();
  const float* low_F = low_F_.data();
  const float* high_F = high_F_.data();
  int bad = 0;
  for (std::int64_t row = 0; row < rows; ++row, x_RF += features) {
    for (std::size_t f = 0; f < features; ++f) {
      bad |= static_cast<int>(!(x_RF[f] >= low_F[f])) | static_cast<int>(!(x_RF[f] <= high_F[f]));
    }
  }
  return bad == 0;
}

template <typename Name>
void Limits::refuse(const float* x_RF, std::int64_t rows, Name name) const {
  const auto features = static_cast<std::int64_t>(names_.size());
  for (std::int64_t i = 0; i < rows * features; ++i) {
    const auto f = static_cast<std::size_t>(i % features);
    if (x_RF[i] >= low_F_[f] && x_RF[i] <= high_F_[f]) continue;
    char range[64];
    std::snprintf(range, sizeof range, "[%g, %g]", static_cast<double>(low_F_[f]),
                  static_cast<double>(high_F_[f]));
    throw InvalidError(name(i / features) + ": " + names_[f] + " is NaN or outside " + range);
  }
}

void Limits::check(const float* x_BWF, std::int64_t windows, std::int64_t tokens) const {
  if (within(x_BWF, windows * tokens)) return;
  refuse(x_BWF, windows * tokens, [&](std::int64_t row) {
    return "window " + std::to_string(row / tokens) + ", token " + std::to_string(row % tokens);
  });
}

void Limits::check_rows(const float* x_RF, std::int64_t rows, const char* kind,
                        std::int64_t first) const {
  if (within(x_RF, rows)) return;
  refuse(x_RF, rows,
         [&](std::int64_t row) { return std::string(kind) + " " + std::to_string(first + row); });
}

}  // namespace swiftqueue::backend
