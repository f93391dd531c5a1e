// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Sizes of a decision and of its window. This file includes nothing: the engine's kernels include
// it, and they must not instantiate anything of the standard library (serving/engine/kernel.h).
#ifndef SWIFTQUEUE_FEATURE_STORE_SIZES_H_
#define SWIFTQUEUE_FEATURE_STORE_SIZES_H_

namespace swiftqueue {

inline constexpr int kHorizon = 8;       // packets decided at once (SwiftQueue, section 4)
inline constexpr int kMaxTokens = 4096;  // rows of a window, with those of the 8 packets

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FEATURE_STORE_SIZES_H_
