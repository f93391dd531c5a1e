// SPDX-License-Identifier: Apache-2.0
//
// Controller, sender, frames, decision loop and live feed under sanitizers (`make sanitize`):
// whatever comes, each batch ends once and in time, hostile frames are refused in one line, and a
// decision allocates nothing in the steady state.
//
// stress_SANITIZER ARTIFACT ROUNDS [SEED]   ARTIFACT: a valid one, for the engine in the agent
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

#include "serving/agent/decision/decision_loop.h"
#include "serving/agent/decision/schedule.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/io/feed.h"
#include "serving/agent/io/frame_sink.h"
#include "serving/agent/marking/marked_udp.h"
#include "serving/agent/predictors/local_predictor.h"

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

using Random = std::mt19937_64;

std::int64_t upto(Random& random, std::int64_t n) {
  return std::uniform_int_distribution<std::int64_t>(0, n)(random);
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::printf("stress: %s\n", what);
  std::exit(1);
}

// Answers at any time, out of order, wrongly, or never, as a server may.
class MoodyPredictor final : public Predictor {
 public:
  explicit MoodyPredictor(std::uint64_t seed) : random_(seed) {}

  Model model() const override { return model_; }
  std::string problem() const override { return ""; }
  bool ask(const Enquiry& enquiry) override {
    const std::uint64_t ticket = enquiry.ticket;
    const auto finite = [](const float* x_RF, int rows) {
      require(std::all_of(x_RF, x_RF + std::ptrdiff_t{rows} * kEventWindowFeatureCount,
                          [](float x) { return std::isfinite(x); }),
              "a row that is not finite");
    };
    finite(enquiry.x_QF, enquiry.alternatives * kHorizon);
    const EventRows& rows = enquiry.rows;
    require(rows.next() - rows.first() >= std::min<std::int64_t>(rows.next(), model_.reach),
            "fewer events are kept than a question looks back at");
    rows.visit(begin_of_session(rows.next(), model_.reach), rows.next(), finite);
    if (steady) {
      waiting_.push_back(ticket);
      return true;
    }
    switch (upto(random_, 9)) {
      case 0:
        return false;
      case 1:
        return true;  // no answer ever comes
      case 2:
        waiting_.push_back(ticket - static_cast<std::uint64_t>(upto(random_, 5)));  // a wrong one
        return true;
      default:
        waiting_.insert(
            waiting_.begin() + upto(random_, static_cast<std::int64_t>(waiting_.size())), ticket);
        return true;
    }
  }
  bool next(Answer& answer, std::int64_t) override {
    if (!steady && upto(random_, 99) == 0) {
      static constexpr int kReach[] = {0, 64, 128, 192};
      model_.reach = kReach[upto(random_, 3)];
    }
    if (waiting_.empty() || (!steady && upto(random_, 3) == 0)) return false;
    answer.ticket = waiting_.front();
    waiting_.erase(waiting_.begin());
    answer.ok = steady || upto(random_, 9) > 0;
    answer.version = 1;
    for (float& us : answer.y_BH) us = static_cast<float>(upto(random_, 100'000));
    if (!steady && upto(random_, 9) == 0) answer.y_BH[3] = upto(random_, 1) == 0 ? NAN : -1.0F;
    return true;
  }
  void forget(std::uint32_t) override {}
  void wake() override {}
  std::vector<ServerState> servers() const override { return {}; }

  bool steady = false;

 private:
  Random random_;
  Model model_{64, 1};
  std::vector<std::uint64_t> waiting_;
};

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

// Takes questions in the order in which they come, and notes when they are due.
class NotingPredictor final : public Predictor {
 public:
  Model model() const override { return {64, 1}; }
  std::string problem() const override { return ""; }
  bool ask(const Enquiry& enquiry) override {
    due.push_back(enquiry.deadline_ns);
    return true;
  }
  void forget(std::uint32_t) override {}
  bool next(Answer&, std::int64_t) override { return false; }
  void wake() override {}
  std::vector<ServerState> servers() const override { return {}; }
  std::vector<std::int64_t> due;
};

// Returns a path for a socket of this process; nobody listens there yet.
std::string socket_path() { return "/tmp/swiftqueue-stress-" + std::to_string(getpid()) + ".sock"; }

int connected_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "the agent does not listen");
  return fd;
}

HelloFrame greeting(std::string_view name) {
  HelloFrame hello;
  hello.name = text_field<sizeof hello.name>(name);
  return hello;
}

// Tests that the agent takes everything a sender's library says, however late an ACK comes.
void told() {
  const std::string path = socket_path();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
              listen(listening, 1) == 0,
          "no socket to listen at");
  AgentLink link(path, "told");
  link.turn(monotonic_ns());
  const int fd = accept(listening, nullptr, nullptr);
  const auto hello = finished(greeting("agent"), 1, 0);
  require(send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello, "not sent");
  link.turn(monotonic_ns());
  require(link.connected(), ("the sender was not greeted: " + link.problem()).c_str());
  std::int64_t packet = 0;
  for (const float us : {1e6F, 200e6F, NAN}) {
    link.sent(packet, 1, {1500, 0, 0, kL4s}, 1);
    link.acked(packet++, 200'000'000'001, us);
  }
  std::string bytes(4096, '\0');
  bytes.resize(static_cast<std::size_t>(recv(fd, bytes.data(), bytes.size(), 0)));
  close(fd);
  close(listening);
  std::filesystem::remove(path);
  Frame frame;
  const char* why = nullptr;
  int acked = 0;
  for (std::size_t at = 0; at < bytes.size(); at += frame.header.bytes) {
    const Read read = read_frame(std::string_view(bytes).substr(at), frame, why);
    require(read == Read::kFrame, "a sender says what its agent would refuse");
    acked += frame.header.type == FrameType::kAcked ? 1 : 0;
  }
  require(acked == 2, "an ACK is missing, or one that is too late is said");
  std::printf("told: what a sender says can be, however late an ACK is\n");
}

// Tests that ACKs without end hold up no sender: while one is taken another comes, and it gets its
// turn all the same, and then the rest.
void endless_acks() {
  constexpr std::int64_t kPackets = 3 * kMostAtOnce / 2;
  const int receiver = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  require(bind(receiver, generic, length) == 0 && getsockname(receiver, generic, &length) == 0,
          "no socket to receive at");
  MarkedUdp udp("", "flooded");
  const int flow = udp.add_flow("127.0.0.1", ntohs(address.sin_port));
  const std::array<char, MarkedUdp::kLeastPayload> payload{};
  for (std::int64_t i = 0; i < kPackets; ++i) udp.send(flow, payload.data(), payload.size());
  DataHeader header;
  require(recvfrom(receiver, &header, sizeof header, 0, generic, &length) > 0, "nothing came");
  Acknowledgement ack;
  const auto acknowledge = [&] { sendto(receiver, &ack, sizeof ack, 0, generic, length); };
  acknowledge();
  for (const std::int64_t expected : {std::int64_t{kMostAtOnce}, kPackets}) {
    udp.wait(monotonic_ns() + 10'000'000'000);
    udp.poll([&](const MarkedUdp::Ack&) {
      if (++ack.packet < kPackets) acknowledge();
    });
    require(ack.packet == expected, "ACKs hold up their sender, or are lost");
  }
  close(receiver);
  std::printf("udp: ACKs without end hold up no sender\n");
}

// Tests that among batches asked meanwhile the one that is due first is computed first.
bool earliest_first() {
  const std::string path = socket_path();
  NotingPredictor predictor;
  Statistics statistics;
  DecisionLoop loop(predictor, {}, statistics, nullptr);
  std::atomic<int> wakes{0};
  Feed feed(path, {}, statistics, loop.complaints(), [&] { ++wakes; });
  std::vector<int> senders;
  constexpr int kBatches = 4;
  const std::int64_t now_ns = monotonic_ns();
  for (const std::int64_t seconds : {9, 3, 6}) {
    senders.push_back(connected_to(path));
    std::string bytes;
    const auto add = [&](const auto& frame) {
      const auto whole = finished(frame, 0, 0);
      bytes.append(reinterpret_cast<const char*>(&whole), sizeof whole);
    };
    add(greeting("early"));
    for (int i = 0; i < kBatches; ++i) {
      BatchFrame batch;
      batch.first_packet = i * kHorizon;
      batch.due_ns = now_ns + seconds * 1'000'000'000 + i;
      for (FrameCandidate& each : batch.packets) each = {1500, 1, 0, 0, {}};
      add(batch);
    }
    require(send(senders.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(bytes.size()),
            "not sent");
  }
  const std::int64_t end_ns = monotonic_ns() + 10'000'000'000;
  while (wakes < 3 && monotonic_ns() < end_ns) std::this_thread::yield();
  while (feed.drain(loop, 1)) {
  }
  for (const int fd : senders) close(fd);
  feed.stop();
  while (feed.drain(loop, 1)) {
  }
  require(predictor.due.size() == 3 * kBatches, "not all were asked");
  return std::is_sorted(predictor.due.begin(), predictor.due.end());
}

std::string some_frames(Random& random) {
  std::string out;
  const auto add = [&](const auto& frame) {
    const auto whole = finished(frame, 0, 0);
    out.append(reinterpret_cast<const char*>(&whole), sizeof whole);
  };
  add(greeting("sender"));
  std::int64_t packet = 0;
  for (int i = 0; i < 4; ++i) {
    BatchFrame batch;
    batch.first_packet = packet;
    for (FrameCandidate& each : batch.packets) each = {1500, 1, 0, 1, {}};
    add(batch);
    for (int j = 0; j < kHorizon; ++j) {
      add(SentFrame{{}, packet++, packet * 1000, 1500, 1, 0, 1, 1, 0, 0});
      if (upto(random, 1) == 0) add(AckedFrame{{}, packet - 1, packet * 1000, 10.0F, 0});
    }
  }
  return out;
}

std::string damaged(std::string bytes, Random& random) {
  static constexpr unsigned char kBytes[] = {0, 1, 2, 0x7f, 0x80, 0xff};
  for (std::int64_t edits = 1 + upto(random, 3); edits > 0 && !bytes.empty(); --edits) {
    const auto at = static_cast<std::size_t>(
        upto(random, static_cast<std::int64_t>(std::min<std::size_t>(bytes.size(), 600)) - 1));
    switch (upto(random, 4)) {
      case 0:
        bytes[at] = static_cast<char>(upto(random, 255));
        break;
      case 1:
        bytes[at] = static_cast<char>(kBytes[upto(random, 5)]);
        break;
      case 2:
        bytes.erase(at, 1 + static_cast<std::size_t>(upto(random, 30)));
        break;
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(at, bytes.substr(at, static_cast<std::size_t>(upto(random, 60))));
    }
  }
  return bytes;
}

// Tests the reader alone, with exactly as many bytes as there are, so that one too far is seen.
void fuzz_reader(long rounds, Random& random) {
  long frames = 0;
  long refused = 0;
  for (long round = 0; round < rounds; ++round) {
    const std::string bytes = damaged(some_frames(random), random);
    const std::vector<char> exact(bytes.begin(), bytes.end());
    Frame frame;
    const char* why = nullptr;
    for (std::size_t at = 0; at <= exact.size(); at += frame.header.bytes, ++frames) {
      const Read read = read_frame({exact.data() + at, exact.size() - at}, frame, why);
      if (read == Read::kMore) break;
      if (read == Read::kBad) {
        require(why != nullptr && std::strlen(why) > 5, "a refusal that says nothing");
        ++refused;
        break;
      }
    }
  }
  std::printf("reader: %ld frames, %ld of %ld streams refused\n", frames, refused, rounds);
  require(refused > rounds / 4, "hardly any damage is noticed");
}

// Checks that telemetry has whole frames, in order.
void check_telemetry(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(path);
  Frame frame;
  const char* why = nullptr;
  std::map<std::uint32_t, std::uint64_t> next;  // next number by open sender
  long left = 0;
  for (std::size_t at = 0; at < bytes.size(); at += frame.header.bytes) {
    require(read_frame(std::string_view(bytes).substr(at), frame, why) == Read::kFrame,
            "telemetry that its reader would refuse");
    const FrameType type = frame.header.type;
    const std::uint32_t sender = frame.header.sender;
    require((type == FrameType::kHello) != next.contains(sender), "telemetry of no sender, or two");
    require(frame.header.sequence == next[sender], "telemetry out of order");
    if (type == FrameType::kSent || type == FrameType::kAcked) ++next[sender];
    if (type == FrameType::kBye) left += static_cast<long>(next.erase(sender));
  }
  require(left > 0 && next.empty(), "no telemetry, or a sender that never left");
}

// Tests the real socket: hostile senders beside good ones, and the agent goes on.
void fuzz_socket(long rounds, Random& random) {
  const std::string path = socket_path();
  MoodyPredictor predictor(random());
  predictor.steady = true;
  Statistics statistics;
  const std::string heard = path + ".telemetry";
  auto telemetry = std::make_unique<FrameSink>(heard, FrameSink::Full::kDrop);
  DecisionLoop loop(predictor, {}, statistics, telemetry.get());
  std::atomic<long> answered{0};
  {
    Feed feed(path, {}, statistics, loop.complaints(), [] {});
    std::atomic<bool> done{false};
    std::thread senders([&, seed = random()] {
      Random own(seed);
      for (long round = 0; round < rounds; ++round) {
        const int fd = connected_to(path);
        const bool good = round % 4 == 0;
        const std::string bytes = good ? some_frames(own) : damaged(some_frames(own), own);
        for (std::size_t at = 0; at < bytes.size();) {  // in pieces of any size
          const auto part = std::min(bytes.size() - at, std::size_t(1 + upto(own, 500)));
          if (send(fd, bytes.data() + at, part, MSG_NOSIGNAL) < 0) break;  // refused meanwhile
          at += part;
        }
        if (good) {  // HELLO and four decisions
          std::string got;
          char buffer[4096];
          while (got.size() < sizeof(HelloFrame) + 4 * sizeof(DecisionFrame)) {
            const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
            if (n <= 0) break;
            got.append(buffer, static_cast<std::size_t>(n));
          }
          require(got.size() == sizeof(HelloFrame) + 4 * sizeof(DecisionFrame),
                  "a good sender was not answered");
          ++answered;
        }
        close(fd);
      }
      done = true;
    });
    while (!done) {
      feed.drain(loop, 10'000'000'000);
      loop.run(0);
    }
    senders.join();
    feed.stop();
    while (feed.drain(loop, 1)) {
    }
  }
  require(statistics.senders.get() == 0, "a sender that went is still counted");
  require(access(path.c_str(), F_OK) != 0, "the socket stays behind");
  telemetry.reset();
  check_telemetry(heard);
  std::printf("socket: %ld senders, %ld good ones answered, %ld batches\n", rounds, answered.load(),
              static_cast<long>(statistics.all_batches()));
}

// Tests that a sender who is forgotten before each question gets what one gets who never is.
void again(const std::string& artifact, Random& random) {
  const auto predictor = make_local_predictor(artifact);
  EventRows rows(predictor->model().reach);
  std::vector<float> x_QF(std::size_t{kMaxQueries} * kEventWindowFeatureCount);
  for (float& x : x_QF) x = static_cast<float>(upto(random, 1));
  Answer kept;
  Answer anew;
  for (std::uint64_t ticket = 0; ticket < 200; ++ticket) {
    for (std::int64_t events = upto(random, 40); events > 0; --events) {
      std::generate_n(rows.place(), kEventWindowFeatureCount,
                      [&] { return static_cast<float>(upto(random, 1)); });
      rows.add();
    }
    for (auto [sender, answer] : {std::pair{1U, &kept}, {2U, &anew}}) {
      const std::int64_t due_ns = monotonic_ns() + 60'000'000'000;
      require(predictor->ask({ticket, sender, rows, x_QF.data(), 2, due_ns}) &&
                  predictor->next(*answer, due_ns) && answer->ok,
              "no answer");
    }
    require(kept.y_BH == anew.y_BH, "events that are sent again make another answer");
    predictor->forget(2);
  }
  std::printf("again: a session that is begun anew answers the same\n");
}

// Tests that answers do not depend on the thread that computes them, or on what waits meanwhile.
void beside(const std::string& artifact, Random& random) {
  constexpr std::uint32_t kSenders = 6;
  const auto shared = make_local_predictor(artifact);
  const auto alone = make_local_predictor(artifact);
  std::vector<EventRows> rows(kSenders, EventRows(shared->model().reach));
  std::vector<float> x_QF(std::size_t{kMaxQueries} * kEventWindowFeatureCount);
  std::map<std::uint64_t, std::array<float, kMaxQueries>> expected;
  std::uint64_t ticket = 0;
  Answer answer;
  const auto take = [&](std::int64_t until_ns) {
    while (!expected.empty() && shared->next(answer, until_ns)) {
      const auto found = expected.find(answer.ticket);
      require(answer.ok && found != expected.end(), "an answer to no question");
      require(answer.y_BH == found->second, "another sender's answer, or another engine's");
      expected.erase(found);
    }
  };
  for (int round = 0; round < 200; ++round) {
    for (std::uint32_t sender = 0; sender < kSenders; ++sender) {
      for (std::int64_t events = upto(random, 20); events > 0; --events) {
        std::generate_n(rows[sender].place(), kEventWindowFeatureCount,
                        [&] { return static_cast<float>(upto(random, 1)); });
        rows[sender].add();
      }
      const std::int64_t due_ns = monotonic_ns() + 60'000'000'000;
      for (Predictor* each : {shared.get(), alone.get()}) {
        require(each->ask({ticket, sender, rows[sender], x_QF.data(), 2, due_ns}), "not taken");
      }
      require(alone->next(answer, due_ns) && answer.ok, "no answer");
      expected[ticket++] = answer.y_BH;
      take(0);  // as a loop that has other work
    }
    if (round % 20 == 0) take(monotonic_ns() + 60'000'000'000);
  }
  take(monotonic_ns() + 60'000'000'000);
  require(expected.empty(), "a question without an answer");
  std::printf("beside: %ld answers of two threads are those of one\n", static_cast<long>(ticket));
}

// Tests artifacts that come, go and break under a loop that asks all the while.
void swap_artifacts(const std::string& artifact, Random& random) {
  namespace fs = std::filesystem;
  const fs::path folder = "/tmp/swiftqueue-stress-" + std::to_string(getpid());
  for (const char* name : {"1", "2", "3"}) {
    fs::create_directories(folder / name);
    for (const char* file : {"model.json", "model.safetensors"}) {
      fs::copy_file(fs::path(artifact) / file, folder / name / file);
    }
  }
  {  // 2: one bit of the last weight is another; 3: cut short
    std::fstream weights(folder / "2" / "model.safetensors",
                         std::ios::in | std::ios::out | std::ios::binary);
    weights.seekg(-4, std::ios::end);
    const auto byte = static_cast<char>(weights.peek() ^ 1);
    weights.seekp(-4, std::ios::end);
    weights.write(&byte, 1);
  }
  fs::resize_file(folder / "3" / "model.safetensors", 1000);
  const fs::path link = folder / "champion";
  fs::create_symlink("1", link);
  long answers = 0;
  {
    const auto predictor = make_local_predictor(link.string());
    std::atomic<bool> done{false};
    std::thread publisher([&, seed = random()] {
      Random own(seed);
      for (int i = 0; i < 15; ++i) {
        fs::create_symlink(std::to_string(1 + upto(own, 2)), folder / "next");
        fs::rename(folder / "next", link);
        predictor->wake();
        require(predictor->servers().size() == 1, "the engine is gone");
        std::this_thread::sleep_for(std::chrono::milliseconds(150));
      }
      done = true;
    });
    Answer answer;
    EventRows rows(predictor->model().reach);
    const std::vector<float> x_QF(std::size_t{kMaxQueries} * kEventWindowFeatureCount, 7.0F);
    while (!done) {
      for (std::int64_t events = upto(random, 300); events > 0; --events) {
        std::fill_n(rows.place(), kEventWindowFeatureCount, static_cast<float>(events % 7));
        rows.add();
      }
      const auto sender = static_cast<std::uint32_t>(upto(random, 1));
      if (upto(random, 9) == 0) predictor->forget(sender);
      require(predictor->ask({1, sender, rows, x_QF.data(), static_cast<int>(1 + upto(random, 1)),
                              monotonic_ns() + 1'000'000'000}),
              "a question is not taken");
      require(predictor->next(answer, monotonic_ns() + 60'000'000'000) && answer.ok, "no answer");
      require(answer.version == 1 || answer.version == 2, "a broken artifact answers");
      ++answers;
      predictor->next(answer, monotonic_ns() + 100'000);
    }
    publisher.join();
  }
  fs::remove_all(folder);
  std::printf("artifacts: %s\n", answers > 0 ? "swapped under questions" : "no answer");
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
    swiftqueue::agent::require(++tries < 500, "what is due first does not come first");
  }
  std::printf("order: what is due first comes first\n");
  swiftqueue::agent::fuzz_reader(rounds, random);
  std::freopen("/dev/null", "w", stderr);  // a line for each sender refused
  swiftqueue::agent::fuzz_socket(rounds / 40, random);
  swiftqueue::agent::again(argv[1], random);
  swiftqueue::agent::beside(argv[1], random);
  swiftqueue::agent::swap_artifacts(argv[1], random);
  return 0;
}
