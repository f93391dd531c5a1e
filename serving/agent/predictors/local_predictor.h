// SPDX-License-Identifier: Apache-2.0
//
// The engine in this process as a source of answers: no server at all. A thread watches the
// artifact's folder and takes up what appears there.
#ifndef SWIFTQUEUE_SERVING_AGENT_LOCAL_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_LOCAL_PREDICTOR_H_

#include <memory>
#include <string>

#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

// `folder`: an artifact, or a symbolic link to one that is replaced when there is another; its
// version is the number that its (resolved) name is, else 0. Throws std::runtime_error with one
// line if there is no artifact to begin with, or it is not whole.
std::unique_ptr<Predictor> make_local_predictor(const std::string& folder);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_LOCAL_PREDICTOR_H_
