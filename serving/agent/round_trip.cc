// SPDX-License-Identifier: Apache-2.0
//
// Times the round trip of one window through Triton, as the agent's client makes it: one stream,
// one question at a time. For `swiftqueue bench serving`.
//
//   round_trip SERVER MODEL QUESTIONS [BUSY_POLL_US]
//
// prints {"tokens": .., "p50_us": .., "p99_us": .., "mean_us": ..} of the questions after a
// warm-up.
#include <time.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "serving/agent/triton_predictor.h"

namespace swiftqueue::agent {
namespace {

constexpr std::int64_t kConnectNs = 10'000'000'000;
constexpr std::int64_t kAnswerNs = 1'000'000'000;  // more than any answer takes: none is given up
constexpr int kWarmUp = 500;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t number(const char* text) {
  const std::string all(text);
  std::int64_t value = 0;
  const auto end = std::from_chars(all.data(), all.data() + all.size(), value);
  if (end.ec != std::errc() || end.ptr != all.data() + all.size() || value < 0) {
    throw std::invalid_argument(all + " is not a number");
  }
  return value;
}

// A window full of real tokens of plausible values: within 0 and 1, as every unit allows.
std::vector<float> make_window(int tokens) {
  std::mt19937 random(0);
  std::vector<float> x_WF(static_cast<std::size_t>(tokens) * kFeatureCount);
  for (float& value : x_WF) value = static_cast<float>(random() % 2);
  for (int w = 0; w < tokens; ++w) {
    x_WF[static_cast<std::size_t>(w * kFeatureCount + feature("size_bytes"))] = 1500;
  }
  return x_WF;
}

int run(int count, char** arguments) {
  if (count < 4) throw std::invalid_argument("round_trip SERVER MODEL QUESTIONS [BUSY_POLL_US]");
  TritonOptions options;
  options.servers = {arguments[1]};
  options.model = arguments[2];
  const std::int64_t questions = number(arguments[3]);
  if (questions < 100) throw std::invalid_argument("QUESTIONS: 100 or more");
  if (count > 4) options.busy_poll_ns = number(arguments[4]) * 1000;
  const auto predictor = make_triton_predictor(options);

  Answer answer;
  const std::int64_t give_up_ns = now_ns() + kConnectNs;
  while (predictor->model().tokens == 0) {
    if (now_ns() > give_up_ns) throw std::runtime_error(predictor->problem());
    predictor->next(answer, now_ns() + 1'000'000);
  }
  const int tokens = predictor->model().tokens;
  const std::vector<float> x_WF = make_window(tokens);
  std::vector<double> us;
  us.reserve(static_cast<std::size_t>(questions));
  for (std::int64_t i = -kWarmUp; i < questions; ++i) {
    const std::int64_t begin_ns = now_ns();
    if (!predictor->ask(static_cast<std::uint64_t>(i), x_WF.data(), 1, begin_ns + kAnswerNs)) {
      throw std::runtime_error(predictor->problem());
    }
    if (!predictor->next(answer, begin_ns + kAnswerNs)) throw std::runtime_error("no answer");
    if (!answer.ok) throw std::runtime_error(answer.error);
    if (i >= 0) us.push_back(static_cast<double>(now_ns() - begin_ns) / 1000);
  }
  double sum = 0;
  for (const double each : us) sum += each;
  std::sort(us.begin(), us.end());
  std::printf("{\"tokens\": %d, \"p50_us\": %.1f, \"p99_us\": %.1f, \"mean_us\": %.1f}\n", tokens,
              us[us.size() / 2], us[us.size() * 99 / 100], sum / static_cast<double>(us.size()));
  return 0;
}

}  // namespace
}  // namespace swiftqueue::agent

int main(int count, char** arguments) {
  try {
    return swiftqueue::agent::run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "round_trip: %s\n", error.what());
    return 1;
  }
}
