// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// What goes wrong while an artifact is loaded or a window is predicted: one line for the user.
#ifndef SWIFTQUEUE_SERVING_ENGINE_ERROR_H_
#define SWIFTQUEUE_SERVING_ENGINE_ERROR_H_

#include <stdexcept>
#include <string>

namespace swiftqueue::engine {

// Something in an artifact, a window or an argument cannot be; `what()` names it, in one line.
class InvalidError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file is not there or cannot be read.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_ERROR_H_
