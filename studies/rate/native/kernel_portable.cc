// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for any instruction set: 4 lanes. Compiler flags: see the Makefile.
#define SWIFTQUEUE_ISA portable
#define SWIFTQUEUE_LANES 4
#include "studies/rate/native/forward.h"

namespace swiftqueue::rate {
extern const Kernel kPortableKernel = {"portable", &portable::token};
}  // namespace swiftqueue::rate
