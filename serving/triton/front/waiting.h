// SPDX-License-Identifier: Apache-2.0
#ifndef SWIFTQUEUE_SERVING_TRITON_FRONT_WAITING_H_
#define SWIFTQUEUE_SERVING_TRITON_FRONT_WAITING_H_

#include <cstddef>

namespace swiftqueue::front {

// Limits the inputs of requests under way to so many bytes together from now on; returns false
// where the program has no libtritonserver whose functions could be replaced.
bool bound_waiting(std::size_t bytes);

}  // namespace swiftqueue::front

#endif  // SWIFTQUEUE_SERVING_TRITON_FRONT_WAITING_H_
