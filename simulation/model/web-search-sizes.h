// SPDX-License-Identifier: GPL-2.0-only
//
// Flow sizes of web search, as published; figures only.

#ifndef SWIFTQUEUE_WEB_SEARCH_SIZES_H
#define SWIFTQUEUE_WEB_SEARCH_SIZES_H

#include <array>

namespace swiftqueue {

struct SizePoint {
  double bytes;
  double cumulative;  // share of the flows that are at most this large
};

// Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, figure 4 (web search), in the points
// commonly used for it; linear in between.
inline constexpr std::array<SizePoint, 12> kWebSearchSizes{{
    {1, 0},
    {10e3, 0.15},
    {20e3, 0.20},
    {30e3, 0.30},
    {50e3, 0.40},
    {80e3, 0.53},
    {200e3, 0.60},
    {1e6, 0.70},
    {2e6, 0.80},
    {5e6, 0.90},
    {10e6, 0.97},
    {30e6, 1},
}};

/** Mean message size in bytes: each piece of the distribution is uniform. */
constexpr double MeanWebSearchBytes() {
  double mean = 0;
  for (std::size_t i = 1; i < kWebSearchSizes.size(); ++i) {
    const auto& [low, below] = kWebSearchSizes[i - 1];
    const auto& [high, upTo] = kWebSearchSizes[i];
    mean += (upTo - below) * (low + high) / 2;
  }
  return mean;
}

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_WEB_SEARCH_SIZES_H
