// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/feed.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "serving/agent/clock.h"

namespace swiftqueue::agent {
namespace {

constexpr int kAcceptPauseMs = 100;
constexpr std::size_t kReadBytes = 1 << 16;
constexpr std::size_t kMaxConnections = 256;   // more wait to be accepted
constexpr std::size_t kInboxFrames = 1 << 14;  // then reading waits, and senders with it
constexpr std::int64_t kMaxDeadlineNs =
    10'000'000'000;  // longer ones would hold memory for nothing

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw std::runtime_error("'" + path + "' is no path for a socket: 1 to " +
                             std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

int listening_at(const std::string& path) {
  const sockaddr_un address = address_of(path);
  const auto* const at = reinterpret_cast<const sockaddr*>(&address);
  struct stat status{};
  if (stat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) throw std::runtime_error(path + ": is there and is no socket");
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool alive = connect(probe, at, sizeof address) == 0;
    close(probe);
    if (alive) throw std::runtime_error(path + ": another program listens there");
    unlink(path.c_str());
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, at, sizeof address) != 0 || listen(fd, 16) != 0) {
    const int error = errno;
    close(fd);
    throw std::runtime_error(path + ": " + std::strerror(error));
  }
  return fd;
}

}  // namespace

// Made by the reading thread; freed by the loop's, at the last event about it.
struct Feed::Connection {
  explicit Connection(int socket) : fd(socket), buffer(kReadBytes + kMaxFrameBytes) {}
  ~Connection() { close(fd); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const int fd;
  // Of the reading thread:
  std::vector<char> buffer;
  std::size_t filled = 0;
  // Of the loop's thread:
  std::uint32_t sender = 0;    // none before its HELLO
  std::uint64_t sequence = 0;  // of the frames to it
  bool refused = false;        // what else it sends is not looked at
};

Feed::Feed(std::string path, Statistics& statistics, std::function<void()> woken)
    : path_(std::move(path)), statistics_(statistics), woken_(std::move(woken)) {
  listen_fd_ = listening_at(path_);
  close_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  thread_ = std::thread([this] { read_all(); });
}

Feed::~Feed() {
  stop();
  for (const Event& event : inbox_) {
    if (event.kind == Kind::kClosed) delete event.connection;
  }
}

void Feed::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  drained_.notify_all();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(close_fd_, &one, sizeof one);
  thread_.join();
  close(listen_fd_);
  close(close_fd_);
  unlink(path_.c_str());
}

void Feed::read_all() {
  std::vector<Connection*> connections;
  std::vector<pollfd> waiting;
  std::int64_t accept_again_ns = 0;
  while (true) {
    const bool room = connections.size() < kMaxConnections && monotonic_ns() >= accept_again_ns;
    const short accepting = room ? POLLIN : 0;
    waiting.assign({{close_fd_, POLLIN, 0}, {listen_fd_, accepting, 0}});
    for (const Connection* each : connections) waiting.push_back({each->fd, POLLIN, 0});
    const int timeout_ms = accept_again_ns > monotonic_ns() ? kAcceptPauseMs : -1;
    if (poll(waiting.data(), waiting.size(), timeout_ms) < 0) continue;  // EINTR
    if (waiting[0].revents != 0) break;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      if (waiting[i + 2].revents != 0 && !read_from(*connections[i])) connections[i] = nullptr;
    }
    std::erase(connections, nullptr);
    if (waiting[1].revents != 0) {
      const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        connections.push_back(new Connection(fd));
      } else {  // no descriptor is left: the listener stays readable
        accept_again_ns = monotonic_ns() + kAcceptPauseMs * std::int64_t{1'000'000};
      }
    }
    hand_over();
  }
  for (Connection* const each : connections) read_.push_back({each, Kind::kClosed, 0, {}});
  hand_over();
}

// Reads what there is; false once the connection is at its end.
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
  std::copy(connection.buffer.begin() + static_cast<std::ptrdiff_t>(at),
            connection.buffer.begin() + static_cast<std::ptrdiff_t>(connection.filled),
            connection.buffer.begin());
  connection.filled -= at;
  if (got > 0 && read != Read::kBad) return true;
  if (got <= 0 && connection.filled > 0) {
    read = Read::kBad;
    why = "the connection ends inside a frame";
  }
  // The last event of a connection; a refusal travels in it as a REFUSED frame.
  event.kind = Kind::kClosed;
  event.frame = {};
  if (read == Read::kBad) {
    RefusedFrame refused;
    refused.line = text_field<sizeof refused.line>(why);
    event.frame.refused = finished(refused, 0, 0);
  }
  read_.push_back(event);
  return false;
}

void Feed::hand_over() {
  if (read_.empty()) return;
  {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [this] { return inbox_.size() < kInboxFrames || closing_; });
    inbox_.insert(inbox_.end(), read_.begin(), read_.end());
  }
  read_.clear();
  woken_();
}

void Feed::drain(DecisionLoop& loop, std::int64_t deadline_ns) {
  {
    const std::lock_guard lock(mutex_);
    std::swap(inbox_, taken_);
  }
  drained_.notify_one();
  for (const Event& event : taken_) {
    handle(loop, event, deadline_ns);
    // However much came at once: what is due is ended, and what is answered goes out.
    if (event.frame.header.type == FrameType::kBatch) loop.run(0);
  }
  taken_.clear();
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
    delete &connection;
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
      return loop.acked(connection.sender, event.frame.acked);
    case FrameType::kBatch: {
      const std::int64_t named_ns = event.frame.batch.due_ns;
      const std::int64_t due_ns =
          std::min(named_ns != 0 ? named_ns : event.arrived_ns + deadline_ns,
                   event.arrived_ns + kMaxDeadlineNs);
      if (!loop.batch(connection.sender, event.frame.batch, due_ns, why)) refuse(connection, why);
      return;
    }
    default:
      return refuse(connection, "a sender sends one HELLO, then SENT, ACKED and BATCH frames");
  }
}

void Feed::refuse(Connection& connection, const char* why) {
  connection.refused = true;
  std::fprintf(stderr, "swiftqueue-agent: sender %u refused: %s\n", connection.sender, why);
  RefusedFrame refused;
  refused.line = text_field<sizeof refused.line>(why);
  const auto whole = finished(refused, connection.sender, connection.sequence++);
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
