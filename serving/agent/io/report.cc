// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/io/report.h"

#include <array>
#include <chrono>
#include <cstdio>

namespace swiftqueue::agent {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out += '"';
}

Report::Report(const Statistics& statistics, std::int64_t every_ms) : statistics_(statistics) {
  if (every_ms > 0) thread_ = std::thread([this, every_ms] { run(every_ms); });
}

void Report::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  closed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Report::say(const std::string& line) {
  const std::lock_guard lock(writing_);
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

std::string Report::counts() const {
  const Statistics& s = statistics_;
  // Each count is read once: the loop goes on counting, and the printed sum must be theirs.
  std::array<std::int64_t, kOutcomeNames.size()> by_outcome{};
  std::int64_t batches = 0;
  for (std::size_t i = 0; i < by_outcome.size(); ++i) batches += by_outcome[i] = s.batches[i].get();
  std::string out = "\"batches\": " + std::to_string(batches);
  const auto add = [&](std::string_view name, std::int64_t value) {
    ((out += ", \"") += name) += "\": " + std::to_string(value);
  };
  for (std::size_t i = 0; i < kOutcomeNames.size(); ++i) {
    add(kOutcomeNames[i], by_outcome[i]);
  }
  add("by_rule", s.by_rule.get());
  add("stale_answers", s.stale.get());
  add("behind_schedule", s.behind.get());
  add("lateness_p99_ns", s.lateness.quantile_ns(0.99));
  add("packets_classic", s.packets[kClassic].get());
  add("packets_l4s", s.packets[kL4s].get());
  return out;
}

void Report::run(std::int64_t every_ms) {
  std::unique_lock lock(mutex_);
  while (
      !closed_.wait_for(lock, std::chrono::milliseconds(every_ms), [this] { return closing_; })) {
    lock.unlock();
    say("{\"event\": \"progress\", " + counts() + "}");
    lock.lock();
  }
}

}  // namespace swiftqueue::agent
