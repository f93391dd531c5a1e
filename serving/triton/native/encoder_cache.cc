// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/encoder_cache.h"

#include <algorithm>
#include <utility>

namespace swiftqueue::backend {

std::shared_ptr<Encoder> EncoderCache::get(const engine::Artifact& artifact) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(entries_, [](const Entry& entry) { return entry.encoder.expired(); });
  for (const Entry& entry : entries_) {
    if (entry.hash != artifact.encoder_hash || !(entry.description == artifact.description)) {
      continue;
    }
    if (auto encoder = entry.encoder.lock()) return encoder;
  }
  auto sessions = sessions_.lock();
  if (sessions == nullptr) sessions_ = sessions = std::make_shared<SessionStore>(counts_);
  const auto encoder = std::make_shared<Encoder>(artifact, std::move(sessions));
  entries_.push_back({artifact.encoder_hash, artifact.description, encoder});
  return encoder;
}

std::size_t EncoderCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto alive = [](const Entry& entry) { return !entry.encoder.expired(); };
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), alive));
}

}  // namespace swiftqueue::backend
