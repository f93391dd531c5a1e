// SPDX-License-Identifier: Apache-2.0
//
// The predictor behind Triton: one long-lived KServe ModelStreamInfer stream to each server, asked
// in order of preference (docs/SERVING.md, "The C++ client").
#ifndef SWIFTQUEUE_SERVING_AGENT_TRITON_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_TRITON_PREDICTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "serving/agent/predictor.h"

namespace swiftqueue::agent {

struct TritonOptions {
  std::vector<std::string> servers;  // `host:port` or `unix:PATH`, the preferred one first
  std::string model = "swiftqueue";
  // Files in PEM. With `tls_ca` the connection is encrypted and the server must be signed by that
  // authority; certificate and key, both or neither, prove who we are (mTLS).
  std::string tls_ca, tls_cert, tls_key;
};

// Connects in the background; a server that is not there is no error. Throws std::invalid_argument
// or std::runtime_error with one line for options that cannot be.
std::unique_ptr<Predictor> make_triton_predictor(const TritonOptions& options);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_PREDICTOR_H_
