// SPDX-License-Identifier: Apache-2.0
//
// The memory of requests under way in Triton. Its program calls a few functions of libtritonserver
// for each request; the ones here are found first.
//
// - The inputs of requests that wait or are computed have at most so many bytes together. Further
//   requests are refused before they wait. Triton itself keeps all of them, as long as there is
//   memory.
// - When a request is answered or refused, the pages of its inputs go back to the kernel. Triton
//   keeps a request's message for the next one, with whatever memory it took, and as many messages
//   as were ever under way at once: its memory grew to gigabytes and stayed there. From the answer
//   on nobody reads the inputs, and the message is used again only once the answer is written.
#include "serving/triton/front/waiting.h"

#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define VISIBLE extern "C" __attribute__((visibility("default")))

// As in tritonserver.h of Triton 24.10.
struct TRITONSERVER_BufferAttributes;
struct TRITONSERVER_Error;
struct TRITONSERVER_InferenceRequest;
struct TRITONSERVER_InferenceResponse;
struct TRITONSERVER_InferenceTrace;
struct TRITONSERVER_ResponseAllocator;
struct TRITONSERVER_Server;

using ResponseFunction = void (*)(TRITONSERVER_InferenceResponse*, std::uint32_t flags, void* its);

namespace swiftqueue::front {
namespace {

constexpr std::size_t kLarge = 64 << 10;  // smaller inputs, such as one batch's, keep their pages
// Larger blocks are mapped each by itself, and unmapped when they are freed. By default glibc
// raises this with the largest block that was freed, and then keeps the gaps between blocks that
// stay.
constexpr int kMapped = 128 << 10;
constexpr int kUnavailable = 4;      // TRITONSERVER_ERROR_UNAVAILABLE
constexpr std::uint32_t kFinal = 1;  // TRITONSERVER_RESPONSE_COMPLETE_FINAL

std::size_t most_bytes = SIZE_MAX;

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

struct Input {
  void* first;
  std::size_t bytes;
};

struct Request {
  std::vector<Input> inputs;
  std::size_t bytes = 0;
  ResponseFunction answered = nullptr;  // Triton's own function, and its argument
  void* its = nullptr;
  bool counted = false;

  void add(const void* first, std::size_t size) {
    inputs.push_back({const_cast<void*>(first), size});
    bytes += size;
  }
};

// Gives back the pages that lie within an input.
void give_back(const Request& request) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const Input& input : request.inputs) {
    if (input.bytes < kLarge) continue;
    const auto first = reinterpret_cast<std::uintptr_t>(input.first);
    const std::uintptr_t begin = (first + page - 1) / page * page;
    const std::uintptr_t end = (first + input.bytes) / page * page;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

// Requests by Triton's pointers to them. A response has its request too, so that either may go
// first.
class WaitingRequests {
 public:
  static WaitingRequests& get() {
    static auto& waiting = *new WaitingRequests;
    return waiting;
  }

  std::shared_ptr<Request> of(const TRITONSERVER_InferenceRequest* which) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Request>& found = requests_[which];
    if (found == nullptr) found = std::make_shared<Request>();
    return found;
  }

  void forget(const TRITONSERVER_InferenceRequest* which) {
    const std::lock_guard lock(mutex_);
    requests_.erase(which);
  }

  bool takes(Request& request) {
    const std::lock_guard lock(mutex_);
    if (bytes_ + request.bytes > most_bytes) return false;
    bytes_ += request.bytes;
    request.counted = true;
    return true;
  }

  void end(Request& request) {
    const std::lock_guard lock(mutex_);
    if (request.counted) bytes_ -= request.bytes;
    request.counted = false;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const TRITONSERVER_InferenceRequest*, std::shared_ptr<Request>> requests_;
  std::size_t bytes_ = 0;
};

void answered(TRITONSERVER_InferenceResponse* response, std::uint32_t flags, void* its) {
  const auto* held = static_cast<std::shared_ptr<Request>*>(its);
  const std::shared_ptr<Request> request = *held;
  if ((flags & kFinal) != 0) {
    delete held;
    give_back(*request);
    WaitingRequests::get().end(*request);
  }
  request->answered(response, flags, request->its);
}

}  // namespace

bool bound_waiting(std::size_t bytes) {
  for (const char* name : {"AppendInputData", "AppendInputDataWithBufferAttributes", "Delete",
                           "SetResponseCallback"}) {
    if (next<void*>((std::string("TRITONSERVER_InferenceRequest") + name).c_str()) == nullptr)
      return false;
  }
  if (next<void*>("TRITONSERVER_ServerInferAsync") == nullptr) return false;
  most_bytes = bytes;
  return mallopt(M_MMAP_THRESHOLD, kMapped) == 1;
}

}  // namespace swiftqueue::front

using namespace swiftqueue::front;  // NOLINT: the functions below stand in for libtritonserver's

VISIBLE TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, std::size_t bytes,
    int memory_type, std::int64_t memory_id) {
  static const auto real = next<decltype(&TRITONSERVER_InferenceRequestAppendInputData)>(
      "TRITONSERVER_InferenceRequestAppendInputData");
  WaitingRequests::get().of(request)->add(base, bytes);
  return real(request, name, base, bytes, memory_type, memory_id);
}

VISIBLE TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base,
    TRITONSERVER_BufferAttributes* attributes) {
  static const auto real =
      next<decltype(&TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes)>(
          "TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes");
  static const auto size_of =
      next<TRITONSERVER_Error* (*)(TRITONSERVER_BufferAttributes*, std::size_t*)>(
          "TRITONSERVER_BufferAttributesByteSize");
  std::size_t bytes = 0;
  if (size_of(attributes, &bytes) == nullptr) WaitingRequests::get().of(request)->add(base, bytes);
  return real(request, name, base, attributes);
}

VISIBLE TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator,
    void* allocators, ResponseFunction answer, void* its) {
  static const auto real = next<decltype(&TRITONSERVER_InferenceRequestSetResponseCallback)>(
      "TRITONSERVER_InferenceRequestSetResponseCallback");
  const std::shared_ptr<Request> found = WaitingRequests::get().of(request);
  found->answered = answer;
  found->its = its;
  return real(request, allocator, allocators, answered, new std::shared_ptr<Request>(found));
}

VISIBLE TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(TRITONSERVER_Server* server,
                                                          TRITONSERVER_InferenceRequest* request,
                                                          TRITONSERVER_InferenceTrace* trace) {
  static const auto real =
      next<decltype(&TRITONSERVER_ServerInferAsync)>("TRITONSERVER_ServerInferAsync");
  static const auto error_of =
      next<TRITONSERVER_Error* (*)(int, const char*)>("TRITONSERVER_ErrorNew");
  const std::shared_ptr<Request> found = WaitingRequests::get().of(request);
  TRITONSERVER_Error* error =
      WaitingRequests::get().takes(*found)
          ? real(server, request, trace)
          : error_of(kUnavailable, "too many requests are under way; ask again later");
  if (error != nullptr) {  // the caller still owns it, and nobody else will answer it
    WaitingRequests::get().end(*found);
    give_back(*found);
  }
  return error;
}

VISIBLE TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(
    TRITONSERVER_InferenceRequest* request) {
  static const auto real =
      next<decltype(&TRITONSERVER_InferenceRequestDelete)>("TRITONSERVER_InferenceRequestDelete");
  WaitingRequests::get().forget(request);
  return real(request);
}
