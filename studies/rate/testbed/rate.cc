// SPDX-License-Identifier: Apache-2.0
//
// Registers the congestion control `sq_rate` (rate.bpf.c) for as long as it runs, and takes
// what that tells at each ACK: records of rate.h.
//
//   swiftqueue-rate check OBJECT
//   swiftqueue-rate collect OBJECT FILE [SAMPLES]           # into a file, every ACK of every flow
//   swiftqueue-rate follow OBJECT AGENT SAMPLES [FOLDER]    # to the agent's socket, a flow's first
//
// With SAMPLES a forecast is asked for when a flow has so many: by `collect` through a pipe
// (rate_pipe.h), by `follow` of the agent (rate_agent.h). A flow that gets none is plain BBR, and
// so is every flow once nobody answers any more. With FOLDER `follow` keeps a flow's ACKs there, up
// to the last packet that is forecast (records.h).
//
// Whatever ends it, SIGKILL too, takes the congestion control away (struct_ops.h).

#include "rate.h"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "forecaster.h"
#include "rate_agent.h"
#include "rate_pipe.h"
#include "records.h"
#include "serving/agent/io/one_line.h"
#include "testbed/loader/struct_ops.h"

namespace {

using namespace swiftqueue::testbed;  // NOLINT(build/namespaces): this is its program

constexpr const char* kName = "sq_rate";

volatile std::sig_atomic_t g_told = 0;

/** A jiffy, in us: what the coarse clock's steps are. */
std::uint32_t tick_us() {
  timespec step{};
  if (::clock_getres(CLOCK_MONOTONIC_COARSE, &step) != 0) fail("clock");
  return static_cast<std::uint32_t>(step.tv_nsec / 1000);
}

/** What comes out of the ring: into the file or the folder, if there is one, and to who forecasts.
 */
struct Taken {
  std::FILE* file;
  Records* records;
  Forecaster& forecaster;
};

int take(void* taken, void* data, std::size_t bytes) {
  const auto& into = *static_cast<Taken*>(taken);
  if (bytes == sizeof(sq_rate_ended)) {
    into.forecaster.ended(static_cast<const sq_rate_ended*>(data)->flow);
    return 0;
  }
  if (into.file != nullptr && std::fwrite(data, 1, bytes, into.file) != bytes) return -EIO;
  if (bytes == sizeof(sq_rate_record)) {
    const auto& record = *static_cast<const sq_rate_record*>(data);
    into.forecaster.sampled(record);
    if (into.records != nullptr) into.records->add(record);
  }
  return 0;
}

/** Nanoseconds of all the sampler's runs at an ACK, BBR's own among them, and how many. */
std::pair<unsigned long long, unsigned long long> spent(const Object& loaded) {
  const int fd = loaded.program("sq_rate_main");
  bpf_prog_info info{};
  std::uint32_t size = sizeof(info);
  if (bpf_obj_get_info_by_fd(fd, &info, &size) != 0) fail("program");
  return {info.run_time_ns, info.run_cnt};
}

/** Of each flow: whose samples are told, and with which of them a forecast is asked for. */
struct Samples {
  std::uint32_t asked = 0;  // 0: none is asked for
  std::uint32_t told = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t packets = 0;  // until so many are delivered, more samples are told
};

/** Takes the sampler into the kernel, ready to be registered. */
void load(const Object& loaded, const std::string& path, Samples samples = {}) {
  bpf_map* const constants = loaded.map(".rodata");
  std::size_t bytes = 0;
  void* const values =
      constants ? const_cast<void*>(bpf_map__initial_value(constants, &bytes)) : nullptr;
  const std::uint32_t given[] = {tick_us(), samples.asked, samples.told,
                                 samples.packets};  // in the program's order
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

/** `about`: of the line that says that it is ready. */
void run(const std::string& object, Samples samples, Taken taken, Lines& lines,
         const std::string& about = {}) {
  const Object loaded(object);
  load(loaded, object, samples);
  const Descriptor link{loaded.link(kName)};
  const Descriptor statistics{bpf_enable_stats(BPF_STATS_RUN_TIME)};
  ring_buffer* const ring = ring_buffer__new(loaded.fd("sq_rate_ring"), take, &taken, nullptr);
  if (ring == nullptr) fail("ring buffer");
  std::printf("{\"event\": \"ready\", \"control\": \"%s\"%s}\n", kName, about.c_str());
  std::fflush(stdout);
  for (bool told = false; !told;) {
    taken.forecaster.wait(ring_buffer__epoll_fd(ring), loaded.fd("sq_rate_forecasts"));
    told = g_told != 0;  // looked at before the ring, so that what came before the signal is kept
    if (const int some = ring_buffer__consume(ring); some < 0) fail("records", some);
  }
  ring_buffer__free(ring);
  sq_rate_counts counts{};
  const std::uint32_t zero = 0;
  if (bpf_map_lookup_elem(loaded.fd("sq_rate_counts"), &zero, &counts) != 0) fail("map");
  const auto [ns, runs] = spent(loaded);
  lines.end("{\"event\": \"summary\", \"flows\": " + std::to_string(counts.flows) + ", \"acks\": " +
            std::to_string(counts.acks) + ", \"lost\": " + std::to_string(counts.lost) +
            ", \"run_ns\": " + std::to_string(ns) + ", \"runs\": " + std::to_string(runs) +
            ", \"bbr_ns\": " + std::to_string(counts.bbr_ns) +
            ", \"bbr_runs\": " + std::to_string(counts.bbr_runs) +
            ", \"judged\": " + list_of(counts.judged, std::size(counts.judged)) + ", \"ended\": " +
            list_of(counts.ended, std::size(counts.ended)) + taken.forecaster.said() + "}\n");
}

int collect(const std::string& object, const std::string& output, std::uint32_t samples) {
  std::FILE* const file = std::fopen(output.c_str(), "wbx");
  if (file == nullptr) fail(output);
  Lines lines;
  Forecaster nobody;
  Pipe pipe(samples, file, lines);
  run(object, {.asked = samples}, {file, nullptr, samples > 0 ? pipe : nobody}, lines);
  if (std::fclose(file) != 0) fail(output);
  return 0;
}

int follow(const std::string& object, const std::string& agent, std::uint32_t samples,
           const char* folder) {
  Lines lines;
  std::optional<Records> kept;
  if (folder != nullptr) kept.emplace(folder);
  AgentForecaster forecaster(agent, samples);
  forecaster.greet();
  const std::uint32_t packets = kept ? swiftqueue::rate::kHorizons.back() : 0;
  run(object, {samples, samples, packets}, {nullptr, kept ? &*kept : nullptr, forecaster}, lines,
      std::string(", \"agent\": ") + (forecaster.connected() ? "true" : "false"));
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
  end_with_parent();
  return swiftqueue::one_line_errors([&] {
    const std::string what = argc > 1 ? argv[1] : "";
    const bool collects = what == "collect" && (argc == 4 || argc == 5);
    const bool follows = what == "follow" && (argc == 5 || argc == 6);
    if (collects || follows) {
      const auto samples =
          static_cast<std::uint32_t>(argc > 4 ? swiftqueue::number("SAMPLES", argv[4], 1, 35) : 0);
      return follows ? follow(argv[2], argv[3], samples, argv[5])
                     : collect(argv[2], argv[3], samples);
    }
    if (what != "check" || argc != 3) {
      throw std::invalid_argument(
          "say: check OBJECT | collect OBJECT FILE [SAMPLES] | follow OBJECT AGENT SAMPLES "
          "[FOLDER]");
    }
    const Object loaded(argv[2]);
    load(loaded, argv[2]);
    return 0;
  });
}
