// SPDX-License-Identifier: Apache-2.0
//
// Channels to a server: address, TLS, and settings for a sender that wants a lost server back at
// once.
#ifndef SWIFTQUEUE_SERVING_AGENT_TRITON_CHANNEL_H_
#define SWIFTQUEUE_SERVING_AGENT_TRITON_CHANNEL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "serving/agent/predictors/triton_predictor.h"

namespace swiftqueue::agent {

// As `options` say: TLS or none. Throws std::runtime_error for a file that cannot be read,
// std::invalid_argument for files that do not go together.
std::shared_ptr<grpc::ChannelCredentials> make_credentials(const TritonOptions& options);

// A connection of its own, not shared with another channel to the same server.
std::shared_ptr<grpc::Channel> make_channel(
    const std::string& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

// A failure in one line that says what to do where that is known.
std::string describe(const grpc::Status& status);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_CHANNEL_H_
