// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/session_store.h"

#include <iterator>
#include <utility>

namespace swiftqueue::backend {

SessionStore::~SessionStore() { counts_.open -= static_cast<std::int64_t>(entries_.size()); }

void SessionStore::limit(const SessionLimits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
}

std::size_t SessionStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

// Sessions that go are freed by the caller, after the lock.
void SessionStore::drop(Entries::iterator entry, Entries& gone) {
  bytes_ -= entry->bytes;
  places_.erase(entry->id);
  gone.splice(gone.end(), entries_, entry);
  --counts_.open;
}

// Finds a session and notes its use, after those that were idle for too long have gone.
std::shared_ptr<SessionStore::Slot> SessionStore::touch(std::uint64_t id, Time now, Entries& gone) {
  while (!entries_.empty() && now - entries_.back().used > limits_.idle) {
    drop(std::prev(entries_.end()), gone);
    ++counts_.expired;
  }
  const auto place = places_.find(id);
  if (place == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, place->second);
  place->second->used = now;
  return place->second->slot;
}

SessionStore::Use SessionStore::find(std::uint64_t id, Time now) {
  Entries gone;
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    slot = touch(id, now, gone);
  }
  return slot == nullptr ? Use() : Use(std::move(slot));
}

SessionStore::Use SessionStore::open(
    std::uint64_t id, Time now, const std::function<std::unique_ptr<engine::Session>()>& make) {
  if (Use known = find(id, now)) return known;
  auto slot = std::make_shared<Slot>(make());
  const std::size_t bytes = sizeof(Entry) + sizeof(Slot) + slot->session->bytes();
  Entries gone;
  {
    const std::lock_guard lock(mutex_);
    if (auto other = touch(id, now, gone)) return Use(std::move(other));
    entries_.push_front({id, now, bytes, slot});
    places_[id] = entries_.begin();
    bytes_ += bytes;
    ++counts_.open;
    ++counts_.opened;
    while (entries_.size() > 1 && (entries_.size() > limits_.sessions || bytes_ > limits_.bytes)) {
      drop(std::prev(entries_.end()), gone);
      ++counts_.evicted;
    }
  }
  return Use(std::move(slot));
}

void SessionStore::close(std::uint64_t id) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(id); place != places_.end()) drop(place->second, gone);
}

}  // namespace swiftqueue::backend
