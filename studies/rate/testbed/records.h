// SPDX-License-Identifier: Apache-2.0
//
// Records of rate.h in numbered files of a folder, for who learns from them while more come. A
// file is finished once the next one is there; the last one when the program has ended.
#ifndef SWIFTQUEUE_STUDIES_RATE_TESTBED_RECORDS_H_
#define SWIFTQUEUE_STUDIES_RATE_TESTBED_RECORDS_H_

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "rate.h"
#include "testbed/fail.h"

namespace swiftqueue::testbed {

class Records {
 public:
  /** `folder`: is there and empty. Throws std::runtime_error: nothing can be written there. */
  explicit Records(std::string folder) : folder_(std::move(folder)) { begin(); }
  ~Records() { close(); }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  /** Once there is no room for one, says so, and keeps nothing from then on. */
  void add(const sq_rate_record& record) {
    if (file_ == nullptr) return;
    try {
      if (written_ == kRecords) begin();
      if (std::fwrite(&record, sizeof(record), 1, file_) != 1) fail(folder_);
      ++written_;
    } catch (const std::runtime_error& error) {
      std::fprintf(stderr, "%s; no more samples are kept\n", error.what());
      close();
    }
  }

 private:
  static constexpr int kRecords = 1 << 14;  // records of a file: 4 MiB

  void begin() {
    close();
    char name[16];
    std::snprintf(name, sizeof(name), "/%08d", number_++);
    file_ = std::fopen((folder_ + name).c_str(), "wbxe");
    if (file_ == nullptr) fail(folder_ + name);
    written_ = 0;
  }

  void close() {
    if (file_ != nullptr) std::fclose(file_);
    file_ = nullptr;
  }

  const std::string folder_;
  std::FILE* file_ = nullptr;
  int number_ = 0;
  int written_ = 0;  // records of this file
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_STUDIES_RATE_TESTBED_RECORDS_H_
