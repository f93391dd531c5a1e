// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for AVX-512: 16 lanes, 32 registers. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA avx512
#define SWIFTQUEUE_LANES 16
#define SWIFTQUEUE_TILE_VECTORS 4  // vectors of tokens in a register tile
#include "serving/engine/forward.h"

namespace swiftqueue::engine {
extern const Kernel kAvx512Kernel = {"avx512", &avx512::encode, &avx512::head, &avx512::all_finite};
}  // namespace swiftqueue::engine
