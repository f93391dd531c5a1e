// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The head in two buffers: readers use the active one without ever waiting, a swap fills the other
// one once its last reader has left and then makes it the active one.
#ifndef SWIFTQUEUE_SERVING_ENGINE_SHARED_HEAD_H_
#define SWIFTQUEUE_SERVING_ENGINE_SHARED_HEAD_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "serving/engine/weights.h"

namespace swiftqueue::engine {

class SharedHead {
 public:
  struct Buffer {
    HeadWeights weights;
    std::int64_t version = 0;
    std::atomic<int> readers{0};
  };

  // Holds a head in place while it lives; it never allocates and never blocks.
  class Reader {
   public:
    explicit Reader(SharedHead& head) : buffer_(head.enter()) {}
    ~Reader() { buffer_.readers.fetch_sub(1, std::memory_order_release); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    const Buffer* operator->() const { return &buffer_; }

   private:
    Buffer& buffer_;
  };

  SharedHead(const Artifact& artifact, std::int64_t version)
      : encoder_hash_(artifact.encoder_hash) {
    assign(artifact, version);
  }

  void assign(const Artifact& artifact, std::int64_t version) {
    const std::lock_guard<std::mutex> one_at_a_time(writing_);
    const std::size_t next = 1 - active_.load(std::memory_order_relaxed);
    Buffer& buffer = buffers_[next];
    // Only readers that entered before the last swap are still here, for microseconds.
    while (buffer.readers.load() != 0) std::this_thread::yield();
    buffer.weights.assign(artifact);
    buffer.version = version;
    active_.store(next);
  }

  std::uint64_t encoder_hash() const { return encoder_hash_; }

 private:
  // A reader counts itself in and then looks again: if the buffer is still the active one, the
  // writer will see the count before it touches it (both orders are sequentially consistent).
  Buffer& enter() {
    while (true) {
      const std::size_t at = active_.load();
      Buffer& buffer = buffers_[at];
      buffer.readers.fetch_add(1);
      if (active_.load() == at) return buffer;
      buffer.readers.fetch_sub(1, std::memory_order_release);
    }
  }

  const std::uint64_t encoder_hash_;
  std::mutex writing_;
  std::atomic<std::size_t> active_{0};
  std::array<Buffer, 2> buffers_;
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_SHARED_HEAD_H_
