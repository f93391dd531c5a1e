// SPDX-License-Identifier: Apache-2.0
//
// A failed call of the kernel's, as the one line that a program of the bed ends with.
#ifndef SWIFTQUEUE_TESTBED_FAIL_H_
#define SWIFTQUEUE_TESTBED_FAIL_H_

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace swiftqueue::testbed {

[[noreturn]] inline void fail(const std::string& what, int error = errno) {
  throw std::runtime_error(what + ": " + std::strerror(error < 0 ? -error : error));
}

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_FAIL_H_
