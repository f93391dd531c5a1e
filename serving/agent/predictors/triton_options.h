// SPDX-License-Identifier: Apache-2.0
//
// The Triton servers to ask, and their TLS files.
#ifndef SWIFTQUEUE_SERVING_AGENT_TRITON_OPTIONS_H_
#define SWIFTQUEUE_SERVING_AGENT_TRITON_OPTIONS_H_

#include <string>
#include <vector>

namespace swiftqueue::agent {

struct TritonOptions {
  std::vector<std::string> servers;  // `host:port` or `unix:PATH`, the preferred one first
  std::string model = "swiftqueue";
  // Files in PEM. With `tls_ca` the connection is encrypted and the server must be signed by that
  // authority; certificate and key, both or neither, prove who we are (mTLS).
  std::string tls_ca, tls_cert, tls_key;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_OPTIONS_H_
