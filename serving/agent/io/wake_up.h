// SPDX-License-Identifier: Apache-2.0
//
// A thread's sleep that another thread can end.
#ifndef SWIFTQUEUE_SERVING_AGENT_WAKE_UP_H_
#define SWIFTQUEUE_SERVING_AGENT_WAKE_UP_H_

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <stdexcept>

namespace swiftqueue::agent {

// A thread's sleep ends this much too late at most, on a machine that has a core for it.
inline constexpr std::int64_t kOversleepNs = 60'000;

class WakeUp {
 public:
  // A `sleep` ends `early_ns` before its time: the caller looks at the clock for the rest.
  explicit WakeUp(std::int64_t early_ns)
      : early_ns_(early_ns), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no event descriptor is to be had");
  }
  ~WakeUp() { close(fd_); }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  // Makes the present `sleep`, or else the next one, return at once. Any thread may call it.
  void wake() {
    const std::uint64_t one = 1;
    // The write fails only when 2^64 - 2 calls have not been noticed yet.
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
  }

  // Sleeps from `now_ns` until `until_ns` at most. Returns whether it was woken.
  bool sleep(std::int64_t now_ns, std::int64_t until_ns) {
    const std::int64_t sleep_ns = std::max<std::int64_t>(until_ns - now_ns - early_ns_, 0);
    const timespec timeout{sleep_ns / 1'000'000'000, sleep_ns % 1'000'000'000};
    pollfd woken{fd_, POLLIN, 0};
    if (ppoll(&woken, 1, &timeout, nullptr) <= 0) return false;
    std::uint64_t times = 0;
    [[maybe_unused]] const ssize_t got = read(fd_, &times, sizeof times);
    return true;
  }

 private:
  const std::int64_t early_ns_;
  const int fd_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_WAKE_UP_H_
