// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/encoder_cache.h"

#include <algorithm>

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
  const std::shared_ptr<Encoder> encoder(new Encoder{
      std::make_shared<const engine::EncoderWeights>(artifact), SessionStore(sessions_)});
  entries_.push_back({artifact.encoder_hash, artifact.description, encoder});
  return encoder;
}

std::size_t EncoderCache::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto alive = [](const Entry& entry) { return !entry.encoder.expired(); };
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), alive));
}

}  // namespace swiftqueue::backend
