// SPDX-License-Identifier: Apache-2.0
//
// The two hosts: network namespaces with a TUN device each, without privileges.
#ifndef SWIFTQUEUE_TESTBED_ROUTER_HOSTS_H_
#define SWIFTQUEUE_TESTBED_ROUTER_HOSTS_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "testbed/fail.h"

namespace swiftqueue::testbed {

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  if (!(file << text << std::flush)) fail(path);
}

struct Host {
  std::vector<int> devices;  // of its TUNs
  int network = -1;          // its namespace
};

inline void ask(int fd, unsigned long what, void* request, const char* said) {
  if (::ioctl(fd, what, request) != 0) fail(said);
}

// A namespace with a loopback, and this process in it.
inline Host make_network() {
  Host host;
  if (::unshare(CLONE_NEWNET) != 0) fail("a network namespace");
  host.network = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (host.network < 0) fail("a network namespace");
  write_file("/proc/sys/net/ipv4/tcp_ecn", "1");
  // A flow must not begin where the one before to the same host ended.
  write_file("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
  write_file("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 33554432");
  write_file("/proc/sys/net/ipv4/tcp_wmem", "4096 131072 33554432");
  // A kernel without IPv6 has a bed without it.
  const std::string dad = "/proc/sys/net/ipv6/conf/default/accept_dad";
  if (::access(dad.c_str(), F_OK) == 0) write_file(dad, "0");
  const int v4 = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq lo{};
  std::strcpy(lo.ifr_name, "lo");
  lo.ifr_flags = IFF_UP;
  ask(v4, SIOCSIFFLAGS, &lo, "lo");
  ::close(v4);
  return host;
}

// A TUN device of the namespace that this process is in, without an address.
inline int make_tun(const std::string& name) {
  const int device = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) fail("/dev/net/tun");
  ifreq tun{};
  std::strcpy(tun.ifr_name, name.c_str());
  tun.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (::ioctl(device, TUNSETIFF, &tun) != 0) fail("a TUN device");
  const int v4 = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  tun.ifr_qlen = 5000;
  // Refused in a user namespace: then the device keeps its 500 packets.
  ::ioctl(v4, SIOCSIFTXQLEN, &tun);
  tun.ifr_flags = IFF_UP | IFF_RUNNING;
  ask(v4, SIOCSIFFLAGS, &tun, "the TUN device");
  ::close(v4);
  return device;
}

// A namespace with one TUN device and its addresses, and this process in it.
inline Host make_host(int number) {
  Host host = make_network();
  host.devices = {make_tun("tun0")};
  const int v4 = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int v6 = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq tun{};
  std::strcpy(tun.ifr_name, "tun0");
  auto* address = reinterpret_cast<sockaddr_in*>(&tun.ifr_addr);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(0x0a4d0000u | static_cast<unsigned>(number));
  ask(v4, SIOCSIFADDR, &tun, "an address");
  address->sin_addr.s_addr = htonl(0xfffffffcu);
  ask(v4, SIOCSIFNETMASK, &tun, "a netmask");
  if (v6 >= 0) {
    struct {
      in6_addr address;
      std::uint32_t prefix;
      int index;
    } request{};
    const std::string text = "fd77::" + std::to_string(number);
    ::inet_pton(AF_INET6, text.c_str(), &request.address);
    request.prefix = 64;
    request.index = static_cast<int>(::if_nametoindex("tun0"));
    ask(v6, SIOCSIFADDR, &request, "an IPv6 address");
    ::close(v6);
  }
  ::close(v4);
  return host;
}

// A namespace with a TUN device for each uplink, and this process in it; addresses and routes are
// given by whoever started it (testbed/host/uplinks.py).
inline Host make_side(std::size_t links) {
  Host host = make_network();
  for (std::size_t i = 0; i < links; ++i)
    host.devices.push_back(make_tun("tun" + std::to_string(i)));
  return host;
}

// Without privileges: root of a user namespace of our own, which is enough for the rest.
inline void become_root_here() {
  if (::geteuid() == 0) return;
  const std::string uid = std::to_string(::geteuid()), gid = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER) != 0) fail("a user namespace");
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", "0 " + uid + " 1");
  write_file("/proc/self/gid_map", "0 " + gid + " 1");
}

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_ROUTER_HOSTS_H_
