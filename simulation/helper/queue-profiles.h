// SPDX-License-Identifier: GPL-2.0-only
//
// The two profiles in which DualPI2 bottlenecks are run (simulation/doc/dual-pi2.md), and queue
// discs of any other type.

#ifndef SWIFTQUEUE_QUEUE_PROFILES_H
#define SWIFTQUEUE_QUEUE_PROFILES_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../model/dual-pi2-queue-disc.h"

namespace swiftqueue {

using DiscAttributes = std::vector<std::pair<std::string, std::string>>;

/** The standard's queue: the disc's defaults, and one limit for both queues together. */
DiscAttributes Rfc9332Profile(uint32_t bufferBytes);

/**
 * The queue in which choosing per packet can pay: each queue for itself, so no coupling, and a
 * controller and a limit that see one queue only. L marks by a step of its waiting time.
 */
DiscAttributes UncoupledProfile(uint32_t bufferBytes, ns3::Time lStep);

/**
 * Makes a queue disc of an ns-3 type, its attributes set in order. Throws std::invalid_argument: a
 * line that begins with the key that is wrong, `type` or `attributes.NAME`.
 */
ns3::Ptr<ns3::QueueDisc> MakeDisc(const std::string& type, const DiscAttributes& attributes);

/** Limits a disc to so many bytes, or as many full-sized packets if it counts packets. */
void Limit(ns3::Ptr<ns3::QueueDisc> disc, uint32_t bufferBytes);

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_QUEUE_PROFILES_H
