// SPDX-License-Identifier: Apache-2.0
//
// Registers the congestion control `sq_rate` (bpf/rate.bpf.c) for as long as it runs, and writes
// what that tells at each ACK into a file: records of bpf/rate.h.
//
//   swiftqueue-rate check OBJECT | collect OBJECT FILE
//
// Registered through a link of the kernel's, whose only holder is this process: whatever ends it,
// SIGKILL too, takes the congestion control away. Connections that still have it keep it alive.

#include "../bpf/rate.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "serving/agent/one_line.h"

namespace {

constexpr const char* kName = "sq_rate";
// Of Linux 6.4; Debian's headers are older.
constexpr std::uint32_t kFlagLink = 1U << 13;   // BPF_F_LINK
constexpr std::uint32_t kAttachStructOps = 44;  // BPF_STRUCT_OPS

volatile std::sig_atomic_t g_told = 0;

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::runtime_error(what + ": " + std::strerror(error < 0 ? -error : error));
}

/** What closes with its owner. */
struct Descriptor {
  int fd{-1};
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

struct Object {
  explicit Object(const std::string& path) : object(bpf_object__open_file(path.c_str(), nullptr)) {
    if (object == nullptr) fail(path);
  }
  ~Object() { bpf_object__close(object); }
  bpf_map* map(const char* name) const { return bpf_object__find_map_by_name(object, name); }
  int fd(const char* name) const { return bpf_map__fd(map(name)); }

  bpf_object* object;
};

/** A jiffy, in us: what the coarse clock's steps are. */
std::uint32_t tick_us() {
  timespec step{};
  if (::clock_getres(CLOCK_MONOTONIC_COARSE, &step) != 0) fail("clock");
  return static_cast<std::uint32_t>(step.tv_nsec / 1000);
}

int link_of(int map) {
  bpf_attr attr{};
  attr.link_create.prog_fd = static_cast<std::uint32_t>(map);  // map_fd in newer headers
  attr.link_create.attach_type = static_cast<bpf_attach_type>(kAttachStructOps);
  return static_cast<int>(::syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr)));
}

int keep(void* file, void* data, std::size_t bytes) {
  return std::fwrite(data, 1, bytes, static_cast<std::FILE*>(file)) == bytes ? 0 : -EIO;
}

/** Nanoseconds of all the sampler's runs at an ACK, BBR's own among them, and how many. */
std::pair<unsigned long long, unsigned long long> spent(const Object& loaded) {
  const int fd = bpf_program__fd(bpf_object__find_program_by_name(loaded.object, "sq_rate_main"));
  bpf_prog_info info{};
  std::uint32_t size = sizeof(info);
  if (bpf_obj_get_info_by_fd(fd, &info, &size) != 0) fail("program");
  return {info.run_time_ns, info.run_cnt};
}

/** Takes the sampler into the kernel, ready to be registered. */
void load(const Object& loaded, const std::string& path) {
  bpf_map* const operations = loaded.map(kName);
  bpf_map* const constants = loaded.map(".rodata");
  std::size_t bytes = 0;
  void* const values =
      constants ? const_cast<void*>(bpf_map__initial_value(constants, &bytes)) : nullptr;
  const std::uint32_t tick = tick_us();
  if (operations == nullptr || values == nullptr || bytes < sizeof(tick)) {
    throw std::runtime_error(path + ": not the sampler");
  }
  std::memcpy(values, &tick, sizeof(tick));
  bpf_map__set_map_flags(operations, bpf_map__map_flags(operations) | kFlagLink);
  if (const int error = bpf_object__load(loaded.object)) {
    fail("the kernel does not take the sampler (root, and struct_ops with BBR, are needed)", error);
  }
}

int collect(const std::string& object, const std::string& output) {
  const Object loaded(object);
  load(loaded, object);
  bpf_map* const operations = loaded.map(kName);
  // Makes the map ready; registered it is by the link.
  bpf_link* const ready = bpf_map__attach_struct_ops(operations);
  if (ready == nullptr) fail(std::string(kName) + ": struct_ops");
  const Descriptor link{link_of(bpf_map__fd(operations))};
  if (link.fd < 0) {
    if (errno == EEXIST) {
      throw std::runtime_error(std::string(kName) + ": another collector runs, or its flows do");
    }
    fail(std::string(kName) + ": struct_ops link (Linux 6.4 or later)");
  }
  const Descriptor statistics{bpf_enable_stats(BPF_STATS_RUN_TIME)};
  std::FILE* const file = std::fopen(output.c_str(), "wbx");
  if (file == nullptr) fail(output);
  ring_buffer* const ring = ring_buffer__new(loaded.fd("sq_rate_ring"), keep, file, nullptr);
  if (ring == nullptr) fail("ring buffer");
  std::printf("{\"event\": \"ready\", \"control\": \"%s\"}\n", kName);
  std::fflush(stdout);
  constexpr timespec kLook{0, 20'000'000};
  do {
    ::nanosleep(&kLook, nullptr);
    if (const int taken = ring_buffer__consume(ring); taken < 0) fail(output, taken);
  } while (g_told == 0);
  ring_buffer__free(ring);
  if (std::fclose(file) != 0) fail(output);
  sq_rate_counts counts{};
  const std::uint32_t zero = 0;
  if (bpf_map_lookup_elem(loaded.fd("sq_rate_counts"), &zero, &counts) != 0) fail("map");
  const auto [ns, runs] = spent(loaded);
  std::printf(
      "{\"event\": \"summary\", \"flows\": %llu, \"acks\": %llu, \"lost\": %llu, "
      "\"run_ns\": %llu, \"runs\": %llu}\n",
      static_cast<unsigned long long>(counts.flows), static_cast<unsigned long long>(counts.acks),
      static_cast<unsigned long long>(counts.lost), ns, runs);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGTERM, [](int) { g_told = 1; });
  std::signal(SIGINT, [](int) { g_told = 1; });
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  return swiftqueue::one_line_errors([&] {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "collect" && argc == 4) return collect(argv[2], argv[3]);
    if (what != "check" || argc != 3) {
      throw std::invalid_argument("say: check OBJECT | collect OBJECT FILE");
    }
    const Object loaded(argv[2]);
    load(loaded, argv[2]);
    return 0;
  });
}
