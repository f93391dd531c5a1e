// SPDX-License-Identifier: Apache-2.0
//
// The Triton backend `swiftqueue_identity`: takes the windows that the backend `swiftqueue` takes
// and answers each with its own first 8 values, without their signs: latencies have none. It
// computes nothing else, so its round trip is what gRPC and Triton cost: the reference of
// `swiftqueue bench serving`.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "feature_store/events/sizes.h"
#include "serving/triton/native/guard.h"
#include "serving/triton/native/request.h"
#include "serving/triton/native/triton_api.h"

namespace swiftqueue::backend {
namespace {

// Answers windows x_BWF, which lie in `pieces`, with the beginning of each.
void answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  thread_local std::vector<Piece> pieces;
  thread_local std::vector<char> x_BWF;
  const std::span<const std::int64_t> shape = read_windows(request, pieces);
  x_BWF.clear();
  for (const Piece& piece : pieces) {
    const char* begin = static_cast<const char*>(piece.data);
    x_BWF.insert(x_BWF.end(), begin, begin + piece.bytes);
  }
  constexpr std::size_t kAnswerBytes = kHorizon * sizeof(float);
  const std::size_t windows =
      shape.size() == 3 && shape[0] > 0 ? static_cast<std::size_t>(shape[0]) : 0;
  if (windows == 0 || x_BWF.size() / windows < kAnswerBytes) {
    throw engine::InvalidError("window is not FP32 [windows, tokens, features]");
  }
  auto* const y_BH = static_cast<float*>(answers(response, "latency_us", shape[0], kHorizon));
  for (std::size_t i = 0; i < windows; ++i) {
    float* const y_H = y_BH + i * kHorizon;
    std::memcpy(y_H, x_BWF.data() + i * (x_BWF.size() / windows), kAnswerBytes);
    std::transform(y_H, y_H + kHorizon, y_H, [](float value) { return std::abs(value); });
  }
}

}  // namespace
}  // namespace swiftqueue::backend

using namespace swiftqueue::backend;  // NOLINT: the functions below must be at the outermost level

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    const std::uint32_t request_count) {
  for (std::uint32_t i = 0; i < request_count; ++i) {
    const std::uint64_t start_ns = now_ns();
    TRITONBACKEND_Response* response = nullptr;
    OwnedError error(guarded([&] {
      require(TRITONBACKEND_ResponseNew(&response, requests[i]));
      answer(requests[i], response);
    }));
    if (response != nullptr) {
      logged(TRITONBACKEND_ResponseSend(response, kResponseFinal, error.get()));
    }
    const std::uint64_t end_ns = now_ns();
    logged(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], error == nullptr,
                                                       start_ns, start_ns, end_ns, end_ns));
    if (response == nullptr) logged(error.release());
    logged(TRITONBACKEND_RequestRelease(requests[i], kReleaseAll));
  }
  return nullptr;
}
