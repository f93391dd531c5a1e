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
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serving/agent/io/frames.h"

namespace swiftqueue::agent {

class FrameSink {
 public:
  enum class Full : std::uint8_t {
    kDrop,  // frames that find no room are dropped and counted; HELLO and BYE wait for it
    kWait,  // `put` waits for room: a record must be whole
  };

  // `address` is `unix:PATH`, a socket, which is connected to again and again and never made, with
  // kDrop only; or a file, appended to with kDrop, written anew with kWait. The text alone decides.
  // Throws std::runtime_error, in one line, if it cannot be opened.
  FrameSink(std::string address, Full full);
  ~FrameSink() { finish(); }
  FrameSink(const FrameSink&) = delete;
  FrameSink& operator=(const FrameSink&) = delete;

  // One thread calls it. A sender's frames are numbered from 0; a dropped frame uses up its
  // number.
  template <typename T>
  void put(const T& frame, std::uint32_t sender) {
    constexpr bool kHello = T::kType == FrameType::kHello;
    constexpr bool kBye = T::kType == FrameType::kBye;
    constexpr bool kNumbered = !kHello && !kBye;
    if (next_ == nullptr || sender != sender_) {
      sender_ = sender;
      next_ = &numbers_[sender];
    }
    const T whole = finished(frame, sender, *next_);
    *next_ += kNumbered ? 1 : 0;
    if (kBye) {
      numbers_.erase(sender);
      next_ = nullptr;
    }
    while (!push_waiting() || !push(&whole, sizeof whole, kNumbered ? kReservedBytes : 0)) {
      if (full_ == Full::kDrop) {
        if constexpr (kNumbered) {
          dropped_.fetch_add(1, std::memory_order_relaxed);
        } else {
          wait(whole);
        }
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Writes the remaining frames: all of a record, telemetry for a second and if somebody listens.
  // Nothing may be put afterwards. Returns the frames lost.
  std::int64_t finish();

  // Number of frames lost for want of room, a closed socket or an unwritable file. Any thread.
  std::int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kRingBytes = std::size_t{1} << 22;
  // Room that only HELLO and BYE take. Without them later frames would belong to nobody: where
  // this is full too they wait, and go before the next frame.
  static constexpr std::size_t kReservedBytes = std::size_t{1} << 16;

  bool push(const void* data, std::size_t bytes, std::size_t reserved) {
    if (broken_.load(std::memory_order_relaxed)) {
      if (full_ == Full::kWait) dropped_.fetch_add(1, std::memory_order_relaxed);
      return full_ == Full::kWait;
    }
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (kRingBytes - (tail - head_.load(std::memory_order_acquire)) < bytes + reserved)
      return false;
    const std::size_t at = tail % kRingBytes;
    const std::size_t first = std::min(bytes, kRingBytes - at);
    std::memcpy(ring_.data() + at, data, first);
    std::memcpy(ring_.data(), static_cast<const char*>(data) + first, bytes - first);
    tail_.store(tail + bytes, std::memory_order_release);
    return true;
  }

  // Drops both frames of a sender that nobody will have heard of.
  template <typename T>
  void wait(const T& frame) {
    const auto hello = std::find_if(waiting_.begin(), waiting_.end(), [&](const HelloFrame& each) {
      return each.header.sender == frame.header.sender;
    });
    if (hello == waiting_.end()) {
      std::memcpy(static_cast<void*>(&waiting_.emplace_back()), &frame, sizeof frame);
    } else {
      waiting_.erase(hello);
      dropped_.fetch_add(2, std::memory_order_relaxed);
    }
  }

  bool push_waiting() {
    while (!waiting_.empty() && push(&waiting_.front(), waiting_.front().header.bytes, 0)) {
      waiting_.pop_front();
    }
    return waiting_.empty();
  }

  void run();
  bool connect_socket();
  bool take();       // takes whole frames out of the ring; false: there are none
  bool write_out();  // writes HELLOs again, then the taken frames; false: the other side is gone
  void settle();     // forgets taken frames that went out whole, and updates `names_` by them
  void lose();       // counts frames taken and not written
  bool complain(const char* what);  // prints a line with `errno`; false: there was one just now

  const bool is_socket_;
  const std::string path_;
  const Full full_;
  int fd_ = -1;
  // These belong to the thread that calls `put`:
  std::unordered_map<std::uint32_t, std::uint64_t> numbers_;  // next number, by sender
  std::uint32_t sender_ = 0;                                  // sender of the last frame, and
  std::uint64_t* next_ = nullptr;                             // its place in `numbers_`
  std::deque<HelloFrame> waiting_;  // HELLOs, and BYEs (whose headers count)

  std::vector<char> ring_;            // whole frames only
  std::atomic<std::size_t> head_{0};  // bytes taken out
  std::atomic<std::size_t> tail_{0};  // bytes put in
  std::atomic<std::int64_t> dropped_{0};
  std::atomic<bool> broken_{false};  // whether the file cannot be written
  std::atomic<bool> closing_{false};
  // These belong to the writing thread:
  std::string taken_;
  std::size_t written_ = 0;       // bytes of `taken_`
  std::string hellos_;            // HELLOs to be sent again before it
  std::size_t said_ = 0;          // bytes of `hellos_`
  bool complained_ = false;       // whether a missing listener was reported
  std::int64_t complain_ns_ = 0;  // no line before this time
  // Senders that are open in the output; `sequence` is the number of their next frame.
  std::map<std::uint32_t, HelloFrame> names_;
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_FRAME_SINK_H_
