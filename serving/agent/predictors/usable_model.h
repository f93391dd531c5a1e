// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Checks whether a sender can ask a model, by Triton's configuration of it or an artifact for the
// engine. The Python client has the same lines (serving/triton/served_model.py).
#ifndef SWIFTQUEUE_SERVING_AGENT_USABLE_MODEL_H_
#define SWIFTQUEUE_SERVING_AGENT_USABLE_MODEL_H_

#include <cstdint>
#include <string>

#include "feature_store/_build/schema_hash.h"
#include "feature_store/events/event_window.h"
#include "serving/engine/old_form.h"

namespace swiftqueue::agent {

// Returns why event windows made here do not fit a model of windows [tokens, features] that answers
// each with `horizon` latencies; empty if they do. The line goes on from the model's name.
inline std::string why_not_usable(const std::string& schema_hash, std::int64_t tokens,
                                  std::int64_t features, std::int64_t horizon) {
  if (std::string old = engine::why_old("", schema_hash); !old.empty()) return old;
  if (schema_hash != kEventWindowSchemaHash) {
    return "takes features " + (schema_hash.empty() ? "?" : schema_hash.substr(0, 12)) +
           ", this sender makes " + std::string(kEventWindowSchemaHash, 12);
  }
  if (features != kEventWindowFeatureCount || tokens <= kHorizon || tokens > kMaxTokens ||
      tokens % 8 != 0) {
    return "does not take FP32 windows [tokens, " + std::to_string(kEventWindowFeatureCount) + "]";
  }
  if (horizon != kHorizon) {
    return "does not answer with FP32 latency_us [" + std::to_string(kHorizon) + "]";
  }
  return {};
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_USABLE_MODEL_H_
