// SPDX-License-Identifier: Apache-2.0
//
// Registers the congestion control `sq_rate` (bpf/rate.bpf.c) for as long as it runs, and writes
// what that tells at each ACK into a file: records of bpf/rate.h.
//
//   swiftqueue-rate check OBJECT | collect OBJECT FILE [SAMPLES]
//
// With SAMPLES it asks for a forecast when a flow has so many: a line {"event": "asked", "flow": F,
// "port": P, "since_ns": T, "samples": [[...], ...]} on its standard output. An answer on its input
// is a line "F RATE DISPERSION", in bytes/s; what is no rate, as inf or nan, is told as 0. A flow
// that gets none is plain BBR, and so is every flow once nobody answers any more. A question that
// finds no room, as its reader does not read, is left out and counted.
//
// Whatever ends it, SIGKILL too, takes the congestion control away (struct_ops.h).

#include "../bpf/rate.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "feature_store/rate/feedback.h"
#include "serving/agent/one_line.h"
#include "struct_ops.h"

namespace {

using swiftqueue::testbed::Descriptor;
using swiftqueue::testbed::fail;
using swiftqueue::testbed::Object;

constexpr const char* kName = "sq_rate";

volatile std::sig_atomic_t g_told = 0;

/** A jiffy, in us: what the coarse clock's steps are. */
std::uint32_t tick_us() {
  timespec step{};
  if (::clock_getres(CLOCK_MONOTONIC_COARSE, &step) != 0) fail("clock");
  return static_cast<std::uint32_t>(step.tv_nsec / 1000);
}

/** Lines on the standard output, whose reader is not waited for. */
class Lines {
 public:
  Lines() {
    struct stat what{};
    // A file is always ready, and some file systems refuse to write without waiting.
    if (::fstat(STDOUT_FILENO, &what) == 0 && S_ISREG(what.st_mode)) flags_ = 0;
  }

  bool whole() const { return rest_.empty(); }

  /** A line, of which the rest may follow later. False: there is no room, and none of it is said.
   */
  bool put(const std::string& line) {
    if (!go_on()) return false;
    rest_ = line;
    if (go_on() || rest_.size() < line.size()) return true;
    rest_.clear();
    return false;
  }

  /** The rest of a line that was begun. False: there is still some. */
  bool go_on() {
    while (!rest_.empty()) {
      const iovec left{rest_.data(), rest_.size()};
      // Of this call alone: O_NONBLOCK would be of all who have the same pipe or terminal.
      const ssize_t n = ::pwritev2(STDOUT_FILENO, &left, 1, -1, flags_);
      if (n >= 0) {
        rest_.erase(0, static_cast<std::size_t>(n));
      } else if (errno == EOPNOTSUPP && flags_ != 0) {
        flags_ = 0;  // a terminal
      } else if (errno == EAGAIN || errno == EINTR) {
        return false;
      } else {
        rest_.clear();  // its reader has gone
      }
    }
    return true;
  }

  /**
   * The last line, which is waited for while somebody reads.
   * Throws std::runtime_error: nobody did for so long.
   */
  void end(const std::string& line) {
    constexpr int kReadMs = 1000;
    rest_ += line;
    while (!go_on()) {
      pollfd room{STDOUT_FILENO, POLLOUT, 0};
      if (::poll(&room, 1, kReadMs) <= 0) throw std::runtime_error("nobody reads the summary");
    }
  }

 private:
  int flags_{RWF_NOWAIT};
  std::string rest_;
};

/** What comes out of the ring: into the file, and the first samples of a flow into a question. */
struct Taken {
  std::FILE* file{nullptr};
  std::uint32_t samples{0};  // of a flow, that a question has; 0: none is asked
  std::map<std::uint64_t, std::vector<sq_rate_record>> first;
  std::map<std::uint64_t, std::uint64_t> sampled_ns;  // of the sample that a question was made from
  std::uint64_t unasked{0};                           // questions that found no room
  Lines lines;

  void ask(const sq_rate_record& record) {
    if (samples == 0 || record.number >= samples) return;
    std::vector<sq_rate_record>& seen = first[record.flow];
    seen.push_back(record);
    if (seen.size() < samples) return;
    std::string line = "{\"event\": \"asked\", \"flow\": " + std::to_string(record.flow) +
                       ", \"port\": " + std::to_string(record.port) +
                       ", \"since_ns\": " + std::to_string(record.since_ns) + ", \"samples\": [";
    for (const sq_rate_record& one : seen) {
      line += &one == seen.data() ? "[" : ", [";
      for (int i = 0; i < SWIFTQUEUE_RATE_FIELDS; ++i) {
        line += (i > 0 ? ", " : "") + std::to_string(one.fields[i]);
      }
      line += "]";
    }
    first.erase(record.flow);
    if (lines.put(line + "]}\n")) {
      sampled_ns[record.flow] =
          record.since_ns + 1000 * static_cast<std::uint64_t>(record.fields[0]);
    } else {
      ++unasked;
    }
  }
};

int keep(void* taken, void* data, std::size_t bytes) {
  auto& into = *static_cast<Taken*>(taken);
  if (std::fwrite(data, 1, bytes, into.file) != bytes) return -EIO;
  if (bytes == sizeof(sq_rate_record)) into.ask(*static_cast<const sq_rate_record*>(data));
  return 0;
}

/** Answers from the standard input; a line that is none is left out. */
class Answers {
 public:
  bool open() const { return open_; }

  void read(int map, Taken& taken) {
    char some[4096];
    const ssize_t n = ::read(STDIN_FILENO, some, sizeof(some));
    if (n <= 0) {
      open_ = n < 0 && (errno == EAGAIN || errno == EINTR);  // who answers has gone
      return;
    }
    text_.append(some, static_cast<std::size_t>(n));
    for (std::size_t at; (at = text_.find('\n')) != std::string::npos; text_.erase(0, at + 1)) {
      tell(map, taken, text_.substr(0, at));
    }
    if (text_.size() > sizeof(some)) text_.clear();
  }

 private:
  static void tell(int map, Taken& taken, const std::string& line) {
    char* end = nullptr;
    const std::uint64_t flow = std::strtoull(line.c_str(), &end, 10);
    const auto asked = taken.sampled_ns.find(flow);
    if (asked == taken.sampled_ns.end() || *end != ' ') return;
    const double rate = std::strtod(end, &end), dispersion = std::strtod(end, &end);
    const sq_rate_forecast forecast{sq_rate_of(rate), sq_rate_of(dispersion), asked->second};
    taken.sampled_ns.erase(asked);
    if (bpf_map_update_elem(map, &flow, &forecast, BPF_ANY) != 0) fail("map");
  }

  bool open_{true};
  std::string text_;
};

/** Nanoseconds of all the sampler's runs at an ACK, BBR's own among them, and how many. */
std::pair<unsigned long long, unsigned long long> spent(const Object& loaded) {
  const int fd = loaded.program("sq_rate_main");
  bpf_prog_info info{};
  std::uint32_t size = sizeof(info);
  if (bpf_obj_get_info_by_fd(fd, &info, &size) != 0) fail("program");
  return {info.run_time_ns, info.run_cnt};
}

/** Takes the sampler into the kernel, ready to be registered. */
void load(const Object& loaded, const std::string& path, std::uint32_t asked_samples = 0) {
  bpf_map* const constants = loaded.map(".rodata");
  std::size_t bytes = 0;
  void* const values =
      constants ? const_cast<void*>(bpf_map__initial_value(constants, &bytes)) : nullptr;
  const std::uint32_t given[] = {tick_us(), asked_samples};  // in the program's order
  if (values == nullptr || bytes < sizeof(given))
    throw std::runtime_error(path + ": not the sampler");
  std::memcpy(values, given, sizeof(given));
  loaded.load(kName);
}

std::string list_of(const __u64* counts, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += (i > 0 ? ", " : "") + std::to_string(counts[i]);
  return "[" + out + "]";
}

int collect(const std::string& object, const std::string& output, std::uint32_t samples) {
  const Object loaded(object);
  load(loaded, object, samples);
  const Descriptor link{loaded.link(kName)};
  const Descriptor statistics{bpf_enable_stats(BPF_STATS_RUN_TIME)};
  Taken taken;
  taken.samples = samples;
  taken.file = std::fopen(output.c_str(), "wbx");
  if (taken.file == nullptr) fail(output);
  ring_buffer* const ring = ring_buffer__new(loaded.fd("sq_rate_ring"), keep, &taken, nullptr);
  if (ring == nullptr) fail("ring buffer");
  std::printf("{\"event\": \"ready\", \"control\": \"%s\"}\n", kName);
  std::fflush(stdout);
  constexpr timespec kLook{0, 20'000'000};
  Answers answers;
  const int forecasts = loaded.fd("sq_rate_forecasts");
  for (bool told = false; !told;) {
    if (samples == 0) {
      ::nanosleep(&kLook, nullptr);
    } else {
      pollfd wanted[]{{ring_buffer__epoll_fd(ring), POLLIN, 0},
                      {answers.open() ? STDIN_FILENO : -1, POLLIN, 0},
                      {taken.lines.whole() ? -1 : STDOUT_FILENO, POLLOUT, 0}};
      ::ppoll(wanted, std::size(wanted), &kLook, nullptr);
      taken.lines.go_on();
      if (wanted[1].revents != 0) answers.read(forecasts, taken);
    }
    told = g_told != 0;  // looked at before the ring, so that what came before the signal is kept
    if (const int some = ring_buffer__consume(ring); some < 0) fail(output, some);
  }
  ring_buffer__free(ring);
  if (std::fclose(taken.file) != 0) fail(output);
  sq_rate_counts counts{};
  const std::uint32_t zero = 0;
  if (bpf_map_lookup_elem(loaded.fd("sq_rate_counts"), &zero, &counts) != 0) fail("map");
  const auto [ns, runs] = spent(loaded);
  taken.lines.end(
      "{\"event\": \"summary\", \"flows\": " + std::to_string(counts.flows) +
      ", \"acks\": " + std::to_string(counts.acks) + ", \"lost\": " + std::to_string(counts.lost) +
      ", \"unasked\": " + std::to_string(taken.unasked) + ", \"run_ns\": " + std::to_string(ns) +
      ", \"runs\": " + std::to_string(runs) + ", \"bbr_ns\": " + std::to_string(counts.bbr_ns) +
      ", \"bbr_runs\": " + std::to_string(counts.bbr_runs) +
      ", \"judged\": " + list_of(counts.judged, std::size(counts.judged)) +
      ", \"ended\": " + list_of(counts.ended, std::size(counts.ended)) + "}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  struct sigaction told{};  // not std::signal: what waits is not begun anew
  told.sa_handler = [](int) { g_told = 1; };
  ::sigaction(SIGTERM, &told, nullptr);
  ::sigaction(SIGINT, &told, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // who answers has gone: flows go on as plain BBR
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  swiftqueue::testbed::end_with_parent();
  return swiftqueue::one_line_errors([&] {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "collect" && (argc == 4 || argc == 5)) {
      const double samples = argc == 5 ? swiftqueue::number("SAMPLES", argv[4], 1, 35) : 0;
      return collect(argv[2], argv[3], static_cast<std::uint32_t>(samples));
    }
    if (what != "check" || argc != 3) {
      throw std::invalid_argument("say: check OBJECT | collect OBJECT FILE [SAMPLES]");
    }
    const Object loaded(argv[2]);
    load(loaded, argv[2]);
    return 0;
  });
}
