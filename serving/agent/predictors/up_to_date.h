// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// An engine in the sender's own process, as the agent and the simulator have it.
#ifndef SWIFTQUEUE_SERVING_AGENT_UP_TO_DATE_H_
#define SWIFTQUEUE_SERVING_AGENT_UP_TO_DATE_H_

#include <cstdint>
#include <stdexcept>

#include "serving/agent/decision/event_rows.h"
#include "serving/engine/engine.h"

namespace swiftqueue::agent {

// Gives a session the events before `end` that it lacks. One that is far behind, or that begins too
// late because the engine refused some of them, begins anew with the last ones. Throws
// std::runtime_error if they are no longer kept.
inline void bring_up_to_date(engine::Engine& engine, engine::Session& session,
                             const EventRows& rows, std::int64_t end) {
  const std::int64_t begin = begin_of_session(end, engine.reach());
  auto next = static_cast<std::int64_t>(session.next());
  if (next < begin || static_cast<std::int64_t>(session.first()) > begin) {
    if (begin < rows.first()) throw std::runtime_error("too few of the sender's events are kept");
    session.begin(static_cast<std::uint64_t>(next = begin));
  }
  rows.visit(next, end, [&](const float* x_EF, int events) {
    if (!engine.take(session, static_cast<std::uint64_t>(next), x_EF, events)) {
      throw std::runtime_error("the session is another encoder's");
    }
    next += events;
  });
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_UP_TO_DATE_H_
