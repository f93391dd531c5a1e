// SPDX-License-Identifier: Apache-2.0
//
// Frames, sockets and artifacts under sanitizers: hostile senders beside good ones, ACKs without
// end, and artifacts that come and go under a loop that asks.
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

#include "tests/stress/stress_agent.h"

namespace swiftqueue::agent {
namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

// Tests that questions which nobody answers in time do not keep new ones from being asked.
void crowded(const std::string& artifact) {
  const auto predictor = make_local_predictor(artifact);
  const EventRows rows(predictor->model().reach);
  const std::vector<float> x_QF(std::size_t{kMaxQueries} * kEventWindowFeatureCount);
  std::uint64_t ticket = 0;
  const auto ask = [&](std::int64_t due_ns) {
    return predictor->ask({ticket++, 0, rows, x_QF.data(), 1, due_ns});
  };
  for (int i = 0; i < kMaxOutstanding; ++i) require(ask(monotonic_ns()), "not taken");
  Answer answer;
  const std::int64_t due_ns = monotonic_ns() + 60'000'000'000;
  require(ask(due_ns), "questions that are late leave no room");
  require(predictor->next(answer, due_ns) && answer.ok && answer.ticket == ticket - 1,
          "the one that is in time has no answer");
  std::printf("crowded: questions that nobody answered in time make room\n");
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

}  // namespace swiftqueue::agent
