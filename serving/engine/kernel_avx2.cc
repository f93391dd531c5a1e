// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for AVX2 and FMA: 8 lanes, 16 registers. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA avx2
#define SWIFTQUEUE_LANES 8
#define SWIFTQUEUE_TILE_VECTORS 2  // vectors of tokens in a register tile
#include "serving/engine/forward.h"

namespace swiftqueue::engine {
extern const Kernel kAvx2Kernel = {"avx2", &avx2::encode, &avx2::head, &avx2::all_finite};
}  // namespace swiftqueue::engine
