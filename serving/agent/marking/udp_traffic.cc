// SPDX-License-Identifier: Apache-2.0
//
// `swiftqueue udp send` and `swiftqueue udp echo`: a paced sender whose packets the agent marks
// (marked_udp.h), and the receiver that acknowledges each. Prints a JSON object per line; bad
// arguments are one line and exit code 2.
#include <getopt.h>
#include <signal.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "serving/agent/io/one_line.h"
#include "serving/agent/marking/marked_udp.h"

namespace {

using swiftqueue::number;

using namespace swiftqueue::agent;  // NOLINT(build/namespaces): its own program

volatile sig_atomic_t stopping = 0;

constexpr std::int64_t kLastAcksNs = 500'000'000;

void stop_at_signals() {
  struct sigaction action{};
  action.sa_handler = [](int) { stopping = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

struct Options {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string agent;
  std::string name = "udp";
  std::string log;
  double rate_mbps = 5;
  double seconds = 10;
  int bytes = 1200;  // QUIC's least datagram
  int flows = 1;
  int frame_packets = 1;  // packets that go at once
  DscpPair dscp;
  double ahead_ms = 5;
  bool poisson = false;
  bool classic = false;
  unsigned seed = 1;
};

constexpr std::int64_t kUndecidedNs = 60'000'000'000;  // then a packet's ACK does not come any more
constexpr std::size_t kMostLatencies = 1 << 20;

// A packet as sent and as it arrived.
struct Record {
  std::int64_t sent_ns;
  std::int64_t acked_ns = -1;
  std::int16_t flow;
  std::uint8_t codepoint;
  std::uint8_t decided;
  std::int16_t arrived = -1;
  bool delivered;
};

// A bounded sample: all of the first values, then a uniform choice (Vitter's algorithm R).
class Sample {
 public:
  explicit Sample(unsigned seed) : random_(seed) {}

  void add(double value) {
    ++count_;
    if (values_.size() < kMostLatencies) {
      values_.push_back(value);
    } else if (const std::uint64_t at = random_() % count_; at < kMostLatencies) {
      values_[at] = value;
    }
  }
  std::uint64_t count() const { return count_; }
  // Returns a quantile as JSON; null without values.
  std::string quantile(double q) {
    if (values_.empty()) return "null";
    const auto at = static_cast<std::size_t>(q * static_cast<double>(values_.size() - 1) + 0.5);
    std::nth_element(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(at),
                     values_.end());
    char text[40];
    std::snprintf(text, sizeof text, "%.1f", values_[at]);
    return text;
  }

 private:
  std::mt19937_64 random_;
  std::uint64_t count_ = 0;
  std::vector<double> values_;
};

// The records of all packets. It holds those whose ACK may come, and a bounded sample of latencies,
// so that a program may send for days; the log has the rest. A frame's latency is the time from its
// first packet to the ACK that completes it.
class Outcomes {
 public:
  // Throws std::runtime_error: the log cannot be opened.
  Outcomes(const std::string& path, unsigned seed, int frame_packets)
      : latency_us(seed), frame_us(seed), path_(path), frame_packets_(frame_packets) {
    if (path.empty()) return;
    log_.open(path);
    if (!log_) throw std::runtime_error(path + ": " + std::strerror(errno));
    log_ << "packet,flow,sent_ns,codepoint,decided,acked_ns,arrived\n";
  }

  void sent(const Record& record) {
    waiting_.push_back(record);
    frames_.try_emplace(packets / frame_packets_, Frame{record.sent_ns, frame_packets_});
    ++packets;
    ++by_codepoint[record.codepoint];
    decided += record.decided;
    failed += !record.delivered;
    in_flight += record.delivered;
    settle(record.sent_ns - kUndecidedNs);
  }

  void acked(const MarkedUdp::Ack& ack) {
    if (ack.packet < first_) return;
    Record& record = waiting_[static_cast<std::size_t>(ack.packet - first_)];
    record.acked_ns = ack.acked_ns;
    record.arrived = ack.codepoint;
    ++all_acked;
    --in_flight;
    ce += record.arrived == kCe;
    changed += record.arrived != record.codepoint && record.arrived != kCe;
    latency_us.add(static_cast<double>(record.acked_ns - record.sent_ns) / 1e3);
    const auto frame = frames_.find(ack.packet / frame_packets_);
    if (frame != frames_.end() && --frame->second.missing == 0) {
      frame_us.add(static_cast<double>(record.acked_ns - frame->second.sent_ns) / 1e3);
      frames_.erase(frame);
    }
  }

  // Throws std::runtime_error: the log is not whole.
  void end() {
    settle(std::numeric_limits<std::int64_t>::max());
    if (log_.is_open() && !log_.flush()) throw std::runtime_error(path_ + ": could not be written");
  }

  std::int64_t packets = 0, decided = 0, failed = 0, all_acked = 0, ce = 0, changed = 0;
  std::int64_t in_flight = 0;
  std::array<std::int64_t, 4> by_codepoint{};
  Sample latency_us, frame_us;

 private:
  struct Frame {
    std::int64_t sent_ns;
    int missing;  // packets not acknowledged
  };

  // Logs and drops records that are acknowledged, or sent before `before_ns`; in order.
  void settle(std::int64_t before_ns) {
    while (!frames_.empty() && frames_.begin()->second.sent_ns < before_ns)
      frames_.erase(frames_.begin());
    for (; !waiting_.empty(); waiting_.pop_front(), ++first_) {
      const Record& r = waiting_.front();
      if (r.acked_ns < 0 && r.delivered && r.sent_ns >= before_ns) return;
      if (r.acked_ns < 0 && r.delivered) --in_flight;
      if (!log_.is_open()) continue;
      log_ << first_ << ',' << r.flow << ',' << r.sent_ns << ',' << int{r.codepoint} << ','
           << int{r.decided} << ',' << r.acked_ns << ',' << r.arrived << '\n';
    }
  }

  const std::string path_;
  std::ofstream log_;
  const int frame_packets_;
  std::map<std::int64_t, Frame> frames_;  // frames that are not complete, by number
  std::deque<Record> waiting_;
  std::int64_t first_ = 0;  // number of the first record
};

int send(const Options& options) {
  MarkedUdp udp(options.agent, options.name, options.dscp);
  for (int i = 0; i < options.flows; ++i)
    udp.add_flow(options.host, options.port, !options.classic);
  Outcomes outcomes(options.log, options.seed, options.frame_packets);
  // ns = bytes · bit/byte / (bit/us) · ns/us, from a frame to the next
  const double gap_ns =
      options.frame_packets * udp.ip_bytes(0, options.bytes) * 8e3 / options.rate_mbps;
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> exponential(1);
  std::deque<double> due_ns;   // due times of packets to be sent
  std::int64_t first_due = 0;  // number of the first due packet
  const std::string payload(static_cast<std::size_t>(options.bytes), 'q');
  // The agent is greeted before the first packet, within half a second; else packets are plain.
  for (const std::int64_t until = monotonic_ns() + 500'000'000;
       !options.agent.empty() && !udp.link().connected() && monotonic_ns() < until && !stopping;) {
    udp.poll([](const MarkedUdp::Ack&) {});
    udp.wait(std::min(until, monotonic_ns() + 5'000'000));
  }
  const auto ahead_ns = static_cast<std::int64_t>(options.ahead_ms * 1e6);
  const std::int64_t begin_ns = monotonic_ns() + ahead_ns;
  const std::int64_t end_ns = begin_ns + static_cast<std::int64_t>(options.seconds * 1e9);
  double last_due_ns = static_cast<double>(begin_ns);
  std::string said;
  const auto due = [&](std::int64_t packet) {
    for (; first_due < udp.next_packet(); ++first_due) due_ns.pop_front();
    while (first_due + static_cast<std::int64_t>(due_ns.size()) <= packet) {
      due_ns.insert(due_ns.end(), static_cast<std::size_t>(options.frame_packets), last_due_ns);
      last_due_ns += options.poisson ? gap_ns * exponential(random) : gap_ns;
    }
    return static_cast<std::int64_t>(due_ns[static_cast<std::size_t>(packet - first_due)]);
  };
  const auto on_ack = [&](const MarkedUdp::Ack& ack) { outcomes.acked(ack); };
  const auto flow_of = [&](std::int64_t packet) {
    return static_cast<int>(packet % options.flows);
  };
  while (!stopping) {
    const std::int64_t now_ns = monotonic_ns();
    if (due(udp.next_packet()) >= end_ns) break;
    while (due(udp.next_planned()) - ahead_ns <= now_ns && due(udp.next_planned()) < end_ns) {
      std::array<MarkedUdp::PlannedPacket, swiftqueue::kHorizon> batch{};
      for (std::size_t i = 0; i < batch.size(); ++i) {
        batch[i] = {flow_of(udp.next_planned() + static_cast<std::int64_t>(i)), options.bytes};
      }
      udp.plan(batch, due(udp.next_planned()));
    }
    while (due(udp.next_packet()) <= monotonic_ns() && due(udp.next_packet()) < end_ns &&
           !stopping) {
      const int flow = flow_of(udp.next_packet());
      const MarkedUdp::SendResult sent = udp.send(flow, payload.data(), payload.size());
      outcomes.sent({sent.sent_ns, -1, static_cast<std::int16_t>(flow), sent.codepoint,
                     static_cast<std::uint8_t>(sent.decided), -1, sent.delivered});
      udp.poll(on_ack);
    }
    if (udp.link().problem() != said && !udp.link().problem().empty()) {
      std::fprintf(stderr, "%s; packets keep their default marking\n",
                   udp.link().problem().c_str());
    }
    said = udp.link().problem();
    udp.poll(on_ack);
    const std::int64_t plan_ns = due(udp.next_planned());
    const std::int64_t send_ns = due(udp.next_packet());
    udp.wait(plan_ns < end_ns ? std::min(send_ns, plan_ns - ahead_ns) : send_ns);
  }
  // Takes the last ACKs and the agent's word of them, until half a second without any.
  std::int64_t until_ns = monotonic_ns() + kLastAcksNs;
  while ((outcomes.in_flight > 0 || udp.link().writes_wait()) && monotonic_ns() < until_ns &&
         !stopping) {
    udp.wait(until_ns);
    const std::int64_t before = outcomes.in_flight;
    udp.poll(on_ack);
    if (outcomes.in_flight < before) until_ns = monotonic_ns() + kLastAcksNs;
  }
  outcomes.end();
  const LinkCounts& link = udp.link().counts();
  std::printf("{\"event\": \"summary\", \"packets\": %" PRId64
              ", \"not_taken_by_the_kernel\": %" PRId64 ", \"acked\": %" PRId64
              ", \"decided\": %" PRId64 ", \"not_ect\": %" PRId64 ", \"ect1\": %" PRId64
              ", \"ect0\": %" PRId64 ", \"arrived_ce\": %" PRId64 ", \"arrived_changed\": %" PRId64
              ", \"latency_p50_us\": %s, \"latency_p99_us\": %s, \"frames\": %" PRId64
              ", \"frames_acked\": %" PRIu64
              ", \"frame_p50_us\": %s, \"frame_p99_us\": %s, \"agent_connections\": %" PRId64
              ", \"agent_lost\": %" PRId64 ", \"batches_asked\": %" PRId64
              ", \"batches_decided\": %" PRId64 "}\n",
              outcomes.packets, outcomes.failed, outcomes.all_acked, outcomes.decided,
              outcomes.by_codepoint[kNotEct], outcomes.by_codepoint[kEct1],
              outcomes.by_codepoint[kEct0], outcomes.ce, outcomes.changed,
              outcomes.latency_us.quantile(0.5).c_str(), outcomes.latency_us.quantile(0.99).c_str(),
              (outcomes.packets + options.frame_packets - 1) / options.frame_packets,
              outcomes.frame_us.count(), outcomes.frame_us.quantile(0.5).c_str(),
              outcomes.frame_us.quantile(0.99).c_str(), link.connections, link.lost, link.asked,
              link.answered[0]);
  return 0;
}

int echo(const Options& options) {
  socklen_t length = 0;
  const sockaddr_storage here = socket_address(options.host, options.port, length);
  const auto fail = [&] {
    throw std::runtime_error(options.host + " port " + std::to_string(options.port) + ": " +
                             std::strerror(errno));
  };
  const int fd = ::socket(here.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail();
  const int on = 1, buffer = 8 << 20;
  // An IPv6 socket takes IPv4's datagrams too (`--host ::`), with IPv4's field.
  ::setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
  if (here.ss_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&here), length) != 0) fail();
  std::ofstream log;
  if (!options.log.empty()) {
    log.open(options.log);
    if (!log) throw std::runtime_error(options.log + ": " + std::strerror(errno));
    log << "flow,packet,received_ns,codepoint,dscp\n";
  }
  sockaddr_storage bound{};
  socklen_t bound_length = sizeof bound;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bound_length);
  const int port =
      ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&bound)->sin_port
                                       : reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port);
  std::printf("{\"event\": \"ready\", \"port\": %d}\n", port);
  std::fflush(stdout);
  // ECN counts by sender and flow; strangers may name any flow, so there are at most this many.
  constexpr std::size_t kMostFlows = 65'536;
  std::map<std::tuple<std::string, std::uint32_t>, std::array<std::uint64_t, 4>> received;
  std::array<std::uint64_t, 4> all{};
  std::array<std::uint64_t, 64> by_dscp{};
  std::uint64_t refused = 0;
  const std::int64_t end_ns =
      options.seconds > 0 ? monotonic_ns() + static_cast<std::int64_t>(options.seconds * 1e9)
                          : std::numeric_limits<std::int64_t>::max();
  while (!stopping && monotonic_ns() < end_ns) {
    pollfd wanted{fd, POLLIN, 0};
    if (::poll(&wanted, 1, 100) <= 0) continue;
    for (int i = 0; i < kMostAtOnce; ++i) {  // then signals and time are checked again
      DataHeader header;
      sockaddr_storage from{};
      alignas(cmsghdr) std::array<char, 256> control{};
      iovec part{&header, sizeof header};
      msghdr message{};
      message.msg_name = &from;
      message.msg_namelen = sizeof from;
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_TRUNC);  // its whole length
      if (n < 0) break;
      if (n < static_cast<ssize_t>(sizeof header) || header.magic != DataHeader::kMagic) {
        ++refused;
        continue;
      }
      Acknowledgement ack;
      unsigned ds_field = 0;
      int family = AF_INET;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
          ds_field = *CMSG_DATA(c);
        } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
          int tclass = 0;
          std::memcpy(&tclass, CMSG_DATA(c), sizeof tclass);
          ds_field = static_cast<unsigned>(tclass) & 0xff;
          family = AF_INET6;
        }
      }
      ack.codepoint = ds_field & 3;
      ++all[ack.codepoint];
      ++by_dscp[ds_field >> 2];
      const std::string peer(reinterpret_cast<const char*>(&from), message.msg_namelen);
      if (received.size() < kMostFlows || received.count({peer, header.flow_id}) != 0) {
        auto& counts = received[{peer, header.flow_id}];
        ++counts[ack.codepoint];
        ack.received = counts;
      }
      ack.packet = header.packet;
      // The answer is never longer than its datagram: nobody gets more out than is put in. It has
      // the packet's DSCP, so that a gateway here sends it back by the uplink it came from.
      iovec answer{&ack, n < static_cast<ssize_t>(sizeof ack) ? kShortAck : sizeof ack};
      send_marked(fd, family, ds_field & 0xfc, &answer, 1, &from, message.msg_namelen);
      if (log.is_open()) {
        log << header.flow_id << ',' << header.packet << ',' << monotonic_ns() << ','
            << ack.codepoint << ',' << (ds_field >> 2) << '\n';
      }
    }
  }
  if (log.is_open() && !log.flush())
    throw std::runtime_error(options.log + ": could not be written");
  std::string dscps;
  for (std::size_t i = 0; i < by_dscp.size(); ++i) {
    if (by_dscp[i] == 0) continue;
    dscps +=
        (dscps.empty() ? "\"" : ", \"") + std::to_string(i) + "\": " + std::to_string(by_dscp[i]);
  }
  std::printf("{\"event\": \"summary\", \"not_ect\": %" PRIu64 ", \"ect1\": %" PRIu64
              ", \"ect0\": %" PRIu64 ", \"ce\": %" PRIu64
              ", \"by_dscp\": {%s}, \"not_ours\": %" PRIu64 "}\n",
              all[0], all[1], all[2], all[3], dscps.c_str(), refused);
  ::close(fd);
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what != "send" && what != "echo") throw std::invalid_argument("say `send` or `echo`");
  if (what == "echo") options.seconds = 0;
  static const std::array<option, 17> known{{{"host", 1, nullptr, 'h'},
                                             {"port", 1, nullptr, 'p'},
                                             {"agent", 1, nullptr, 'a'},
                                             {"name", 1, nullptr, 'n'},
                                             {"log", 1, nullptr, 'l'},
                                             {"rate-mbps", 1, nullptr, 'r'},
                                             {"seconds", 1, nullptr, 's'},
                                             {"bytes", 1, nullptr, 'b'},
                                             {"flows", 1, nullptr, 'f'},
                                             {"frame-packets", 1, nullptr, 'F'},
                                             {"dscp", 1, nullptr, 'D'},
                                             {"ahead-ms", 1, nullptr, 'd'},
                                             {"seed", 1, nullptr, 'e'},
                                             {"poisson", 0, nullptr, 'P'},
                                             {"classic", 0, nullptr, 'C'},
                                             {nullptr, 0, nullptr, 0}}};
  opterr = 0;
  optind = 2;
  for (int c; (c = ::getopt_long(argc, argv, "", known.data(), nullptr)) != -1;) {
    const char* given = optarg;
    if (c == 'h')
      options.host = given;
    else if (c == 'p')
      options.port = static_cast<int>(number("--port", given, 0, 65535));
    else if (c == 'a')
      options.agent = given;
    else if (c == 'n')
      options.name = given;
    else if (c == 'l')
      options.log = given;
    else if (c == 'r')
      options.rate_mbps = number("--rate-mbps", given, 0.001, 100'000);
    else if (c == 's')
      options.seconds = number("--seconds", given, 0, 1e6);
    else if (c == 'b')
      options.bytes = static_cast<int>(number("--bytes", given, 16, 65'507));
    else if (c == 'f')
      options.flows = static_cast<int>(number("--flows", given, 1, 1000));
    else if (c == 'F')
      options.frame_packets = static_cast<int>(number("--frame-packets", given, 1, 1000));
    else if (c == 'D')
      options.dscp = dscp_pair("--dscp", std::string(given));
    else if (c == 'd')
      options.ahead_ms = number("--ahead-ms", given, 0, 10'000);
    else if (c == 'e')
      options.seed = static_cast<unsigned>(number("--seed", given, 0, 4e9));
    else if (c == 'P')
      options.poisson = true;
    else if (c == 'C')
      options.classic = true;
    else
      throw std::invalid_argument(std::string(argv[optind - 1]) +
                                  ": not an option, or without its value");
  }
  if (optind != argc) throw std::invalid_argument(std::string(argv[optind]) + ": not understood");
  stop_at_signals();
  return what == "send" ? send(options) : echo(options);
}

}  // namespace

int main(int argc, char** argv) {
  return swiftqueue::one_line_errors([&] { return run(argc, argv); });
}
