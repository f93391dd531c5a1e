// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for any instruction set: 4 lanes. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA portable
#define SWIFTQUEUE_LANES 4
#define SWIFTQUEUE_TILE_VECTORS 2  // vectors of tokens in a register tile
#include "serving/engine/forward.h"

namespace swiftqueue::engine {
extern const Kernel kPortableKernel = {"portable", &portable::encode, &portable::head,
                                       &portable::all_finite};
}  // namespace swiftqueue::engine
