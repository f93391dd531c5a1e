// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/triton_channel.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <ios>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace swiftqueue::agent {
namespace {

// gRPC's words about TLS say too little. serving/triton/endpoint.py has the same lines, but its
// gRPC has another TLS library and other words.
constexpr std::pair<const char*, const char*> kConnectionHints[] = {
    {"not in peer certificate", "TLS: the server's certificate is not for the name in its address"},
    {"certificate verify failed",
     "TLS: the server's certificate is not signed by the authority we trust, or has expired"},
    {"wrong version number", "TLS: the server does not speak it"},
    {"Socket closed",
     "closed by the server on connecting: does it want TLS and a certificate of its authority that "
     "has not expired?"},
};

std::string read_pem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  try {
    text.assign(std::istreambuf_iterator<char>(file), {});
  } catch (const std::ios_base::failure&) {  // the path is a directory; the error has no name
    file.setstate(std::ios_base::badbit);
  }
  if (!file) throw std::runtime_error(path + ": cannot be read");
  if (text.find("-----BEGIN ") == std::string::npos) {
    throw std::runtime_error(path + ": not a PEM file");
  }
  return text;
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> make_credentials(const TritonOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    throw std::invalid_argument(
        "TLS: a certificate and its key go together; one of them is missing");
  }
  if (options.tls_ca.empty()) {
    if (!options.tls_cert.empty()) {
      throw std::invalid_argument("TLS: a certificate needs the authority (CA) of the server, too");
    }
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = read_pem(options.tls_ca);
  if (!options.tls_cert.empty()) {
    tls.pem_cert_chain = read_pem(options.tls_cert);
    tls.pem_private_key = read_pem(options.tls_key);
  }
  return grpc::SslCredentials(tls);
}

std::shared_ptr<grpc::Channel> make_channel(
    const std::string& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // gRPC's own reconnection waits up to two minutes; a sender wants a restarted server back at
  // once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);  // how long connecting may take
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // no proxy is on the way to Triton
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);     // a repeated question would come too late
  // Answers are small, and none is compressed: gRPC would inflate one before it looks at its size.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1U << GRPC_COMPRESS_NONE);
  // Pings that measure the link's bandwidth are off.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel(server, credentials, arguments);
}

std::string describe(const grpc::Status& status) {
  std::string text = status.error_message();
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  if (text.find("failed to connect") != std::string::npos) {
    for (const auto& [sign, hint] : kConnectionHints) {
      if (text.find(sign) != std::string::npos) return hint;
    }
  }
  text.resize(std::min<std::size_t>(text.size(), 300));
  if (text.empty()) text = "no reason given";
  return text;
}

}  // namespace swiftqueue::agent
