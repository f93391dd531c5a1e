// SPDX-License-Identifier: Apache-2.0
//
// A request's inputs and its answer's outputs, in Triton's memory.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_REQUEST_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_REQUEST_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

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

// Returns the request's input `name`; null if it has none.
inline TRITONBACKEND_Input* find_input(TRITONBACKEND_Request* request, std::string_view name) {
  std::uint32_t count = 0;
  require(TRITONBACKEND_RequestInputCount(request, &count));
  for (std::uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    const char* called = nullptr;
    require(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    require(
        TRITONBACKEND_InputProperties(input, &called, nullptr, nullptr, nullptr, nullptr, nullptr));
    if (called == name) return input;
  }
  return nullptr;
}

// Reads the request's input `name` (the request's memory); without dimensions if it has none.
inline void read_input(TRITONBACKEND_Request* request, const char* name, DataType wanted,
                       Tensor& tensor) {
  tensor.shape = {};
  tensor.pieces.clear();
  TRITONBACKEND_Input* const input = find_input(request, name);
  if (input == nullptr) return;
  int data_type = 0;
  const std::int64_t* shape = nullptr;
  std::uint32_t dimensions = 0;
  std::uint32_t buffers = 0;
  require(TRITONBACKEND_InputProperties(input, nullptr, &data_type, &shape, &dimensions, nullptr,
                                        &buffers));
  if (data_type != wanted) {
    throw engine::InvalidError(std::string(name) +
                               (wanted == kFp32 ? " is not FP32" : " is not INT64"));
  }
  for (std::uint32_t i = 0; i < buffers; ++i) {
    const void* buffer = nullptr;
    std::uint64_t bytes = 0;
    int memory_type = kCpu;
    std::int64_t memory_id = 0;
    require(TRITONBACKEND_InputBuffer(input, i, &buffer, &bytes, &memory_type, &memory_id));
    if (memory_type != kCpu && memory_type != kCpuPinned) {
      throw engine::InvalidError(std::string(name) +
                                 " lies in GPU memory; send it from CPU memory");
    }
    tensor.pieces.push_back({buffer, bytes});
  }
  tensor.shape = {shape, dimensions};
}

// Reads a message of a session.
inline void read_message(TRITONBACKEND_Request* request, SessionMessage& message) {
  std::uint32_t flags = 0;
  require(TRITONBACKEND_RequestCorrelationId(request, &message.id));
  require(TRITONBACKEND_RequestFlags(request, &flags));
  message.start = (flags & kSequenceStart) != 0;
  message.end = (flags & kSequenceEnd) != 0;
  read_input(request, "session", kInt64, message.header);
  read_input(request, "events", kFp32, message.events);
  read_input(request, "queries", kFp32, message.queries);
}

// Returns the place for the answer `name` of this shape.
template <typename Number>
Number* place_for(TRITONBACKEND_Response* response, const char* name, std::int64_t rows,
                  std::int64_t columns) {
  const std::int64_t shape[] = {rows, columns};
  const auto bytes = static_cast<std::uint64_t>(rows * columns) * sizeof(Number);
  constexpr DataType kType = std::is_same_v<Number, float> ? kFp32 : kInt64;
  TRITONBACKEND_Output* output = nullptr;
  require(TRITONBACKEND_ResponseOutput(response, &output, name, kType, shape, 2));
  void* buffer = nullptr;
  int memory_type = kCpu;
  std::int64_t memory_id = 0;
  require(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory_type, &memory_id));
  if (memory_type != kCpu && memory_type != kCpuPinned) {
    throw engine::InvalidError(std::string(name) + " is wanted in GPU memory; ask for CPU memory");
  }
  return static_cast<Number*>(buffer);
}

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_REQUEST_H_
