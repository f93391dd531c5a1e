// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Helpers of the programs under sanitizers (`make sanitize`).
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace swiftqueue::stress {

using Random = std::mt19937_64;

// Returns a number below `limit`.
inline std::size_t below(Random& random, std::size_t limit) {
  return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

// Ends the program with a line where `condition` does not hold.
inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "stress: %s\n", what);
  std::exit(1);
}

}  // namespace swiftqueue::stress
