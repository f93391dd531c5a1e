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
// its parent, with a summary.
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/if_tun.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dual_queue.h"
#include "rules.h"
#include "serving/agent/one_line.h"

namespace {

using swiftqueue::number;

namespace dual_pi2 = swiftqueue::dual_pi2;
using swiftqueue::testbed::Arrival;
using swiftqueue::testbed::Departure;
using swiftqueue::testbed::DualQueue;
using swiftqueue::testbed::Mover;
using swiftqueue::testbed::Rule;

constexpr std::int64_t kStallNs = 1'000'000;  // from this on the host has kept us from running
constexpr std::int64_t kLongestSleepNs = 1'000'000;  // so that a stall while asleep is seen too
constexpr std::uint64_t kCross = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostDelayed = 200'000;  // packets on their way back

volatile sig_atomic_t stopping = 0;

std::int64_t now_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

struct Options {
  double rate_mbps = 40;
  double delay_ms = 10;
  double jitter_ms = 0;
  double cross_mbps = 0;
  double seconds = 0;
  double spin_us = 0;
  int priority = 0;
  unsigned seed = 1;
  std::string log;
  std::uint16_t rule_port = 0;  // TCP packets to there are its; 0: none are
  Rule rule;
  dual_pi2::Parameters disc;
};

// One of the log's, little endian as the machine is; testbed's readers take it as it stands
// (laboratory/bed/router_log.py).
struct Record {
  std::int64_t arrived_ns;  // read from the device; of a stall its beginning
  std::int64_t started_ns;  // on the link; of a drop: when it was decided
  std::int64_t due_ns;      // at the other device; -1 of a drop
  std::int64_t written_ns;  // there; of a stall its end
  std::int64_t packet;      // number in our own UDP packets, else -1
  std::uint32_t bytes;
  std::uint16_t source_port, destination_port;
  std::uint8_t kind;     // Kind
  std::uint8_t queue;    // dual_pi2::Queue; of packets from b: 255
  std::uint8_t verdict;  // dual_pi2::Verdict
  std::uint8_t ecn;      // as it arrived
  std::uint8_t protocol;
  std::uint8_t moved;    // 1: the rule took it to the classic queue; `ecn` is then ECT(0)
  std::uint8_t headers;  // bytes of IP and TCP; 0: no TCP
  std::uint8_t zero;
  std::uint32_t sequence, acknowledged;  // of TCP
};
static_assert(sizeof(Record) == 64);
enum Kind : std::uint8_t {
  kForward = 0,
  kBack = 1,
  kDropped = 2,
  kRefused = 3,
  kStall = 4,
  kCrossPacket = 5
};

// Writes records in a thread of its own, so that no packet waits for a disk.
class Log {
 public:
  explicit Log(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path, std::ios::binary);
    if (!file_) fail(path);
    thread_ = std::thread([this] { write(); });
  }
  ~Log() { end(); }
  // Throws std::runtime_error: not all of it could be written.
  void close() {
    end();
    if (!file_) throw std::runtime_error(path_ + ": could not be written");
  }
  void put(const Record& record) {
    if (!thread_.joinable()) return;
    filling_.push_back(record);
    if (filling_.size() >= 2048) hand_over();
  }

 private:
  void end() {
    if (!thread_.joinable()) return;
    hand_over();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void hand_over() {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), filling_.begin(), filling_.end());
    }
    filling_.clear();
    wake_.notify_one();
  }
  void write() {
    std::vector<Record> taken;
    for (bool last = false; !last;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
        taken.swap(waiting_);
        last = ended_;
      }
      file_.write(reinterpret_cast<const char*>(taken.data()),
                  static_cast<std::streamsize>(taken.size() * sizeof(Record)));
      taken.clear();
    }
    file_.flush();
  }

  const std::string path_;
  std::ofstream file_;
  std::vector<Record> filling_, waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

// --- the hosts ---

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  if (!(file << text << std::flush)) fail(path);
}

struct Host {
  int device = -1;
  int network = -1;  // its namespace
};

// A namespace with one TUN device, and this process in it.
Host make_host(int number) {
  Host host;
  if (::unshare(CLONE_NEWNET) != 0) fail("a network namespace");
  host.network = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  if (host.network < 0) fail("a network namespace");
  host.device = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (host.device < 0) fail("/dev/net/tun");
  ifreq tun{};
  std::strcpy(tun.ifr_name, "tun0");
  tun.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (::ioctl(host.device, TUNSETIFF, &tun) != 0) fail("a TUN device");
  // A kernel without IPv6 has a bed without it.
  const std::string dad = "/proc/sys/net/ipv6/conf/tun0/accept_dad";
  if (::access(dad.c_str(), F_OK) == 0) write_file(dad, "0");
  write_file("/proc/sys/net/ipv4/tcp_ecn", "1");
  // A flow must not begin where the one before to the same host ended.
  write_file("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
  write_file("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 33554432");
  write_file("/proc/sys/net/ipv4/tcp_wmem", "4096 131072 33554432");

  const int v4 = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int v6 = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto ask = [&](int fd, unsigned long what, void* request, const char* said) {
    if (::ioctl(fd, what, request) != 0) fail(said);
  };
  ifreq lo{};
  std::strcpy(lo.ifr_name, "lo");
  lo.ifr_flags = IFF_UP;
  ask(v4, SIOCSIFFLAGS, &lo, "lo");
  auto* address = reinterpret_cast<sockaddr_in*>(&tun.ifr_addr);
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(0x0a4d0000u | static_cast<unsigned>(number));
  ask(v4, SIOCSIFADDR, &tun, "an address");
  address->sin_addr.s_addr = htonl(0xfffffffcu);
  ask(v4, SIOCSIFNETMASK, &tun, "a netmask");
  tun.ifr_qlen = 5000;
  ::ioctl(v4, SIOCSIFTXQLEN,
          &tun);  // refused in a user namespace: then the device keeps its 500 packets
  tun.ifr_flags = IFF_UP | IFF_RUNNING;
  ask(v4, SIOCSIFFLAGS, &tun, "the TUN device");
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

// Without privileges: root of a user namespace of our own, which is enough for the rest.
void become_root_here() {
  if (::geteuid() == 0) return;
  const std::string uid = std::to_string(::geteuid()), gid = std::to_string(::getegid());
  if (::unshare(CLONE_NEWUSER) != 0) fail("a user namespace");
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", "0 " + uid + " 1");
  write_file("/proc/self/gid_map", "0 " + gid + " 1");
}

// --- packets ---

struct Packet {
  std::vector<unsigned char> bytes;
  Record record;
};

constexpr unsigned kEct0 = 2, kCe = 3;

bool is_v4(const Packet& p) { return p.bytes[0] >> 4 == 4; }
std::uint8_t ecn_of(const Packet& p) { return is_v4(p) ? p.bytes[1] & 3 : p.bytes[1] >> 4 & 3; }

void set_ecn(Packet& p, unsigned ecn) {
  if (!is_v4(p)) {
    p.bytes[1] = static_cast<unsigned char>((p.bytes[1] & ~0x30) | ecn << 4);
    return;
  }
  const auto word = [&](std::size_t at) {
    return static_cast<std::uint32_t>(p.bytes[at] << 8 | p.bytes[at + 1]);
  };
  const std::uint32_t before = word(0);
  p.bytes[1] = static_cast<unsigned char>((p.bytes[1] & ~3) | ecn);
  // RFC 1624, equation 3: ~(~HC + ~m + m')
  std::uint32_t sum = (~word(10) & 0xffff) + (~before & 0xffff) + word(0);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  p.bytes[10] = static_cast<unsigned char>(~sum >> 8);
  p.bytes[11] = static_cast<unsigned char>(~sum);
}

// What the log says of a packet; false if it is no IP packet.
bool describe(Packet& p, std::int64_t arrived_ns, Kind kind) {
  const std::size_t n = p.bytes.size();
  const unsigned version = n > 0 ? p.bytes[0] >> 4 : 0;
  if (!(version == 4 && n >= 20) && !(version == 6 && n >= 40)) return false;
  const std::size_t header = version == 4 ? (p.bytes[0] & 0xf) * 4u : 40;
  p.record = {};
  p.record.arrived_ns = arrived_ns;
  p.record.started_ns = p.record.due_ns = p.record.written_ns = p.record.packet = -1;
  p.record.bytes = static_cast<std::uint32_t>(n);
  p.record.kind = kind;
  p.record.queue = 255;
  p.record.ecn = ecn_of(p);
  p.record.protocol = version == 4 ? p.bytes[9] : p.bytes[6];
  if ((p.record.protocol == 6 || p.record.protocol == 17) && n >= header + 8) {
    const unsigned char* h = &p.bytes[header];
    p.record.source_port = static_cast<std::uint16_t>(h[0] << 8 | h[1]);
    p.record.destination_port = static_cast<std::uint16_t>(h[2] << 8 | h[3]);
    constexpr std::array<unsigned char, 4> kOurs{'S', 'Q', 'U', '1'};
    if (p.record.protocol == 17 && n >= header + 24 &&
        std::equal(kOurs.begin(), kOurs.end(), h + 8)) {
      std::memcpy(&p.record.packet, h + 16, sizeof p.record.packet);
    }
    if (p.record.protocol == 6 && n >= header + 20) {
      std::uint32_t word = 0;
      std::memcpy(&word, h + 4, sizeof word);
      p.record.sequence = ntohl(word);
      std::memcpy(&word, h + 8, sizeof word);
      p.record.acknowledged = ntohl(word);
      p.record.headers = static_cast<std::uint8_t>(header + (h[12] >> 4) * 4u);
    }
  }
  return true;
}

// Buffers that are used again, so that the loop allocates nothing in the long run.
class Pool {
 public:
  std::uint64_t take() {
    if (free_.empty()) {
      packets_.emplace_back();
      return packets_.size() - 1;
    }
    const std::uint64_t at = free_.back();
    free_.pop_back();
    return at;
  }
  void give_back(std::uint64_t at) { free_.push_back(at); }
  Packet& operator[](std::uint64_t at) { return packets_[at]; }

 private:
  std::deque<Packet> packets_;
  std::vector<std::uint64_t> free_;
};

class Router {
 public:
  Router(const Options& options, Host a, Host b)
      : options_(options),
        a_(a),
        b_(b),
        log_(options.log),
        begin_ns_(now_ns()),
        link_(options.disc, options.rate_mbps * 1e6, begin_ns_, options.seed),
        mover_(options.rule, options.rate_mbps * 1e6, options.seed + 2),
        random_(options.seed + 1),
        delay_ns_(static_cast<std::int64_t>(options.delay_ms * 1e6)),
        spin_ns_(static_cast<std::int64_t>(options.spin_us * 1e3)),
        next_cross_ns_(begin_ns_),
        lateness_us_(20'001) {
    if (options.cross_mbps <= 0) next_cross_ns_ = std::numeric_limits<std::int64_t>::max();
  }

  void run() {
    const std::int64_t end_ns = options_.seconds > 0
                                    ? begin_ns_ + static_cast<std::int64_t>(options_.seconds * 1e9)
                                    : std::numeric_limits<std::int64_t>::max();
    std::int64_t before_ns = now_ns();
    while (!stopping) {
      std::int64_t t = now_ns();
      stalled(before_ns, t);
      before_ns = t;
      if (t >= end_ns) return;
      deliver(t);
      read_a();
      read_b();
      advance(now_ns());
      deliver(now_ns());
      t = now_ns();
      const std::int64_t wake_ns = std::min(next_wake_ns(), t + kLongestSleepNs);
      stalled(before_ns, t);
      if (wake_ns - spin_ns_ <= t) {
        before_ns = t;  // the last moment is waited for awake: waking up takes tens of microseconds
      } else {
        std::array<pollfd, 2> wanted{{{a_.device, POLLIN, 0}, {b_.device, POLLIN, 0}}};
        const timespec left{0, static_cast<long>(wake_ns - spin_ns_ - t)};
        ::ppoll(wanted.data(), wanted.size(), &left, nullptr);
        before_ns = std::min(wake_ns - spin_ns_, now_ns());
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
    std::uint64_t all = 0;
    for (const std::uint64_t n : lateness_us_) all += n;
    const auto quantile = [&](double q) {
      std::uint64_t sum = 0;
      for (std::size_t us = 0; us < lateness_us_.size(); ++us) {
        sum += lateness_us_[us];
        if (static_cast<double>(sum) >= q * static_cast<double>(all)) return us;
      }
      return lateness_us_.size() - 1;
    };
    const auto u = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
    std::printf(
        "{\"event\": \"summary\", \"seconds\": %.3f, \"forwarded\": %llu, \"marked\": %llu, "
        "\"dropped\": %llu, \"refused\": "
        "%llu, \"l4s\": %llu, \"classic\": %llu, \"back\": %llu, \"not_written\": %llu, \"cross\": "
        "%llu, \"cross_lost\": %llu, "
        "\"late_p50_us\": %zu, \"late_p99_us\": %zu, \"late_p999_us\": %zu, \"stalls\": %llu, "
        "\"stalled_ms\": %.3f, "
        "\"cpu_s\": %.3f}\n",
        static_cast<double>(now_ns() - begin_ns_) / 1e9, u(forwarded_), u(marked_), u(dropped_),
        u(refused_), u(by_queue_[0]), u(by_queue_[1]), u(back_), u(not_written_), u(cross_),
        u(cross_lost_), quantile(0.5), quantile(0.99), quantile(0.999), u(stalls_),
        static_cast<double>(stalled_ns_) / 1e6, cpu_s);
  }

 private:
  struct Due {
    std::int64_t due_ns;
    std::uint64_t slot;
  };

  // The host kept us from running from `from_ns`, when we wanted to, until `to_ns`.
  void stalled(std::int64_t from_ns, std::int64_t to_ns) {
    if (to_ns - from_ns < kStallNs) return;
    ++stalls_;
    stalled_ns_ += to_ns - from_ns;
    Record record{};
    record.arrived_ns = from_ns;
    record.started_ns = record.due_ns = record.packet = -1;
    record.written_ns = to_ns;
    record.kind = kStall;
    record.queue = 255;
    log_.put(record);
  }

  std::int64_t next_wake_ns() const {
    std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
    if (!forward_.empty()) next_ns = forward_.front().due_ns;
    if (!backward_.empty()) next_ns = std::min(next_ns, backward_.front().due_ns);
    // Service is virtual: it need not be looked at before what it yields may be due.
    const std::int64_t serve_ns = link_.next_service_ns();
    if (serve_ns < std::numeric_limits<std::int64_t>::max())
      next_ns = std::min(next_ns, serve_ns + delay_ns_);
    return next_ns;
  }

  // Cross traffic: classic packets of 1,500 bytes, Poisson, which only the queue sees.
  void advance(std::int64_t until_ns) {
    const auto departed = [this](const Departure& d) { leave(d); };
    while (next_cross_ns_ <= until_ns) {
      link_.advance(next_cross_ns_, departed);
      ++cross_;
      cross_lost_ += link_.arrive({next_cross_ns_, 1500, 0, kCross}) != dual_pi2::Refusal::kNone;
      next_cross_ns_ +=
          1 + static_cast<std::int64_t>(exponential_(random_) * 1500 * 8e3 / options_.cross_mbps);
    }
    link_.advance(until_ns, departed);
  }

  void leave(const Departure& d) {
    const bool drop = dual_pi2::is_drop(d.verdict);
    if (d.packet.tag == kCross) {
      cross_lost_ += drop;
      Record record{};
      record.arrived_ns = d.packet.arrived_ns;
      record.started_ns = d.started_ns;
      record.due_ns = drop ? -1 : d.left_ns;
      record.written_ns = record.packet = -1;
      record.bytes = d.packet.bytes;
      record.kind = kCrossPacket;
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
      ++dropped_;
      packet.record.kind = kDropped;
      log_.put(packet.record);
      pool_.give_back(d.packet.tag);
      return;
    }
    if (dual_pi2::is_mark(d.verdict)) {
      ++marked_;
      set_ecn(packet, kCe);
    }
    ++by_queue_[d.queue];
    std::int64_t due_ns = d.left_ns + delay_ns_;
    if (options_.jitter_ms > 0)
      due_ns += static_cast<std::int64_t>(uniform_(random_) * options_.jitter_ms * 1e6);
    last_due_ns_ = due_ns = std::max(due_ns, last_due_ns_);  // jitter does not reorder
    packet.record.due_ns = due_ns;
    forward_.push_back({due_ns, d.packet.tag});
  }

  void read_a() {
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t slot = read_packet(a_.device, kForward);
      if (slot == kCross) return;
      Packet& packet = pool_[slot];
      const std::int64_t t = packet.record.arrived_ns;
      advance(t);
      if (packet.record.destination_port == options_.rule_port && packet.record.protocol == 6 &&
          dual_pi2::queue_of(packet.record.ecn) == dual_pi2::kL4s && mover_.moves(t, link_)) {
        packet.record.moved = 1;
        packet.record.ecn = kEct0;
        set_ecn(packet, kEct0);
      }
      mover_.arrived(t, dual_pi2::queue_of(packet.record.ecn), packet.record.bytes);
      if (link_.arrive({t, packet.record.bytes, packet.record.ecn, slot}) !=
          dual_pi2::Refusal::kNone) {
        ++refused_;
        packet.record.kind = kRefused;
        log_.put(packet.record);
        pool_.give_back(slot);
      }
    }
  }

  void read_b() {
    for (int i = 0; i < 64; ++i) {
      const std::uint64_t slot = read_packet(b_.device, kBack);
      if (slot == kCross) return;
      if (backward_.size() >= kMostDelayed) {
        ++refused_;
        pool_.give_back(slot);
        continue;
      }
      pool_[slot].record.due_ns = pool_[slot].record.arrived_ns + delay_ns_;
      backward_.push_back({pool_[slot].record.due_ns, slot});
    }
  }

  // kCross where there is none. Times never fall.
  std::uint64_t read_packet(int device, Kind kind) {
    for (;;) {
      const ssize_t n = ::read(device, read_.data(), read_.size());
      if (n <= 0) return kCross;
      const std::uint64_t slot = pool_.take();
      Packet& packet = pool_[slot];
      packet.bytes.assign(read_.begin(), read_.begin() + n);
      if (describe(packet, now_ns(), kind)) return slot;
      pool_.give_back(slot);
    }
  }

  void deliver(std::int64_t t) {
    const auto write = [&](std::deque<Due>& line, int device, std::uint64_t& counted) {
      while (!line.empty() && line.front().due_ns <= t) {
        Packet& packet = pool_[line.front().slot];
        const bool written = ::write(device, packet.bytes.data(), packet.bytes.size()) >= 0;
        t = now_ns();
        if (written) {
          packet.record.written_ns = t;
          const auto late_us = static_cast<std::size_t>((t - line.front().due_ns) / 1000);
          ++lateness_us_[std::min(late_us, lateness_us_.size() - 1)];
          ++counted;
        } else {  // its device is down: it came to nobody
          packet.record.kind = kDropped;
          packet.record.due_ns = -1;
          ++not_written_;
        }
        log_.put(packet.record);
        pool_.give_back(line.front().slot);
        line.pop_front();
      }
    };
    write(forward_, b_.device, forwarded_);
    write(backward_, a_.device, back_);
  }

  const Options options_;
  const Host a_, b_;
  Log log_;
  const std::int64_t begin_ns_;
  DualQueue link_;
  Mover mover_;
  std::mt19937_64 random_;
  std::uniform_real_distribution<double> uniform_{0, 1};
  std::exponential_distribution<double> exponential_{1};
  const std::int64_t delay_ns_;
  const std::int64_t spin_ns_;
  std::int64_t next_cross_ns_;
  std::int64_t last_due_ns_ = 0;
  Pool pool_;
  std::array<unsigned char, 1 << 16> read_;  // from here a packet is copied with its own length
  std::deque<Due> forward_, backward_;
  std::vector<std::uint64_t>
      lateness_us_;  // how many were written so many microseconds after they were due
  std::uint64_t forwarded_ = 0, marked_ = 0, dropped_ = 0, refused_ = 0, back_ = 0,
                not_written_ = 0, cross_ = 0;
  std::uint64_t cross_lost_ = 0, stalls_ = 0;
  std::array<std::uint64_t, 2> by_queue_{};
  std::int64_t stalled_ns_ = 0;
};

// --- the command line ---

// One of the queue's parameters, as `l_step_ms=20`.
void set(dual_pi2::Parameters& p, const std::string& given) {
  const std::size_t at = given.find('=');
  const std::string name = given.substr(0, at),
                    text = at == std::string::npos ? "" : given.substr(at + 1);
  const auto ms = [&](std::int64_t& ns) {
    ns = static_cast<std::int64_t>(number("--set " + name, text, 0, 1e6) * 1e6);
  };
  const auto one_of = [&](auto& value, auto first, const char* first_name, auto second,
                          const char* second_name) {
    if (text != first_name && text != second_name) {
      throw std::invalid_argument("--set " + name + "=" + text + ": must be " + first_name +
                                  " or " + second_name);
    }
    value = text == first_name ? first : second;
  };
  const auto plain = [&](auto& value, double least, double most) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(
        number("--set " + name, text, least, most));
  };
  using namespace dual_pi2;  // NOLINT(build/namespaces): its names, in this function
  if (name == "max_bytes")
    plain(p.max_bytes, 1500, 1e9);
  else if (name == "l_max_bytes")
    plain(p.l_max_bytes, 1500, 1e9);
  else if (name == "c_max_bytes")
    plain(p.c_max_bytes, 1500, 1e9);
  else if (name == "min_backlog_bytes")
    plain(p.min_backlog_bytes, 0, 1e9);
  else if (name == "target_ms")
    ms(p.target_ns);
  else if (name == "t_update_ms")
    p.t_update_ns = static_cast<std::int64_t>(number("--set " + name, text, 0.001, 1e6) * 1e6);
  else if (name == "alpha_hz")
    plain(p.alpha_hz, 0, 1e6);
  else if (name == "beta_hz")
    plain(p.beta_hz, 0, 1e6);
  else if (name == "coupling")
    plain(p.coupling, 0, 255);
  else if (name == "l_min_threshold_ms")
    ms(p.l_min_threshold_ns);
  else if (name == "l_range_ms")
    ms(p.l_range_ns);
  else if (name == "l_step_ms")
    ms(p.l_step_ns);
  else if (name == "l_min_packets")
    plain(p.l_min_packets, 0, 1e6);
  else if (name == "l_max_probability")
    plain(p.l_max_probability, 0, 1);
  else if (name == "c_weight")
    plain(p.c_weight, 0, 1);
  else if (name == "time_shift_ms")
    ms(p.time_shift_ns);
  else if (name == "l_aqm")
    one_of(p.l_aqm, LAqm::kRamp, "ramp", LAqm::kStep, "step");
  else if (name == "overload")
    one_of(p.overload, Overload::kDrop, "drop", Overload::kDelay, "delay");
  else if (name == "delay_input")
    one_of(p.delay_input, DelayInput::kGreater, "greater", DelayInput::kClassicOnly, "classic");
  else if (name == "draw")
    one_of(p.draw, Draw::kRecur, "recur", Draw::kRandom, "random");
  else if (name == "scheduler")
    one_of(p.scheduler, Scheduler::kWeightedRoundRobin, "weighted_round_robin",
           Scheduler::kTimeShiftedFifo, "time_shifted_fifo");
  else
    throw std::invalid_argument("--set " + name + ": the queue has no such parameter");
}

Options parse(int argc, char** argv) {
  Options options;
  bool limited = false;
  static const std::array<option, 14> known{{{"rate-mbps", 1, nullptr, 'r'},
                                             {"delay-ms", 1, nullptr, 'd'},
                                             {"jitter-ms", 1, nullptr, 'j'},
                                             {"cross-mbps", 1, nullptr, 'c'},
                                             {"seconds", 1, nullptr, 's'},
                                             {"priority", 1, nullptr, 'p'},
                                             {"spin-us", 1, nullptr, 'i'},
                                             {"seed", 1, nullptr, 'e'},
                                             {"log", 1, nullptr, 'l'},
                                             {"set", 1, nullptr, 'x'},
                                             {"rule-port", 1, nullptr, 'o'},
                                             {"move-share", 1, nullptr, 'm'},
                                             {"move-margin-us", 1, nullptr, 'u'},
                                             {nullptr, 0, nullptr, 0}}};
  opterr = 0;
  for (int c; (c = ::getopt_long(argc, argv, "", known.data(), nullptr)) != -1;) {
    const std::string given = optarg ? optarg : "";
    if (c == 'r')
      options.rate_mbps = number("--rate-mbps", given, 0.01, 10'000);
    else if (c == 'd')
      options.delay_ms = number("--delay-ms", given, 0, 10'000);
    else if (c == 'j')
      options.jitter_ms = number("--jitter-ms", given, 0, 10'000);
    else if (c == 'c')
      options.cross_mbps = number("--cross-mbps", given, 0, 10'000);
    else if (c == 's')
      options.seconds = number("--seconds", given, 0, 1e6);
    else if (c == 'i')
      options.spin_us = number("--spin-us", given, 0, 1000);
    else if (c == 'p')
      options.priority = static_cast<int>(number("--priority", given, 0, 99));
    else if (c == 'e')
      options.seed = static_cast<unsigned>(number("--seed", given, 0, 4e9));
    else if (c == 'o')
      options.rule_port = static_cast<std::uint16_t>(number("--rule-port", given, 1, 65'535));
    else if (c == 'm')
      options.rule = {Rule::Kind::kChance, number("--move-share", given, 0, 1), 0};
    else if (c == 'u')
      options.rule = {Rule::Kind::kShorter, 0, number("--move-margin-us", given, 0, 1e6)};
    else if (c == 'l')
      options.log = given;
    else if (c == 'x') {
      set(options.disc, given);
      limited = limited || given.rfind("max_bytes", 0) == 0;
    } else
      throw std::invalid_argument(std::string(argv[optind - 1]) +
                                  ": not an option, or without its value");
  }
  if (optind != argc) throw std::invalid_argument(std::string(argv[optind]) + ": not understood");
  // RFC 9332 A.1: 250 ms of the link's rate. bytes = Mbit/s · 10^6 bit/Mbit · s / (bit/byte)
  if (!limited)
    options.disc.max_bytes = std::max<std::uint64_t>(
        3000, static_cast<std::uint64_t>(options.rate_mbps * 1e6 * 0.25 / 8));
  return options;
}

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
  const Host a = make_host(1), b = make_host(2);
  ::prctl(PR_SET_TIMERSLACK, 1);
  Router router(options, a, b);
  std::string priority = "none was asked for";
  if (options.priority > 0) {
    const sched_param wanted{options.priority};
    const bool given = ::sched_setscheduler(0, SCHED_FIFO, &wanted) == 0;
    priority = given ? "given" : std::strerror(errno);
    if (given) ::mlockall(MCL_CURRENT | MCL_FUTURE);
  }
  std::printf("{\"event\": \"ready\", \"pid\": %d, \"a\": %d, \"b\": %d, \"priority\": \"%s\"}\n",
              ::getpid(), a.network, b.network, priority.c_str());
  std::fflush(stdout);
  router.run();
  router.summary();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return swiftqueue::one_line_errors([&] { return run(argc, argv); });
}
