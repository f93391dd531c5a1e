// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The forward pass for AVX-512 with AMX: matrix products of bfloat16 whose sums are float32. What
// they begin with (scaling, embedding) and what lies between them is float32, as everywhere.
#define SWIFTQUEUE_ISA amx
#define SWIFTQUEUE_LANES 16
#define SWIFTQUEUE_TILE_ROWS 4
#define SWIFTQUEUE_TILE_PANELS 4
#define SWIFTQUEUE_AMX
#include "serving/engine/forward.h"

namespace swiftqueue::engine {
extern const Kernel kAmxKernel = {"amx", &amx::take, &amx::answer, &amx::head, &amx::all_finite};
}  // namespace swiftqueue::engine
