// SPDX-License-Identifier: Apache-2.0
//
// The senders' sessions in this process, by number (Triton's correlation id). A sender draws its
// number at random, so whoever can name a session opened it. All versions and instances share the
// store. A session has its last rows once, and for each encoder that it was asked with the keys and
// values made from them: these can be made again, so they go where there is no room, and another
// encoder's are made while the old one answers. A session that goes is begun anew by its sender,
// which keeps the rows, too.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_SESSION_STORE_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_SESSION_STORE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "serving/engine/engine.h"
#include "serving/engine/session.h"
#include "serving/triton/native/recent_rows.h"

namespace swiftqueue::backend {

struct Encoder;

struct SessionLimits {
  std::size_t sessions = 1024;  // there are no more; the least recently used one goes
  std::size_t bytes = std::size_t{128} << 20;  // memory of all: rows, keys and values
  std::chrono::seconds idle{60};               // a session that is not used for so long goes
};

// Counts of all sessions in the process. Those of events are taken out as they are reported.
struct SessionCounts {
  std::atomic<std::int64_t> open{0};
  std::atomic<std::int64_t> opened{0};
  std::atomic<std::int64_t> evicted{0};  // for want of room
  std::atomic<std::int64_t> expired{0};  // idle for too long
  std::atomic<std::int64_t> resends{0};
};

// Any thread may call.
class SessionStore {
 public:
  using Time = std::chrono::steady_clock::time_point;

 private:
  struct State {
    const Encoder* encoder;
    std::unique_ptr<engine::Session> session;  // has no events that the rows never had
  };
  struct Slot {
    State* find(const Encoder& encoder);
    std::size_t bytes() const;

    std::mutex mutex;
    RecentRows rows;
    std::vector<State> states;
    std::size_t counted = 0;  // the store's part: memory that it counts, 0 for one that has gone
  };

 public:
  // A session that nobody else can use meanwhile; false if there is none.
  class Use {
   public:
    Use() = default;
    Use(SessionStore& store, std::shared_ptr<Slot> slot)
        : store_(&store), slot_(std::move(slot)), lock_(slot_->mutex) {}
    explicit operator bool() const { return slot_ != nullptr; }

    RecentRows& rows() const { return slot_->rows; }
    // Forgets all events; the log begins at event `first`.
    void begin(std::uint64_t first) const;
    // Returns the keys and values of the engine's encoder: they may lack events that the rows have.
    engine::Session& with(const Encoder& encoder, const engine::Engine& engine) const;

   private:
    SessionStore* store_ = nullptr;
    std::shared_ptr<Slot> slot_;  // outlives the lock
    std::unique_lock<std::mutex> lock_;
  };

  explicit SessionStore(SessionCounts& counts) : counts_(counts) {}
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  void limit(const SessionLimits& limits);

  // Returns the session of this number.
  Use find(std::uint64_t id, Time now);
  // Returns the session of this number, with or without events, or a new one.
  Use open(std::uint64_t id, Time now);
  void close(std::uint64_t id);

  // Gives the sessions that lack them, the last used first, up-to-date keys and values of an
  // encoder that looks back at `reach` events, while there is room: what `make` returns for their
  // rows, unless it returns none. No question waits for `make`.
  void fill(const Encoder& encoder, int reach, Time now,
            const std::function<std::unique_ptr<engine::Session>(const RecentRows&)>& make);
  // Frees an encoder's keys and values.
  void forget(const Encoder& encoder);

  std::size_t size() const;
  // Returns the memory of all sessions.
  std::size_t bytes() const;

 private:
  struct Entry {
    std::uint64_t id;
    Time used;
    std::shared_ptr<Slot> slot;
  };
  using Entries = std::list<Entry>;  // the last used one first

  void expire(Time now, Entries& gone);
  std::shared_ptr<Slot> touch(std::uint64_t id, Time now, Entries& gone);
  void drop(Entries::iterator entry, Entries& gone);
  void evict(Entries& gone);
  std::vector<std::shared_ptr<Slot>> slots() const;
  bool has_room(std::size_t bytes) const;
  void count(Slot& slot);

  SessionCounts& counts_;
  mutable std::mutex mutex_;  // never waits for a slot's
  SessionLimits limits_;
  Entries entries_;
  std::unordered_map<std::uint64_t, Entries::iterator> places_;
  std::size_t bytes_ = 0;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_SESSION_STORE_H_
