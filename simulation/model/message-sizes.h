// SPDX-License-Identifier: GPL-2.0-only
//
// Message sizes of data centres, as published; figures only.

#ifndef SWIFTQUEUE_MESSAGE_SIZES_H
#define SWIFTQUEUE_MESSAGE_SIZES_H

#include <array>
#include <cstddef>
#include <span>

namespace swiftqueue {

/** A point of a distribution, linear between its points. */
struct Quantile {
  double value;
  double cumulative;  // share that is at most this large
};

// Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM 2010, figure 4 (web search), in bytes, in the
// points commonly used for it.
inline constexpr std::array<Quantile, 12> kWebSearchBytes{{
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

// Roy et al., "Inside the Social Network's (Datacenter) Network", SIGCOMM 2015, figure 6 (Hadoop),
// in bytes, in the points commonly used for it.
inline constexpr std::array<Quantile, 20> kHadoopBytes{{
    {1, 0},        {100, 0.01},   {200, 0.02},  {300, 0.05},  {350, 0.15},
    {400, 0.20},   {500, 0.30},   {600, 0.40},  {700, 0.50},  {1000, 0.60},
    {2000, 0.67},  {7000, 0.70},  {30e3, 0.72}, {50e3, 0.82}, {80e3, 0.87},
    {120e3, 0.90}, {300e3, 0.95}, {1e6, 0.975}, {2e6, 0.99},  {10e6, 1},
}};

/** Mean of a distribution: each of its pieces is uniform. */
constexpr double Mean(std::span<const Quantile> points) {
  double mean = 0;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto& [low, below] = points[i - 1];
    const auto& [high, upTo] = points[i];
    mean += (upTo - below) * (low + high) / 2;
  }
  return mean;
}

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_MESSAGE_SIZES_H
