// SPDX-License-Identifier: Apache-2.0
//
// The border between Triton's errors, which are returned, and C++ exceptions: none may reach the
// server. Errors that nobody waits for are logged.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_GUARD_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_GUARD_H_

#include <exception>
#include <memory>
#include <new>

#include "serving/engine/error.h"
#include "serving/triton/native/triton_api.h"

namespace swiftqueue::backend {

struct ErrorDeleter {
  void operator()(TRITONSERVER_Error* error) const { TRITONSERVER_ErrorDelete(error); }
};
using OwnedError = std::unique_ptr<TRITONSERVER_Error, ErrorDeleter>;

// An error of Triton's own on its way through C++.
struct TritonFailure {
  OwnedError error;
};

// Writes a line to the server's log.
inline void log_line(LogLevel level, const char* line) noexcept {
  // If logging fails there is no place to report it.
  OwnedError(TRITONSERVER_LogMessage(level, "swiftqueue", 0, line));
}

// Logs and deletes an error that nobody waits for; true if there is none.
inline bool logged(TRITONSERVER_Error* error) noexcept {
  if (error == nullptr) return true;
  const OwnedError owned(error);
  log_line(kError, TRITONSERVER_ErrorMessage(error));
  return false;
}

inline void require(TRITONSERVER_Error* error) {
  if (error != nullptr) throw TritonFailure{OwnedError(error)};
}

// Runs `action`; whatever it throws becomes Triton's error, the caller's to delete.
template <typename Action>
TRITONSERVER_Error* guarded(Action action) noexcept {
  try {
    action();
    return nullptr;
  } catch (TritonFailure& failure) {
    return failure.error.release();
  } catch (const engine::InvalidError& error) {
    return TRITONSERVER_ErrorNew(kErrorInvalid, error.what());
  } catch (const engine::FileError& error) {
    return TRITONSERVER_ErrorNew(kErrorNotFound, error.what());
  } catch (const std::bad_alloc&) {
    return TRITONSERVER_ErrorNew(kErrorUnavailable, "no memory for the request or the model");
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(kErrorInternal, error.what());
  } catch (...) {
    return TRITONSERVER_ErrorNew(kErrorInternal, "an exception of unknown type");
  }
}

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_GUARD_H_
