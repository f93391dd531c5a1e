// SPDX-License-Identifier: Apache-2.0
//
// The rule of decision/last_latency.h as a source of answers: no model, no server.
#ifndef SWIFTQUEUE_SERVING_AGENT_RULE_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_RULE_PREDICTOR_H_

#include <memory>

#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

std::unique_ptr<Predictor> make_rule_predictor();

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_RULE_PREDICTOR_H_
