// SPDX-License-Identifier: Apache-2.0
#ifndef SWIFTQUEUE_SERVING_TRITON_FRONT_WAITING_H_
#define SWIFTQUEUE_SERVING_TRITON_FRONT_WAITING_H_

#include <cstddef>

namespace swiftqueue::front {

// Let the inputs of requests under way have so many bytes together from now on; false where the
// program has no libtritonserver whose functions could be stood in for.
bool bound_waiting(std::size_t bytes);

}  // namespace swiftqueue::front

#endif  // SWIFTQUEUE_SERVING_TRITON_FRONT_WAITING_H_
