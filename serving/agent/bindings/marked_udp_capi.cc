// SPDX-License-Identifier: Apache-2.0
//
// C interface of marked_udp.h for Python's ctypes (serving/agent/bindings/marked_udp.py). No
// exception crosses it: a failure writes a line into `error`, of kErrorBytes bytes.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "serving/agent/marking/marked_udp.h"

using swiftqueue::kHorizon;
using swiftqueue::agent::MarkedUdp;
using swiftqueue::agent::monotonic_ns;

namespace {

constexpr std::size_t kErrorBytes = 256;

template <typename Result, typename Function>
Result guarded(char* error, Result otherwise, Function&& function) {
  try {
    return function();
  } catch (const std::exception& problem) {
    std::snprintf(error, kErrorBytes, "%s", problem.what());
    return otherwise;
  }
}

}  // namespace

extern "C" {

struct sq_udp_ack {
  std::int64_t packet;
  std::int64_t acked_ns;
  float latency_us;
  std::int32_t codepoint;
};

struct sq_udp_sent {
  std::int64_t packet;
  std::int64_t sent_ns;
  std::int32_t codepoint;
  std::int32_t decided;
  std::int32_t delivered;
};

MarkedUdp* sq_udp_new(const char* agent, const char* name, char* error) {
  return guarded<MarkedUdp*>(error, nullptr, [&] { return new MarkedUdp(agent, name); });
}

void sq_udp_free(MarkedUdp* udp) { delete udp; }

// Returns the flow's id, or -1.
int sq_udp_add_flow(MarkedUdp* udp, const char* host, int port, int l4s, char* error) {
  return guarded(error, -1, [&] { return udp->add_flow(host, port, l4s != 0); });
}

// Returns 0, or -1. flows_H has 8 flows, bytes_H the 8 payload sizes.
int sq_udp_plan(MarkedUdp* udp, const std::int32_t* flows_H, const std::int32_t* bytes_H,
                std::int64_t due_ns, char* error) {
  return guarded(error, -1, [&] {
    std::array<MarkedUdp::PlannedPacket, kHorizon> batch{};
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = {flows_H[i], bytes_H[i]};
    udp->plan(batch, due_ns);
    return 0;
  });
}

// Returns 0, or -1.
int sq_udp_send(MarkedUdp* udp, int flow, const void* payload, std::size_t bytes, sq_udp_sent* out,
                char* error) {
  return guarded(error, -1, [&] {
    const MarkedUdp::SendResult sent = udp->send(flow, payload, bytes);
    *out = {sent.packet, sent.sent_ns, sent.codepoint, sent.decided, sent.delivered};
    return 0;
  });
}

// Waits until `until_ns` for something to come, then calls `on_ack` for each packet's first ACK.
void sq_udp_poll(MarkedUdp* udp, std::int64_t until_ns, void (*on_ack)(const sq_udp_ack*)) {
  udp->wait(until_ns);
  udp->poll([&](const MarkedUdp::Ack& ack) {
    const sq_udp_ack out{ack.packet, ack.acked_ns, ack.latency_us, ack.codepoint};
    on_ack(&out);
  });
}

int sq_udp_connected(const MarkedUdp* udp) { return udp->link().connected(); }
const char* sq_udp_problem(const MarkedUdp* udp) { return udp->link().problem().c_str(); }

}  // extern "C"
