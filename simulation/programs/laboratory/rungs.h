// SPDX-License-Identifier: GPL-2.0-only
//
// What stands in the model's place on the ladder of information: the same batches, delay, margins
// and limit, on forecasts that know less, or more.
//
// Shapes: B windows asked about (1 or 2), H horizon (8 packets).

#ifndef SWIFTQUEUE_LABORATORY_RUNGS_H
#define SWIFTQUEUE_LABORATORY_RUNGS_H

#include <memory>

#include "batch-move.h"

namespace swiftqueue::lab {

/** Throws std::runtime_error for a record that cannot be read. */
std::unique_ptr<BatchMove> MakeRung(const BatchedControl& params, const Run& run,
                                    const Network& network);

/** The agent's rule for two uplinks in the model's place, with limits of its own. */
std::unique_ptr<BatchMove> MakeAgentRule(const AgentRuleControl& params);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_RUNGS_H
