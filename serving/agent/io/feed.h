// SPDX-License-Identifier: Apache-2.0
//
// The live feed: sending programs connect to a unix socket, report their packets and ACKs, and get
// their decisions back (docs/AGENT.md). A thread of its own reads and checks the frames; the
// decision loop takes them and answers.
//
// Senders share the loop fairly: each has a bounded queue, of which a turn takes a few frames and
// one batch of all, and the cost of a sender's batches is remembered. Among the senders that have
// not had more than the others, the batch that is due first comes first.
#ifndef SWIFTQUEUE_SERVING_AGENT_FEED_H_
#define SWIFTQUEUE_SERVING_AGENT_FEED_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serving/agent/decision/decision_loop.h"

namespace swiftqueue::agent {

class Feed final : public DecisionTaker {
 public:
  // Listens at `path`, which no other program may listen at; a socket left behind there is
  // replaced. Programs of this user, of root and of the users `allowed` may connect. The reading
  // thread calls `woken` when there are frames to take. Throws std::runtime_error with one line.
  Feed(std::string path, std::vector<uid_t> allowed, Statistics& statistics, Complaints& complaints,
       std::function<void()> woken);
  ~Feed() override;
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Ends the reading thread and every connection; one more `drain` tells the loop of it.
  void stop();

  // Called by the decision loop's thread: feeds the loop some frames, and returns whether there are
  // more. `deadline_ns` is the deadline of batches that name none.
  bool drain(DecisionLoop& loop, std::int64_t deadline_ns);
  void take(std::uint32_t sender, const DecisionFrame& decision) override;

 private:
  struct Connection;
  enum class Kind : std::uint8_t { kFrame, kClosed };
  struct Event {
    Connection* connection;
    Kind kind;
    std::int64_t arrived_ns;
    Frame frame;
  };

  void read_all();
  bool accept_one(std::vector<Connection*>& connections);
  bool end_a_silent_one(std::vector<Connection*>& connections);
  bool read_from(Connection& connection);
  void end(Connection& connection, const char* why);
  void hand_over(Connection& connection);
  void take_over();
  static bool costly(const Event& event);
  Connection* next_costly(std::int64_t deadline_ns);
  std::int64_t due_ns(const Event& event, std::int64_t deadline_ns) const;
  void handle(DecisionLoop& loop, const Event& event, std::int64_t deadline_ns);
  void refuse(Connection& connection, const char* why);

  const std::string path_;
  std::pair<dev_t, ino_t> own_;  // the socket there, as long as it is ours
  const std::vector<uid_t> allowed_;
  Statistics& statistics_;
  Complaints& complaints_;
  const std::function<void()> woken_;
  int listen_fd_ = -1;
  int look_fd_ = -1;         // event descriptor that wakes the reading thread
  std::vector<Event> read_;  // for the reading thread
  // These belong to the loop's thread:
  std::vector<Connection*> active_;  // those with frames to take
  std::map<std::uint32_t, Connection*> by_sender_;
  std::int64_t least_spent_ns_ = 0;  // least recent time of the connections with a batch to take
  // These are shared:
  std::mutex mutex_;
  std::vector<Connection*> came_;  // connections with frames that the loop does not know yet
  std::atomic<bool> more_{false};  // whether there are such connections
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_FEED_H_
