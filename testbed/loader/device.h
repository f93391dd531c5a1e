// SPDX-License-Identifier: Apache-2.0
//
// A device and the marker on it: found through the device alone, there is no file to keep. A
// failure is a std::runtime_error with one line.
#ifndef SWIFTQUEUE_TESTBED_LOADER_DEVICE_H_
#define SWIFTQUEUE_TESTBED_LOADER_DEVICE_H_

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../bpf/mark.h"
#include "testbed/fail.h"

namespace swiftqueue::testbed {

constexpr unsigned kHandle = 0x5153;  // ours, so that nobody else's filter is taken off
constexpr unsigned kPriority = 0x5153;

inline std::uint64_t now_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(t.tv_nsec);
}

inline unsigned index_of(const std::string& device) {
  // Linux lets a name have them; a shell and JSON take them for their own.
  if (device.find_first_of("'\"\\") != std::string::npos)
    throw std::runtime_error("device " + device + ": a quote or backslash in its name");
  const unsigned index = ::if_nametoindex(device.c_str());
  if (index == 0) fail("device " + device);
  return index;
}

struct Netlink {
  Netlink() : fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {
    if (fd < 0) fail("netlink");
  }
  ~Netlink() { ::close(fd); }

  struct Request {
    nlmsghdr header{};
    ifinfomsg link{};
    rtattr attribute{};
    std::uint32_t value = 0;
  };

  // An attribute of an answer whose own message is so large; null: it has none of this type.
  static const rtattr* attribute_of(const std::vector<char>& answer, std::size_t bytes,
                                    unsigned short type) {
    const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
    int left = static_cast<int>(header->nlmsg_len - NLMSG_SPACE(bytes));
    const char* const first = answer.data() + NLMSG_SPACE(bytes);
    for (const auto* a = reinterpret_cast<const rtattr*>(first); RTA_OK(a, left);
         a = RTA_NEXT(a, left)) {
      if (a->rta_type == type) return a;
    }
    return nullptr;
  }

  // The answer of one request, whole.
  std::vector<char> ask(const nlmsghdr& request) {
    std::vector<char> answer(1 << 15);
    if (::send(fd, &request, request.nlmsg_len, 0) < 0) fail("netlink");
    const ssize_t n = ::recv(fd, answer.data(), answer.size(), 0);
    if (n < static_cast<ssize_t>(sizeof(nlmsghdr))) fail("netlink");
    answer.resize(static_cast<std::size_t>(n));
    const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
    if (header->nlmsg_type == NLMSG_ERROR) {
      const int error = reinterpret_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
      if (error != 0) fail("netlink", error);
    }
    return answer;
  }

  const int fd;
};

inline std::uint32_t gso_max_segs(unsigned index) {
  Netlink::Request request;
  request.header = {NLMSG_LENGTH(sizeof(ifinfomsg)), RTM_GETLINK, NLM_F_REQUEST, 1, 0};
  request.link.ifi_index = static_cast<int>(index);
  const std::vector<char> answer = Netlink().ask(request.header);
  const rtattr* found = Netlink::attribute_of(answer, sizeof(ifinfomsg), IFLA_GSO_MAX_SEGS);
  if (found == nullptr) throw std::runtime_error("the kernel does not say gso_max_segs");
  std::uint32_t value;
  std::memcpy(&value, RTA_DATA(found), sizeof value);
  return value;
}

// Of a device that has one: `clsact`, or `ingress`, which takes filters at ingress alone.
inline std::string qdisc_of_filters(unsigned index) {
  struct {
    nlmsghdr header{NLMSG_LENGTH(sizeof(tcmsg)), RTM_GETQDISC, NLM_F_REQUEST, 1, 0};
    tcmsg qdisc{};
  } request;
  request.header.nlmsg_flags |= NLM_F_ECHO;  // else older kernels tell the listeners alone
  request.qdisc.tcm_ifindex = static_cast<int>(index);
  request.qdisc.tcm_parent = TC_H_CLSACT;
  const std::vector<char> answer = Netlink().ask(request.header);
  const rtattr* found = Netlink::attribute_of(answer, sizeof(tcmsg), TCA_KIND);
  if (found == nullptr) throw std::runtime_error("the kernel does not say a qdisc's kind");
  return static_cast<const char*>(RTA_DATA(found));
}

inline void set_gso_max_segs(unsigned index, std::uint32_t value) {
  Netlink::Request request;
  request.header = {sizeof request, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0};
  request.link.ifi_index = static_cast<int>(index);
  request.attribute = {RTA_LENGTH(sizeof value), IFLA_GSO_MAX_SEGS};
  request.value = value;
  Netlink().ask(request.header);
}

// Bytes before the IP header in what leaves this device.
inline std::uint32_t link_header_bytes(const std::string& device) {
  int type = -1;
  std::ifstream("/sys/class/net/" + device + "/type") >> type;
  if (type < 0) {  // another namespace's /sys: the device itself is asked
    ifreq request{};
    std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (::ioctl(fd, SIOCGIFHWADDR, &request) != 0) fail("device " + device);
    ::close(fd);
    type = request.ifr_hwaddr.sa_family;
  }
  if (type == 1 || type == 772) return 14;  // Ethernet, loopback
  if (type == 65534) return 0;              // a TUN: nothing before IP
  throw std::runtime_error("device " + device + " is of type " + std::to_string(type) +
                           ": only Ethernet, loopback and TUN devices can be marked on");
}

inline bpf_tc_hook hook_of(unsigned index, bpf_tc_attach_point where = BPF_TC_EGRESS) {
  bpf_tc_hook hook{};
  hook.sz = sizeof hook;
  hook.ifindex = static_cast<int>(index);
  hook.attach_point = where;
  return hook;
}

inline bpf_tc_opts ours() {
  bpf_tc_opts options{};
  options.sz = sizeof options;
  options.handle = kHandle;
  options.priority = kPriority;
  return options;
}

// The attached program's id, 0 where ours is not attached.
inline std::uint32_t attached(unsigned index) {
  bpf_tc_hook hook = hook_of(index);
  bpf_tc_opts options = ours();
  const int error = bpf_tc_query(&hook, &options);
  if (error == -ENOENT || error == -EINVAL) return 0;
  if (error != 0) fail("tc", error);
  return options.prog_id;
}

// Throws std::runtime_error: it has none of this name whose values are so large.
inline int map_of(std::uint32_t program, const std::string& name, std::size_t value_bytes) {
  const int fd = bpf_prog_get_fd_by_id(program);
  if (fd < 0) fail("program " + std::to_string(program));
  std::array<std::uint32_t, 16> ids{};
  bpf_prog_info info{};
  info.nr_map_ids = ids.size();
  info.map_ids = reinterpret_cast<std::uintptr_t>(ids.data());
  std::uint32_t bytes = sizeof info;
  const int error = bpf_obj_get_info_by_fd(fd, &info, &bytes);
  ::close(fd);
  if (error != 0) fail("program " + std::to_string(program), error);
  for (std::uint32_t i = 0; i < info.nr_map_ids; ++i) {
    const int map = bpf_map_get_fd_by_id(ids[i]);
    bpf_map_info what{};
    bytes = sizeof what;
    if (map >= 0 && bpf_obj_get_info_by_fd(map, &what, &bytes) == 0 && name == what.name &&
        what.value_size == value_bytes) {
      return map;
    }
    if (map >= 0) ::close(map);
  }
  throw std::runtime_error(
      "the attached program has no such map " + name +
      ": it is another version's; `for at in egress ingress; do tc filter del dev "
      "DEVICE $at prio " +
      std::to_string(kPriority) + "; done; ip link set DEVICE gso_max_segs 65535` takes it off");
}

inline std::uint32_t required(const std::string& device, unsigned index) {
  const std::uint32_t program = attached(index);
  if (program == 0) throw std::runtime_error("device " + device + ": no marker is attached");
  return program;
}

inline std::uint64_t number(const std::string& name, const std::string& text, std::uint64_t most) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text[0] == '-' || *end != '\0' || errno != 0 || value > most) {
    throw std::invalid_argument(name + " " + text + ": must be a number from 0 to " +
                                std::to_string(most));
  }
  return value;
}

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_LOADER_DEVICE_H_
