// SPDX-License-Identifier: Apache-2.0
//
// Frames to a file or a unix socket, written by a thread of its own, so that the decision loop
// makes no system call and takes no lock for them.
#ifndef SWIFTQUEUE_SERVING_AGENT_FRAME_SINK_H_
#define SWIFTQUEUE_SERVING_AGENT_FRAME_SINK_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "serving/agent/frames.h"

namespace swiftqueue::agent {

class FrameSink {
 public:
  enum class Full : std::uint8_t {
    kDrop,  // frames that find no room are dropped and counted
    kWait,  // `put` waits for room: a record must be whole
  };

  // `path`: a unix socket that somebody listens on (connected to again and again when it closes),
  // or else a file: appended to with kDrop, written anew with kWait. Throws std::runtime_error if
  // it cannot be opened.
  FrameSink(std::string path, Full full);
  ~FrameSink() { finish(); }
  FrameSink(const FrameSink&) = delete;
  FrameSink& operator=(const FrameSink&) = delete;

  // Called by one thread.
  template <typename T>
  void put(const T& frame, std::uint32_t sender) {
    const T whole = finished(frame, sender, sequence_++);
    while (!push(&whole, sizeof whole)) {
      if (full_ == Full::kDrop) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Writes what is left: all of a record, telemetry for a second at most and if somebody listens.
  // Nothing may be put afterwards. Returns the frames lost.
  std::int64_t finish();

  // Frames without room, and frames whose socket was closed or file cannot be written. Any thread.
  std::int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kRingBytes = std::size_t{1} << 22;

  bool push(const void* data, std::size_t bytes) {
    if (broken_.load(std::memory_order_relaxed)) {
      if (full_ == Full::kWait) dropped_.fetch_add(1, std::memory_order_relaxed);
      return full_ == Full::kWait;
    }
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (kRingBytes - (tail - head_.load(std::memory_order_acquire)) < bytes) return false;
    const std::size_t at = tail % kRingBytes;
    const std::size_t first = std::min(bytes, kRingBytes - at);
    std::memcpy(ring_.data() + at, data, first);
    std::memcpy(ring_.data(), static_cast<const char*>(data) + first, bytes - first);
    tail_.store(tail + bytes, std::memory_order_release);
    return true;
  }

  void run();
  bool connect_socket();
  bool take();       // whole frames out of the ring; false: there are none
  bool write_out();  // what was taken; false: the other side is gone
  void lose();       // counts what was taken and not written

  const std::string path_;
  const Full full_;
  bool is_socket_ = false;
  int fd_ = -1;
  std::uint64_t sequence_ = 0;
  std::vector<char> ring_;            // whole frames only
  std::atomic<std::size_t> head_{0};  // bytes taken out
  std::atomic<std::size_t> tail_{0};  // bytes put in
  std::atomic<std::int64_t> dropped_{0};
  std::atomic<bool> broken_{false};  // the file cannot be written
  std::atomic<bool> closing_{false};
  // Of the writing thread:
  std::string taken_;
  std::size_t written_ = 0;                    // of `taken_`
  std::map<std::uint32_t, HelloFrame> names_;  // said again to whoever listens next
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_FRAME_SINK_H_
