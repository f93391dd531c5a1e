// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for AVX-512: 16 lanes, 32 registers. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA avx512
#define SWIFTQUEUE_LANES 16
#include "studies/rate/native/forward.h"

namespace swiftqueue::rate {
extern const Kernel kAvx512Kernel = {"avx512", &avx512::token};
}  // namespace swiftqueue::rate
