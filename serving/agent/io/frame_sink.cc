// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/io/frame_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "serving/agent/io/clock.h"

namespace swiftqueue::agent {
namespace {

constexpr std::chrono::milliseconds kPause{5};
constexpr std::int64_t kReconnectNs = 200'000'000;
constexpr std::int64_t kComplainNs = 10'000'000'000;  // between two lines
constexpr std::int64_t kLastWriteNs = 1'000'000'000;  // for the remaining bytes at the end
constexpr std::size_t kTakeBytes = 1 << 16;
constexpr std::size_t kNames = 1024;  // most senders; the agent takes 256 at once
constexpr std::string_view kScheme = "unix:";

std::string path_in(const std::string& address) {
  return address.starts_with(kScheme) ? address.substr(kScheme.size()) : address;
}

}  // namespace

FrameSink::FrameSink(std::string address, Full full)
    : is_socket_(address.starts_with(kScheme)),
      path_(path_in(address)),
      full_(full),
      ring_(kRingBytes) {
  if (is_socket_ && full == Full::kWait) {
    throw std::runtime_error(address + ": a record is a file, not a socket");
  }
  if (is_socket_ && (path_.empty() || path_.size() >= sizeof(sockaddr_un::sun_path))) {
    throw std::runtime_error(address + ": a socket's path has 1 to " +
                             std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes");
  }
  if (!is_socket_) {
    struct stat status{};
    if (stat(path_.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      throw std::runtime_error(path_ + ": is a socket; its address is unix:" + path_);
    }
    const int how = full == Full::kDrop ? O_APPEND : O_TRUNC;
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0600);
    if (fd_ < 0) throw std::runtime_error(path_ + ": " + std::strerror(errno));
  }
  thread_ = std::thread([this] { run(); });
}

std::int64_t FrameSink::finish() {
  if (thread_.joinable()) {
    if (!push_waiting()) dropped_ += static_cast<std::int64_t>(waiting_.size());
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
    const bool closing = closing_.load();  // read before the ring, so that earlier frames are seen
    const std::int64_t now_ns = monotonic_ns();
    if (closing && end_ns == 0) {
      end_ns = now_ns + kLastWriteNs;
      try_again_ns = now_ns;  // a reader that has just begun to listen hears all of it
    }
    if (fd_ < 0 && is_socket_ && now_ns >= try_again_ns && !connect_socket()) {
      try_again_ns = now_ns + kReconnectNs;
    }
    const bool more = fd_ >= 0 && (said_ < hellos_.size() || written_ < taken_.size() || take());
    if (more && !write_out()) {
      settle();  // a socket's next reader gets the rest
      if (!is_socket_) lose();
      close(fd_);
      fd_ = -1;
      broken_ = !is_socket_;
      try_again_ns = now_ns + kReconnectNs;
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
    if (!complained_) complained_ = complain("nobody listens there, telemetry waits (4 MiB of it)");
    close(fd);
    return false;
  }
  complained_ = false;
  fd_ = fd;
  hellos_.clear();
  said_ = 0;
  for (const auto& [sender, hello] : names_) {
    hellos_.append(reinterpret_cast<const char*>(&hello), sizeof hello);
  }
  return true;
}

bool FrameSink::take() {
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
  }
  head_.store(head, std::memory_order_release);
  return !taken_.empty();
}

bool FrameSink::write_out() {
  const bool hellos = said_ < hellos_.size();
  const std::string& from = hellos ? hellos_ : taken_;
  std::size_t& at = hellos ? said_ : written_;
  const std::size_t left = from.size() - at;
  const ssize_t done = is_socket_ ? send(fd_, from.data() + at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : write(fd_, from.data() + at, left);
  if (done >= 0) {
    at += static_cast<std::size_t>(done);
    if (!hellos && written_ == taken_.size()) settle();
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) {  // the reader is slow: the ring fills meanwhile
    pollfd writable{fd_, POLLOUT, 0};
    poll(&writable, 1, static_cast<int>(kPause.count()));
    return true;
  }
  complain("frames cannot be written");
  return false;
}

bool FrameSink::complain(const char* what) {
  const int error = errno;
  const std::int64_t now_ns = monotonic_ns();
  if (now_ns < complain_ns_) return false;
  complain_ns_ = now_ns + kComplainNs;
  std::fprintf(stderr, "swiftqueue-agent: %s%s: %s: %s\n", is_socket_ ? "unix:" : "", path_.c_str(),
               what, std::strerror(error));
  return true;
}

void FrameSink::settle() {
  std::size_t at = 0;
  while (at < taken_.size()) {
    FrameHeader header;
    std::memcpy(&header, taken_.data() + at, sizeof header);
    if (at + header.bytes > written_) break;
    if (is_socket_) {
      const auto known = names_.find(header.sender);
      if (header.type == FrameType::kHello) {
        std::memcpy(&names_[header.sender], taken_.data() + at, sizeof(HelloFrame));
        if (names_.size() > kNames) names_.erase(names_.begin());
      } else if (known != names_.end() && header.type == FrameType::kBye) {
        names_.erase(known);
      } else if (known != names_.end()) {
        known->second.header.sequence = header.sequence + 1;
      }
    }
    at += header.bytes;
  }
  struct stat file{};
  if (!is_socket_ && written_ > at && fstat(fd_, &file) == 0 && S_ISREG(file.st_mode)) {
    // The disk is full. A later writer to the file begins with a whole frame.
    [[maybe_unused]] const int cut =
        ftruncate(fd_, file.st_size - static_cast<off_t>(written_ - at));
  }
  taken_.erase(0, at);
  written_ = 0;
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
