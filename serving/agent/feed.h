// SPDX-License-Identifier: Apache-2.0
//
// The live feed: programs that send packets connect to a unix socket, say what they send and have
// acknowledged, and get their decisions back (docs/AGENT.md). A thread of its own reads and checks
// the frames; the decision loop takes them and answers.
#ifndef SWIFTQUEUE_SERVING_AGENT_FEED_H_
#define SWIFTQUEUE_SERVING_AGENT_FEED_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/agent/decision_loop.h"

namespace swiftqueue::agent {

class Feed final : public DecisionTaker {
 public:
  // Listens at `path`, which nobody else may listen at; a socket left behind there is replaced.
  // `woken` is called by the reading thread when there are frames to take. Throws
  // std::runtime_error with one line.
  Feed(std::string path, Statistics& statistics, std::function<void()> woken);
  ~Feed() override;
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Ends the reading thread and every connection; `drain` once more tells the loop of it.
  void stop();

  // The decision loop's thread: gives the loop what came. `deadline_ns`: of batches that name none.
  void drain(DecisionLoop& loop, std::int64_t deadline_ns);
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
  bool read_from(Connection& connection);
  void hand_over();
  void handle(DecisionLoop& loop, const Event& event, std::int64_t deadline_ns);
  void refuse(Connection& connection, const char* why);

  const std::string path_;
  Statistics& statistics_;
  const std::function<void()> woken_;
  int listen_fd_ = -1;
  int close_fd_ = -1;         // an event descriptor: the reading thread is to end
  std::vector<Event> read_;   // of the reading thread
  std::vector<Event> taken_;  // of the loop's
  std::map<std::uint32_t, Connection*> by_sender_;  // of the loop's
  std::mutex mutex_;
  std::condition_variable drained_;
  std::vector<Event> inbox_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_FEED_H_
