// SPDX-License-Identifier: Apache-2.0
//
// The Triton backend `swiftqueue_identity`: takes the windows that the backend `swiftqueue` takes
// and answers each with its own first 8 values. It computes nothing, so its round trip is what gRPC
// and Triton cost: the reference of `swiftqueue bench serving`.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "serving/triton/native/guard.h"
#include "serving/triton/native/triton_api.h"

namespace swiftqueue::backend {
namespace {

constexpr std::uint64_t kHorizon = 8;

// Triton's statistics count on the monotonic clock.
std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

void logged(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  TRITONSERVER_LogMessage(kError, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

// Gathers the request's windows in `x_BWF`; returns how many there are.
std::int64_t read_windows(TRITONBACKEND_Request* request, std::vector<char>& x_BWF) {
  TRITONBACKEND_Input* input = nullptr;
  int data_type = 0;
  const std::int64_t* shape = nullptr;
  std::uint32_t dimensions = 0;
  std::uint64_t bytes = 0;
  std::uint32_t buffers = 0;
  require(TRITONBACKEND_RequestInput(request, "window", &input));
  require(TRITONBACKEND_InputProperties(input, nullptr, &data_type, &shape, &dimensions, &bytes,
                                        &buffers));
  if (data_type != kFp32 || dimensions != 3 || shape[0] < 1 ||
      bytes < static_cast<std::uint64_t>(shape[0]) * kHorizon * sizeof(float)) {
    throw engine::InvalidError("window is not FP32 [windows, tokens, features]");
  }
  x_BWF.clear();
  for (std::uint32_t i = 0; i < buffers; ++i) {
    const void* buffer = nullptr;
    std::uint64_t size = 0;
    int memory_type = kCpu;
    std::int64_t memory_id = 0;
    require(TRITONBACKEND_InputBuffer(input, i, &buffer, &size, &memory_type, &memory_id));
    const char* begin = static_cast<const char*>(buffer);
    x_BWF.insert(x_BWF.end(), begin, begin + size);
  }
  return shape[0];
}

void answer(TRITONBACKEND_Response* response, std::int64_t windows,
            const std::vector<char>& x_BWF) {
  const std::int64_t shape[] = {windows, static_cast<std::int64_t>(kHorizon)};
  const std::size_t window_bytes = x_BWF.size() / static_cast<std::size_t>(windows);
  constexpr std::size_t kAnswerBytes = kHorizon * sizeof(float);
  TRITONBACKEND_Output* output = nullptr;
  require(TRITONBACKEND_ResponseOutput(response, &output, "latency_us", kFp32, shape, 2));
  void* buffer = nullptr;
  int memory_type = kCpu;
  std::int64_t memory_id = 0;
  require(TRITONBACKEND_OutputBuffer(output, &buffer,
                                     static_cast<std::uint64_t>(windows) * kAnswerBytes,
                                     &memory_type, &memory_id));
  for (std::size_t i = 0; i < static_cast<std::size_t>(windows); ++i) {
    std::memcpy(static_cast<char*>(buffer) + i * kAnswerBytes, x_BWF.data() + i * window_bytes,
                kAnswerBytes);
  }
}

}  // namespace
}  // namespace swiftqueue::backend

using namespace swiftqueue::backend;  // NOLINT: the functions below must be at the outermost level

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    const std::uint32_t request_count) {
  thread_local std::vector<char> x_BWF;
  for (std::uint32_t i = 0; i < request_count; ++i) {
    const std::uint64_t start_ns = now_ns();
    TRITONBACKEND_Response* response = nullptr;
    OwnedError error(guarded([&] {
      require(TRITONBACKEND_ResponseNew(&response, requests[i]));
      const std::int64_t windows = read_windows(requests[i], x_BWF);
      answer(response, windows, x_BWF);
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
