// SPDX-License-Identifier: Apache-2.0
//
// The Triton backend `swiftqueue_identity`: takes the windows, or messages of sessions, that the
// backend `swiftqueue` takes. It answers each window, and each 8 queries, with its own first 8
// values, without their signs: latencies have none. It keeps and computes nothing, so its round
// trip is what gRPC and Triton cost: the reference of `swiftqueue bench serving`.
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

// Answers `windows` parts of equal size of a tensor with the beginning of each.
void answer(const Tensor& tensor, std::size_t windows, TRITONBACKEND_Response* response) {
  thread_local std::vector<char> x_BWF;
  x_BWF.clear();
  for (const Piece& piece : tensor.pieces) {
    const char* begin = static_cast<const char*>(piece.data);
    x_BWF.insert(x_BWF.end(), begin, begin + piece.bytes);
  }
  constexpr std::size_t kAnswerBytes = kHorizon * sizeof(float);
  if (windows == 0 || x_BWF.size() / windows < kAnswerBytes) {
    throw engine::InvalidError("neither windows FP32 [windows, tokens, features] nor queries");
  }
  auto* const y_BH =
      place_for<float>(response, "latency_us", static_cast<std::int64_t>(windows), kHorizon);
  for (std::size_t i = 0; i < windows; ++i) {
    float* const y_H = y_BH + i * kHorizon;
    std::memcpy(y_H, x_BWF.data() + i * (x_BWF.size() / windows), kAnswerBytes);
    std::transform(y_H, y_H + kHorizon, y_H, [](float value) { return std::abs(value); });
  }
}

void answer(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
  thread_local Tensor windows;
  thread_local SessionMessage message;
  const auto size = [](const Tensor& tensor, std::size_t i) {
    return tensor.shape.size() == 3 && tensor.shape[i] > 0
               ? static_cast<std::size_t>(tensor.shape[i])
               : std::size_t{0};
  };
  read_input(request, "window", kFp32, windows);
  if (!windows.shape.empty()) return answer(windows, size(windows, 0), response);
  read_message(request, message);
  *place_for<std::int64_t>(response, "resend", 1, 1) = -1;
  if (message.queries.shape.empty()) return;  // only events, or the end
  answer(message.queries, size(message.queries, 1) / kHorizon, response);
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
