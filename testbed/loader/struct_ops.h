// SPDX-License-Identifier: Apache-2.0
//
// Congestion controls of BPF (struct_ops), registered through a link of the kernel's whose only
// holder is the process: whatever ends it, SIGKILL too, takes the congestion control away.
// Connections that still have it keep it alive.
#ifndef SWIFTQUEUE_TESTBED_LOADER_STRUCT_OPS_H_
#define SWIFTQUEUE_TESTBED_LOADER_STRUCT_OPS_H_

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "testbed/fail.h"

namespace swiftqueue::testbed {

/** The process ends with whoever started it, so that nothing stays of a run that was killed. */
inline void end_with_parent() {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before
}

/** What closes with its owner. */
struct Descriptor {
  int fd{-1};
  Descriptor() = default;
  explicit Descriptor(int held) : fd(held) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/** An object file, opened; then in the kernel, once it is loaded. */
class Object {
 public:
  explicit Object(const std::string& path)
      : path_(path), object_(bpf_object__open_file(path.c_str(), nullptr)) {
    if (object_ == nullptr) fail(path);
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() { bpf_object__close(object_); }

  bpf_map* map(const char* name) const { return bpf_object__find_map_by_name(object_, name); }
  int fd(const char* name) const { return bpf_map__fd(map(name)); }
  int program(const char* name) const {
    return bpf_program__fd(bpf_object__find_program_by_name(object_, name));
  }

  /** Takes the congestion control `name` into the kernel, ready to be registered. */
  void load(const char* name) const {
    constexpr std::uint32_t kFlagLink = 1U << 13;  // BPF_F_LINK, Linux 6.4; Debian's are older
    bpf_map* const operations = map(name);
    if (operations == nullptr) throw std::runtime_error(path_ + ": has no " + name);
    bpf_map__set_map_flags(operations, bpf_map__map_flags(operations) | kFlagLink);
    if (const int error = bpf_object__load(object_)) {
      fail("the kernel does not take " + std::string(name) +
               " (root, and struct_ops with what it calls, are needed)",
           error);
    }
  }

  /** Registers it; it goes with the descriptor. */
  int link(const char* name) const {
    // Makes the map ready; registered it is by the link.
    if (bpf_map__attach_struct_ops(map(name)) == nullptr) fail(std::string(name) + ": struct_ops");
    constexpr std::uint32_t kAttachStructOps = 44;  // BPF_STRUCT_OPS, Linux 6.4
    bpf_attr attr{};
    attr.link_create.prog_fd = static_cast<std::uint32_t>(fd(name));  // map_fd in newer headers
    attr.link_create.attach_type = static_cast<bpf_attach_type>(kAttachStructOps);
    const int held = static_cast<int>(::syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr)));
    if (held < 0 && errno == EEXIST) {
      throw std::runtime_error(std::string(name) + ": somebody else has it, or its flows do");
    }
    if (held < 0) fail(std::string(name) + ": struct_ops link (Linux 6.4 or later)");
    return held;
  }

 private:
  const std::string path_;
  bpf_object* object_;
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_LOADER_STRUCT_OPS_H_
