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

// Makes credentials by `options`: TLS or none. Throws std::runtime_error for an unreadable file,
// std::invalid_argument for files that do not go together.
std::shared_ptr<grpc::ChannelCredentials> make_credentials(const TritonOptions& options);

// Makes a connection of its own, not shared with another channel to the same server.
std::shared_ptr<grpc::Channel> make_channel(
    const std::string& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

// Describes a failure in one line, with a remedy where one is known.
std::string describe(const grpc::Status& status);

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_CHANNEL_H_
