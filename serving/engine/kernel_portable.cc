// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for any instruction set: 4 lanes. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA portable
#define SWIFTQUEUE_LANES 4
#define SWIFTQUEUE_TILE_ROWS 2
#define SWIFTQUEUE_TILE_PANELS 1
#include "serving/engine/forward.h"

namespace swiftqueue::engine {
extern const Kernel kPortableKernel = {"portable", &portable::take, &portable::answer,
                                       &portable::head, &portable::all_finite};
}  // namespace swiftqueue::engine
