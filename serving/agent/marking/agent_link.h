// SPDX-License-Identifier: Apache-2.0
//
// A sender's connection with the agent (docs/how-to/mark-packets.md) that never makes it wait:
// every read, write and connect is non-blocking. Without an agent, or when it goes, nothing is
// decided from that moment on.
//
//   AgentLink link("var/agent.sock", "backup");
//   link.turn(now_ns);  // often: takes what came; without a connection it tries each second
//   link.ask(first_packet, now_ns, due_ns, batch);  // some time before `first_packet` is due
//   link.decided(packet);  // a queue; or nothing: then the packet's default
//   link.sent(...);
//   link.acked(...);
// sample of a TCP connection, whose rate is forecast where it asks
//   link.forecast();  // the next answer
//
// Times are CLOCK_MONOTONIC. One thread.
#ifndef SWIFTQUEUE_SERVING_AGENT_AGENT_LINK_H_
#define SWIFTQUEUE_SERVING_AGENT_AGENT_LINK_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "serving/agent/io/frames.h"

namespace swiftqueue::agent {

struct LinkCounts {
  std::int64_t connections = 0;  // connections that the agent greeted
  std::int64_t lost = 0;         // connections that ended, whoever ended them
  std::int64_t asked = 0;        // batches asked about
  std::array<std::int64_t, kOutcomeNames.size()> answered{};  // answers by outcome
};

class AgentLink {
 public:
  // An empty path means no agent: nothing is ever decided.
  // Throws std::invalid_argument: the path is longer than a socket's can be.
  AgentLink(std::string path, std::string name) : path_(std::move(path)), name_(std::move(name)) {
    if (path_.size() >= sizeof(sockaddr_un::sun_path)) {
      throw std::invalid_argument("a socket's path has at most 107 bytes: " + path_);
    }
  }
  ~AgentLink() { close_socket(); }
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  bool connected() const { return greeted_; }
  int fd() const { return fd_; }  // for waiting; -1 without a connection
  bool writes_wait() const { return !out_.empty(); }
  const LinkCounts& counts() const { return counts_; }
  const std::string& problem() const { return problem_; }  // why there is no connection; one line

  // From now on SENT and ACKED frames are written together: with the next question, at the next
  // turn, or when 4 KiB of them wait. Without this each one is written at once.
  void write_together() { together_ = true; }

  // Reads, writes and connects as far as possible without waiting.
  void turn(std::int64_t now_ns) {
    if (path_.empty()) return;
    if (fd_ < 0) {
      if (now_ns < next_try_ns_) return;
      next_try_ns_ = now_ns + kRetryNs;
      connect_socket();
    }
    if (fd_ >= 0) read_socket();
    if (fd_ >= 0) write_socket();
  }

  void ask(std::int64_t first_packet, std::int64_t now_ns, std::int64_t due_ns,
           const Batch& batch) {
    if (!greeted_) return;
    BatchFrame frame;
    frame.first_packet = first_packet;
    frame.now_ns = now_ns;
    frame.due_ns = due_ns;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      frame.packets[i] = {
          batch[i].size_bytes, batch[i].flow_id, batch[i].receiver_id, batch[i].queue, {}};
    }
    ++counts_.asked;
    say(frame);
  }

  // Returns the queue decided for a packet, and forgets earlier batches.
  std::optional<std::uint8_t> decided(std::int64_t packet) {
    const std::int64_t batch = packet / kHorizon;
    decisions_.erase(decisions_.begin(), decisions_.lower_bound(batch));
    const auto found = decisions_.find(batch);
    if (found == decisions_.end() || found->second.outcome != Outcome::kDecided)
      return std::nullopt;
    return found->second.queues[static_cast<std::size_t>(packet % kHorizon)];
  }

  // Returns the answer about the earliest batch, each once, whatever its outcome.
  std::optional<DecisionFrame> next() {
    if (decisions_.empty()) return std::nullopt;
    return decisions_.extract(decisions_.begin()).mapped();
  }

  void sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& as, std::uint8_t ecn,
            bool retransmitted = false) {
    if (!greeted_) return;
    if (first_told_ < 0) first_told_ = packet;
    SentFrame frame;
    frame.packet = packet;
    frame.sent_ns = sent_ns;
    frame.size_bytes = as.size_bytes;
    frame.flow_id = as.flow_id;
    frame.receiver_id = as.receiver_id;
    frame.queue = as.queue;
    frame.ecn = ecn;
    frame.retransmitted = retransmitted;
    say(frame, together_);
  }

  // Reports the first ACK of a packet, unless this connection was not told of the packet, or the
  // ACK is too late for a frame: the agent has forgotten such a packet.
  void acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    if (!greeted_ || first_told_ < 0 || packet < first_told_) return;
    if (latency_us > detail::kMaxLatencyUs) return;
    AckedFrame frame;
    frame.packet = packet;
    frame.acked_ns = acked_ns;
    frame.latency_us = latency_us;
    say(frame, together_);
  }

  void sample(const SampleFrame& frame) {
    if (greeted_) say(frame);
  }

  // Returns an answer about a TCP connection's rate; each is given once.
  std::optional<ForecastFrame> forecast() {
    if (forecasts_.empty()) return std::nullopt;
    const ForecastFrame next = forecasts_.front();
    forecasts_.pop_front();
    return next;
  }

 private:
  static constexpr std::int64_t kRetryNs = 1'000'000'000;  // between attempts to connect
  // Bytes that the agent has not taken, at which it is as good as gone.
  static constexpr std::size_t kMostWaiting = 1 << 20;
  static constexpr std::size_t kTogether = 1 << 12;     // bytes that are written together at most
  static constexpr std::size_t kMostAnswers = 1 << 12;  // answers that nobody took

  template <typename T>
  void say(const T& frame, bool may_wait = false) {
    const T whole = finished(frame, 0, 0);
    out_.append(reinterpret_cast<const char*>(&whole), sizeof whole);
    if (!may_wait || out_.size() >= kTogether) write_socket();
    if (out_.size() > kMostWaiting) lose("it takes nothing any more");
  }

  void connect_socket() {
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    if (fd_ < 0 || ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      problem_ = "agent socket " + path_ + ": " + std::strerror(errno);
      close_socket();
      return;
    }
    HelloFrame hello;
    hello.name = text_field<56>(name_);
    say(hello);
  }

  void write_socket() {
    while (!out_.empty() && fd_ >= 0) {
      const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
      if (n > 0) {
        out_.erase(0, static_cast<std::size_t>(n));
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else {
        // The agent's last words before it went, such as a REFUSED, are read first.
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
          const std::string reason = std::strerror(errno);
          read_socket();
          if (fd_ >= 0) lose(reason);
        }
        return;
      }
    }
  }

  void read_socket() {
    char buffer[1 << 14];
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n <= 0) {
        take();
        if (fd_ >= 0) lose(n == 0 ? "it closed the connection" : std::strerror(errno));
        return;
      }
      in_.append(buffer, static_cast<std::size_t>(n));
    }
    take();
  }

  void take() {
    std::size_t at = 0;
    while (fd_ >= 0) {
      Frame frame;
      const char* why = nullptr;
      const Read read = read_frame(std::string_view(in_).substr(at), frame, why);
      if (read == Read::kMore) break;
      if (read == Read::kBad) {
        lose(std::string("it sent a frame that cannot be: ") + why);
        return;
      }
      at += frame.header.bytes;
      if (frame.header.type == FrameType::kHello) {
        greeted_ = true;
        problem_.clear();
        ++counts_.connections;
      } else if (frame.header.type == FrameType::kRefused) {
        lose("refused: " + std::string(text_of(frame.refused.line)));
        return;
      } else if (frame.header.type == FrameType::kDecision) {
        const DecisionFrame& decision = frame.decision;
        ++counts_.answered[static_cast<std::size_t>(decision.outcome)];
        decisions_[decision.first_packet / kHorizon] = decision;
        if (decisions_.size() > kMostAnswers) decisions_.erase(decisions_.begin());
      } else if (frame.header.type == FrameType::kForecast) {
        forecasts_.push_back(frame.forecast);
      }
    }
    in_.erase(0, at);
  }

  void lose(const std::string& reason) {
    problem_ = "agent socket " + path_ + ": " + reason;
    ++counts_.lost;
    close_socket();
  }

  void close_socket() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    greeted_ = false;
    first_told_ = -1;
    decisions_.clear();  // a dead agent decides nothing, and its decisions are void
    forecasts_.clear();
    in_.clear();
    out_.clear();
  }

  std::string path_;
  std::string name_;
  int fd_ = -1;
  bool greeted_ = false;
  bool together_ = false;  // whether SENT and ACKED frames may wait
  std::int64_t next_try_ns_ = 0;
  std::int64_t first_told_ = -1;
  std::map<std::int64_t, DecisionFrame> decisions_;  // answers by batch
  std::deque<ForecastFrame> forecasts_;              // not taken yet
  std::string in_;
  std::string out_;
  std::string problem_;
  LinkCounts counts_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_AGENT_LINK_H_
