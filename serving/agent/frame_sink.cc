// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/frame_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <utility>

#include "serving/agent/clock.h"

namespace swiftqueue::agent {
namespace {

constexpr std::chrono::milliseconds kPause{5};
constexpr std::int64_t kReconnectNs = 200'000'000;
constexpr std::int64_t kLastWriteNs = 1'000'000'000;  // for what is left at the end
constexpr std::size_t kTakeBytes = 1 << 16;
constexpr std::size_t kNames = 1024;  // of senders; the oldest are forgotten

}  // namespace

FrameSink::FrameSink(std::string path, Full full)
    : path_(std::move(path)), full_(full), ring_(kRingBytes) {
  struct stat status{};
  is_socket_ = stat(path_.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
  if (is_socket_) {
    if (path_.size() >= sizeof(sockaddr_un::sun_path)) {
      throw std::runtime_error(path_ + ": too long for a socket's path");
    }
  } else {
    const int how = full == Full::kDrop ? O_APPEND : O_TRUNC;
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0644);
    if (fd_ < 0) throw std::runtime_error(path_ + ": " + std::strerror(errno));
  }
  thread_ = std::thread([this] { run(); });
}

std::int64_t FrameSink::finish() {
  if (thread_.joinable()) {
    closing_ = true;
    thread_.join();
    do {
      lose();
    } while (take());
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  return dropped();
}

void FrameSink::run() {
  std::int64_t try_again_ns = 0;
  std::int64_t end_ns = 0;
  while (true) {
    const bool closing = closing_.load();  // read before the ring: what was put before is seen
    const std::int64_t now_ns = monotonic_ns();
    if (closing && end_ns == 0) end_ns = now_ns + kLastWriteNs;
    if (fd_ < 0 && is_socket_ && now_ns >= try_again_ns && !connect_socket()) {
      try_again_ns = now_ns + kReconnectNs;
    }
    const bool more = fd_ >= 0 && (written_ < taken_.size() || take());
    if (more && !write_out()) {
      lose();
      close(fd_);
      fd_ = -1;
      broken_ = !is_socket_;
    }
    if (closing && (!more || (full_ == Full::kDrop && now_ns >= end_ns))) return;
    if (!more) std::this_thread::sleep_for(kPause);
  }
}

bool FrameSink::connect_socket() {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return false;
  }
  fd_ = fd;
  taken_.clear();
  written_ = 0;
  for (const auto& [sender, hello] : names_) {
    taken_.append(reinterpret_cast<const char*>(&hello), sizeof hello);
  }
  return true;
}

bool FrameSink::take() {
  taken_.clear();
  written_ = 0;
  std::size_t head = head_.load(std::memory_order_relaxed);
  const std::size_t tail = tail_.load(std::memory_order_acquire);
  const auto copy = [&](std::size_t from, void* to, std::size_t bytes) {
    const std::size_t at = from % kRingBytes;
    const std::size_t first = std::min(bytes, kRingBytes - at);
    std::memcpy(to, ring_.data() + at, first);
    std::memcpy(static_cast<char*>(to) + first, ring_.data(), bytes - first);
  };
  while (head != tail && taken_.size() < kTakeBytes) {
    FrameHeader header;
    copy(head, &header, sizeof header);
    const std::size_t at = taken_.size();
    taken_.resize(at + header.bytes);
    copy(head, taken_.data() + at, header.bytes);
    head += header.bytes;
    if (header.type == FrameType::kHello) {
      std::memcpy(&names_[header.sender], taken_.data() + at, sizeof(HelloFrame));
      if (names_.size() > kNames) names_.erase(names_.begin());
    }
  }
  head_.store(head, std::memory_order_release);
  return !taken_.empty();
}

bool FrameSink::write_out() {
  const char* from = taken_.data() + written_;
  const std::size_t left = taken_.size() - written_;
  const ssize_t done =
      is_socket_ ? send(fd_, from, left, MSG_NOSIGNAL | MSG_DONTWAIT) : write(fd_, from, left);
  if (done >= 0) {
    written_ += static_cast<std::size_t>(done);
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) {  // the reader is slow: the ring fills meanwhile
    pollfd writable{fd_, POLLOUT, 0};
    poll(&writable, 1, static_cast<int>(kPause.count()));
    return true;
  }
  std::fprintf(stderr, "swiftqueue-agent: %s: %s\n", path_.c_str(), std::strerror(errno));
  return false;
}

void FrameSink::lose() {
  for (std::size_t at = 0; at < taken_.size();) {
    FrameHeader header;
    std::memcpy(&header, taken_.data() + at, sizeof header);
    at += header.bytes;
    dropped_.fetch_add(at > written_ ? 1 : 0, std::memory_order_relaxed);
  }
  taken_.clear();
  written_ = 0;
}

}  // namespace swiftqueue::agent
