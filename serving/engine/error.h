// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The errors of loading an artifact or predicting a window, each with one line for the user.
#ifndef SWIFTQUEUE_SERVING_ENGINE_ERROR_H_
#define SWIFTQUEUE_SERVING_ENGINE_ERROR_H_

#include <stdexcept>
#include <string>

namespace swiftqueue::engine {

// Something in an artifact, a window or an argument is impossible; `what()` names it, in one line.
class InvalidError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file is missing or cannot be read.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_ERROR_H_
