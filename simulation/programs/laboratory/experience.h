// SPDX-License-Identifier: GPL-2.0-only
//
// What users notice: how long a message or a web page takes, and where a call stalls.

#ifndef SWIFTQUEUE_LABORATORY_EXPERIENCE_H
#define SWIFTQUEUE_LABORATORY_EXPERIENCE_H

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../../model/write-log.h"
#include "flows.h"
#include "json-text.h"
#include "run.h"

namespace swiftqueue::lab {

/** Follows the messages, pages and calls of a run; it must outlive the simulation. */
class Experience {
 public:
  explicit Experience(const Run& run) : m_run(run) {}

  /** The object of a page that a flow carries; `index` is the flow's place in its group. */
  struct Object {
    double startS;
    uint64_t bytes;
    std::size_t page;  // number of the page in the group
  };
  static Object ObjectOf(const Pages& pages, uint32_t index);

  /** What to call with the bytes that a flow's receiver has had, each time there are more. */
  std::function<void(uint64_t)> FollowObject(const Flow& flow, const Object& object);
  std::function<void(uint64_t)> FollowCall(const Flow& flow, std::shared_ptr<WriteLog> log);
  std::function<void(uint64_t)> FollowMessages(const Flow& flow, std::shared_ptr<WriteLog> log);

  /** Adds "messages", "pages" and "calls", where the run has any; with uplinks
   * "cross_message_p99_s". */
  void AddTo(JsonObject& summary) const;

 private:
  struct Page {
    const Group* group;
    std::size_t number;
    double startS;
    uint32_t objects{0};
    uint32_t loaded{0};
    double endS{0};  // end of the last page that was loaded
  };
  struct Call {
    uint16_t flow;
    const RealTime* traffic;
    std::shared_ptr<WriteLog> log;
  };
  struct OfFlow {
    uint32_t sender;
    bool l4s;
    std::shared_ptr<WriteLog> log;
  };
  std::string Messages(uint32_t sender, bool l4s) const;
  /** P99 of the messages of all senders but the first; "null" without any. */
  std::string CrossP99() const;

  const Run& m_run;
  std::vector<Page> m_pages;
  std::vector<Call> m_calls;
  std::vector<OfFlow> m_messages;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_EXPERIENCE_H
