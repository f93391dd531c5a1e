// SPDX-License-Identifier: Apache-2.0
//
// A file that is touched each second while its owner's thread goes on: every program that may read
// its folder sees that this one lives, and nobody else can change that.
#ifndef SWIFTQUEUE_SERVING_AGENT_HEARTBEAT_H_
#define SWIFTQUEUE_SERVING_AGENT_HEARTBEAT_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace swiftqueue::agent {

class Heartbeat {
 public:
  static constexpr std::int64_t kEveryNs = 1'000'000'000;

  // An empty path means no file.
  explicit Heartbeat(std::string path) : path_(std::move(path)) {}

  void beat(std::int64_t now_ns) {
    if (path_.empty() || now_ns - last_ns_ < kEveryNs) return;
    last_ns_ = now_ns;
    // The file is opened anew each time: somebody may have cleaned the folder.
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    futimens(fd, nullptr);
    close(fd);
  }

 private:
  const std::string path_;
  std::int64_t last_ns_ = -kEveryNs;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_HEARTBEAT_H_
