// SPDX-License-Identifier: Apache-2.0
//
// The encoders in this process. Versions that differ only in their heads (the five-minute update)
// share one and what it made of the senders' sessions, so loading such a version adds the two last
// linear layers and nothing else. All encoders share the sessions themselves.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_ENCODER_CACHE_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_ENCODER_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "serving/engine/artifact.h"
#include "serving/engine/weights.h"
#include "serving/triton/native/session_store.h"

namespace swiftqueue::backend {

struct Encoder {
  Encoder(const engine::Artifact& artifact, std::shared_ptr<SessionStore> store)
      : weights(std::make_shared<const engine::EncoderWeights>(artifact)),
        sessions(std::move(store)) {}
  ~Encoder() { sessions->forget(*this); }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  const std::shared_ptr<const engine::EncoderWeights> weights;
  const std::shared_ptr<SessionStore> sessions;
};

// An encoder lives as long as a version that uses it, and the sessions as long as an encoder; the
// cache itself keeps none alive. Any thread may call.
class EncoderCache {
 public:
  // Returns the artifact's encoder: the one in memory if it has the same weights and description
  // (features, scaling, sizes), else a new one.
  std::shared_ptr<Encoder> get(const engine::Artifact& artifact);

  // Returns the number of encoders in memory.
  std::size_t size() const;

  SessionCounts& sessions() { return counts_; }

 private:
  struct Entry {
    std::uint64_t hash;
    engine::Description description;
    std::weak_ptr<Encoder> encoder;
  };

  SessionCounts counts_;
  mutable std::mutex mutex_;
  std::weak_ptr<SessionStore> sessions_;
  std::vector<Entry> entries_;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_ENCODER_CACHE_H_
