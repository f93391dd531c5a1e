// SPDX-License-Identifier: Apache-2.0
//
// Sends random and hostile events through the C ABI and checks the invariants of every window.
// `make -C feature_store sanitize` builds it with the address and undefined-behaviour sanitizers.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "feature_store/events/event_window.h"

extern "C" {
swiftqueue::EventWindow* sq_event_window_new(int tokens);
void sq_event_window_free(swiftqueue::EventWindow* window);
int sq_event_window_sent(swiftqueue::EventWindow* window, std::int64_t packet, std::int64_t sent_ns,
                         std::int32_t size_bytes, std::int32_t flow_id, std::int32_t receiver_id,
                         std::uint8_t queue);
int sq_event_window_acked(swiftqueue::EventWindow* window, std::int64_t packet,
                          std::int64_t acked_ns, float latency_us);
int sq_event_window(const swiftqueue::EventWindow* window, std::int64_t decision_ns,
                    const std::int32_t* size_bytes, const std::int32_t* flow_id,
                    const std::int32_t* receiver_id, const std::uint8_t* queue, float* x_WF);
}

namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

void require(bool holds, const char* what, unsigned seed) {
  if (holds) return;
  std::fprintf(stderr, "event_stress: %s (seed %u)\n", what, seed);
  std::exit(1);
}

// Runs one sender's life of 20,000 events at a random pace; every tenth event is out of order.
void live(unsigned seed) {
  std::mt19937_64 random(seed);
  const auto upto = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n)(random);
  };
  const int tokens = 16 + 8 * static_cast<int>(upto(15));
  swiftqueue::EventWindow* const window = sq_event_window_new(tokens);
  const int features = swiftqueue::kEventWindowFeatureCount;
  std::vector<float> x_WF(static_cast<std::size_t>(tokens * features));
  std::vector<float> again_WF(x_WF.size());
  const std::int64_t pace_ns = std::int64_t{1} << upto(31);
  std::int64_t now_ns = upto(kSecondNs);
  std::int64_t packet = 0;

  for (int event = 0; event < 20'000; ++event) {
    now_ns += upto(pace_ns);
    const bool hostile = upto(9) == 0;
    const std::int64_t when = hostile ? now_ns - upto(100 * kSecondNs) : now_ns;
    if (upto(2) > 0) {
      const std::int64_t number = hostile ? packet + upto(20) - 10 : packet;
      const bool taken =
          sq_event_window_sent(window, number, when, static_cast<std::int32_t>(upto(65535)),
                               static_cast<std::int32_t>(upto(9) - 5),
                               static_cast<std::int32_t>(upto(3)),
                               static_cast<std::uint8_t>(upto(2))) == 1;
      if (taken) packet = number + 1;
    } else {
      const float latency_us =
          hostile ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(upto(1'000'000));
      sq_event_window_acked(window, packet - upto(hostile ? 5000 : 300), when, latency_us);
    }
    if (upto(7) > 0) continue;

    std::array<std::int32_t, 8> size{};
    std::array<std::int32_t, 8> flow{};
    std::array<std::int32_t, 8> receiver{};
    std::array<std::uint8_t, 8> queue{};
    for (std::size_t i = 0; i < size.size(); ++i) {
      size[i] = static_cast<std::int32_t>(1 + upto(1500));
      flow[i] = static_cast<std::int32_t>(upto(9) - 5);
      queue[i] = static_cast<std::uint8_t>(upto(1));
    }
    const auto decide = [&](std::vector<float>& out) {
      return sq_event_window(window, when, size.data(), flow.data(), receiver.data(), queue.data(),
                             out.data());
    };
    const int in_flight = decide(x_WF);
    require(in_flight >= 0 && in_flight <= packet, "packets in flight out of range", seed);
    require(decide(again_WF) == in_flight && x_WF == again_WF, "a window changed state", seed);
    for (int w = 0; w < tokens; ++w) {
      const float* const token = x_WF.data() + w * features;
      for (int f = 0; f < features; ++f) require(std::isfinite(token[f]), "not finite", seed);
      const bool padding = token[swiftqueue::event_input("size_bytes")] == 0;
      require(!(w >= tokens - 8 && padding), "a candidate is missing", seed);
      require(token[swiftqueue::event_input("flow_age_us")] >= 0, "a flow of the future", seed);
      require(token[swiftqueue::event_input("in_flight_queue")] >= 0, "in flight below 0", seed);
      require(token[swiftqueue::event_input("in_flight_flow")] <=
                  token[swiftqueue::event_input("in_flight")],
              "a flow has more in flight than its sender", seed);
    }
  }
  sq_event_window_free(window);
}

}  // namespace

int main() {
  constexpr unsigned kLives = 40;
  for (unsigned seed = 1; seed <= kLives; ++seed) live(seed);
  std::printf("event_stress: %u senders, nothing found\n", kLives);
}
