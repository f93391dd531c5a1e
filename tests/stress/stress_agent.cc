// SPDX-License-Identifier: Apache-2.0
//
// Controller, sender, frames, decision loop and live feed under sanitizers (`make sanitize`):
// whatever comes, each batch ends once and in time, hostile frames are refused in one line, and a
// decision allocates nothing in the steady state.
//
// stress_SANITIZER ARTIFACT ROUNDS [SEED]   ARTIFACT: a valid one, for the engine in the agent
#include "tests/stress/stress_agent.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

std::atomic<long> allocations{0};
std::atomic<std::size_t> allocated{0};  // bytes, given back or not

void* counted(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated.fetch_add(size, std::memory_order_relaxed);
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto step = static_cast<std::size_t>(alignment);
  void* memory = std::aligned_alloc(step, (size + step - 1) / step * step);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t size) { return counted(size); }  // a sanitizer has its own
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace swiftqueue::agent {
namespace {

class CountingTaker final : public DecisionTaker {
 public:
  void take(std::uint32_t, const DecisionFrame& decision) override {
    Frame frame;
    const char* why = nullptr;
    const auto whole = finished(decision, 1, 0);
    require(read_frame({reinterpret_cast<const char*>(&whole), sizeof whole}, frame, why) ==
                Read::kFrame,
            "a decision that its reader would refuse");
    ++taken;
    last = decision;
  }
  long taken = 0;
  DecisionFrame last;
};

// Tests a sender's life: every batch that is asked about is answered once.
void live(long rounds, Random& random) {
  MoodyPredictor predictor(random());
  Statistics statistics;
  const ControllerParams params{
      .max_moved_share = 0,
      .guard = {.on = random() % 2 == 0,
                .most_advantage = 0.4 * static_cast<double>(upto(random, 1)),
                .most_growth = 0.5 * static_cast<double>(upto(random, 1))}};
  DecisionLoop loop(predictor, params, statistics, nullptr);
  CountingTaker taker;
  const std::uint32_t sender = loop.open("stress", taker);
  long asked = 0;
  std::int64_t packet = 0;
  std::int64_t acked = 0;
  std::int64_t clock_ns = 0;
  const char* why = nullptr;
  for (long round = 0; round < rounds; ++round) {
    clock_ns += upto(random, 2'000'000);
    BatchFrame batch;
    batch.first_packet = packet;
    batch.now_ns = clock_ns;
    for (FrameCandidate& each : batch.packets) {
      each = {static_cast<std::int32_t>(1 + upto(random, 1500)),
              static_cast<std::int32_t>(upto(random, 5)),
              static_cast<std::int32_t>(upto(random, 2)),
              static_cast<std::uint8_t>(upto(random, 1)),
              {}};
    }
    if (!loop.batch(sender, batch, monotonic_ns() + upto(random, 200'000) - 20'000, why)) {
      require(false, why);
    }
    ++asked;
    if (upto(random, 3) == 0) loop.run(0);
    for (const FrameCandidate& each : batch.packets) {
      SentFrame sent{
          {}, packet++, clock_ns, each.size_bytes, each.flow_id, each.receiver_id, each.queue,
          0,  0,        0};
      if (!loop.sent(sender, sent, why)) require(false, why);
    }
    while (acked < packet && upto(random, 20) > 0) {
      const float us = upto(random, 9) == 0 ? NAN : static_cast<float>(upto(random, 100'000));
      const std::int64_t which = upto(random, 9) == 0 ? upto(random, packet) : acked++;
      if (!loop.acked(sender, {{}, which, clock_ns, us, 0}, why)) require(false, why);
    }
    require(statistics.moved_unacked.get() <= 128, "more packets are moved than may be");
  }
  const std::int64_t end_ns = monotonic_ns() + 1'000'000'000;
  while (loop.outstanding() > 0 && monotonic_ns() < end_ns) loop.run(end_ns);
  require(loop.outstanding() == 0, "a batch waits past its deadline");
  require(taker.taken == asked && statistics.all_batches() == asked, "the counts do not add up");
  require(!loop.batch(sender, {{}, 0, 0, 0, {}}, 0, why), "a batch of packets sent is taken");
  loop.close(sender);
  require(statistics.senders.get() == 0 && statistics.moved_unacked.get() == 0, "a sender stays");
  std::printf("live: %ld batches, %ld decided, %ld late, %ld stale answers\n", asked,
              static_cast<long>(statistics.of(Outcome::kDecided)),
              static_cast<long>(statistics.of(Outcome::kLate)),
              static_cast<long>(statistics.stale.get()));
}

// Tests the same synthetic sender in its steady state: no allocation per packet.
void steady(Random& random) {
  MoodyPredictor predictor(random());
  predictor.steady = true;
  Statistics statistics;
  DecisionLoop loop(predictor, {.guard = {.on = true}}, statistics, nullptr);
  const auto source = make_synthetic({1e9, 7, 4});
  struct Taker final : DecisionTaker {
    explicit Taker(Source& to) : source(to) {}
    void take(std::uint32_t, const DecisionFrame& decision) override { source.decided(decision); }
    Source& source;
  } taker(*source);
  const std::uint32_t sender = loop.open("steady", taker);
  const std::atomic<bool> stop{false};
  long before = -1;
  for (long batch = 0; source->batch() != nullptr && !stop; ++batch, source->next_batch()) {
    if (batch == 20'000) before = allocations.load();
    source->feed(loop, sender, source->batch()->now_ns);
    const char* why = nullptr;
    require(loop.batch(sender, *source->batch(), monotonic_ns() + 10'000'000'000, why), "refused");
    while (loop.outstanding() > 0) loop.run(0);
  }
  require(before >= 0 && allocations.load() == before, "a decision allocates memory");
  std::printf("steady: %ld batches without an allocation\n",
              static_cast<long>(statistics.all_batches()) - 20'000);
}

// Tests one sender with more batches than can be under way, without answers: another one may ask.
void shares(Random& random) {
  MoodyPredictor predictor(random());
  predictor.steady = true;
  Statistics statistics;
  DecisionLoop loop(predictor, {}, statistics, nullptr);
  CountingTaker taker;
  const std::uint32_t greedy = loop.open("greedy", taker);
  const std::uint32_t other = loop.open("other", taker);
  const char* why = nullptr;
  BatchFrame batch;
  for (FrameCandidate& each : batch.packets) each = {1500, 1, 0, 1, {}};
  const std::int64_t due_ns = monotonic_ns() + 60'000'000'000;
  for (; batch.first_packet < 3 * kMaxOutstanding * kHorizon; batch.first_packet += kHorizon) {
    require(loop.batch(greedy, batch, due_ns, why), "refused");
  }
  require(loop.outstanding() == kMaxOutstanding / 2, "a sender has more than its share under way");
  batch.first_packet = 0;
  const std::int64_t errors = statistics.of(Outcome::kError);
  require(loop.batch(other, batch, due_ns, why) && statistics.of(Outcome::kError) == errors,
          "a sender may not ask because of another one");
  loop.close(greedy);
  loop.close(other);
  require(loop.outstanding() == 0, "a batch of one that went is under way");
  std::printf("shares: half of the batches under way are left to others\n");
}

// Answers the last question on demand; the default queue's latencies differ from the classic
// queue's.
class OnDemandPredictor final : public Predictor {
 public:
  Model model() const override { return {64, 1}; }
  std::string problem() const override { return ""; }
  bool ask(const Enquiry& enquiry) override {
    ticket_ = enquiry.ticket;
    return true;
  }
  void forget(std::uint32_t) override {}
  bool next(Answer& answer, std::int64_t) override {
    if (!std::exchange(tell, false)) return false;
    answer.ticket = ticket_;
    answer.ok = true;
    answer.version = 1;
    std::fill_n(answer.y_BH.begin(), kHorizon, kClassicUs);
    std::fill_n(answer.y_BH.begin() + kHorizon, kHorizon, kDefaultUs);
    return true;
  }
  void wake() override {}
  std::vector<ServerState> servers() const override { return {}; }

  static constexpr float kClassicUs = 100;
  static constexpr float kDefaultUs = 5'000;
  bool tell = false;

 private:
  std::uint64_t ticket_ = 0;
};

// Tests packets that are sent before their decision comes: they are compared with the prediction of
// the queue they went to.
void early() {
  OnDemandPredictor predictor;
  Statistics statistics;
  DecisionLoop loop(predictor, {}, statistics, nullptr);
  CountingTaker taker;
  const std::uint32_t sender = loop.open("early", taker);
  const char* why = nullptr;
  BatchFrame batch;
  for (FrameCandidate& each : batch.packets) each = {1500, 1, 0, kL4s, {}};
  require(loop.batch(sender, batch, monotonic_ns() + 60'000'000'000, why), "refused");
  for (std::int64_t packet = 0; packet < kHorizon; ++packet) {
    require(loop.sent(sender, {{}, packet, packet, 1500, 1, 0, kL4s, 1, 0, 0}, why), "refused");
  }
  predictor.tell = true;
  loop.run(0);
  require(taker.last.outcome == Outcome::kDecided, "not decided");
  for (std::int64_t packet = 0; packet < kHorizon; ++packet) {
    const AckedFrame acked{{}, packet, 5'000'000 + packet, OnDemandPredictor::kDefaultUs, 0};
    require(loop.acked(sender, acked, why), "refused");
  }
  require(
      statistics.prediction_error.count() == kHorizon && statistics.prediction_error.sum_s() < 1e-6,
      "a packet is held against the other queue's prediction");
  const double predicted_s = kHorizon * OnDemandPredictor::kDefaultUs / 1e6;
  require(statistics.predicted_latency.count() == kHorizon &&
              std::fabs(statistics.predicted_latency.sum_s() - predicted_s) < 1e-6,
          "the exported prediction is the other queue's");
  loop.close(sender);
  std::printf("early: packets before their decision are held against their own queue\n");
}

// Tests that room which one sender no longer takes serves another sender.
void room() {
  constexpr std::int64_t kPackets = 1 << 16;
  OnDemandPredictor predictor;
  Statistics statistics;
  DecisionLoop loop(predictor, {}, statistics, nullptr);
  CountingTaker taker;
  const char* why = nullptr;
  const auto bytes_of_a_life = [&] {
    const std::uint32_t sender = loop.open("room", taker);
    const std::size_t before = allocated.load();
    for (std::int64_t packet = 0; packet < kPackets; ++packet) {
      require(loop.sent(sender, {{}, packet, 1, 1500, 1, 0, 0, 1, 0, 0}, why), "refused");
    }
    const std::size_t took = allocated.load() - before;
    for (std::int64_t packet = 0; packet < kPackets; ++packet) {
      require(loop.acked(sender, {{}, packet, 2, 10.0F, 0}, why), "refused");
    }
    return took;
  };
  const std::size_t first = bytes_of_a_life();
  require(bytes_of_a_life() < first / 2, "a sender keeps the room of packets that it forgot");
  std::printf("room: what packets no longer take serves other senders\n");
}

}  // namespace
}  // namespace swiftqueue::agent

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s ARTIFACT ROUNDS [SEED]\n", argv[0]);
    return 2;
  }
  const long rounds = std::atol(argv[2]);
  std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  swiftqueue::agent::live(rounds, random);
  swiftqueue::agent::steady(random);
  swiftqueue::agent::shares(random);
  swiftqueue::agent::early();
  swiftqueue::agent::room();
  swiftqueue::agent::told();
  swiftqueue::agent::endless_acks();
  int tries = 0;  // one that is interrupted for long counts as having had its share
  while (!swiftqueue::agent::earliest_first()) {
    swiftqueue::agent::require(++tries < 100, "what is due first does not come first");
  }
  std::printf("order: what is due first comes first\n");
  swiftqueue::agent::fuzz_reader(rounds, random);
  std::freopen("/dev/null", "w", stderr);  // a line for each sender refused
  swiftqueue::agent::fuzz_socket(rounds / 40, random);
  swiftqueue::agent::again(argv[1], random);
  swiftqueue::agent::beside(argv[1], random);
  swiftqueue::agent::crowded(argv[1]);
  swiftqueue::agent::swap_artifacts(argv[1], random);
  return 0;
}
