// SPDX-License-Identifier: Apache-2.0
//
// swiftqueue-agent: its options, and the parts that they put together (docs/AGENT.md).
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serving/agent/decision/decision_loop.h"
#include "serving/agent/decision/last_latency.h"
#include "serving/agent/decision/schedule.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/io/feed.h"
#include "serving/agent/io/heartbeat.h"
#include "serving/agent/io/metrics.h"
#include "serving/agent/io/report.h"
#include "serving/agent/predictors/local_predictor.h"
#include "serving/agent/predictors/rule_predictor.h"
#include "serving/agent/predictors/triton_predictor.h"

namespace swiftqueue::agent {
namespace {

constexpr std::int64_t kIdleNs = 100'000'000;  // between looks while idle
constexpr std::int64_t kReportMs = 250;

struct Options {
  std::string replay;
  std::string listen;
  std::vector<uid_t> allowed;
  Synthetic synthetic;
  std::string local;
  std::string arithmetic = "fp32";
  std::string rule;
  TritonOptions triton;
  double speed = 1;
  std::int64_t deadline_us = 2'000;
  double wait_model_s = 5;
  int metrics_port = -1;
  std::string metrics_address = "127.0.0.1";
  std::string record;
  std::string telemetry;
  std::string heartbeat;
  ControllerParams controller;
  std::string guard;  // on, off; empty: as the input says
};

void add_options(CLI::App& app, Options& o) {
  auto* const inputs = app.add_option_group("input", "where packets come from");
  inputs->add_option("--replay", o.replay, "a file of frames")->check(CLI::ExistingFile);
  auto* const listen =
      inputs->add_option("--listen", o.listen, "a unix socket to listen at for senders");
  inputs
      ->add_option("--synthetic-bps", o.synthetic.rate_bps,
                   "packets at an even pace, acknowledged after 40 ms: their rate")
      ->check(CLI::Range(1e3, 1e12));
  app.add_option("--allow-uid", o.allowed,
                 "users, by number, that may connect to --listen besides this one and root");
  inputs->require_option(1);
  auto* const answers = app.add_option_group("answers", "where predictions come from");
  auto* const local =
      answers->add_option("--local", o.local, "an artifact's folder: the engine in this process");
  app.add_option("--arithmetic", o.arithmetic,
                 "of the engine's matrix products: bf16 takes less time where the CPU has AMX")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->needs(local)
      ->capture_default_str();
  answers
      ->add_option(
          "--rule", o.rule,
          "a rule in a model's place: the alternative whose last latency is less; by default "
          "without margin, limit and guard")
      ->check(CLI::IsMember({"last-latency"}));
  answers->add_option("--server", o.triton.servers,
                      "HOST:PORT or unix:PATH of a Triton server; several in order of preference");
  app.add_option("--tls-ca", o.triton.tls_ca,
                 "certificate of the authority that signed the servers'");
  app.add_option("--tls-cert", o.triton.tls_cert, "this agent's own certificate");
  app.add_option("--tls-key", o.triton.tls_key, "its key");
  answers->require_option(1);
  app.add_option("--speed", o.speed, "times real time; 0 is as fast as answers come")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--deadline-us", o.deadline_us,
                 "a batch is asked about this long before it is due, and answered by then")
      ->check(CLI::Range(1, 10'000'000));
  app.add_option("--wait-model-s", o.wait_model_s,
                 "how long to look for a model before the first packet")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--flows", o.synthetic.flows, "of --synthetic-bps")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seconds", o.synthetic.seconds, "of --synthetic-bps, in its own time")
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("--metrics-port", o.metrics_port,
                 "serve Prometheus metrics there; 0 is any free port")
      ->check(CLI::Range(0, 65'535));
  app.add_option("--metrics-address", o.metrics_address,
                 "address of this machine that is scraped; 0.0.0.0 is every one")
      ->check(CLI::ValidIPV4)
      ->capture_default_str();
  app.add_option("--record", o.record, "write every DECISION frame of a replay to this file")
      ->excludes(listen);
  app.add_option("--telemetry", o.telemetry,
                 "unix:PATH of a socket, or a file, for SENT and ACKED frames");
  app.add_option("--heartbeat", o.heartbeat,
                 "a file that is touched each second while decisions are made");
  app.add_option("--margin-us", o.controller.margin_us,
                 "the other alternative must be better by this much")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--margin-share", o.controller.margin_share,
                 "and by this share of the latency in the present alternative")
      ->check(CLI::Range(0.0, 1e3));
  app.add_option(
         "--max-moved-unacked", o.controller.max_moved_unacked,
         "most packets moved and not acknowledged yet, or --max-moved-share, if that is more")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-moved-share", o.controller.max_moved_share,
                 "most of them, as a share of the packets in flight")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--rule-stands-in", o.controller.rule_stands_in,
               "the virtual queue decides batches that have no answer, instead of their default "
               "marking");
  app.add_option("--guard", o.guard,
                 "moving stops where it is not settled to help; by default on with --listen, since "
                 "what is replayed does not follow decisions, and off with --rule")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option(
         "--guard-growth", o.controller.guard.most_growth,
         "most growth of the rate while packets are moved, as a share, where no classic flow of "
         "the sender tells; 0: any")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--guard-advantage", o.controller.guard.most_advantage,
                 "most growth of a moved flow's rate beside that of a classic flow to the same "
                 "receiver, as a share; 0: any")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
}

// With a rule, limits that were not named are the rule's.
void take_limits_of_rule(const CLI::App& app, Options& o) {
  if (o.rule.empty()) return;
  const ControllerParams rule = without_limits();
  const auto take = [&](const char* name, auto ControllerParams::* limit) {
    if (app.count(name) == 0) o.controller.*limit = rule.*limit;
  };
  take("--margin-us", &ControllerParams::margin_us);
  take("--margin-share", &ControllerParams::margin_share);
  take("--max-moved-unacked", &ControllerParams::max_moved_unacked);
}

std::unique_ptr<Predictor> make_predictor(const Options& o) {
  if (!o.rule.empty()) return make_rule_predictor();
  if (o.local.empty()) return make_triton_predictor(o.triton);
  return make_local_predictor(o.local, o.arithmetic == "fp32" ? "auto" : o.arithmetic);
}

// Takes a replay's decisions to the record, and back to its source.
class ScheduleTaker final : public DecisionTaker {
 public:
  ScheduleTaker(Source& source, FrameSink* record) : source_(source), record_(record) {}
  void take(std::uint32_t sender, const DecisionFrame& decision) override {
    source_.decided(decision);
    if (record_ != nullptr) record_->put(decision, sender);
  }

 private:
  Source& source_;
  FrameSink* const record_;
};

sigset_t ending_signals() {
  sigset_t signals{};
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// Ends the program in order when it is told to: a thread waits for the signals, which are blocked
// in every other one.
class Stop {
 public:
  explicit Stop(Predictor& predictor)
      : thread_([this, &predictor] {
          const sigset_t signals = ending_signals();
          int signal = 0;
          sigwait(&signals, &signal);
          now = true;
          predictor.wake();
        }) {}
  ~Stop() {
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

  std::atomic<bool> now{false};

 private:
  std::thread thread_;
};

void wait_for_model(DecisionLoop& loop, Predictor& predictor, double seconds, const Stop& stop) {
  const std::int64_t end_ns = monotonic_ns() + static_cast<std::int64_t>(seconds * 1e9);
  while (predictor.model().reach == 0 && monotonic_ns() < end_ns && !stop.now) {
    loop.run(std::min(monotonic_ns() + kIdleNs, end_ns));
  }
}

std::string microseconds(std::int64_t ns) { return std::to_string(static_cast<double>(ns) / 1e3); }

std::string summary(const Statistics& s, const Report& report, const std::string& problem,
                    double seconds, const FrameSink* telemetry) {
  std::string out = "{\"event\": \"summary\", " + report.counts();
  out += ", \"problem\": " + json_string(problem);
  const auto batches = static_cast<double>(s.all_batches());
  const double share = batches > 0 ? static_cast<double>(s.of(Outcome::kDecided)) / batches : 0;
  out += ", \"in_time_share\": " + std::to_string(share);
  for (const auto& [name, histogram] : {std::pair{"round_trip_us", &s.round_trip},
                                        std::pair{"prediction_error_us", &s.prediction_error}}) {
    out += std::string(", \"") + name +
           "\": {\"p50\": " + microseconds(histogram->quantile_ns(0.5)) +
           ", \"p99\": " + microseconds(histogram->quantile_ns(0.99)) +
           ", \"count\": " + std::to_string(histogram->count()) + "}";
  }
  if (telemetry != nullptr) {
    out += ", \"telemetry_dropped\": " + std::to_string(telemetry->dropped());
  }
  return out + ", \"undelivered\": " + std::to_string(s.undelivered.get()) +
         ", \"seconds\": " + std::to_string(seconds) + "}";
}

int run(const Options& o) {
  if (geteuid() == 0) {
    std::fprintf(stderr,
                 "swiftqueue-agent: runs as root, which it does not need; the user whose programs "
                 "send will do\n");
  }
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns by which the kernel may delay this program's sleeps
  const sigset_t signals = ending_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // first, because every thread inherits it
  Statistics statistics;
  const std::unique_ptr<Predictor> predictor = make_predictor(o);
  Stop stop(*predictor);
  std::unique_ptr<FrameSink> telemetry;
  if (!o.telemetry.empty()) {
    telemetry = std::make_unique<FrameSink>(o.telemetry, FrameSink::Full::kDrop);
  }
  std::optional<Metrics> metrics;
  if (o.metrics_port >= 0) {
    metrics.emplace(o.metrics_address, o.metrics_port, statistics, *predictor, telemetry.get());
  }
  ControllerParams controller = o.controller;
  controller.guard.on = o.guard.empty() ? !o.listen.empty() && o.rule.empty() : o.guard == "on";
  Heartbeat heartbeat(o.heartbeat);
  DecisionLoop loop(*predictor, controller, statistics, telemetry.get(), &heartbeat);
  Report report(statistics, o.listen.empty() ? kReportMs : 0);
  const auto say_ready = [&] {
    report.say("{\"event\": \"ready\", \"reach\": " + std::to_string(predictor->model().reach) +
               ", \"version\": " + std::to_string(predictor->model().version) +
               ", \"metrics_port\": " + (metrics ? std::to_string(metrics->port()) : "null") +
               ", \"problem\": " + json_string(predictor->problem()) + "}");
  };

  const std::int64_t begin_ns = monotonic_ns();
  double seconds = 0;
  std::int64_t lost = 0;  // lost frames of the record
  if (!o.listen.empty()) {
    Feed feed(o.listen, o.allowed, statistics, loop.complaints(), [&] { predictor->wake(); });
    say_ready();
    while (!stop.now) {
      if (!feed.drain(loop, o.deadline_us * 1000)) loop.run(monotonic_ns() + kIdleNs);
    }
    feed.stop();
    while (feed.drain(loop, o.deadline_us * 1000)) {
    }
    seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
  } else {
    const std::unique_ptr<Source> source =
        o.replay.empty() ? make_synthetic(o.synthetic) : open_replay(o.replay);
    std::unique_ptr<FrameSink> record;
    if (!o.record.empty()) record = std::make_unique<FrameSink>(o.record, FrameSink::Full::kWait);
    wait_for_model(loop, *predictor, o.wait_model_s, stop);
    say_ready();
    ScheduleTaker taker(*source, record.get());
    const std::uint32_t sender = loop.open(source->name(), taker);
    const std::int64_t first_ns = monotonic_ns();
    run_schedule(*source, loop, sender, {o.speed, o.deadline_us * 1000}, statistics, stop.now);
    seconds = static_cast<double>(monotonic_ns() - first_ns) / 1e9;
    loop.close(sender);
    if (record) lost = record->finish();
  }
  if (telemetry) telemetry->finish();  // it counts the frames that it could not write
  report.stop();                       // the summary is the last line
  report.say(summary(statistics, report, predictor->problem(), seconds, telemetry.get()));
  if (lost == 0) return 0;
  std::fprintf(stderr, "swiftqueue-agent: %s: %lld decisions could not be written\n",
               o.record.c_str(), static_cast<long long>(lost));
  return 1;
}

}  // namespace
}  // namespace swiftqueue::agent

int main(int argc, char** argv) {
  CLI::App app("Says for each batch of 8 packets which queue or uplink to mark them for, in time.",
               "swiftqueue-agent");
  swiftqueue::agent::Options options;
  swiftqueue::agent::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  swiftqueue::agent::take_limits_of_rule(app, options);
  if (options.synthetic.rate_bps > 0 && options.synthetic.seconds <= 0) {
    std::fprintf(stderr, "swiftqueue-agent: --synthetic-bps needs --seconds\n");
    return 2;
  }
  try {
    return swiftqueue::agent::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "swiftqueue-agent: %s\n", error.what());
    return 1;
  }
}
