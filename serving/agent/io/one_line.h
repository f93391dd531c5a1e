// SPDX-License-Identifier: Apache-2.0
// Helpers of the small programs' command lines: a number in its range, and an error as one line.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

namespace swiftqueue {

// Returns `text` as a number. Throws std::invalid_argument with a line that begins with `name`.
inline double number(const std::string& name, const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= least && value <= most)) {
    char line[200];
    std::snprintf(line, sizeof line, "%.60s %.40s: must be a number from %g to %g", name.c_str(),
                  text.c_str(), least, most);
    throw std::invalid_argument(line);
  }
  return value;
}

// Returns the exit status: the result of `run`, 2 for impossible arguments, 1 for other errors.
template <typename Run>
int one_line_errors(Run&& run) {
  try {
    return run();
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace swiftqueue
