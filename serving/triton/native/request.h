// SPDX-License-Identifier: Apache-2.0
//
// A request's input and its answer's output, in Triton's memory.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_REQUEST_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_REQUEST_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "serving/triton/native/guard.h"
#include "serving/triton/native/model.h"
#include "serving/triton/native/triton_api.h"

namespace swiftqueue::backend {

// Triton's statistics count on the monotonic clock.
inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// Lists the parts of the request's windows in `pieces`; returns their shape (the request's memory).
inline std::span<const std::int64_t> read_windows(TRITONBACKEND_Request* request,
                                                  std::vector<Piece>& pieces) {
  TRITONBACKEND_Input* input = nullptr;
  int data_type = 0;
  const std::int64_t* shape = nullptr;
  std::uint32_t dimensions = 0;
  std::uint32_t buffers = 0;
  require(TRITONBACKEND_RequestInput(request, "window", &input));
  require(TRITONBACKEND_InputProperties(input, nullptr, &data_type, &shape, &dimensions, nullptr,
                                        &buffers));
  if (data_type != kFp32) throw engine::InvalidError("window is not FP32");
  pieces.clear();
  for (std::uint32_t i = 0; i < buffers; ++i) {
    const void* buffer = nullptr;
    std::uint64_t bytes = 0;
    int memory_type = kCpu;
    std::int64_t memory_id = 0;
    require(TRITONBACKEND_InputBuffer(input, i, &buffer, &bytes, &memory_type, &memory_id));
    if (memory_type != kCpu && memory_type != kCpuPinned) {
      throw engine::InvalidError("window lies in GPU memory; send it from CPU memory");
    }
    pieces.push_back({buffer, bytes});
  }
  return {shape, dimensions};
}

// Returns the place for the answers `name` about `windows` windows, `horizon` of each.
inline void* answers(TRITONBACKEND_Response* response, const char* name, std::int64_t windows,
                     std::int64_t horizon) {
  const std::int64_t shape[] = {windows, horizon};
  const auto bytes = static_cast<std::uint64_t>(windows * horizon) * sizeof(float);
  TRITONBACKEND_Output* output = nullptr;
  require(TRITONBACKEND_ResponseOutput(response, &output, name, kFp32, shape, 2));
  void* buffer = nullptr;
  int memory_type = kCpu;
  std::int64_t memory_id = 0;
  require(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory_type, &memory_id));
  if (memory_type != kCpu && memory_type != kCpuPinned) {
    throw engine::InvalidError(std::string(name) + " is wanted in GPU memory; ask for CPU memory");
  }
  return buffer;
}

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_REQUEST_H_
