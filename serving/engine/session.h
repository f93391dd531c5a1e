// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// A sender's last events as an engine keeps them, by sequence number.
#ifndef SWIFTQUEUE_SERVING_ENGINE_SESSION_H_
#define SWIFTQUEUE_SERVING_ENGINE_SESSION_H_

#include <cstddef>
#include <cstdint>

#include "serving/engine/aligned.h"

namespace swiftqueue::engine {

// The events of one sender that an encoder has taken. `Engine::open_session` makes it, and every
// engine with the same encoder may go on with it, whatever its head. One call at a time uses it.
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
  std::size_t bytes() const { return sizeof(*this) + rows_.size() * sizeof(float); }

 private:
  friend class Engine;
  Session(std::uint64_t encoder_hash, std::size_t floats)
      : encoder_hash_(encoder_hash), rows_(floats) {}

  std::uint64_t encoder_hash_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  AlignedFloats rows_;  // [reach][F], an event's row at its number modulo reach
};

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_SESSION_H_
