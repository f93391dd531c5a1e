// SPDX-License-Identifier: GPL-2.0-only
//
// Which of ns-3's random streams belongs to what, so that no choice depends on another's number of
// draws: the same traffic under every control. A flow's first stream is that of its start. In the
// default traces, which keep their bytes, it is the flow's last, and exploration has the stream
// before all others. Under another disc the traffic of a seed is not quite the same: DualPI2 takes
// the first stream and others take none, so flows start at other times.

#ifndef SWIFTQUEUE_LABORATORY_STREAMS_H
#define SWIFTQUEUE_LABORATORY_STREAMS_H

#include <cstdint>

namespace swiftqueue::lab {

inline constexpr int64_t kTrafficStream = 0;                 // and those after it, up to 5 a flow
inline constexpr int64_t kExploreStream = 10'000'000;        // + the explore seed
inline constexpr int64_t kRandomControlStream = 20'000'000;  // + its seed

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_STREAMS_H
