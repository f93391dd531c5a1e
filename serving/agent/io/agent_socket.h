// SPDX-License-Identifier: Apache-2.0
//
// A sender's connection with an agent that never makes it wait: every read, write and connect is
// non-blocking. One thread.
#ifndef SWIFTQUEUE_SERVING_AGENT_AGENT_SOCKET_H_
#define SWIFTQUEUE_SERVING_AGENT_AGENT_SOCKET_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "serving/agent/io/frames.h"

namespace swiftqueue::agent {

// `AnyFrame` is a union of the socket's frames, with HELLO and REFUSED among them, and `kRead`
// reads one as `read_frame` does. A derived class takes what else the agent says.
template <typename AnyFrame, Read (*kRead)(std::string_view, AnyFrame&, const char*&)>
class AgentSocket {
 public:
  // An empty path means no agent.
  // Throws std::invalid_argument: the path is longer than a socket's can be.
  AgentSocket(std::string path, std::string name) : path_(std::move(path)), name_(std::move(name)) {
    if (path_.size() >= sizeof(sockaddr_un::sun_path)) {
      throw std::invalid_argument("a socket's path has at most 107 bytes: " + path_);
    }
  }
  virtual ~AgentSocket() {
    if (fd_ >= 0) ::close(fd_);
  }
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  bool connected() const { return greeted_; }
  int fd() const { return fd_; }  // for waiting; -1 without a connection
  bool writes_wait() const { return !out_.empty(); }
  const std::string& problem() const { return problem_; }  // why there is no connection; one line

  std::int64_t connections() const { return connections_; }  // those that the agent greeted
  std::int64_t lost() const { return lost_; }                // those that ended, whoever ended them

  // Reads, writes and connects as far as possible without waiting.
  void turn(std::int64_t now_ns) {
    if (path_.empty()) return;
    if (fd_ < 0) {
      if (now_ns < next_try_ns_) return;
      next_try_ns_ = now_ns + kRetryNs;
      connect_socket();
    }
    if (fd_ >= 0) read_socket();
    if (fd_ >= 0) write_socket();
  }

 protected:
  // Takes a frame of another type than HELLO and REFUSED.
  virtual void took(const AnyFrame& frame) = 0;
  // The connection is gone, and what the agent said is void.
  virtual void gone() = 0;

  // `may_wait`: the frame need not be written before the next one or the next turn.
  template <typename T>
  void say(const T& frame, bool may_wait = false) {
    const T whole = finished(frame, 0, 0);
    out_.append(reinterpret_cast<const char*>(&whole), sizeof whole);
    if (!may_wait || out_.size() >= kTogether) write_socket();
    if (out_.size() > kMostWaiting) lose("it takes nothing any more");
  }

 private:
  static constexpr std::int64_t kRetryNs = 1'000'000'000;  // between attempts to connect
  // Bytes that the agent has not taken, at which it is as good as gone.
  static constexpr std::size_t kMostWaiting = 1 << 20;
  static constexpr std::size_t kTogether = 1 << 12;  // bytes that are written together at most

  void connect_socket() {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      problem_ = "agent socket " + path_ + ": " + std::strerror(errno);
      close_socket();
      return;
    }
    HelloFrame hello;
    hello.name = text_field<56>(name_);
    say(hello);
  }

  void write_socket() {
    while (!out_.empty() && fd_ >= 0) {
      const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
      if (n > 0) {
        out_.erase(0, static_cast<std::size_t>(n));
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else {
        // The agent's last words before it went, such as a REFUSED, are read first.
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
          const std::string reason = std::strerror(errno);
          read_socket();
          if (fd_ >= 0) lose(reason);
        }
        return;
      }
    }
  }

  void read_socket() {
    char buffer[1 << 14];
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n <= 0) {
        take();
        if (fd_ >= 0) lose(n == 0 ? "it closed the connection" : std::strerror(errno));
        return;
      }
      in_.append(buffer, static_cast<std::size_t>(n));
    }
    take();
  }

  void take() {
    std::size_t at = 0;
    while (fd_ >= 0) {
      AnyFrame frame;
      const char* why = nullptr;
      const Read read = kRead(std::string_view(in_).substr(at), frame, why);
      if (read == Read::kMore) break;
      if (read == Read::kBad) {
        lose(std::string("it sent a frame that cannot be: ") + why);
        return;
      }
      at += frame.header.bytes;
      if (frame.header.type == FrameType::kHello) {
        greeted_ = true;
        problem_.clear();
        ++connections_;
      } else if (frame.header.type == FrameType::kRefused) {
        lose("refused: " + std::string(text_of(frame.refused.line)));
        return;
      } else {
        took(frame);
      }
    }
    in_.erase(0, at);
  }

  void lose(const std::string& reason) {
    problem_ = "agent socket " + path_ + ": " + reason;
    ++lost_;
    close_socket();
  }

  void close_socket() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    greeted_ = false;
    in_.clear();
    out_.clear();
    gone();
  }

  std::string path_;
  std::string name_;
  int fd_ = -1;
  bool greeted_ = false;
  std::int64_t next_try_ns_ = 0;
  std::string in_;
  std::string out_;
  std::string problem_;
  std::int64_t connections_ = 0;
  std::int64_t lost_ = 0;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_AGENT_SOCKET_H_
