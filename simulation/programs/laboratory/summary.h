// SPDX-License-Identifier: GPL-2.0-only
//
// The figures of a run, from its flows and packet logs.

#ifndef SWIFTQUEUE_LABORATORY_SUMMARY_H
#define SWIFTQUEUE_LABORATORY_SUMMARY_H

#include <span>

#include "flows.h"
#include "json-text.h"
#include "network.h"
#include "packet-log.h"
#include "run.h"

namespace swiftqueue::lab {

/** What the summary says of every run: simulation/doc/lab.md. `logs`: one of each sender. */
JsonObject Summarise(const Run& run, const Network& network, const Flows& flows,
                     std::span<const PacketLog* const> logs);

/**
 * `uplinks`: what passed over either, and the retransmissions of what had arrived, which `spurious`
 * has by sender.
 */
JsonObject DescribeUplinks(const Run& run, const Network& network,
                           std::span<const PacketLog* const> logs,
                           std::span<const std::vector<uint32_t>> spurious);

/** How good the choice for each packet of S1's L4S flows was, by what it found: `choice`. */
JsonObject ScoreChoice(const Run& run, const PacketLog& log, const WaitsLog& waits);

/** `trace.json`. */
JsonObject DescribeTrace(const Run& run, const Network& network, const Flows& flows,
                         const PacketLog& log);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_SUMMARY_H
