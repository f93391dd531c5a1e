// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Keys and values of a sender's last events, by sequence number.
#ifndef SWIFTQUEUE_SERVING_ENGINE_SESSION_H_
#define SWIFTQUEUE_SERVING_ENGINE_SESSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "serving/engine/aligned.h"
#include "serving/engine/kernel.h"

namespace swiftqueue::engine {

// A ring of `band` slots for each layer; an event lies at its number modulo `band`. At the default
// sizes it takes 64 KB: 2 layers of 64 events of 128 floats. `Engine::open_session` makes it, and
// every engine with the same encoder may go on with it, whatever its head. One call at a time uses
// it.
class Session {
 public:
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns the number of the event that it wants next.
  std::uint64_t next() const { return next_; }
  // Returns the number of the first event since the last `begin`.
  std::uint64_t first() const { return first_; }
  // Forgets all events; the log, as far as this session knows, begins at event `first`.
  void begin(std::uint64_t first) { first_ = next_ = first; }
  // Returns the memory that it takes.
  std::size_t bytes() const { return sizeof(*this) + states_.size() * sizeof(float); }

 private:
  friend class Engine;

  Session(std::uint64_t encoder_hash, int layers, int band)
      : encoder_hash_(encoder_hash),
        band_(band),
        slots_((band + kPanel - 1) / kPanel * kPanel),
        states_(static_cast<std::size_t>(layers) * 2 * kWidth * static_cast<std::size_t>(slots_)) {}

  Ring ring() const {
    const auto band = static_cast<std::uint64_t>(band_);
    return {states_.data(), band_, slots_, static_cast<int>(next_ % band),
            static_cast<int>(std::min(band, next_ - first_))};
  }

  std::uint64_t encoder_hash_;
  int band_;
  int slots_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  AlignedFloats states_;  // kernel.h: Ring
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_SESSION_H_
