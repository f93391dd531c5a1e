// SPDX-License-Identifier: Apache-2.0
//
// Between the agent and the marker on a device: what the kernel says of each packet and each
// acknowledgement of a followed flow (mark.bpf.c) becomes the agent's SENT and ACKED frames; each
// batch's decision is asked for ahead and written into the marker's map. A flow is a sender of its
// own at the agent, whose packets are those that carry data, numbered from 0.
//
// Decisions count for kAliveNs after the last look at the agent's connections, so that packets are
// plain ECT(1) when the agent has gone, or this program, or when it does not get to run.
#ifndef SWIFTQUEUE_TESTBED_LOADER_FOLLOW_H_
#define SWIFTQUEUE_TESTBED_LOADER_FOLLOW_H_

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device.h"
#include "last_latency.h"
#include "serving/agent/decision/statistics.h"
#include "serving/agent/marking/agent_link.h"

namespace swiftqueue::testbed {

struct FollowOptions {
  std::string device;
  std::string agent;
  std::string name = "tcp";  // flows are NAME-0, NAME-1, ...
  std::string log;           // CSV of every packet and decision; empty: none
  std::vector<std::uint16_t> ports;
  std::vector<std::uint16_t> plain_ports;  // what goes there is ECT(1), and nobody is asked
  std::vector<std::uint64_t> cookies;
  int ahead = 8;            // packets: a batch is asked about when this many are to go before it
  double due_ms = 5;        // what an answer may take
  double for_ms = 1000;     // how long a decision counts at most
  double seconds = 0;       // 0: until it is told to end
  double threshold_ms = 0;  // of LastLatency, which then decides instead of an agent
  double stale_ms = 100;    // how long a latency counts there
};

inline volatile sig_atomic_t follow_stopping = 0;

// An attached program's maps of followed flows.
struct FollowedFlows {
  explicit FollowedFlows(std::uint32_t program)
      : followed(map_of(program, "sq_followed", sizeof(sq_followed))),
        batches(map_of(program, "sq_batches", sizeof(sq_batches))),
        tuples(map_of(program, "sq_tuples", sizeof(std::uint64_t))),
        decisions(map_of(program, "sq_decisions", sizeof(sq_decision))) {}
  ~FollowedFlows() {
    for (const int fd : {followed, batches, tuples, decisions}) ::close(fd);
  }
  FollowedFlows(const FollowedFlows&) = delete;
  FollowedFlows& operator=(const FollowedFlows&) = delete;

  void remove(std::uint64_t cookie) const {
    sq_followed flow{};
    if (bpf_map_lookup_elem(followed, &cookie, &flow) == 0 && flow.known != 0)
      bpf_map_delete_elem(tuples, &flow.tuple);
    bpf_map_delete_elem(followed, &cookie);
    bpf_map_delete_elem(batches, &cookie);
  }
  // Of a flow that goes on without a follower: it stays plain ECT(1), as a `set` that has run out.
  void release(std::uint64_t cookie) const {
    const sq_decision plain{};
    if (bpf_map_update_elem(decisions, &cookie, &plain, BPF_NOEXIST) != 0 && errno != EEXIST)
      fail("map");
    remove(cookie);
  }

  const int followed, batches, tuples, decisions;
};

class Follower {
 public:
  explicit Follower(FollowOptions options)
      : options_(std::move(options)),
        program_(required(options_.device, index_of(options_.device))),
        maps_(program_) {
    follower_map_ = map_of(program_, "sq_follower", sizeof(sq_follower));
    events_map_ = map_of(program_, "sq_events", 0);
    const std::uint32_t zero = 0;
    if (bpf_map_lookup_elem(follower_map_, &zero, &said_) != 0) fail("map");
    if (said_.listens_until_ns > now_ns()) {
      throw std::runtime_error("device " + options_.device +
                               ": another `mark follow` is at work, or was a second ago");
    }
    make_spare();  // its path can be one
    if (!options_.log.empty()) {
      log_.open(options_.log);
      if (!log_) fail(options_.log);
      log_ << "kind,flow,packet,time_ns,a,b\n";
    }
    for (const int map : {maps_.followed, maps_.batches, maps_.tuples}) clear(map);
    ring_ = ring_buffer__new(
        events_map_,
        [](void* self, void* data, std::size_t bytes) {
          sq_event event{};
          std::memcpy(&event, data, std::min(bytes, sizeof event));
          static_cast<Follower*>(self)->take(event);
          return 0;
        },
        this, nullptr);
    if (ring_ == nullptr) fail("the ring of events");
    discarding_ = true;  // what an earlier follower left
    ring_buffer__consume(ring_);
    discarding_ = false;
    said_ = {};
    said_.ports = static_cast<__u32>(options_.ports.size());
    std::copy(options_.ports.begin(), options_.ports.end(), said_.port);
    said_.plain_ports = static_cast<__u32>(options_.plain_ports.size());
    std::copy(options_.plain_ports.begin(), options_.plain_ports.end(), said_.plain_port);
    const sq_followed fresh{};
    for (const std::uint64_t cookie : options_.cookies) {
      if (bpf_map_update_elem(maps_.followed, &cookie, &fresh, BPF_ANY) != 0) fail("map");
    }
  }
  ~Follower() {
    ring_buffer__free(ring_);
    for (const int fd : {follower_map_, events_map_}) ::close(fd);
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  void run() {
    const std::uint64_t end_ns = options_.seconds > 0
                                     ? now_ns() + static_cast<std::uint64_t>(options_.seconds * 1e9)
                                     : std::numeric_limits<std::uint64_t>::max();
    live();
    for (const std::uint64_t until_ns = now_ns() + kGreetNs;
         !spare_.link->connected() && now_ns() < until_ns && !follow_stopping;) {
      turn(spare_);
      wait(kTurnNs);
    }
    std::printf("{\"event\": \"ready\", \"agent\": %s}\n",
                spare_.link->connected() ? "true" : "false");
    std::fflush(stdout);
    while (!follow_stopping && now_ns() < end_ns) {
      ring_buffer__consume(ring_);
      turn(spare_);
      bool deciding = false;
      for (auto at = flows_.begin(); at != flows_.end();) {
        turn(*at->second);
        deciding = deciding || at->second->link.connected() || at->second->decides;
        at = is_over(*at->second) ? forget(at) : std::next(at);
      }
      live();  // after the agent was looked at
      wait(deciding ? kTurnNs : kIdleNs);
    }
    said_.alive_until_ns = said_.listens_until_ns = 0;
    write_follower();
    for (std::uint64_t cookie; bpf_map_get_next_key(maps_.followed, nullptr, &cookie) == 0;)
      maps_.release(cookie);
  }

  // Throws std::runtime_error: the log is not whole.
  void summary() {
    if (log_.is_open() && !log_.flush())
      throw std::runtime_error(options_.log + ": could not be written");
    for (const auto& [cookie, flow] : flows_) add(flow->link.counts());
    add(spare_.link->counts());
    const auto us = [](const agent::DurationHistogram& h, double q) {
      return static_cast<double>(h.quantile_ns(q)) / 1e3;
    };
    std::printf("{\"event\": \"summary\", \"flows\": %" PRId64 ", \"packets\": %" PRId64
                ", \"acked\": %" PRId64 ", \"decided\": %" PRId64
                ", \"agent_connections\": %" PRId64 ", \"agent_lost\": %" PRId64
                ", \"batches_asked\": %" PRId64 ", \"batches_decided\": %" PRId64
                ", \"kernel_to_us_p50_us\": %.1f, \"kernel_to_us_p99_us\": %.1f"
                ", \"ask_to_answer_p50_us\": %.1f, \"ask_to_answer_p99_us\": %.1f"
                ", \"answer_to_map_p50_us\": %.1f, \"answer_to_map_p99_us\": %.1f}\n",
                came_, packets_, acked_, decided_, link_counts_.connections, link_counts_.lost,
                link_counts_.asked, link_counts_.answered[0], us(lag_, 0.5), us(lag_, 0.99),
                us(answered_, 0.5), us(answered_, 0.99), us(written_, 0.5), us(written_, 0.99));
  }

 private:
  static constexpr std::uint64_t kTurnNs = 2'000'000;
  static constexpr std::uint64_t kAliveNs = 8'000'000;
  static constexpr std::uint64_t kGreetNs =
      500'000'000;  // what the agent has to greet at the start
  static constexpr std::uint64_t kIdleNs = 100'000'000;
  static constexpr std::uint64_t kListenNs = 1'000'000'000;
  static constexpr std::uint64_t kForgetNs = 60'000'000'000;  // of a flow that is silent
  static constexpr std::uint64_t kLastAcksNs = 1'000'000'000;
  static constexpr std::size_t kMostInFlight = 1 << 17;  // as the agent remembers

  struct Packet {
    std::int64_t number;
    std::uint64_t sent_ns;
    bool retransmitted;
    bool l4s;
  };
  struct Question {
    std::int64_t first;
    std::uint64_t asked_ns;
  };
  // A sender at the agent: its number, and its connection, which is there before its flow is.
  struct Place {
    int number = 0;
    std::unique_ptr<agent::AgentLink> link;
    std::string said;
  };
  struct Flow {
    Flow(std::uint64_t of, Place at) : cookie(of), place(std::move(at)), link(*place.link) {}

    const std::uint64_t cookie;
    Place place;
    agent::AgentLink& link;
    std::multimap<std::uint64_t, Packet> in_flight;  // by the end of their data
    std::deque<Question> asked;                      // not answered yet
    sq_batches batches{};
    std::int64_t next = 0;      // packet
    std::int64_t next_ask = 0;  // first packet of a batch
    std::uint64_t end = 0;      // of the newest data: bytes since the flow began, as 64 bits
    std::int32_t size_bytes = 0;
    std::uint64_t heard_ns = 0;
    bool begun = false, ended = false, decides = false;
    LastLatency latency;
  };
  using Flows = std::map<std::uint64_t, std::unique_ptr<Flow>>;  // by cookie

  static void clear(int map) {
    std::array<char, sizeof(sq_tuple)> key{};  // the longest
    while (bpf_map_get_next_key(map, nullptr, key.data()) == 0 &&
           bpf_map_delete_elem(map, key.data()) == 0) {
    }
  }

  void write_follower() {
    const std::uint32_t zero = 0;
    if (bpf_map_update_elem(follower_map_, &zero, &said_, BPF_ANY) != 0) fail("map");
  }
  void live() {
    const std::uint64_t now = now_ns();
    said_.alive_until_ns = now + kAliveNs;
    said_.listens_until_ns = now + kListenNs;
    write_follower();
  }

  void wait(std::uint64_t most_ns) {
    waited_.clear();
    waited_.push_back({ring_buffer__epoll_fd(ring_), POLLIN, 0});
    const auto add = [&](const agent::AgentLink& link) {
      const short wanted = link.writes_wait() ? POLLIN | POLLOUT : POLLIN;
      if (link.fd() >= 0) waited_.push_back({link.fd(), wanted, 0});
    };
    add(*spare_.link);
    for (const auto& [cookie, flow] : flows_) add(flow->link);
    const timespec left{0, static_cast<long>(most_ns)};
    ::ppoll(waited_.data(), waited_.size(), &left, nullptr);
  }

  Flow& new_flow(std::uint64_t cookie) {
    ++came_;
    numbers_.insert(spare_.number);
    auto flow = std::make_unique<Flow>(cookie, std::move(spare_));
    make_spare();
    return *flows_.emplace(cookie, std::move(flow)).first->second;
  }

  // The next flow's place, with the lowest number: connected by the time it comes, as a rule.
  void make_spare() {
    int lowest = 0;
    while (numbers_.count(lowest) != 0) ++lowest;
    if (spare_.link && spare_.number == lowest) return;
    if (spare_.link) add(spare_.link->counts());
    const std::string name = options_.name + "-" + std::to_string(lowest);
    spare_ = {lowest, std::make_unique<agent::AgentLink>(options_.agent, name), {}};
  }

  // Reads, writes and connects; says once why that does not go.
  void turn(Place& place) const {
    place.link->turn(static_cast<std::int64_t>(now_ns()));
    const std::string& problem = place.link->problem();
    if (problem != place.said && !problem.empty()) {
      std::fprintf(stderr, "%s; packets of %s-%d are plain ECT(1)\n", problem.c_str(),
                   options_.name.c_str(), place.number);
    }
    place.said = problem;
  }

  // A 32-bit number of the flow's as one of 64 bits, near its newest data.
  static std::uint64_t whole(const Flow& flow, std::uint32_t number) {
    return flow.end + static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(
                          number - static_cast<std::uint32_t>(flow.end))});
  }

  void take(const sq_event& event) {
    if (discarding_) return;
    const auto found = flows_.find(event.cookie);
    if (found == flows_.end() && event.kind != SQ_SENT) return;  // of one that is forgotten
    Flow& flow = found == flows_.end() ? new_flow(event.cookie) : *found->second;
    flow.heard_ns = now_ns();
    lag_.observe(static_cast<std::int64_t>(flow.heard_ns - event.time_ns));
    if (event.kind == SQ_SENT) {
      sent(flow, event);
    } else if (event.kind == SQ_ACKED && flow.begun) {
      acked(flow, event);
    } else if (event.kind == SQ_ENDED) {
      flow.ended = true;
    }
  }

  void sent(Flow& flow, const sq_event& event) {
    if (!flow.begun) {
      flow.begun = true;
      flow.end = (std::uint64_t{1} << 32) + event.sequence;  // below it lies what comes late
    }
    const std::uint64_t begin = whole(flow, event.sequence), end = begin + event.payload_bytes;
    const bool again = begin < flow.end;
    if (again) {  // Karn: neither it nor what it repeats has a latency
      for (auto at = flow.in_flight.upper_bound(begin);
           at != flow.in_flight.end() && at->first <= end; ++at) {
        at->second.retransmitted = true;
      }
    }
    flow.end = std::max(flow.end, end);
    flow.size_bytes = static_cast<std::int32_t>(event.ip_bytes);
    const auto number = static_cast<std::int64_t>(event.packet);
    flow.next = number + 1;
    if (flow.in_flight.size() >= kMostInFlight) flow.in_flight.erase(flow.in_flight.begin());
    const std::uint8_t queue = event.alternative;
    flow.in_flight.emplace(end, Packet{number, event.time_ns, again, queue == agent::kL4s});
    flow.link.sent(number, static_cast<std::int64_t>(event.time_ns),
                   {static_cast<std::int32_t>(event.ip_bytes), 0, 0, queue}, event.codepoint,
                   again);
    ++packets_;
    decided_ += event.decided;
    log("sent", flow, number, event.time_ns, event.codepoint, event.decided);
  }

  void acked(Flow& flow, const sq_event& event) {
    const std::uint64_t until = whole(flow, event.sequence);
    while (!flow.in_flight.empty() && flow.in_flight.begin()->first <= until) {
      const Packet packet = flow.in_flight.begin()->second;
      flow.in_flight.erase(flow.in_flight.begin());
      const auto latency_us =
          packet.retransmitted
              ? std::numeric_limits<float>::quiet_NaN()
              : static_cast<float>(static_cast<double>(event.time_ns - packet.sent_ns) / 1e3);
      flow.link.acked(packet.number, static_cast<std::int64_t>(event.time_ns), latency_us);
      if (!packet.retransmitted) flow.latency.acked(packet.l4s, event.time_ns, latency_us);
      ++acked_;
      log("acked", flow, packet.number, event.time_ns, packet.retransmitted, 0);
    }
  }

  // Takes the agent's decisions, and asks for those that come next.
  void turn(Flow& flow) {
    if (options_.threshold_ms > 0) return hold(flow);
    turn(flow.place);
    if (!flow.link.connected()) {
      if (flow.decides) bpf_map_delete_elem(maps_.batches, &flow.cookie);
      flow.decides = false;
      flow.batches = {};
      flow.asked.clear();
      return;
    }
    const std::uint64_t came_ns = now_ns();
    bool changed = false;
    for (auto at = flow.asked.begin(); at != flow.asked.end();) {
      if (!flow.link.decided(at->first)) {
        ++at;
        continue;
      }
      auto& batch =
          flow.batches.of[static_cast<std::uint64_t>(at->first) / kHorizon % SWIFTQUEUE_BATCHES];
      batch.first = static_cast<__u64>(at->first);
      batch.valid_until_ns = came_ns + static_cast<std::uint64_t>(options_.for_ms * 1e6);
      for (int i = 0; i < kHorizon; ++i) {
        const auto queue = flow.link.decided(at->first + i);
        // ECT(0), so that a router can mark it there too.
        batch.codepoints[i] = queue && *queue == agent::kClassic ? 2 : 1;
      }
      answered_.observe(static_cast<std::int64_t>(came_ns - at->asked_ns));
      answers_.push_back(at->first);
      changed = true;
      at = flow.asked.erase(at);
    }
    if (changed) {
      if (bpf_map_update_elem(maps_.batches, &flow.cookie, &flow.batches, BPF_ANY) != 0)
        fail("map");
      flow.decides = true;
      const std::uint64_t written_ns = now_ns();
      written_.observe(static_cast<std::int64_t>(written_ns - came_ns));
      for (const std::int64_t first : answers_) log("decided", flow, first, written_ns, came_ns, 0);
      answers_.clear();
    }
    ask(flow);
    // What was never answered, or for packets that have gone.
    while (!flow.asked.empty() && flow.asked.front().first + kHorizon <= flow.next)
      flow.asked.pop_front();
  }

  // Moves the flow's next packets while its last latency says so, or takes that back.
  void hold(Flow& flow) {
    const std::uint64_t until_ns = flow.latency.moves_until_ns(
        options_.threshold_ms * 1e3, static_cast<std::uint64_t>(options_.stale_ms * 1e6));
    if (until_ns <= now_ns()) {
      if (flow.decides) bpf_map_delete_elem(maps_.batches, &flow.cookie);
      flow.decides = false;
      return;
    }
    // The batch that has begun, and those after it.
    const auto first = static_cast<std::uint64_t>(flow.next) / kHorizon * kHorizon;
    const auto& begun = flow.batches.of[first / kHorizon % SWIFTQUEUE_BATCHES];
    if (flow.decides && begun.first == first && begun.valid_until_ns == until_ns)
      return;  // it stands
    for (std::uint64_t i = 0; i < SWIFTQUEUE_BATCHES; ++i) {
      auto& batch = flow.batches.of[(first / kHorizon + i) % SWIFTQUEUE_BATCHES];
      batch.first = first + i * kHorizon;
      batch.valid_until_ns = until_ns;
      std::fill_n(batch.codepoints, kHorizon, std::uint8_t{2});
    }
    if (bpf_map_update_elem(maps_.batches, &flow.cookie, &flow.batches, BPF_ANY) != 0) fail("map");
    flow.decides = true;
  }

  void ask(Flow& flow) {
    if (!flow.begun || flow.ended) return;
    const std::int64_t least = (flow.next + kHorizon - 1) / kHorizon * kHorizon;
    flow.next_ask = std::max(flow.next_ask, least);
    // Not more than the marker has room for.
    const std::int64_t most = flow.next - 1 + options_.ahead;
    for (; flow.next_ask <= most; flow.next_ask += kHorizon) {
      agent::Batch batch;
      batch.fill({flow.size_bytes, 0, 0, agent::kL4s});
      const std::uint64_t now = now_ns();
      flow.link.ask(
          flow.next_ask, static_cast<std::int64_t>(now),
          static_cast<std::int64_t>(now + static_cast<std::uint64_t>(options_.due_ms * 1e6)),
          batch);
      flow.asked.push_back({flow.next_ask, now});
      log("asked", flow, flow.next_ask, now, 0, 0);
    }
  }

  bool is_over(const Flow& flow) const {
    const std::uint64_t silent_ns = now_ns() - flow.heard_ns;
    if (flow.ended && flow.in_flight.empty()) return true;
    const auto& kept = options_.cookies;
    if (!flow.ended && std::find(kept.begin(), kept.end(), flow.cookie) != kept.end()) return false;
    return silent_ns > (flow.ended ? kLastAcksNs : kForgetNs);
  }

  Flows::iterator forget(Flows::iterator at) {
    maps_.remove(at->first);
    add(at->second->link.counts());
    numbers_.erase(at->second->place.number);
    const auto next = flows_.erase(at);
    make_spare();
    return next;
  }

  void add(const agent::LinkCounts& counts) {
    link_counts_.connections += counts.connections;
    link_counts_.lost += counts.lost;
    link_counts_.asked += counts.asked;
    for (std::size_t i = 0; i < counts.answered.size(); ++i)
      link_counts_.answered[i] += counts.answered[i];
  }

  void log(const char* kind, const Flow& flow, std::int64_t packet, std::uint64_t time_ns,
           std::uint64_t a, std::uint64_t b) {
    if (log_.is_open()) {
      log_ << kind << ',' << flow.place.number << ',' << packet << ',' << time_ns << ',' << a << ','
           << b << '\n';
    }
  }

  const FollowOptions options_;
  const std::uint32_t program_;
  const FollowedFlows maps_;
  int follower_map_ = -1, events_map_ = -1;
  ring_buffer* ring_ = nullptr;
  bool discarding_ = false;
  sq_follower said_{};
  Flows flows_;
  std::set<int> numbers_;  // of flows
  Place spare_;
  std::vector<pollfd> waited_;
  std::vector<std::int64_t> answers_;
  std::ofstream log_;
  agent::LinkCounts link_counts_;  // of flows that are over
  std::int64_t came_ = 0, packets_ = 0, acked_ = 0, decided_ = 0;
  agent::DurationHistogram lag_, answered_, written_;
};

inline int follow(const FollowOptions& options) {
  struct sigaction action{};
  action.sa_handler = [](int) { follow_stopping = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  Follower follower(options);
  follower.run();
  follower.summary();
  return 0;
}

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_LOADER_FOLLOW_H_
