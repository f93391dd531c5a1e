// SPDX-License-Identifier: Apache-2.0
//
// UDP with a codepoint for each packet: asks the agent, and marks by a control message (IP_TOS,
// IPV6_TCLASS), which needs no privilege. One object is one sender with one or more flows; packets
// are numbered in send order.
//
//   MarkedUdp udp("var/agent.sock", "video");
//   const int flow = udp.add_flow("192.0.2.7", 4433);
//   udp.plan(batch, due_ns);  // the next batch of 8 not planned yet, some time before it is due
//   while (monotonic_ns() < due_ns) {  // an ACK ends a wait: go on until the batch is due
//     udp.wait(due_ns);
//     udp.poll([](const MarkedUdp::Ack& ack) { ... });
//   }
//   udp.send(flow, payload, bytes);  // marked as decided; not decided in time: with its default
//
// `swiftqueue udp send` is made of it. Other programs have sockets of their own, and use the calls
// of bindings/swiftqueue.h.
//
// An L4S flow's packets are ECT(1), and ECT(0) where the classic queue was chosen for them, so that
// a marking router need not drop them there. A flow that is not L4S keeps Not-ECT, and is always of
// alternative 0. With a DscpPair each packet has the DSCP of its alternative besides. The receiver
// answers each datagram (Acknowledgement).
#ifndef SWIFTQUEUE_SERVING_AGENT_MARKED_UDP_H_
#define SWIFTQUEUE_SERVING_AGENT_MARKED_UDP_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "serving/agent/io/clock.h"
#include "serving/agent/marking/agent_link.h"
#include "serving/agent/marking/dscp.h"

namespace swiftqueue::agent {

enum Codepoint : std::uint8_t { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCe = 3 };

// Datagrams taken at once, so that a flood of them holds nobody up.
inline constexpr int kMostAtOnce = 1000;

// The first bytes of each data datagram, and all of an acknowledging one; in the machine's byte
// order, as frames.h.
struct DataHeader {
  static constexpr std::uint32_t kMagic = 0x31555153;  // SQU1
  std::uint32_t magic = kMagic;
  std::uint32_t flow_id = 0;
  std::int64_t packet = 0;
};
// QUIC's ACK frame with its ECN counts (RFC 9000, 19.3.2), for one packet each.
struct Acknowledgement {
  static constexpr std::uint32_t kMagic = 0x31415153;  // SQA1
  std::uint32_t magic = kMagic;
  std::uint32_t codepoint = 0;  // codepoint of this packet on arrival
  std::int64_t packet = 0;
  std::array<std::uint64_t, 4> received{};  // packets of this flow so far, by codepoint
};
static_assert(sizeof(DataHeader) == 16 && sizeof(Acknowledgement) == 48);
// Size of an Acknowledgement without its counts, for a datagram that is shorter than one.
inline constexpr std::size_t kShortAck = offsetof(Acknowledgement, received);
static_assert(kShortAck == sizeof(DataHeader));

// Returns a numeric address and port. Throws std::invalid_argument with one line that names it.
inline sockaddr_storage socket_address(const std::string& host, int port, socklen_t& length) {
  sockaddr_storage out{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out);
  if (port < 0 || port > 65535) {
    throw std::invalid_argument("port " + std::to_string(port) + ": must be 0 to 65535");
  }
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<std::uint16_t>(port));
    length = sizeof *v6;
  } else {
    throw std::invalid_argument("address '" + host + "' is not a numeric IPv4 or IPv6 address");
  }
  return out;
}

// Sends one datagram with a DS field, to `to` where the socket is not connected; returns sendmsg's
// result. The kernel routes it by this field.
inline ssize_t send_marked(int fd, int family, std::uint8_t ds_field, iovec* parts,
                           std::size_t count, sockaddr_storage* to = nullptr,
                           socklen_t to_length = 0) {
  const int value = ds_field;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof value)> control{};
  msghdr message{};
  message.msg_name = to;
  message.msg_namelen = to_length;
  message.msg_iov = parts;
  message.msg_iovlen = count;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
  header->cmsg_type = family == AF_INET ? IP_TOS : IPV6_TCLASS;
  header->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(header), &value, sizeof value);
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

class MarkedUdp {
 public:
  struct Ack {
    std::int64_t packet;
    std::int64_t acked_ns;
    float latency_us;
    std::uint8_t codepoint;  // codepoint on arrival: as sent, or CE
  };
  struct SendResult {
    std::int64_t packet;
    std::int64_t sent_ns;
    std::uint8_t codepoint;
    bool decided;    // decided by the agent; otherwise its default
    bool delivered;  // taken by the kernel; false where the send buffer was full, or it refused
  };
  struct PlannedPacket {
    int flow;
    std::int32_t size_bytes;  // size of the payload
  };
  static constexpr std::size_t kLeastPayload = sizeof(DataHeader);

  // Throws std::invalid_argument: the path cannot be a socket's.
  MarkedUdp(std::string agent, std::string name, DscpPair dscp = {})
      : link_(std::move(agent), std::move(name)), dscp_(dscp) {}
  ~MarkedUdp() {
    for (const Flow& flow : flows_) ::close(flow.fd);
  }
  MarkedUdp(const MarkedUdp&) = delete;
  MarkedUdp& operator=(const MarkedUdp&) = delete;

  /**
   * Opens a flow to a receiver; returns its id.
   *
   * Throws std::invalid_argument, one line: not a numeric address, or a port that cannot be;
   * std::runtime_error: the kernel refuses.
   */
  int add_flow(const std::string& host, int port, bool l4s = true) {
    socklen_t length = 0;
    const sockaddr_storage to = socket_address(host, port, length);
    if (port == 0) throw std::invalid_argument("port 0: a flow needs a receiver's port");
    Flow flow;
    // Packets to an IPv4 address mapped into IPv6 are IPv4 on the wire, and marked as IPv4.
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(to).sin6_addr;
    const bool mapped = to.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6);
    flow.family = mapped ? AF_INET : to.ss_family;
    flow.l4s = l4s;
    flow.fd = ::socket(to.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int buffer = 4 << 20;
    if (flow.fd >= 0) ::setsockopt(flow.fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (flow.fd < 0 || ::connect(flow.fd, reinterpret_cast<const sockaddr*>(&to), length) != 0) {
      const std::string reason = std::strerror(errno);
      if (flow.fd >= 0) ::close(flow.fd);
      throw std::runtime_error(host + " port " + std::to_string(port) + ": " + reason);
    }
    flow.receiver = receivers_.try_emplace(host, static_cast<int>(receivers_.size())).first->second;
    flows_.push_back(flow);
    return static_cast<int>(flows_.size()) - 1;
  }

  // Asks about the next batch that was not planned yet; its first packet goes at due_ns.
  void plan(const std::array<PlannedPacket, kHorizon>& packets, std::int64_t due_ns) {
    Batch batch{};
    for (std::size_t i = 0; i < batch.size(); ++i) {
      batch[i] = candidate(packets[i].flow, packets[i].size_bytes);
    }
    const std::int64_t now_ns = monotonic_ns();
    link_.turn(now_ns);
    const std::int64_t first_packet = next_planned();
    link_.ask(first_packet, now_ns, due_ns, batch);
    planned_ = first_packet + kHorizon;
  }

  /**
   * Sends one datagram of `bytes` bytes, at least kLeastPayload; the first kLeastPayload of them
   * are overwritten.
   *
   * Throws std::invalid_argument: no such flow, or a size that cannot be.
   */
  SendResult send(int flow_id, const void* payload, std::size_t bytes) {
    if (bytes < kLeastPayload || bytes > 65'507) {
      throw std::invalid_argument("a datagram of " + std::to_string(bytes) + " bytes: must be " +
                                  std::to_string(kLeastPayload) + " to 65507");
    }
    Candidate as = candidate(flow_id, static_cast<std::int32_t>(bytes));
    const Flow& flow = flows_[static_cast<std::size_t>(flow_id)];
    SendResult out{next_, monotonic_ns(), 0, false, false};
    link_.turn(out.sent_ns);                  // an agent that has gone decides nothing any more
    const auto queue = link_.decided(next_);  // forgets it, whichever the flow is
    if (flow.l4s && queue) {
      as.queue = *queue;
      out.decided = true;
    }
    const Codepoint codepoint = !flow.l4s ? kNotEct : as.queue == kClassic ? kEct0 : kEct1;
    out.codepoint = codepoint;
    DataHeader header;
    header.flow_id = static_cast<std::uint32_t>(flow_id);
    header.packet = next_;
    std::array<iovec, 2> parts{
        {{&header, sizeof header},
         {const_cast<char*>(static_cast<const char*>(payload)) + sizeof header,
          bytes - sizeof header}}};
    out.sent_ns = monotonic_ns();
    // A datagram's error may belong to one before it (a port that nobody listens at): it is tried
    // once more.
    for (int tries = 0; tries < 2 && !out.delivered; ++tries) {
      out.delivered = send_marked(flow.fd, flow.family, dscp_.field(as.queue, codepoint),
                                  parts.data(), parts.size()) >= 0;
    }
    if (out.delivered) {
      in_flight_.emplace(next_, InFlight{out.sent_ns, flow_id});
      link_.sent(next_, out.sent_ns, as, codepoint);
    }
    ++next_;
    forget();  // a program may never poll
    return out;
  }

  // Takes the waiting ACKs; on_ack(Ack) gets the first ACK of each packet. A flow with more than
  // kMostAtOnce of them is taken up again by the next call.
  template <typename OnAck>
  void poll(OnAck&& on_ack) {
    link_.turn(monotonic_ns());
    for (std::size_t flow_id = 0; flow_id < flows_.size(); ++flow_id) {
      const Flow& flow = flows_[flow_id];
      Acknowledgement ack;
      for (int i = 0; i < kMostAtOnce; ++i) {
        const ssize_t n = ::recv(flow.fd, &ack, sizeof ack, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == ECONNREFUSED || errno == EINTR))
          continue;  // each error is reported once
        if (n < 0) break;
        const bool whole = n == sizeof ack || n == static_cast<ssize_t>(kShortAck);
        if (!whole || ack.magic != Acknowledgement::kMagic || ack.codepoint > kCe) continue;
        const auto found = in_flight_.find(ack.packet);
        // A receiver acknowledges packets that were sent to it, and no other's.
        if (found == in_flight_.end() || found->second.flow_id != static_cast<int>(flow_id))
          continue;
        const std::int64_t now_ns = monotonic_ns();
        const auto latency_us =
            static_cast<float>(static_cast<double>(now_ns - found->second.sent_ns) / 1e3);
        in_flight_.erase(found);
        link_.acked(ack.packet, now_ns, latency_us);
        on_ack(Ack{ack.packet, now_ns, latency_us, static_cast<std::uint8_t>(ack.codepoint)});
      }
    }
    forget();
  }

  // Waits until an ACK may have come, or until `until_ns`, whichever is first.
  void wait(std::int64_t until_ns) {
    const std::int64_t left_ns = until_ns - monotonic_ns();
    if (left_ns <= 0) return;
    waited_.clear();
    for (const Flow& flow : flows_) waited_.push_back({flow.fd, POLLIN, 0});
    if (link_.fd() >= 0) {
      waited_.push_back(
          {link_.fd(), static_cast<short>(POLLIN | (link_.writes_wait() ? POLLOUT : 0)), 0});
    }
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    ::ppoll(waited_.data(), waited_.size(), &left, nullptr);
  }

  // Returns the IP length of a flow's packet. Throws std::invalid_argument for an unknown flow.
  std::int32_t ip_bytes(int flow_id, std::int32_t payload_bytes) const {
    return candidate(flow_id, payload_bytes).size_bytes;
  }

  std::int64_t next_packet() const { return next_; }
  // Returns the first packet of the next batch to plan, of which nothing was sent yet.
  std::int64_t next_planned() const {
    return std::max(planned_, (next_ + kHorizon - 1) / kHorizon * kHorizon);
  }
  const AgentLink& link() const { return link_; }

 private:
  struct Flow {
    int fd = -1;
    int family = AF_INET;
    bool l4s = true;
    int receiver = 0;
  };
  struct InFlight {
    std::int64_t sent_ns;
    int flow_id;
  };

  Candidate candidate(int flow_id, std::int32_t payload_bytes) const {
    if (flow_id < 0 || static_cast<std::size_t>(flow_id) >= flows_.size()) {
      throw std::invalid_argument("flow " + std::to_string(flow_id) +
                                  ": there is none of this number");
    }
    const Flow& flow = flows_[static_cast<std::size_t>(flow_id)];
    const int headers = (flow.family == AF_INET ? 20 : 40) + 8;
    return {payload_bytes + headers, flow_id, flow.receiver, static_cast<std::uint8_t>(flow.l4s)};
  }

  // Forgets packets whose ACK will not come, from the oldest on.
  void forget() {
    const std::int64_t now_ns = monotonic_ns();
    for (; oldest_ < next_; ++oldest_) {
      const auto found = in_flight_.find(oldest_);
      if (found == in_flight_.end()) continue;
      if (now_ns - found->second.sent_ns < kForgetNs) return;
      in_flight_.erase(found);
    }
  }

  AgentLink link_;
  const DscpPair dscp_;
  std::vector<Flow> flows_;
  std::unordered_map<std::string, int> receivers_;
  std::unordered_map<std::int64_t, InFlight> in_flight_;  // packets by number
  std::vector<pollfd> waited_;
  std::int64_t next_ = 0;
  std::int64_t planned_ = 0;  // first packet that is not planned
  std::int64_t oldest_ = 0;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_MARKED_UDP_H_
