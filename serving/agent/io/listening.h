// SPDX-License-Identifier: Apache-2.0
//
// A unix socket that an agent listens at, which only some users may connect to.
#ifndef SWIFTQUEUE_SERVING_AGENT_LISTENING_H_
#define SWIFTQUEUE_SERVING_AGENT_LISTENING_H_

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace swiftqueue::agent {

namespace detail {

inline sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    throw std::runtime_error("'" + path + "' is no path for a socket: 1 to " +
                             std::to_string(sizeof address.sun_path - 1) + " bytes");
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

// Removes a socket that a killed agent of this user left there; anything else stays.
inline void remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) return;  // bind() reports other faults of the path
  if (!S_ISSOCK(found.st_mode) || found.st_uid != geteuid()) {
    throw std::runtime_error(path + ": is there and is no socket of this user");
  }
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const bool answers =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = answers ? EAGAIN : errno;  // EAGAIN: its backlog is full
  close(probe);
  if (error == EAGAIN) throw std::runtime_error(path + ": another program listens there");
  if (error != ECONNREFUSED && error != ENOENT) {
    throw std::runtime_error(path + ": " + std::strerror(error));
  }
  unlink(path.c_str());
}

}  // namespace detail

// Listens at `path`, without blocking; throws std::runtime_error with one line. `mode` is the
// socket's from its first moment, since Linux makes it with the descriptor's.
inline int listening_at(const std::string& path, mode_t mode) {
  const sockaddr_un address = detail::address_of(path);
  detail::remove_stale(path, address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || fchmod(fd, mode) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path.c_str(), mode) != 0 ||  // the umask may have removed bits
      listen(fd, 16) != 0) {
    const int error = errno;
    close(fd);
    throw std::runtime_error(path + ": " + std::strerror(error));
  }
  return fd;
}

// Identifies a file among all others while it exists.
inline std::pair<dev_t, ino_t> identity(const std::string& path) {
  struct stat found{};
  if (lstat(path.c_str(), &found) != 0) return {};
  return {found.st_dev, found.st_ino};
}

// Returns the user at the other end, or -1.
inline uid_t user_of(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.uid
                                                                     : static_cast<uid_t>(-1);
}

// Returns whether the user may connect: this one, root, and the users `allowed` may.
inline bool may_connect(uid_t user, const std::vector<uid_t>& allowed) {
  return user == geteuid() || user == 0 ||
         std::find(allowed.begin(), allowed.end(), user) != allowed.end();
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_LISTENING_H_
