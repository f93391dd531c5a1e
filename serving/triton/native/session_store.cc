// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/session_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace swiftqueue::backend {

SessionStore::State* SessionStore::Slot::find(const Encoder& encoder) {
  const auto state = std::find_if(states.begin(), states.end(),
                                  [&](const State& each) { return each.encoder == &encoder; });
  return state == states.end() ? nullptr : &*state;
}

std::size_t SessionStore::Slot::bytes() const {
  std::size_t bytes = sizeof(Entry) + sizeof(Slot) + rows.bytes();
  for (const State& state : states) bytes += sizeof(State) + state.session->bytes();
  return bytes;
}

void SessionStore::Use::begin(std::uint64_t first) const {
  slot_->rows.begin(first);
  for (const State& state : slot_->states) state.session->begin(first);
}

engine::Session& SessionStore::Use::with(const Encoder& encoder,
                                         const engine::Engine& engine) const {
  if (const State* known = slot_->find(encoder)) return *known->session;
  auto made = engine.open_session();
  slot_->rows.keep(engine.reach());
  if (!store_->has_room(made->bytes())) slot_->states.clear();  // the rows can make them again
  slot_->states.push_back({&encoder, std::move(made)});
  store_->count(*slot_);
  return *slot_->states.back().session;
}

SessionStore::~SessionStore() { counts_.open -= static_cast<std::int64_t>(entries_.size()); }

void SessionStore::limit(const SessionLimits& limits) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  evict(gone);
}

std::size_t SessionStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t SessionStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

// Sessions that go are freed by the caller, after the lock.
void SessionStore::drop(Entries::iterator entry, Entries& gone) {
  bytes_ -= std::exchange(entry->slot->counted, 0);
  places_.erase(entry->id);
  gone.splice(gone.end(), entries_, entry);
  --counts_.open;
}

void SessionStore::expire(Time now, Entries& gone) {
  while (!entries_.empty() && now - entries_.back().used > limits_.idle) {
    drop(std::prev(entries_.end()), gone);
    ++counts_.expired;
  }
}

void SessionStore::evict(Entries& gone) {
  while (entries_.size() > 1 && (entries_.size() > limits_.sessions || bytes_ > limits_.bytes)) {
    drop(std::prev(entries_.end()), gone);
    ++counts_.evicted;
  }
}

// Finds a session and notes its use, after those that were idle for too long have gone.
std::shared_ptr<SessionStore::Slot> SessionStore::touch(std::uint64_t id, Time now, Entries& gone) {
  expire(now, gone);
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
  return slot == nullptr ? Use() : Use(*this, std::move(slot));
}

SessionStore::Use SessionStore::open(std::uint64_t id, Time now) {
  Entries gone;
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    slot = touch(id, now, gone);
    if (slot == nullptr) {
      slot = std::make_shared<Slot>();
      entries_.push_front({id, now, slot});
      places_[id] = entries_.begin();
      bytes_ += slot->counted = slot->bytes();
      ++counts_.open;
      ++counts_.opened;
      evict(gone);
    }
  }
  return {*this, std::move(slot)};
}

void SessionStore::close(std::uint64_t id) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  if (const auto place = places_.find(id); place != places_.end()) drop(place->second, gone);
}

std::vector<std::shared_ptr<SessionStore::Slot>> SessionStore::slots() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Slot>> slots;
  for (const Entry& entry : entries_) slots.push_back(entry.slot);
  return slots;
}

bool SessionStore::has_room(std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return bytes_ + bytes <= limits_.bytes;
}

// Counts the memory of a session in use anew.
void SessionStore::count(Slot& slot) {
  const std::size_t bytes = slot.bytes();
  Entries gone;
  const std::lock_guard lock(mutex_);
  if (slot.counted == 0) return;
  bytes_ += bytes - std::exchange(slot.counted, bytes);
  evict(gone);
}

void SessionStore::fill(
    const Encoder& encoder, int reach, Time now,
    const std::function<std::unique_ptr<engine::Session>(const RecentRows&)>& make) {
  {
    Entries gone;
    const std::lock_guard lock(mutex_);
    expire(now, gone);
  }
  RecentRows rows;
  for (const std::shared_ptr<Slot>& slot : slots()) {
    {
      const std::lock_guard lock(slot->mutex);
      const State* known = slot->find(encoder);
      if (known != nullptr && known->session->next() == slot->rows.next()) continue;
      rows = slot->rows;
    }
    std::unique_ptr<engine::Session> made = make(rows);
    if (made == nullptr) continue;
    const std::lock_guard lock(slot->mutex);
    if (slot->rows.log() != rows.log()) continue;
    if (State* known = slot->find(encoder)) {
      if (known->session->next() < made->next()) known->session = std::move(made);
    } else {
      if (!has_room(made->bytes())) return;
      slot->rows.keep(reach);
      slot->states.push_back({&encoder, std::move(made)});
      count(*slot);
    }
  }
}

void SessionStore::forget(const Encoder& encoder) {
  for (const std::shared_ptr<Slot>& slot : slots()) {
    const std::lock_guard lock(slot->mutex);
    std::erase_if(slot->states, [&](const State& each) { return each.encoder == &encoder; });
    count(*slot);
  }
}

}  // namespace swiftqueue::backend
