// SPDX-License-Identifier: GPL-2.0-only
//
// The flows of a run: sockets, traffic, receivers.

#ifndef SWIFTQUEUE_LABORATORY_FLOWS_H
#define SWIFTQUEUE_LABORATORY_FLOWS_H

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../../model/write-log.h"
#include "network.h"
#include "run.h"

namespace swiftqueue::lab {

inline constexpr uint16_t kFirstPort = 5000;  // first port of a receiver; flow n has port 5000 + n

struct Flow {
  uint16_t number;
  uint32_t sender;  // index
  const Group* group;
  uint32_t index;             // in its group
  uint64_t receivedBytes{0};  // payload, handed to the receiving application
  uint64_t receivedInWarmup{0};
  // Its writes, where the control's decisions hold for one; null: it makes one.
  std::shared_ptr<const WriteLog> writes{};
  // Before an ACK reaches the socket: how many moved packets it covers, and whether it says that it
  // was marked. Empty: they are as others.
  std::function<void(uint32_t, bool)> hearsOfMoved{};

  uint16_t Port() const { return kFirstPort + number; }
};

using Flows = std::vector<Flow>;

class Experience;

/** Every flow of `run`, which must outlive them. */
Flows MakeFlows(const Run& run);

/** Installs applications, receivers and sockets; `flows` and `experience`, which follows pages and
 * calls, must stay where they are. Takes random streams from `stream` on. */
void InstallFlows(const Run& run, const Network& network, Flows& flows, Experience& experience,
                  int64_t& stream);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_FLOWS_H
