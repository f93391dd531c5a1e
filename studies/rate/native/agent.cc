// SPDX-License-Identifier: Apache-2.0
//
// swiftqueue-rate-agent: programs say each ACK of their TCP connections over a unix socket, and get
// forecasts of these connections' rates, by the engine in this process or by Triton (README.md).
// One thread serves all senders; who is slow to read loses its own answers and holds up nobody.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/agent/decision/decision_loop.h"
#include "serving/agent/decision/statistics.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/io/complaints.h"
#include "serving/agent/io/http_page.h"
#include "serving/agent/io/listening.h"
#include "studies/rate/native/rates.h"

namespace swiftqueue::agent {
namespace {

constexpr std::size_t kReadBytes = 1 << 15;       // bytes read from a sender in a turn
constexpr std::int64_t kHelloNs = 5'000'000'000;  // from connecting to the HELLO
constexpr int kLookMs = 200;                      // between looks at who is silent

struct Options {
  std::string listen;
  std::vector<uid_t> allowed;
  std::string local;
  TritonOptions triton;
  int metrics_port = -1;
  std::string metrics_address = "127.0.0.1";
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--listen", o.listen, "a unix socket to listen at for senders")->required();
  app.add_option("--allow-uid", o.allowed,
                 "users, by number, that may connect besides this one and root");
  auto* const answers = app.add_option_group("answers", "where forecasts come from");
  answers->add_option("--local", o.local, "an artifact's folder: the engine in this process");
  answers->add_option("--server", o.triton.servers,
                      "HOST:PORT or unix:PATH of a Triton server; several in order of preference");
  answers->require_option(1);
  app.add_option("--model", o.triton.model, "its name at the servers");
  app.add_option("--tls-ca", o.triton.tls_ca,
                 "certificate of the authority that signed the servers'");
  app.add_option("--tls-cert", o.triton.tls_cert, "this agent's own certificate");
  app.add_option("--tls-key", o.triton.tls_key, "its key");
  app.add_option("--metrics-port", o.metrics_port,
                 "serve Prometheus metrics there; 0 is any free port")
      ->check(CLI::Range(0, 65'535));
  app.add_option("--metrics-address", o.metrics_address,
                 "address of this machine that is scraped; 0.0.0.0 is every one")
      ->check(CLI::ValidIPV4);
}

// Counts, read by the thread of the metrics.
struct Counts {
  std::array<Counter, kRateOutcomeNames.size()> forecasts;
  DurationHistogram time;  // from a sample's arrival to its answer
  Counter connections, senders, undelivered, refused;

  std::string page() const {
    std::string out;
    const auto add = [&](const std::string& name, const char* kind, std::int64_t value) {
      out += "# TYPE swiftqueue_agent_" + name + " " + kind + "\nswiftqueue_agent_" + name + " " +
             std::to_string(value) + "\n";
    };
    out += "# TYPE swiftqueue_agent_forecasts_total counter\n";
    for (std::size_t i = 0; i < forecasts.size(); ++i) {
      out += std::string("swiftqueue_agent_forecasts_total{outcome=\"") + kRateOutcomeNames[i] +
             "\"} " + std::to_string(forecasts[i].get()) + "\n";
    }
    out += "# TYPE swiftqueue_agent_forecast_seconds summary\n";
    for (const auto& [text, q] : {std::pair{"0.5", 0.5}, std::pair{"0.99", 0.99}}) {
      out += std::string("swiftqueue_agent_forecast_seconds{quantile=\"") + text + "\"} " +
             std::to_string(static_cast<double>(time.quantile_ns(q)) / 1e9) + "\n";
    }
    out += "swiftqueue_agent_forecast_seconds_sum " + std::to_string(time.sum_s()) + "\n";
    out += "swiftqueue_agent_forecast_seconds_count " + std::to_string(time.count()) + "\n";
    add("rate_connections", "gauge", connections.get());
    add("senders", "gauge", senders.get());
    add("undelivered_total", "counter", undelivered.get());
    add("refused_senders_total", "counter", refused.get());
    return out;
  }

  std::string summary() const {
    std::string out = "{\"event\": \"summary\", \"forecasts\": {";
    for (std::size_t i = 0; i < forecasts.size(); ++i) {
      out += std::string(i == 0 ? "\"" : ", \"") + kRateOutcomeNames[i] +
             "\": " + std::to_string(forecasts[i].get());
    }
    const auto us = [&](double q) {
      return std::to_string(static_cast<double>(time.quantile_ns(q)) / 1e3);
    };
    return out + "}, \"forecast_us\": {\"p50\": " + us(0.5) + ", \"p99\": " + us(0.99) +
           ", \"count\": " + std::to_string(time.count()) +
           "}, \"undelivered\": " + std::to_string(undelivered.get()) + "}";
  }
};

struct Sender {
  explicit Sender(int socket) : fd(socket), since_ns(monotonic_ns()) {}
  ~Sender() { close(fd); }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  const int fd;
  const std::int64_t since_ns;
  std::uint32_t number = 0;    // none before its HELLO
  std::uint64_t sequence = 0;  // number of the next frame to it
  std::string buffer;
};

class Agent {
 public:
  Agent(const Options& o, Counts& counts)
      : path_(o.listen),
        allowed_(o.allowed),
        counts_(counts),
        woken_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        rates_(o.local.empty() ? make_triton_rates(o.triton, [this] { wake(); })
                               : make_local_rates(o.local, [this] { wake(); })),
        listen_fd_(listening_at(path_, allowed_.empty() ? 0600 : 0666)),
        own_(identity(path_)) {}

  ~Agent() {
    // While it is bound nobody else's file can have its number.
    if (identity(path_) == own_) unlink(path_.c_str());
    close(listen_fd_);
    senders_.clear();
    rates_.reset();  // its thread wakes this no more
    close(woken_fd_);
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Serves until `ending_fd` can be read.
  void run(int ending_fd) {
    std::vector<pollfd> waiting;
    while (true) {
      bool silent = false;
      waiting.assign({{ending_fd, POLLIN, 0}, {woken_fd_, POLLIN, 0}, {listen_fd_, POLLIN, 0}});
      for (const auto& each : senders_) {
        waiting.push_back({each->fd, POLLIN, 0});
        silent = silent || each->number == 0;
      }
      if (poll(waiting.data(), waiting.size(), silent ? kLookMs : -1) < 0) continue;
      if (waiting[0].revents != 0) return;
      if (waiting[1].revents != 0) {
        std::uint64_t times = 0;
        [[maybe_unused]] const ssize_t got = read(woken_fd_, &times, sizeof times);
      }
      for (std::size_t i = 0; i < senders_.size(); ++i) {
        Sender& sender = *senders_[i];
        const char* why = nullptr;
        bool open = true;
        if (waiting[i + 3].revents != 0) open = read_from(sender, why);
        if (open && sender.number == 0 && monotonic_ns() - sender.since_ns > kHelloNs) {
          why = "no HELLO frame came within 5 s";
          open = false;
        }
        answer_all();
        if (!open) end(senders_[i], why);
      }
      std::erase(senders_, nullptr);
      answer_all();
      if (waiting[2].revents != 0) accept_one();
      counts_.senders.set(static_cast<std::int64_t>(senders_.size()));
      counts_.connections.set(static_cast<std::int64_t>(rates_->connections()));
    }
  }

 private:
  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(woken_fd_, &one, sizeof one);
  }

  template <typename T>
  bool say(Sender& sender, const T& frame) {
    const T whole = finished(frame, sender.number, sender.sequence++);
    return send(sender.fd, &whole, sizeof whole, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof whole;
  }

  void accept_one() {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    auto sender = std::make_unique<Sender>(fd);
    const uid_t user = user_of(fd);
    std::string why;
    if (!may_connect(user, allowed_)) {
      why = "user " + std::to_string(static_cast<std::int64_t>(user)) +
            " may not connect; the agent's --allow-uid allows it";
    } else if (senders_.size() >= kMaxSenders) {
      why = std::to_string(kMaxSenders) + " senders are connected, and more are not taken";
    }
    if (!why.empty()) return refuse(*sender, why);
    senders_.push_back(std::move(sender));
  }

  void refuse(Sender& sender, const std::string& why) {
    counts_.refused.add();
    complaints_.say("sender " + std::to_string(sender.number) + " refused: " + why);
    RefusedFrame refused;
    refused.line = text_field<sizeof refused.line>(why);
    say(sender, refused);
  }

  void end(std::unique_ptr<Sender>& sender, const char* why) {
    if (why != nullptr) refuse(*sender, why);
    if (sender->number != 0) rates_->close(sender->number);
    sender.reset();
  }

  // Reads what there is; false once the connection is at its end, or refused for a reason.
  bool read_from(Sender& sender, const char*& why) {
    std::array<char, kReadBytes> data;
    const ssize_t got = recv(sender.fd, data.data(), data.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    const std::int64_t now_ns = monotonic_ns();
    if (got > 0) sender.buffer.append(data.data(), static_cast<std::size_t>(got));
    std::size_t at = 0;
    RateFrame frame;
    Read read = Read::kMore;
    while ((read = read_rate_frame(std::string_view(sender.buffer).substr(at), frame, why)) ==
           Read::kFrame) {
      at += frame.header.bytes;
      if (!take(sender, frame, now_ns, why)) return false;
    }
    sender.buffer.erase(0, at);
    if (read == Read::kBad) return false;
    if (got > 0) return true;
    why = sender.buffer.empty() ? nullptr : "the connection ends inside a frame";
    return false;
  }

  bool take(Sender& sender, const RateFrame& frame, std::int64_t now_ns, const char*& why) {
    if (sender.number == 0) {
      why = "a HELLO frame comes first";
      if (frame.header.type != FrameType::kHello) return false;
      why = nullptr;
      sender.number = ++newest_;
      HelloFrame hello;
      hello.name = text_field<sizeof hello.name>("swiftqueue-rate-agent");
      say(sender, hello);
      return true;
    }
    why = "a sender sends one HELLO, then SAMPLE frames";
    if (frame.header.type != SampleFrame::kType) return false;
    why = nullptr;
    rates_->sample(sender.number, frame.sample, now_ns);
    return true;
  }

  void answer_all() {
    RateAnswer answer;
    while (rates_->next(answer)) {
      for (const auto& each : senders_) {
        if (each == nullptr || each->number != answer.sender) continue;
        if (!say(*each, answer.frame)) counts_.undelivered.add();
        counts_.forecasts[static_cast<std::size_t>(answer.frame.outcome)].add();
        counts_.time.observe(monotonic_ns() - answer.arrived_ns);
      }
    }
    std::string problem;
    while (rates_->next_problem(problem)) complaints_.say("rates: " + problem);
  }

  const std::string path_;
  const std::vector<uid_t> allowed_;
  Counts& counts_;
  Complaints complaints_;
  const int woken_fd_;
  std::unique_ptr<Rates> rates_;
  const int listen_fd_;
  const std::pair<dev_t, ino_t> own_;  // the socket there, as long as it is ours
  std::vector<std::unique_ptr<Sender>> senders_;
  std::uint32_t newest_ = 0;
};

int run(const Options& o) {
  sigset_t signals{};
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // first: every thread inherits it
  const int ending_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  Counts counts;
  {
    Agent agent(o, counts);
    std::optional<HttpPage> metrics;
    if (o.metrics_port >= 0) {
      metrics.emplace(o.metrics_address, o.metrics_port, "/metrics", [&] { return counts.page(); });
    }
    std::printf("{\"event\": \"ready\", \"metrics_port\": %s}\n",
                metrics ? std::to_string(metrics->port()).c_str() : "null");
    std::fflush(stdout);
    agent.run(ending_fd);
  }
  std::printf("%s\n", counts.summary().c_str());
  return 0;
}

}  // namespace
}  // namespace swiftqueue::agent

int main(int argc, char** argv) {
  CLI::App app("Forecasts TCP connections' rates from their first ACKs.", "swiftqueue-rate-agent");
  swiftqueue::agent::Options options;
  options.triton.model = "swiftqueue-rate";
  swiftqueue::agent::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    return swiftqueue::agent::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "swiftqueue-rate-agent: %s\n", error.what());
    return 1;
  }
}
