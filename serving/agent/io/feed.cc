// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/io/feed.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "serving/agent/io/clock.h"
#include "serving/agent/io/listening.h"

namespace swiftqueue::agent {
namespace {

constexpr int kPauseMs = 100;  // between looks at silent clients and at free descriptors
constexpr std::size_t kReadBytes = 1 << 15;
constexpr std::size_t kQueuedFrames = 1 << 10;  // then a sender is not read, and waits
// Most frames in a turn, of all senders and of one; a small share is everybody's.
constexpr std::size_t kTurnFrames = 1 << 10;
constexpr std::size_t kTurnFramesOfOne = 256;
constexpr std::size_t kTurnFramesLeast = 8;
// A sender that has had so much more of the loop than another one waits until that has caught up.
constexpr std::int64_t kAheadNs = 500'000;
constexpr std::int64_t kHelloNs = 5'000'000'000;   // from connecting to the HELLO
constexpr std::int64_t kComeAndGoNs = 50'000'000;  // longest wait of a HELLO or an end
constexpr std::int64_t kMaxDeadlineNs =
    10'000'000'000;  // longer deadlines would hold memory for nothing
constexpr std::int64_t kMs = 1'000'000;

RefusedFrame refusal(const std::string& why, std::uint32_t sender, std::uint64_t sequence) {
  RefusedFrame refused;
  refused.line = text_field<sizeof refused.line>(why);
  return finished(refused, sender, sequence);
}

}  // namespace

// The reading thread makes it; the loop's frees it, at the last event about it.
struct Feed::Connection {
  explicit Connection(int socket)
      : fd(socket), since_ns(monotonic_ns()), buffer(kReadBytes + kMaxFrameBytes) {}
  ~Connection() { close(fd); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const int fd;
  // These belong to the reading thread:
  const std::int64_t since_ns;
  std::vector<char> buffer;
  std::size_t filled = 0;
  bool heard = false;  // whether a whole frame has come
  // These are shared:
  std::vector<Event> inbox;            // guarded by the feed's mutex
  std::atomic<std::size_t> queued{0};  // frames in `inbox` and `taken`
  std::atomic<bool> held{false};       // whether it is not read until fewer are queued
  // These belong to the loop's thread:
  std::vector<Event> taken;
  std::size_t at = 0;         // index of the next one in `taken`
  std::int64_t spent_ns = 0;  // time of its batches; a new sender begins with the others' time
  bool active = false;
  std::uint32_t sender = 0;    // 0 before its HELLO
  std::uint64_t sequence = 0;  // number of the next frame to it
  bool refused = false;        // whether its further frames are ignored
};

Feed::Feed(std::string path, std::vector<uid_t> allowed, Statistics& statistics,
           Complaints& complaints, std::function<void()> woken)
    : path_(std::move(path)),
      allowed_(std::move(allowed)),
      statistics_(statistics),
      complaints_(complaints),
      woken_(std::move(woken)) {
  listen_fd_ = listening_at(path_, allowed_.empty() ? 0600 : 0666);
  own_ = identity(path_);
  look_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  thread_ = std::thread([this] { read_all(); });
}

Feed::~Feed() {
  stop();
  take_over();
  for (Connection* const each : active_) delete each;
}

void Feed::stop() {
  if (!thread_.joinable()) return;
  closing_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(look_fd_, &one, sizeof one);
  thread_.join();
  // While it is bound nobody else's file can have its number.
  if (identity(path_) == own_) unlink(path_.c_str());
  close(listen_fd_);
  close(look_fd_);
}

void Feed::read_all() {
  std::vector<Connection*> connections;
  std::vector<pollfd> waiting;
  std::int64_t accept_again_ns = 0;
  while (true) {
    const std::int64_t now_ns = monotonic_ns();
    const bool rests = accept_again_ns > now_ns;  // no descriptor is left: it stays readable
    waiting.assign({{look_fd_, POLLIN, 0}, {rests ? -1 : listen_fd_, POLLIN, 0}});
    bool silent = false;  // whether somebody has said nothing yet
    for (Connection* const each : connections) {
      if (!each->heard && now_ns - each->since_ns > kHelloNs) {
        shutdown(each->fd, SHUT_RD);  // its end is read at once
      }
      silent = silent || !each->heard;
      each->held = each->queued >= kQueuedFrames;
      // It is not read while the loop has enough of it; checked again because it may have changed.
      const bool reads = !each->held || each->queued < kQueuedFrames;
      waiting.push_back({reads ? each->fd : -1, POLLIN, 0});
    }
    if (poll(waiting.data(), waiting.size(), rests || silent ? kPauseMs : -1) < 0) continue;
    if (closing_) break;
    if (waiting[0].revents != 0) {
      std::uint64_t times = 0;
      [[maybe_unused]] const ssize_t got = read(look_fd_, &times, sizeof times);
    }
    for (std::size_t i = 0; i < connections.size(); ++i) {
      if (waiting[i + 2].revents == 0) continue;
      Connection& connection = *connections[i];
      if (!read_from(connection)) connections[i] = nullptr;
      hand_over(connection);
    }
    std::erase(connections, nullptr);
    if (waiting[1].revents != 0 && !accept_one(connections)) {
      accept_again_ns = monotonic_ns() + kPauseMs * kMs;
    }
  }
  for (Connection* const each : connections) {
    end(*each, nullptr);
    hand_over(*each);
  }
}

// Returns false if there is no descriptor for a waiting client.
bool Feed::accept_one(std::vector<Connection*>& connections) {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return errno == ECONNABORTED || errno == EAGAIN || errno == EINTR;
  const uid_t user = user_of(fd);
  std::string why;
  if (!may_connect(user, allowed_)) {
    why = "user " + std::to_string(static_cast<std::int64_t>(user)) +
          " may not connect; the agent's --allow-uid allows it";
  } else if (connections.size() >= kMaxSenders && !end_a_silent_one(connections)) {
    why = std::to_string(kMaxSenders) + " senders are connected, and more are not taken";
  }
  if (why.empty()) {
    connections.push_back(new Connection(fd));
    return true;
  }
  statistics_.turned_away.add();
  complaints_.say("a connection refused: " + why);
  const RefusedFrame whole = refusal(why, 0, 0);
  send(fd, &whole, sizeof whole, MSG_NOSIGNAL | MSG_DONTWAIT);
  close(fd);
  return true;
}

// Ends the connection that has been there longest without a whole frame: the next one gets its
// place. Returns false if all have said something.
bool Feed::end_a_silent_one(std::vector<Connection*>& connections) {
  for (auto each = connections.begin(); each != connections.end(); ++each) {
    Connection& connection = **each;
    if (connection.heard) continue;
    const bool open = read_from(connection);  // its HELLO may have come just now
    if (open && !connection.heard) end(connection, "it said nothing, and its place was needed");
    const bool stays = open && connection.heard;
    hand_over(connection);  // after an end the loop owns it
    if (stays) continue;
    connections.erase(each);
    return true;
  }
  return false;
}

// Reads the waiting bytes; returns false once the connection is at its end.
bool Feed::read_from(Connection& connection) {
  const ssize_t got = recv(connection.fd, connection.buffer.data() + connection.filled,
                           connection.buffer.size() - connection.filled, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  const std::int64_t now_ns = monotonic_ns();
  connection.filled += got > 0 ? static_cast<std::size_t>(got) : 0;
  std::size_t at = 0;
  Event event{&connection, Kind::kFrame, now_ns, {}};
  const char* why = "";
  Read read = Read::kMore;
  while ((read = read_frame({connection.buffer.data() + at, connection.filled - at}, event.frame,
                            why)) == Read::kFrame) {
    at += event.frame.header.bytes;
    read_.push_back(event);
  }
  connection.heard = connection.heard || at > 0;
  std::copy(connection.buffer.begin() + static_cast<std::ptrdiff_t>(at),
            connection.buffer.begin() + static_cast<std::ptrdiff_t>(connection.filled),
            connection.buffer.begin());
  connection.filled -= at;
  if (got > 0 && read != Read::kBad) return true;
  const bool timely = connection.heard || now_ns - connection.since_ns <= kHelloNs;
  if (read != Read::kBad) {
    why = !timely                 ? "no HELLO frame came within 5 s"
          : connection.filled > 0 ? "the connection ends inside a frame"
                                  : nullptr;
  }
  end(connection, why);
  return false;
}

// Makes the last event of a connection; a refusal travels in it as a REFUSED frame.
void Feed::end(Connection& connection, const char* why) {
  Event event{&connection, Kind::kClosed, monotonic_ns(), {}};
  event.frame = {};
  if (why != nullptr) event.frame.refused = refusal(why, 0, 0);
  read_.push_back(event);
  connection.buffer = {};  // it may be a while until the loop comes to its end
}

void Feed::hand_over(Connection& connection) {
  if (read_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (connection.inbox.empty()) came_.push_back(&connection);
    connection.inbox.insert(connection.inbox.end(), read_.begin(), read_.end());
    connection.queued.fetch_add(read_.size());
    more_.store(true, std::memory_order_release);
  }
  read_.clear();
  woken_();
}

// Takes the frames of the connections that have none left here. The others' stay in their inboxes.
void Feed::take_over() {
  if (!more_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(came_, [&](Connection* each) {
    if (each->at < each->taken.size()) return false;
    each->taken.clear();
    each->at = 0;
    std::swap(each->taken, each->inbox);
    if (!each->active) {
      each->active = true;
      each->spent_ns = std::max(each->spent_ns, least_spent_ns_);
      active_.push_back(each);
    }
    return true;
  });
  more_.store(!came_.empty(), std::memory_order_release);
}

std::int64_t Feed::due_ns(const Event& event, std::int64_t deadline_ns) const {
  if (event.frame.header.type != FrameType::kBatch) return event.arrived_ns + kComeAndGoNs;
  const std::int64_t named_ns = event.frame.batch.due_ns;
  return std::min(named_ns != 0 ? named_ns : event.arrived_ns + deadline_ns,
                  event.arrived_ns + kMaxDeadlineNs);
}

// Returns whether a frame takes long: a turn takes one of them. Frames after a refusal are ignored.
bool Feed::costly(const Event& event) {
  if (event.kind == Kind::kClosed) return true;
  const FrameType type = event.frame.header.type;
  return !event.connection->refused && (type == FrameType::kBatch || type == FrameType::kHello);
}

// Returns the next of the senders at a costly frame; null if there is none.
Feed::Connection* Feed::next_costly(std::int64_t deadline_ns) {
  const auto waits = [](const Connection& each) {
    return each.at < each.taken.size() && costly(each.taken[each.at]);
  };
  std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
  for (Connection* const each : active_) {
    if (waits(*each)) {
      least_ns = std::min(least_ns, each->spent_ns);
    } else {  // nobody saves up time
      each->spent_ns = std::max(each->spent_ns, least_spent_ns_);
    }
  }
  Connection* next = nullptr;
  std::int64_t first_ns = 0;
  for (Connection* const each : active_) {
    if (!waits(*each) || each->spent_ns - least_ns > kAheadNs) continue;
    const std::int64_t ns = due_ns(each->taken[each->at], deadline_ns);
    if (next == nullptr || ns < first_ns) {
      next = each;
      first_ns = ns;
    }
  }
  if (next != nullptr) least_spent_ns_ = std::max(least_spent_ns_, least_ns);
  return next;
}

bool Feed::drain(DecisionLoop& loop, std::int64_t deadline_ns) {
  take_over();
  if (active_.empty()) return false;
  const auto took = [](Connection& connection, std::size_t frames) {
    connection.at += frames;
    const std::size_t before = connection.queued.fetch_sub(frames);
    return before >= kQueuedFrames && before - frames < kQueuedFrames && connection.held;
  };
  bool look = false;  // whether somebody is to be read again
  const std::size_t share =
      std::clamp(kTurnFrames / active_.size(), kTurnFramesLeast, kTurnFramesOfOne);
  for (Connection* const each : active_) {
    std::size_t frames = 0;
    for (; frames < share && each->at + frames < each->taken.size(); ++frames) {
      const Event& event = each->taken[each->at + frames];
      if (costly(event)) break;
      handle(loop, event, deadline_ns);
    }
    look = took(*each, frames) || look;
  }
  if (Connection* const next = next_costly(deadline_ns)) {
    const std::int64_t begin_ns = monotonic_ns();
    const Event& event = next->taken[next->at];
    const bool last = event.kind == Kind::kClosed;
    handle(loop, event, deadline_ns);
    if (last) {
      std::erase(active_, next);
      delete next;
    } else {
      next->spent_ns += monotonic_ns() - begin_ns;
      look = took(*next, 1) || look;
    }
  }
  loop.run(0);  // however much came at once: due batches are ended, and answers go out
  if (look) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(look_fd_, &one, sizeof one);
  }
  take_over();
  std::erase_if(active_, [](Connection* each) {
    each->active = each->at < each->taken.size();
    return !each->active;
  });
  return !active_.empty();
}

void Feed::handle(DecisionLoop& loop, const Event& event, std::int64_t deadline_ns) {
  Connection& connection = *event.connection;
  const FrameType type = event.frame.header.type;
  if (event.kind == Kind::kClosed) {
    if (type == FrameType::kRefused && !connection.refused) {
      refuse(connection, event.frame.refused.line.data());
    }
    if (connection.sender != 0) {
      loop.close(connection.sender);
      by_sender_.erase(connection.sender);
    }
    return;
  }
  if (connection.refused) return;
  const char* why = nullptr;
  if (connection.sender == 0) {
    if (type != FrameType::kHello) return refuse(connection, "a HELLO frame comes first");
    connection.sender = loop.open(text_of(event.frame.hello.name), *this);
    by_sender_[connection.sender] = &connection;
    HelloFrame hello;
    hello.name = text_field<sizeof hello.name>("swiftqueue-agent");
    const auto whole = finished(hello, connection.sender, connection.sequence++);
    send(connection.fd, &whole, sizeof whole, MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  switch (type) {
    case FrameType::kSent:
      if (!loop.sent(connection.sender, event.frame.sent, why)) refuse(connection, why);
      return;
    case FrameType::kAcked:
      if (!loop.acked(connection.sender, event.frame.acked, why)) refuse(connection, why);
      return;
    case FrameType::kBatch:
      if (closing_) return;  // nobody is there any more
      if (!loop.batch(connection.sender, event.frame.batch, due_ns(event, deadline_ns), why)) {
        refuse(connection, why);
      }
      return;
    default:
      return refuse(connection, "a sender sends one HELLO, then SENT, ACKED and BATCH frames");
  }
}

void Feed::refuse(Connection& connection, const char* why) {
  connection.refused = true;
  statistics_.refused.add();
  complaints_.say("sender " + std::to_string(connection.sender) + " refused: " + why);
  const auto whole = refusal(why, connection.sender, connection.sequence++);
  send(connection.fd, &whole, sizeof whole, MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(connection.fd, SHUT_RDWR);  // the reading thread sees its end
}

void Feed::take(std::uint32_t sender, const DecisionFrame& decision) {
  const auto place = by_sender_.find(sender);
  if (place == by_sender_.end()) return;
  Connection& connection = *place->second;
  const auto whole = finished(decision, sender, connection.sequence++);
  if (connection.refused ||
      send(connection.fd, &whole, sizeof whole, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof whole) {
    statistics_.undelivered.add();
  }
}

}  // namespace swiftqueue::agent
