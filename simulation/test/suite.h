// SPDX-License-Identifier: GPL-2.0-only
//
// What is the same in every test program.

#ifndef SWIFTQUEUE_TEST_SUITE_H
#define SWIFTQUEUE_TEST_SUITE_H

#include <string>
#include <vector>

#include "ns3/test.h"

namespace swiftqueue {

/** Runs this suite with the command line's options, and not those of ns-3's own libraries. */
inline int RunSuite(const std::string& name, int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  std::string suite = "--suite=" + name;
  std::string verbose = "--verbose";
  arguments.insert(arguments.end(), {suite.data(), verbose.data(), nullptr});
  return ns3::TestRunner::Run(static_cast<int>(arguments.size()) - 1, arguments.data());
}

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_TEST_SUITE_H
