// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The guard of a C interface, which no exception crosses: it becomes a status and a line.
#ifndef SWIFTQUEUE_SERVING_ENGINE_CAPI_GUARD_H_
#define SWIFTQUEUE_SERVING_ENGINE_CAPI_GUARD_H_

#include <cstdio>
#include <exception>
#include <new>

#include "serving/engine/engine_capi.h"
#include "serving/engine/error.h"

namespace swiftqueue::engine {

inline int tell(int status, const char* message, char* error, size_t error_size) {
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", message);
  return status;
}

// Runs `action`, and returns the status; no exception crosses the C interface.
template <typename Action>
int guarded(char* error, size_t error_size, Action action) {
  try {
    action();
    return SWIFTQUEUE_OK;
  } catch (const FileError& failure) {
    return tell(SWIFTQUEUE_FILE, failure.what(), error, error_size);
  } catch (const std::bad_alloc&) {
    return tell(SWIFTQUEUE_NO_MEMORY, "no memory for the model", error, error_size);
  } catch (const std::exception& failure) {
    return tell(SWIFTQUEUE_INVALID, failure.what(), error, error_size);
  }
}

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_CAPI_GUARD_H_
