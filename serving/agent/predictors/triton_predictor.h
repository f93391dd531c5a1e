// SPDX-License-Identifier: Apache-2.0
//
// The predictor behind Triton: one long-lived KServe ModelStreamInfer stream to each server, asked
// in order of preference (docs/explanation/agent.md).
#ifndef SWIFTQUEUE_SERVING_AGENT_TRITON_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_TRITON_PREDICTOR_H_

#include <memory>

#include "serving/agent/predictors/predictor.h"
#include "serving/agent/predictors/triton_options.h"

namespace swiftqueue::agent {

// Connects in the background; a missing server is no error. Throws std::invalid_argument or
// std::runtime_error with one line for impossible options.
std::unique_ptr<Predictor> make_triton_predictor(const TritonOptions& options);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_PREDICTOR_H_
