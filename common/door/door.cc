// SPDX-License-Identifier: Apache-2.0
//
// Guards a server's TCP ports on this machine (docs/DOORS.md). The library is loaded before a
// program (LD_PRELOAD) and replaces three functions of libc.
//
// - `accept`, `accept4` pass a connection on only if the process at its other end belongs to this
//   user or to root, as the kernel tells (NETLINK_SOCK_DIAG, sock_diag(7)). They close every other
//   one before the program has read a byte of it. An open port admits others as well, but each
//   user, or each remote address, at most kMostOfOne times at once.
// - `bind` restricts a TCP port that is not open to loopback, because some programs accept no
//   address for a port.
//
// The open ports come from SWIFTQUEUE_OPEN_PORTS (numbers separated by commas, possibly none), or
// from `keep`, where the library is part of another. Without either the library changes nothing.
// Programs that listen without libc, such as those in Go, are not guarded.
#include "common/door/door.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#define VISIBLE extern "C" __attribute__((visibility("default")))

namespace swiftqueue::door {
namespace {

constexpr std::size_t kMostOfOne = 256;   // connections of one user or address, at all open ports
constexpr std::size_t kMostOfAll = 2048;  // connections of all but this user and root

// An address in the form of the kernel's diagnosis, where IPv4 in IPv6 counts as IPv4.
struct Address {
  bool four = true;
  std::uint16_t port = 0;  // in network order, as `words`
  std::uint32_t words[4] = {};
};

std::optional<Address> address_of(const sockaddr_storage& raw) {
  Address found;
  if (raw.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(raw);
    found.port = four.sin_port;
    found.words[0] = four.sin_addr.s_addr;
    return found;
  }
  if (raw.ss_family != AF_INET6) return std::nullopt;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(raw);
  found.port = six.sin6_port;
  found.four = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
  const auto* words = reinterpret_cast<const std::uint32_t*>(&six.sin6_addr);
  if (found.four) {
    found.words[0] = words[3];
  } else {
    std::copy_n(words, 4, found.words);
  }
  return found;
}

// Returns the owner of the socket that is bound to `own` and connected to `other`. Returns nothing
// if that socket is closed or not on this machine.
std::optional<uid_t> user_of(const Address& own, const Address& other) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 ask;
  } request{};
  request.head = {sizeof request, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0};
  request.ask.sdiag_family = own.four ? AF_INET : AF_INET6;
  request.ask.sdiag_protocol = IPPROTO_TCP;
  request.ask.idiag_states = ~0U;
  request.ask.id.idiag_sport = own.port;
  request.ask.id.idiag_dport = other.port;
  std::copy_n(own.words, 4, request.ask.id.idiag_src);
  std::copy_n(other.words, 4, request.ask.id.idiag_dst);
  request.ask.id.idiag_cookie[0] = request.ask.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const int kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (kernel < 0) return std::nullopt;
  alignas(nlmsghdr) char answer[1024];
  ssize_t came = send(kernel, &request, sizeof request, 0);
  if (came > 0) came = recv(kernel, answer, sizeof answer, 0);
  close(kernel);
  const auto* head = reinterpret_cast<const nlmsghdr*>(answer);
  if (came < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) ||
      head->nlmsg_type != SOCK_DIAG_BY_FAMILY) {
    return std::nullopt;
  }
  const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  if (found->idiag_inode == 0) return std::nullopt;
  return found->idiag_uid;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// The open ports, and the guests: other users' connections at these ports.
class Door {
 public:
  static Door& get() {
    static auto& door = *new Door;  // servers accept until the process has ended
    return door;
  }

  bool kept() const { return kept_; }
  bool open(std::uint16_t port) const {
    return std::find(open_.begin(), open_.end(), ntohs(port)) != open_.end();
  }

  void keep(std::string_view ports) {
    std::vector<std::uint16_t> open;
    for (const char *at = ports.data(), *end = at + ports.size(); at < end;) {
      std::uint16_t port = 0;
      const auto [rest, error] = std::from_chars(at, end, port);
      if (error != std::errc() || (rest != end && *rest != ',')) {
        dprintf(2, "error: SWIFTQUEUE_OPEN_PORTS=%.*s: not ports, parted by commas\n",
                static_cast<int>(ports.size()), ports.data());
        _exit(1);
      }
      open.push_back(port);
      at = rest + 1;
    }
    open_ = std::move(open);
    kept_ = true;
  }

  // Returns whether a new connection is for the program.
  bool admits(int connection) {
    sockaddr_storage raw[2] = {};
    socklen_t sizes[2] = {sizeof raw[0], sizeof raw[1]};
    if (getsockname(connection, reinterpret_cast<sockaddr*>(&raw[0]), &sizes[0]) != 0) return false;
    const std::optional<Address> here = address_of(raw[0]);
    if (!here) return true;  // a Unix socket: files have owners
    if (getpeername(connection, reinterpret_cast<sockaddr*>(&raw[1]), &sizes[1]) != 0) return false;
    const std::optional<Address> there = address_of(raw[1]);
    if (!there) return false;
    const std::optional<uid_t> user = user_of(*there, *here);
    if (user && (*user == geteuid() || *user == 0)) return true;
    if (!open(here->port)) return false;
    std::string guest(reinterpret_cast<const char*>(there->words), sizeof there->words);
    return takes(connection, user ? std::to_string(*user) : std::move(guest));
  }

 private:
  struct Guest {
    int connection;
    std::uint64_t cookie;
  };

  Door() {
    if (const char* ports = std::getenv("SWIFTQUEUE_OPEN_PORTS")) keep(ports);
  }

  static std::uint64_t cookie_of(int connection) {
    std::uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    getsockopt(connection, SOL_SOCKET, SO_COOKIE, &cookie, &size);
    return cookie;
  }

  bool takes(int connection, const std::string& whose) {
    const std::lock_guard lock(mutex_);
    if (guests_[whose].size() >= kMostOfOne || count() >= kMostOfAll) forget_those_that_left();
    if (guests_[whose].size() >= kMostOfOne || count() >= kMostOfAll) return false;
    guests_[whose].push_back({connection, cookie_of(connection)});
    return true;
  }

  std::size_t count() const {
    std::size_t sum = 0;
    for (const auto& [whose, connections] : guests_) sum += connections.size();
    return sum;
  }

  // A connection's number may be another file's by now; its cookie never is.
  void forget_those_that_left() {
    for (auto& [whose, connections] : guests_) {
      std::erase_if(connections,
                    [](const Guest& one) { return cookie_of(one.connection) != one.cookie; });
    }
    std::erase_if(guests_, [](const auto& one) { return one.second.empty(); });
  }

  bool kept_ = false;
  std::vector<std::uint16_t> open_;
  std::mutex mutex_;
  std::map<std::string, std::vector<Guest>> guests_;
};

// Accepts connections until one is admitted or none is left.
template <typename Take>
int admit(sockaddr* address, socklen_t* size, Take take) {
  const socklen_t room = size == nullptr ? 0 : *size;
  while (true) {
    const int connection = take(address, size);
    if (connection < 0 || !Door::get().kept() || Door::get().admits(connection)) return connection;
    close(connection);
    if (size != nullptr) *size = room;
  }
}

bool is_stream(int socket) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

// Replaces the wildcard address by the loopback address, and returns whether it did.
bool narrowed(int socket, sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    if (four.sin_addr.s_addr != htonl(INADDR_ANY) || Door::get().open(four.sin_port)) return false;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return true;
  }
  if (address.ss_family != AF_INET6) return false;
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  if (!IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr) || Door::get().open(six.sin6_port)) return false;
  int alone = 0;
  socklen_t size = sizeof alone;
  getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &alone, &size);
  six.sin6_addr = in6addr_loopback;
  if (alone == 0) inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr);
  return true;
}

}  // namespace

void keep(std::string_view open_ports) { Door::get().keep(open_ports); }

}  // namespace swiftqueue::door

using swiftqueue::door::admit;  // NOLINT: the functions below stand in for libc's
using swiftqueue::door::Door;   // NOLINT
using swiftqueue::door::next;   // NOLINT

VISIBLE int accept(int listener, sockaddr* address, socklen_t* size) {
  static const auto real = next<int (*)(int, sockaddr*, socklen_t*)>("accept");
  return admit(address, size, [&](sockaddr* a, socklen_t* s) { return real(listener, a, s); });
}

VISIBLE int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  static const auto real = next<int (*)(int, sockaddr*, socklen_t*, int)>("accept4");
  return admit(address, size,
               [&](sockaddr* a, socklen_t* s) { return real(listener, a, s, flags); });
}

VISIBLE int bind(int socket, const sockaddr* address, socklen_t size) noexcept {
  static const auto real = next<int (*)(int, const sockaddr*, socklen_t)>("bind");
  sockaddr_storage changed{};
  if (Door::get().kept() && size <= sizeof changed) {
    std::memcpy(&changed, address, size);
    if (swiftqueue::door::is_stream(socket) && swiftqueue::door::narrowed(socket, changed)) {
      return real(socket, reinterpret_cast<const sockaddr*>(&changed), size);
    }
  }
  return real(socket, address, size);
}

// Returns whether the kernel names a connection's owner, for programs that want to load this
// library.
VISIBLE int swiftqueue_door_can_tell() {
  using swiftqueue::door::address_of;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage ends[2] = {};
  auto* first = reinterpret_cast<sockaddr*>(&ends[0]);
  auto* second = reinterpret_cast<sockaddr*>(&ends[1]);
  reinterpret_cast<sockaddr_in&>(ends[0]).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ends[0].ss_family = AF_INET;
  socklen_t size = sizeof(sockaddr_in);
  bool can = bind(listener, first, size) == 0 && listen(listener, 1) == 0 &&
             getsockname(listener, first, &size) == 0 && connect(caller, first, size) == 0 &&
             getsockname(caller, second, &size) == 0;
  if (can) {
    can = swiftqueue::door::user_of(*address_of(ends[1]), *address_of(ends[0])) == geteuid();
  }
  close(listener);
  close(caller);
  return can ? 1 : 0;
}
