// SPDX-License-Identifier: Apache-2.0
//
// Two network namespaces, a and b, and the router between them. What leaves a passes a link with a
// DualPI2 queue, in virtual time (dual_queue.h), cross traffic beside it, then a delay with jitter;
// what leaves b passes the same delay alone. Namespaces and devices have no names on this machine:
// they end with the processes that are in them, however those end.
//
//   swiftqueue-router --rate-mbps 40 --delay-ms 10 --log packets.bin
//
// `--rule-port` has TCP packets of ECT(1) to that port go to the classic queue by a rule: a share
// of them by chance, or those that will wait less there as both queues look when they come.
//
// Prints {"event": "ready", "pid": P, "a": F, "b": G}: `nsenter --net=/proc/P/fd/F` is host
// a, 10.77.0.1 and fd77::1; /proc/P/fd/G is host b, 10.77.0.2 and fd77::2. Ends at SIGTERM, or with
// its parent, with the processor's time that it took. What became of each packet stands in the log.
//
// After `--next-uplink` options are those of a second link. Then /proc/P/fd of "gateway" and of b
// have a device for each link, tun0 and tun1, and the kernel's routes there choose a packet's link;
// host a has none. Addresses and routes come from outside (testbed/host/uplinks.py).
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dual_queue.h"
#include "hosts.h"
#include "options.h"
#include "packets.h"
#include "records.h"
#include "rules.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/io/one_line.h"

namespace swiftqueue::testbed {
namespace {

using agent::monotonic_ns;

constexpr std::int64_t kStallNs = 1'000'000;  // from this on the host has kept us from running
constexpr std::int64_t kLongestSleepNs = 1'000'000;  // so that a stall while asleep is seen too
constexpr std::uint64_t kCross = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostDelayed = 200'000;  // packets on their way back

volatile sig_atomic_t stopping = 0;

// A link from one side to the other: a queue and a delay, and the same delay back.
class Link {
 public:
  Link(const Options& options, std::size_t number, int a, int b, std::int64_t begin_ns, Pool& pool,
       Log& log)
      : options_(options.links[number]),
        number_(static_cast<std::uint8_t>(number)),
        rule_port_(options.rule_port),
        a_(a),
        b_(b),
        queue_(queue_at(options, options_), options_.rate_mbps * 1e6, begin_ns,
               options.seed + 100 * number),
        mover_(options.rule, options_.rate_mbps * 1e6, options.seed + 100 * number + 2),
        random_(options.seed + 100 * number + 1),
        delay_ns_(static_cast<std::int64_t>(options_.delay_ms * 1e6)),
        next_cross_ns_(begin_ns),
        pool_(pool),
        log_(log) {
    if (options_.cross_mbps <= 0) next_cross_ns_ = std::numeric_limits<std::int64_t>::max();
  }

  int a() const { return a_; }
  int b() const { return b_; }

  std::int64_t next_wake_ns() const {
    std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
    if (!forward_.empty()) next_ns = forward_.front().due_ns;
    if (!backward_.empty()) next_ns = std::min(next_ns, backward_.front().due_ns);
    // Service is virtual: it need not be looked at before what it yields may be due.
    const std::int64_t serve_ns = queue_.next_service_ns();
    if (serve_ns < std::numeric_limits<std::int64_t>::max())
      next_ns = std::min(next_ns, serve_ns + delay_ns_);
    return next_ns;
  }

  // Cross traffic: classic packets of 1,500 bytes, Poisson, which only the queue sees; they come
  // one by one, or as many at once as a burst has.
  void advance(std::int64_t until_ns) {
    const auto departed = [this](const Departure& d) { leave(d); };
    while (next_cross_ns_ <= until_ns) {
      queue_.advance(next_cross_ns_, departed);
      for (int i = 0; i < options_.cross_burst; ++i)
        queue_.arrive({next_cross_ns_, 1500, 0, kCross});
      next_cross_ns_ += 1 + static_cast<std::int64_t>(exponential_(random_) * options_.cross_burst *
                                                      1500 * 8e3 / options_.cross_mbps);
    }
    queue_.advance(until_ns, departed);
  }

  void read_a() {
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t slot = read_packet(a_, kForward);
      if (slot == kCross) return;
      Packet& packet = pool_[slot];
      const std::int64_t t = packet.record.arrived_ns;
      advance(t);
      if (packet.record.destination_port == rule_port_ && packet.record.protocol == 6 &&
          dual_pi2::queue_of(packet.record.ecn) == dual_pi2::kL4s && mover_.moves(t, queue_)) {
        packet.record.moved = 1;
        packet.record.ecn = kEct0;
        set_ecn(packet, kEct0);
      }
      mover_.arrived(t, dual_pi2::queue_of(packet.record.ecn), packet.record.bytes);
      if (queue_.arrive({t, packet.record.bytes, packet.record.ecn, slot}) !=
          dual_pi2::Refusal::kNone) {
        packet.record.kind = kRefused;
        log_.put(packet.record);
        pool_.give_back(slot);
      }
    }
  }

  void read_b() {
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t slot = read_packet(b_, kBack);
      if (slot == kCross) return;
      if (backward_.size() >= kMostDelayed) {
        pool_.give_back(slot);
        continue;
      }
      pool_[slot].record.due_ns = pool_[slot].record.arrived_ns + delay_ns_;
      backward_.push_back({pool_[slot].record.due_ns, slot});
    }
  }

  void deliver(std::int64_t t) {
    const auto write = [&](std::deque<Due>& line, int device) {
      while (!line.empty() && line.front().due_ns <= t) {
        Packet& packet = pool_[line.front().slot];
        const bool written = ::write(device, packet.bytes.data(), packet.bytes.size()) >= 0;
        t = monotonic_ns();
        if (written) {
          packet.record.written_ns = t;
        } else {  // its device is down: it came to nobody
          packet.record.kind = kDropped;
          packet.record.due_ns = -1;
        }
        log_.put(packet.record);
        pool_.give_back(line.front().slot);
        line.pop_front();
      }
    };
    write(forward_, b_);
    write(backward_, a_);
  }

 private:
  struct Due {
    std::int64_t due_ns;
    std::uint64_t slot;
  };

  void leave(const Departure& d) {
    const bool drop = dual_pi2::is_drop(d.verdict);
    if (d.packet.tag == kCross) {
      Record record{};
      record.arrived_ns = d.packet.arrived_ns;
      record.started_ns = d.started_ns;
      record.due_ns = drop ? -1 : d.left_ns;
      record.written_ns = record.packet = -1;
      record.bytes = d.packet.bytes;
      record.kind = kCrossPacket;
      record.link = number_;
      record.queue = static_cast<std::uint8_t>(d.queue);
      record.verdict = static_cast<std::uint8_t>(d.verdict);
      log_.put(record);
      return;
    }
    Packet& packet = pool_[d.packet.tag];
    packet.record.started_ns = d.started_ns;
    packet.record.queue = static_cast<std::uint8_t>(d.queue);
    packet.record.verdict = static_cast<std::uint8_t>(d.verdict);
    if (drop) {
      packet.record.kind = kDropped;
      log_.put(packet.record);
      pool_.give_back(d.packet.tag);
      return;
    }
    if (dual_pi2::is_mark(d.verdict)) set_ecn(packet, kCe);
    std::int64_t due_ns = d.left_ns + delay_ns_;
    if (options_.jitter_ms > 0)
      due_ns += static_cast<std::int64_t>(uniform_(random_) * options_.jitter_ms * 1e6);
    last_due_ns_ = due_ns = std::max(due_ns, last_due_ns_);  // jitter does not reorder
    packet.record.due_ns = due_ns;
    forward_.push_back({due_ns, d.packet.tag});
  }

  // kCross where there is none. Times never fall.
  std::uint64_t read_packet(int device, Kind kind) {
    for (;;) {
      const ssize_t n = ::read(device, read_.data(), read_.size());
      if (n <= 0) return kCross;
      const std::uint64_t slot = pool_.take();
      Packet& packet = pool_[slot];
      packet.bytes.assign(read_.begin(), read_.begin() + n);
      if (describe(packet, monotonic_ns(), kind, number_)) return slot;
      pool_.give_back(slot);
    }
  }

  const LinkOptions options_;
  const std::uint8_t number_;
  const std::uint16_t rule_port_;
  const int a_, b_;
  DualQueue queue_;
  Mover mover_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  std::exponential_distribution<double> exponential_{1};
  const std::int64_t delay_ns_;
  std::int64_t next_cross_ns_;
  std::int64_t last_due_ns_ = 0;
  Pool& pool_;
  Log& log_;
  std::array<unsigned char, 1 << 16> read_;  // from here a packet is copied with its own length
  std::deque<Due> forward_, backward_;
};

class Router {
 public:
  Router(const Options& options, const Host& a, const Host& b)
      : options_(options),
        log_(options.log),
        begin_ns_(monotonic_ns()),
        spin_ns_(static_cast<std::int64_t>(options.spin_us * 1e3)) {
    for (std::size_t i = 0; i < options.links.size(); ++i) {
      links_.push_back(
          std::make_unique<Link>(options, i, a.devices[i], b.devices[i], begin_ns_, pool_, log_));
    }
  }

  void run() {
    const std::int64_t end_ns = options_.seconds > 0
                                    ? begin_ns_ + static_cast<std::int64_t>(options_.seconds * 1e9)
                                    : std::numeric_limits<std::int64_t>::max();
    std::vector<pollfd> wanted;
    for (const auto& link : links_) {
      wanted.push_back({link->a(), POLLIN, 0});
      wanted.push_back({link->b(), POLLIN, 0});
    }
    std::int64_t before_ns = monotonic_ns();
    while (!stopping) {
      std::int64_t t = monotonic_ns();
      stalled(before_ns, t);
      before_ns = t;
      if (t >= end_ns) return;
      for (const auto& link : links_) {
        link->deliver(monotonic_ns());
        link->read_a();
        link->read_b();
        link->advance(monotonic_ns());
        link->deliver(monotonic_ns());
      }
      t = monotonic_ns();
      std::int64_t wake_ns = t + kLongestSleepNs;
      for (const auto& link : links_) wake_ns = std::min(wake_ns, link->next_wake_ns());
      stalled(before_ns, t);
      if (wake_ns - spin_ns_ <= t) {
        before_ns = t;  // the last moment is waited for awake: waking up takes tens of microseconds
      } else {
        const timespec left{0, static_cast<long>(wake_ns - spin_ns_ - t)};
        ::ppoll(wanted.data(), wanted.size(), &left, nullptr);
        before_ns = std::min(wake_ns - spin_ns_, monotonic_ns());
      }
    }
  }

  // Throws std::runtime_error: the log is not whole.
  void summary() {
    log_.close();
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const double cpu_s = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    std::printf("{\"event\": \"summary\", \"cpu_s\": %.3f}\n", cpu_s);
  }

 private:
  // The host kept us from running from `from_ns`, when we wanted to, until `to_ns`.
  void stalled(std::int64_t from_ns, std::int64_t to_ns) {
    if (to_ns - from_ns < kStallNs) return;
    Record record{};
    record.arrived_ns = from_ns;
    record.started_ns = record.due_ns = record.packet = -1;
    record.written_ns = to_ns;
    record.kind = kStall;
    record.queue = 255;
    log_.put(record);
  }

  const Options options_;
  Log log_;
  const std::int64_t begin_ns_;
  const std::int64_t spin_ns_;
  Pool pool_;
  std::vector<std::unique_ptr<Link>> links_;
};

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const pid_t parent = ::getppid();
  struct sigaction action{};
  action.sa_handler = [](int) { stopping = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  become_root_here();
  // After the user namespace, whose making takes this back: the router ends with whoever started
  // it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_DUMPABLE, 1);  // so that its user may enter the hosts by /proc
  if (::getppid() != parent) return 1;
  const bool uplinks = options.links.size() > 1;
  const Host sender = uplinks ? make_network() : Host{};
  const Host a = uplinks ? make_side(options.links.size()) : make_host(1);
  const Host b = uplinks ? make_side(options.links.size()) : make_host(2);
  ::prctl(PR_SET_TIMERSLACK, 1);
  Router router(options, a, b);
  std::string priority = "none was asked for";
  if (options.priority > 0) {
    const sched_param wanted{options.priority};
    const bool given = ::sched_setscheduler(0, SCHED_FIFO, &wanted) == 0;
    priority = given ? "given" : std::strerror(errno);
    if (given) ::mlockall(MCL_CURRENT | MCL_FUTURE);
  }
  std::printf(
      "{\"event\": \"ready\", \"pid\": %d, \"a\": %d, \"b\": %d, \"gateway\": %d, \"priority\": "
      "\"%s\"}\n",
      ::getpid(), uplinks ? sender.network : a.network, b.network, a.network, priority.c_str());
  std::fflush(stdout);
  router.run();
  router.summary();
  return 0;
}

}  // namespace
}  // namespace swiftqueue::testbed

int main(int argc, char** argv) {
  return swiftqueue::one_line_errors([&] { return swiftqueue::testbed::run(argc, argv); });
}
