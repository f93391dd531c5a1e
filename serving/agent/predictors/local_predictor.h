// SPDX-License-Identifier: Apache-2.0
//
// The engine in this process as a source of answers, without a server. A thread watches the
// artifact's folder and takes up new artifacts.
#ifndef SWIFTQUEUE_SERVING_AGENT_LOCAL_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_LOCAL_PREDICTOR_H_

#include <memory>
#include <string>

#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

// `folder` is an artifact, or a symbolic link to one that is replaced for a new one; its version is
// the number that is its (resolved) name, else 0. Throws std::runtime_error with one line if there
// is no artifact to begin with, or it is not whole. `arithmetic` is the engine's: "auto" or "bf16".
std::unique_ptr<Predictor> make_local_predictor(const std::string& folder,
                                                const std::string& arithmetic = "auto");

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_LOCAL_PREDICTOR_H_
