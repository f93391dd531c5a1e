// SPDX-License-Identifier: Apache-2.0
//
// The library of swiftqueue.h, over agent_link.h. No exception crosses it.
#include "serving/agent/bindings/swiftqueue.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "serving/agent/io/clock.h"
#include "serving/agent/marking/agent_link.h"
#include "serving/agent/marking/dscp.h"

namespace {

using namespace swiftqueue::agent;  // NOLINT(build/namespaces): its C interface

static_assert(SWIFTQUEUE_BATCH == swiftqueue::kHorizon);
static_assert(SWIFTQUEUE_CLASSIC == kClassic && SWIFTQUEUE_L4S == kL4s);
static_assert(SWIFTQUEUE_DECIDED == static_cast<int>(Outcome::kDecided) &&
              SWIFTQUEUE_LATE == static_cast<int>(Outcome::kLate) &&
              SWIFTQUEUE_ERROR == static_cast<int>(Outcome::kError) &&
              SWIFTQUEUE_NO_MODEL == static_cast<int>(Outcome::kNoModel));

thread_local std::string g_open_error;

std::string name_of(const char* name) {
  std::string out = name == nullptr ? "" : name;
  for (char& c : out) c = c >= ' ' && c <= '~' ? c : '?';
  if (out.empty()) throw std::invalid_argument("a sender's name must not be empty");
  return out;
}

std::string path_of(const char* path) {
  if (path == nullptr || *path == '\0') {
    throw std::invalid_argument("a socket's path must not be empty");
  }
  return path;
}

}  // namespace

struct swiftqueue_agent {
  swiftqueue_agent(const char* path, const char* name)
      : link(path_of(path), name_of(name)),
        silent("agent socket " + std::string(path) + ": no answer yet") {
    link.write_together();
    if (poll_fd < 0) throw std::runtime_error(std::string("epoll: ") + std::strerror(errno));
    turn();
  }
  ~swiftqueue_agent() { ::close(poll_fd); }
  swiftqueue_agent(const swiftqueue_agent&) = delete;
  swiftqueue_agent& operator=(const swiftqueue_agent&) = delete;

  // Reads, writes and connects; the descriptor follows the link's, which a new connection changes.
  void turn() {
    link.turn(monotonic_ns());
    if (link.fd() == watched) return;
    watched = link.fd();
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    if (watched >= 0) ::epoll_ctl(poll_fd, EPOLL_CTL_ADD, watched, &wanted);
  }

  AgentLink link;
  DscpPair dscp;
  const std::string silent;  // line about an agent that has not greeted yet
  const int poll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  int watched = -1;  // the link's descriptor in `poll_fd`; one that is closed has left it
  std::int64_t next_batch = 0;   // first packet that may be asked about
  std::int64_t next_packet = 0;  // first number that may be sent
  bool wrong = false;            // whether the last call was wrong
  std::string error;
};

namespace {

// Returns what the call returns, or -1 with its line.
template <typename Function>
int guarded(swiftqueue_agent* agent, Function&& function) {
  try {
    agent->wrong = false;
    const int result = function();
    // A lost connection leaves the set of watched descriptors by itself.
    if (agent->link.fd() < 0) agent->watched = -1;
    return result;
  } catch (const std::exception& problem) {
    agent->wrong = true;
    agent->error = problem.what();
    return -1;
  }
}

[[noreturn]] void refuse(std::int64_t packet, const std::string& why) {
  throw std::invalid_argument("packet " + std::to_string(packet) + ": " + why);
}

void check_order(std::int64_t packet, std::int64_t least, const char* rule) {
  if (packet >= least) return;
  refuse(packet, std::string(rule) + ", and " + std::to_string(least) + " or later comes next");
}

}  // namespace

extern "C" {

#define SWIFTQUEUE_CALL __attribute__((visibility("default")))

SWIFTQUEUE_CALL const char* swiftqueue_version(void) { return SWIFTQUEUE_VERSION; }

SWIFTQUEUE_CALL swiftqueue_agent* swiftqueue_open(const char* path, const char* name) {
  try {
    g_open_error.clear();
    return new swiftqueue_agent(path, name);
  } catch (const std::exception& problem) {
    g_open_error = problem.what();
    return nullptr;
  }
}

SWIFTQUEUE_CALL void swiftqueue_close(swiftqueue_agent* agent) {
  if (agent == nullptr) return;
  guarded(agent, [&] {
    if (agent->link.fd() >= 0) agent->turn();
    return 0;
  });
  delete agent;
}

SWIFTQUEUE_CALL int swiftqueue_ask(swiftqueue_agent* agent, std::int64_t first_packet,
                                   const swiftqueue_packet packets[SWIFTQUEUE_BATCH],
                                   std::int64_t due_ns) {
  return guarded(agent, [&] {
    const std::int64_t now_ns = monotonic_ns();
    BatchFrame frame;
    frame.first_packet = first_packet;
    frame.due_ns = due_ns;
    Batch batch;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const swiftqueue_packet& each = packets[i];
      batch[i] = {each.size_bytes, each.flow_id, each.receiver_id, each.queue};
      frame.packets[i] = {each.size_bytes, each.flow_id, each.receiver_id, each.queue, {}};
    }
    if (const char* why = detail::fault(frame)) refuse(first_packet, why);
    check_order(first_packet, agent->next_packet, "a batch is asked about before it is sent");
    check_order(first_packet, agent->next_batch, "batches are asked about once, in send order");
    agent->next_batch = first_packet + SWIFTQUEUE_BATCH;
    // With a connection only `swiftqueue_next` reads: what was read does not wake the descriptor.
    if (!agent->link.connected()) agent->turn();
    agent->link.ask(first_packet, now_ns, due_ns, batch);
    return agent->link.connected() ? 1 : 0;
  });
}

SWIFTQUEUE_CALL int swiftqueue_next(swiftqueue_agent* agent, swiftqueue_decision* decision) {
  return guarded(agent, [&] {
    auto answer = agent->link.next();
    if (!answer) {
      agent->turn();
      answer = agent->link.next();
    }
    if (!answer) return 0;
    *decision = {};
    decision->first_packet = answer->first_packet;
    decision->version = answer->version;
    decision->round_trip_us = answer->round_trip_us;
    decision->outcome = static_cast<std::uint8_t>(answer->outcome);
    std::copy(answer->queues.begin(), answer->queues.end(), decision->queue);
    std::copy(answer->classic_us_H.begin(), answer->classic_us_H.end(), decision->classic_us);
    std::copy(answer->default_us_H.begin(), answer->default_us_H.end(), decision->default_us);
    return 1;
  });
}

SWIFTQUEUE_CALL int swiftqueue_sent(swiftqueue_agent* agent, std::int64_t packet,
                                    std::int64_t sent_ns, const swiftqueue_packet* what) {
  return guarded(agent, [&] {
    SentFrame frame;
    frame.packet = packet;
    frame.sent_ns = sent_ns;
    frame.size_bytes = what->size_bytes;
    frame.flow_id = what->flow_id;
    frame.receiver_id = what->receiver_id;
    frame.queue = what->queue;
    frame.ecn = what->ecn;
    frame.retransmitted = what->retransmitted;
    if (const char* why = detail::fault(frame)) refuse(packet, why);
    check_order(packet, agent->next_packet, "packets are numbered in send order");
    agent->next_packet = packet + 1;
    agent->link.sent(packet, sent_ns, candidate_of(frame), frame.ecn, frame.retransmitted != 0);
    return 0;
  });
}

SWIFTQUEUE_CALL int swiftqueue_acked(swiftqueue_agent* agent, std::int64_t packet,
                                     std::int64_t acked_ns, float latency_us) {
  return guarded(agent, [&] {
    AckedFrame frame;
    frame.packet = packet;
    frame.acked_ns = acked_ns;
    frame.latency_us = latency_us;
    if (const char* why = detail::fault(frame)) refuse(packet, why);
    if (packet >= agent->next_packet) refuse(packet, "it is acknowledged and was not sent");
    agent->link.acked(packet, acked_ns, latency_us);
    return 0;
  });
}

SWIFTQUEUE_CALL int swiftqueue_set_dscp(swiftqueue_agent* agent, int classic, int l4s) {
  return guarded(agent, [&] {
    agent->dscp = dscp_pair("dscp", classic, l4s);
    return 0;
  });
}

SWIFTQUEUE_CALL int swiftqueue_ds_field(const swiftqueue_agent* agent, std::uint8_t queue,
                                        std::uint8_t ecn) {
  return agent->dscp.field(queue, ecn & 3);
}

SWIFTQUEUE_CALL int swiftqueue_fd(const swiftqueue_agent* agent) { return agent->poll_fd; }

SWIFTQUEUE_CALL const char* swiftqueue_error(const swiftqueue_agent* agent) {
  if (agent == nullptr) return g_open_error.c_str();
  if (agent->wrong) return agent->error.c_str();
  const AgentLink& link = agent->link;
  if (link.connected()) return "";
  return (link.problem().empty() ? agent->silent : link.problem()).c_str();
}

SWIFTQUEUE_CALL std::int64_t swiftqueue_now_ns(void) { return monotonic_ns(); }

}  // extern "C"
