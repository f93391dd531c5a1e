// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Whether a sender can ask a model: the one check of Triton's configuration of it, and of an
// artifact for the engine. The Python client says the same lines (serving/triton/served_model.py).
#ifndef SWIFTQUEUE_SERVING_AGENT_USABLE_MODEL_H_
#define SWIFTQUEUE_SERVING_AGENT_USABLE_MODEL_H_

#include <cstdint>
#include <string>

#include "feature_store/_build/schema_hash.h"
#include "feature_store/events/window.h"
#include "serving/agent/sender.h"

namespace swiftqueue::agent {

// Of a model with this schema hash that can be asked.
inline Definition definition_of(const std::string& schema_hash) {
  return schema_hash == kEventWindowSchemaHash ? Definition::kEvents : Definition::kWindow;
}

// Why windows [tokens, features] made here are not for a model, which answers each with `horizon`
// latencies; empty if they are. The line goes on from the model's name. `events`: whether the
// sender makes event windows as well.
inline std::string why_not_usable(const std::string& schema_hash, std::int64_t tokens,
                                  std::int64_t features, std::int64_t horizon,
                                  bool events = false) {
  const Definition definition = definition_of(schema_hash);
  if (schema_hash != kSchemaHash && !(events && definition == Definition::kEvents)) {
    return "takes features " + (schema_hash.empty() ? "?" : schema_hash.substr(0, 12)) +
           ", this sender makes " + std::string(kSchemaHash, 12) +
           (events ? " or " + std::string(kEventWindowSchemaHash, 12) : "");
  }
  if (features != features_of(definition) || tokens <= kHorizon || tokens > kMaxTokens ||
      tokens % 8 != 0) {
    return "does not take FP32 windows [tokens, " + std::to_string(features_of(definition)) + "]";
  }
  if (horizon != kHorizon) {
    return "does not answer with FP32 latency_us [" + std::to_string(kHorizon) + "]";
  }
  return {};
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_USABLE_MODEL_H_
