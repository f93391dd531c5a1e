// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for AVX2 and FMA: 8 lanes, 16 registers. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA avx2
#define SWIFTQUEUE_LANES 8
#include "studies/rate/native/forward.h"

namespace swiftqueue::rate {
extern const Kernel kAvx2Kernel = {"avx2", &avx2::token};
}  // namespace swiftqueue::rate
