// SPDX-License-Identifier: Apache-2.0
//
// The rule of the last latency as a source of answers: no model, no server. It is meant for two
// uplinks, where it does as well as a model (docs/results/uplinks.md).
#ifndef SWIFTQUEUE_SERVING_AGENT_RULE_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_RULE_PREDICTOR_H_

#include <memory>

#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

// Returns the latency in us that the rule forecasts for a query: the last one of any packet in the
// query's alternative, or the age of the oldest packet there that is not acknowledged, if that is
// more. An alternative that has said nothing for a second is tried by one batch: 0, and while such
// a batch is under way more than any latency.
float last_latency_us(const float* x_F);

std::unique_ptr<Predictor> make_rule_predictor();

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_RULE_PREDICTOR_H_
