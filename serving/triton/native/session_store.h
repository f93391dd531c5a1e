// SPDX-License-Identifier: Apache-2.0
//
// The sessions of one encoder's senders, by number (Triton's correlation id). A sender draws its
// number at random, so whoever can name a session opened it. All versions and instances with the
// encoder share the store. A session that goes is begun anew by its sender, which keeps the rows.
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

#include "serving/engine/session.h"

namespace swiftqueue::backend {

struct SessionLimits {
  std::size_t sessions = 1024;  // an encoder has no more; the least recently used one goes
  std::size_t bytes = std::size_t{128} << 20;  // memory of its sessions
  std::chrono::seconds idle{60};               // a session that is not used for so long goes
};

// Counts of all stores in the process. Those of events are taken out as they are reported.
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
  struct Slot {
    explicit Slot(std::unique_ptr<engine::Session> made) : session(std::move(made)) {}
    std::mutex mutex;
    std::unique_ptr<engine::Session> session;
  };

 public:
  // A session that nobody else can use meanwhile; false if there is none.
  class Use {
   public:
    Use() = default;
    explicit Use(std::shared_ptr<Slot> slot) : slot_(std::move(slot)), lock_(slot_->mutex) {}
    explicit operator bool() const { return slot_ != nullptr; }
    engine::Session& operator*() const { return *slot_->session; }
    engine::Session* operator->() const { return slot_->session.get(); }

   private:
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
  // Returns the session of this number, with or without events, or what `make` returns.
  Use open(std::uint64_t id, Time now,
           const std::function<std::unique_ptr<engine::Session>()>& make);
  void close(std::uint64_t id);

  std::size_t size() const;

 private:
  struct Entry {
    std::uint64_t id;
    Time used;
    std::size_t bytes;
    std::shared_ptr<Slot> slot;
  };
  using Entries = std::list<Entry>;  // the last used one first

  std::shared_ptr<Slot> touch(std::uint64_t id, Time now, Entries& gone);
  void drop(Entries::iterator entry, Entries& gone);

  SessionCounts& counts_;
  mutable std::mutex mutex_;
  SessionLimits limits_;
  Entries entries_;
  std::unordered_map<std::uint64_t, Entries::iterator> places_;
  std::size_t bytes_ = 0;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_SESSION_STORE_H_
