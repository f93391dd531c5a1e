// SPDX-License-Identifier: Apache-2.0
//
// Asks servers questions as the agent does and prints the results: for `swiftqueue bench serving`
// and for the tests of the client. Without a rate it asks one question at a time, so that the
// figures are round trips; with one, as many per second whatever the answers do. There are 16 new
// events at each question, as a sender of many packets has them.
//
// SIGINT ends it early. Prints a line `ready` once a model is served, and at the end one JSON
// object:
//   asked, in_time, late, failed             questions; each is one of the last three
//   p50_us, p99_us                           from asking to the answer, of answers in time
//   gap_ms, silent_ms                        longest time without an answer in time, and that at
//   the
//                                            end
//   servers, versions                        answers in time, by server and by model version
// server of the last answer in time; -1: none
//   error                                    the last failure
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "serving/agent/io/clock.h"
#include "serving/agent/predictors/triton_predictor.h"

namespace swiftqueue::agent {
namespace {

constexpr std::int64_t kWarmUp = 500;  // questions that do not count, where one follows another
// Events since the question before: a batch was sent, and one was acknowledged.
constexpr int kNewEvents = 2 * kHorizon;
constexpr int kPatient = 8192;  // questions that may wait, however late their answers are
constexpr std::uint32_t kSender = 1;

volatile std::sig_atomic_t interrupted = 0;

struct Settings {
  TritonOptions triton;
  std::int64_t questions = 3000;
  double rate = 0;
  std::int64_t deadline_us = 1'000'000;
  std::int64_t connect_ms = 10'000;
  int alternatives = 1;
  std::int64_t poison = 0;  // one question of so many has a NaN
};

// Makes rows with values that every unit allows.
class MadeRows {
 public:
  void write(float* x_RF, int rows) {
    for (int row = 0; row < rows; ++row, x_RF += kEventWindowFeatureCount) {
      for (int f = 0; f < kEventWindowFeatureCount; ++f) {
        x_RF[f] = static_cast<float>(random_() % 2);
      }
      x_RF[event_input("size_bytes")] = 1500;
    }
  }
  // Adds events to a sender's.
  void add(EventRows& rows, int events) {
    for (int event = 0; event < events; ++event) {
      write(rows.place(), 1);
      rows.add();
    }
  }

 private:
  std::mt19937 random_{0};
};

// The counts of the questions' results.
class Tally {
 public:
  void asked(std::uint64_t ticket, std::int64_t now, std::int64_t deadline_ns) {
    open_.push_back({ticket, now, deadline_ns});
    if (last_ns_ == 0) last_ns_ = now;
    ++asked_;
  }
  void refused(const std::string& why) {
    ++asked_;
    ++failed_;
    error_ = why;
  }
  void answered(const Answer& answer, std::int64_t now) {
    const auto place = std::find_if(open_.begin(), open_.end(), [&](const OpenQuestion& each) {
      return each.ticket == answer.ticket;
    });
    if (place == open_.end()) return;  // its answer was late
    const OpenQuestion question = *place;
    open_.erase(place);
    if (!answer.ok) {
      ++failed_;
      error_ = answer.error;
    } else if (now > question.deadline_ns) {
      ++late_;
    } else {
      us_.push_back(static_cast<double>(now - question.asked_ns) / 1000);
      gap_ns_ = std::max(gap_ns_, now - std::exchange(last_ns_, now));
      ++servers_[last_server_ = answer.server];
      ++versions_[answer.version];
    }
  }
  void expire(std::int64_t now) {
    late_ += static_cast<std::int64_t>(
        std::erase_if(open_, [&](const OpenQuestion& each) { return each.deadline_ns < now; }));
  }
  bool waits() const { return !open_.empty(); }
  std::int64_t next_deadline_ns() const { return open_.front().deadline_ns; }

  void print() {
    std::sort(us_.begin(), us_.end());
    const auto at = [&](double share) {
      return us_.empty()
                 ? -1.0
                 : us_[static_cast<std::size_t>(share * static_cast<double>(us_.size() - 1))];
    };
    std::printf("{\"asked\": %ld, \"in_time\": %zu, \"late\": %ld, \"failed\": %ld, ", asked_,
                us_.size(), late_, failed_);
    const std::int64_t silent_ns = last_ns_ == 0 ? 0 : monotonic_ns() - last_ns_;
    gap_ns_ = std::max(gap_ns_, silent_ns);
    std::printf("\"p50_us\": %.1f, \"p99_us\": %.1f, \"gap_ms\": %.1f, \"silent_ms\": %.1f, ",
                at(0.5), at(0.99), static_cast<double>(gap_ns_) / 1e6,
                static_cast<double>(silent_ns) / 1e6);
    print_map("servers", servers_);
    print_map("versions", versions_);
    for (char& c : error_) {
      if (c == '"' || c == '\\') c = '\'';
    }
    std::printf("\"last_server\": %d, \"error\": \"%s\"}\n", last_server_, error_.c_str());
  }

 private:
  struct OpenQuestion {
    std::uint64_t ticket;
    std::int64_t asked_ns, deadline_ns;
  };
  template <typename Key>
  static void print_map(const char* name, const std::map<Key, std::int64_t>& counts) {
    std::printf("\"%s\": {", name);
    const char* separator = "";
    for (const auto& [key, count] : counts) {
      std::printf("%s\"%ld\": %ld", separator, static_cast<long>(key), count);
      separator = ", ";
    }
    std::printf("}, ");
  }

  std::deque<OpenQuestion> open_;
  std::int64_t asked_ = 0, late_ = 0, failed_ = 0, gap_ns_ = 0, last_ns_ = 0;
  std::vector<double> us_;
  std::map<int, std::int64_t> servers_;
  std::map<std::int64_t, std::int64_t> versions_;
  int last_server_ = -1;
  std::string error_;
};

void wait_for_model(Predictor& predictor, std::int64_t until_ns) {
  Answer answer;
  while (predictor.model().reach == 0) {
    if (monotonic_ns() > until_ns) throw std::runtime_error(predictor.problem());
    predictor.next(answer, monotonic_ns() + 1'000'000);
  }
  std::printf("ready\n");
  std::fflush(stdout);
}

void run(const Settings& settings) {
  const auto predictor = make_triton_predictor(settings.triton);
  wait_for_model(*predictor, monotonic_ns() + settings.connect_ms * 1'000'000);
  MadeRows made;
  EventRows rows(kPatient * kNewEvents);
  made.add(rows, predictor->model().reach);
  std::vector<float> x_QF(std::size_t{kMaxQueries} * kEventWindowFeatureCount);
  made.write(x_QF.data(), kMaxQueries);
  Tally tally;
  Answer answer;
  const bool one_by_one = settings.rate == 0;
  const std::int64_t first = one_by_one ? -kWarmUp : 0;
  std::int64_t due_ns = monotonic_ns();
  for (std::int64_t i = first; (i < settings.questions && interrupted == 0) || tally.waits();) {
    if (i == 0 && one_by_one && !tally.waits()) tally = {};
    std::int64_t now = monotonic_ns();
    const bool more = i < settings.questions && interrupted == 0;
    const bool ask = more && (one_by_one ? !tally.waits() : now >= due_ns);
    if (ask) {
      rows.keep(predictor->model().reach);
      const std::int64_t deadline_ns = now + settings.deadline_us * 1000;
      const auto ticket = static_cast<std::uint64_t>(i++ - first);
      const bool poisoned = settings.poison > 0 && i % settings.poison == 0;
      const float value = std::exchange(x_QF[0], poisoned ? NAN : x_QF[0]);
      if (predictor->ask(
              {ticket, kSender, rows, x_QF.data(), settings.alternatives, deadline_ns})) {
        tally.asked(ticket, now, deadline_ns);
      } else {
        tally.refused(predictor->problem());
        if (one_by_one) throw std::runtime_error(predictor->problem());
      }
      x_QF[0] = value;
      made.add(rows, kNewEvents);
      if (!one_by_one) due_ns += static_cast<std::int64_t>(1e9 / settings.rate);
    }
    std::int64_t until_ns = tally.waits() ? tally.next_deadline_ns() : now;
    if (!one_by_one && more) {
      until_ns = tally.waits() ? std::min(until_ns, due_ns) : due_ns;
    }
    if (predictor->next(answer, until_ns)) tally.answered(answer, monotonic_ns());
    tally.expire(monotonic_ns());
  }
  tally.print();
}

}  // namespace
}  // namespace swiftqueue::agent

int main(int count, char** arguments) {
  using swiftqueue::agent::kMaxAlternatives;
  using swiftqueue::agent::Settings;
  Settings settings;
  CLI::App app("Asks Triton servers as the sender agent does.");
  app.add_option("--server", settings.triton.servers, "host:port or unix:PATH, preferred first")
      ->required();
  app.add_option("--model", settings.triton.model, "model's name");
  app.add_option("--questions", settings.questions, "how many")->check(CLI::PositiveNumber);
  app.add_option("--rate", settings.rate, "questions per second; 0: one after the other");
  app.add_option("--alternatives", settings.alternatives, "what a question compares")
      ->check(CLI::Range(1, kMaxAlternatives));
  app.add_option("--poison", settings.poison, "make every so many questions one with a NaN");
  app.add_option("--deadline-us", settings.deadline_us, "after which an answer is late");
  app.add_option("--connect-ms", settings.connect_ms, "longest wait for a model");
  app.add_option("--tls-ca", settings.triton.tls_ca,
                 "authority that signed the server's certificate");
  app.add_option("--tls-cert", settings.triton.tls_cert, "our certificate");
  app.add_option("--tls-key", settings.triton.tls_key, "its key");
  CLI11_PARSE(app, count, arguments);
  std::signal(SIGINT, [](int) { swiftqueue::agent::interrupted = 1; });
  try {
    run(settings);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "round_trip: %s\n", error.what());
    return 1;
  }
}
