// SPDX-License-Identifier: Apache-2.0
//
// Questions on the standard output, which are answered on the standard input. A question is a line
// {"event": "asked", "flow": F, "port": P, "dispersion": D}, an answer a line "F RATE", in bytes/s;
// what is no rate, as inf or nan, is told as 0. A question that finds no room, as its reader does
// not read, is left out and counted.
#ifndef SWIFTQUEUE_STUDIES_RATE_TESTBED_RATE_PIPE_H_
#define SWIFTQUEUE_STUDIES_RATE_TESTBED_RATE_PIPE_H_

#include <bpf/bpf.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

#include "forecaster.h"
#include "studies/rate/samples/dispersion.h"
#include "studies/rate/samples/feedback.h"
#include "testbed/fail.h"

namespace swiftqueue::testbed {

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
      // The flag is this call's alone: O_NONBLOCK would bind all who have the same pipe or
      // terminal.
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

class Pipe final : public Forecaster {
 public:
  /**
   * `samples`: of a flow, that a question has. `log`: is whole when a question is put, so that who
   * answers may read in it what the flows before had reached.
   */
  Pipe(std::uint32_t samples, std::FILE* log, Lines& lines)
      : samples_(samples), log_(log), lines_(lines) {}

  void sampled(const sq_rate_record& record) override {
    if (record.number >= samples_) return;
    Flow& flow = flows_[record.flow];
    flow.dispersion.acked(record.fields[rate::At::ts], record.fields[rate::At::bytes_acked]);
    if (++flow.samples < samples_) return;
    flow.asked_ns = sampled_ns(record);
    std::fflush(log_);
    if (lines_.put("{\"event\": \"asked\", \"flow\": " + std::to_string(record.flow) +
                   ", \"port\": " + std::to_string(record.port) +
                   ", \"dispersion\": " + std::to_string(flow.dispersion.get()) + "}\n")) {
      return;
    }
    ++unasked_;
    flows_.erase(record.flow);
  }

  void ended(std::uint64_t flow) override { flows_.erase(flow); }

  void wait(int ring, int forecasts) override {
    pollfd wanted[]{{ring, POLLIN, 0},
                    {open_ ? STDIN_FILENO : -1, POLLIN, 0},
                    {lines_.whole() ? -1 : STDOUT_FILENO, POLLOUT, 0}};
    ::ppoll(wanted, std::size(wanted), &kLook, nullptr);
    lines_.go_on();
    if (wanted[1].revents != 0) read(forecasts);
  }

  std::string said() const override { return ", \"unasked\": " + std::to_string(unasked_); }

 private:
  struct Flow {
    rate::Dispersion dispersion;
    std::uint32_t samples = 0;
    std::uint64_t asked_ns = 0;  // when the sample came that the question was put with; 0: none was
  };

  /** Answers; a line that is none is left out. */
  void read(int map) {
    char some[4096];
    const ssize_t n = ::read(STDIN_FILENO, some, sizeof(some));
    if (n <= 0) {
      open_ = n < 0 && (errno == EAGAIN || errno == EINTR);  // who answers has gone
      return;
    }
    text_.append(some, static_cast<std::size_t>(n));
    for (std::size_t at; (at = text_.find('\n')) != std::string::npos; text_.erase(0, at + 1)) {
      tell(map, text_.substr(0, at));
    }
    if (text_.size() > sizeof(some)) text_.clear();
  }

  void tell(int map, const std::string& line) {
    char* end = nullptr;
    const std::uint64_t flow = std::strtoull(line.c_str(), &end, 10);
    const auto found = flows_.find(flow);
    if (found == flows_.end() || found->second.asked_ns == 0 || *end != ' ') return;
    const sq_rate_forecast forecast{sq_rate_of(std::strtod(end, nullptr)),
                                    found->second.dispersion.get(), found->second.asked_ns};
    flows_.erase(found);
    if (bpf_map_update_elem(map, &flow, &forecast, BPF_ANY) != 0) fail("map");
  }

  const std::uint32_t samples_;
  std::FILE* const log_;
  Lines& lines_;
  std::map<std::uint64_t, Flow> flows_;  // flows that have no answer yet
  std::uint64_t unasked_{0};             // questions that found no room
  bool open_{true};
  std::string text_;
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_STUDIES_RATE_TESTBED_RATE_PIPE_H_
