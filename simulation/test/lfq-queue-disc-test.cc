// SPDX-License-Identifier: GPL-2.0-only
//
// LFQ without a network of nodes: run `build/simulation/lfq-queue-disc-test`. What is expected is
// in closed form; the weights are a network whose answer is known.

#include "../model/lfq-queue-disc.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../helper/queue-profiles.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/test.h"
#include "ns3/udp-header.h"
#include "ns3/udp-l4-protocol.h"
#include "suite.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3
using swiftqueue::LfqQueueDisc;
namespace lfq = swiftqueue::lfq;

constexpr double kTolerance = 1e-6;
constexpr std::size_t kSince = 5;  // the signal's place

Ptr<Ipv4QueueDiscItem> Item() {
  auto packet = Create<Packet>(1472);
  packet->AddHeader(UdpHeader());
  Ipv4Header ip;
  ip.SetProtocol(UdpL4Protocol::PROT_NUMBER);
  ip.SetPayloadSize(packet->GetSize());
  return Create<Ipv4QueueDiscItem>(packet, Address(), 0x0800, ip);
}

/** A file of weights: all 0 but the last bias, so every answer is `answer`. */
class Weights {
 public:
  explicit Weights(float answer, float low = -1e6F, float high = 1e6F, int64_t width = 256)
      : m_path(std::filesystem::temp_directory_path() /
               ("lfq-weights-" + std::to_string(++s_files) + "-" + std::to_string(::getpid()))) {
    const std::array<int64_t, 5> sizes = {lfq::kInputs, 256, width, 256, 1};
    std::string header = "{";
    std::vector<float> values;
    const auto add = [&](const std::string& name, const std::string& shape, std::size_t count,
                         float value) {
      const std::size_t begin = values.size() * sizeof(float);
      values.resize(values.size() + count, value);
      header += std::string(header.size() > 1 ? "," : "") + "\"" + name +
                "\":{\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[" +
                std::to_string(begin) + "," + std::to_string(values.size() * sizeof(float)) + "]}";
    };
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      const std::string name = "layers." + std::to_string(i);
      const std::string out = std::to_string(sizes[i + 1]);
      add(name + ".weight", out + "," + std::to_string(sizes[i]), sizes[i] * sizes[i + 1], 0);
      add(name + ".bias", out, sizes[i + 1], i + 2 == sizes.size() ? answer : 0);
    }
    add("inputs.low", "60", 60, low);
    add("inputs.high", "60", 60, high);
    header += "}";
    std::ofstream file(m_path, std::ios::binary);
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << header;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
  ~Weights() { std::filesystem::remove(m_path); }
  std::string Path() const { return m_path; }

 private:
  static inline int s_files = 0;
  std::string m_path;
};

Ptr<LfqQueueDisc> Make(std::vector<std::pair<std::string, std::string>> attributes) {
  auto disc = DynamicCast<LfqQueueDisc>(
      swiftqueue::MakeDisc("swiftqueue::LfqQueueDisc", std::move(attributes)));
  disc->Initialize();
  return disc;
}

/** Packets at equal gaps, each followed by `then`. */
template <typename Then>
void Send(Ptr<LfqQueueDisc> disc, int packets, Time gap, Then then) {
  for (int i = 0; i < packets; ++i) {
    Simulator::Schedule(gap * i, [disc, then, i] {
      disc->Enqueue(Item());
      then(i);
    });
  }
  Simulator::Run();
  disc->Dispose();
  Simulator::Destroy();
}

class StepCase : public TestCase {
 public:
  StepCase() : TestCase("averages: the mean at first, then the step response 1 - (1 - c)^n") {}

 private:
  void DoRun() override {
    lfq::Averages averages;
    for (int i = 1; i <= 10; ++i) {
      averages.add(i);
      NS_TEST_EXPECT_MSG_EQ_TOL(averages[0], (i + 1) / 2.0, kTolerance, "the mean of 1 to " << i);
    }
    lfq::Averages step;
    const int whole = 1 << 14;  // by now each weighs its coefficient
    for (int i = 0; i < whole; ++i) {
      step.add(0);
    }
    for (int n = 1; n <= 300; ++n) {
      step.add(1);
      for (std::size_t k = 0; k < lfq::kAverages; ++k) {
        const double c = std::ldexp(1, -5 - static_cast<int>(k));
        const double expected = 1 - std::pow(1 - c, n);
        NS_TEST_EXPECT_MSG_EQ_TOL(step[k], expected, kTolerance, "average " << k << ", " << n);
      }
    }
  }
};

class SignalCase : public TestCase {
 public:
  SignalCase() : TestCase("signals: scales, clamps, a silent flow is a new one") {}

 private:
  void DoRun() override {
    lfq::Flow flow;
    int64_t now = 0;
    for (int i = 0; i < 100; ++i, now += 1'000'000) {
      flow.arrive(now, i % 2 == 0 ? 10 : 30, 5000);
      flow.depart(now + 1000);
    }
    lfq::Inputs x = flow.inputs();
    for (std::size_t k = 2; k < lfq::kAverages; ++k) {  // their means are those of all
      NS_TEST_EXPECT_MSG_EQ_TOL(x[k], 0.2, kTolerance, "mean queue of 10 and 30, hundreds");
      NS_TEST_EXPECT_MSG_EQ_TOL(x[10 + k], 0.1, 0.01, "their deviation");
      NS_TEST_EXPECT_MSG_EQ_TOL(x[20 + k], 10, kTolerance, "limit, at most 1000");
      NS_TEST_EXPECT_MSG_EQ_TOL(x[30 + k], 0.1, kTolerance, "1000 packets/s of 10,000");
      NS_TEST_EXPECT_MSG_EQ_TOL(x[40 + k], 0.1, kTolerance, "and out again");
      NS_TEST_EXPECT_MSG_EQ_TOL(x[50 + k], 0.0495 / 10, kTolerance, "since its beginning, of 10 s");
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(flow.departure_rate(), 1000, kTolerance, "packets/s");
    flow.arrive(now, 0, 100);
    flow.arrive(now, 0, 100);
    NS_TEST_EXPECT_MSG_EQ(std::isfinite(flow.inputs()[30]), true, "packets at one moment");
    for (int i = 0; i < 4000; ++i, now += 9'000'000'000) {
      flow.arrive(now, 0, 100);
    }
    NS_TEST_EXPECT_MSG_EQ_TOL(flow.inputs()[kSince * 10], 1, kTolerance, "10 s at most");
    flow.arrive(now + 2'000'000'000, 7, 100);
    NS_TEST_EXPECT_MSG_EQ_TOL(flow.inputs()[9], 0.07, kTolerance, "a new flow's first packet");
    NS_TEST_EXPECT_MSG_EQ(flow.inputs()[kSince * 10], 0, "as if it began with a loss");
    lfq::Flow bursts;
    bursts.arrive(0, 0, 1);
    bursts.arrive(0, 0, 1);
    NS_TEST_EXPECT_MSG_EQ_TOL(bursts.inputs()[30], 100, kTolerance, "10^6 packets/s at most");
  }
};

class LimitCase : public TestCase {
 public:
  LimitCase() : TestCase("answers: rounded, 1 to 1000 packets") {}

 private:
  void DoRun() override {
    NS_TEST_EXPECT_MSG_EQ(lfq::limit_of(0.224F), 22, "hundreds of packets");
    NS_TEST_EXPECT_MSG_EQ(lfq::limit_of(0.226F), 23, "rounded");
    NS_TEST_EXPECT_MSG_EQ(lfq::limit_of(-3), 1, "no less than 1");
    NS_TEST_EXPECT_MSG_EQ(lfq::limit_of(1e9F), 1000, "no more than 1000");
  }
};

class AskCase : public TestCase {
 public:
  AskCase() : TestCase("asked at each 10th packet, or after 100 ms") {}

 private:
  void DoRun() override {
    lfq::Flow fast;
    for (int i = 1; i <= 40; ++i) {
      fast.arrive(i * 1'000'000, 0, 1);
      NS_TEST_EXPECT_MSG_EQ(fast.ask(), (i % 10 == 0), "packet " << i);
    }
    lfq::Flow slow;
    for (int i = 0; i <= 40; ++i) {
      slow.arrive(i * 25'000'000, 0, 1);
      NS_TEST_EXPECT_MSG_EQ(slow.ask(), (i % 4 == 0 && i > 0), "at " << 25 * i << " ms");
    }
  }
};

class NetworkCase : public TestCase {
 public:
  NetworkCase() : TestCase("the network's limit holds; beyond its range one BDP does") {}

 private:
  void DoRun() override {
    const Weights seven(0.07F);
    auto disc = Make({{"Weights", seven.Path()}, {"FlowLimit", "20"}});
    Send(disc, 30, MicroSeconds(10), [&](int i) {
      const uint32_t expected = i < 9 ? i + 1 : 9;  // it drops none of these
      NS_TEST_EXPECT_MSG_EQ(disc->GetNPackets(), expected, "packet " << i);
      NS_TEST_EXPECT_MSG_EQ(disc->GetDecisions(), ((i + 1) / 10), "decisions");
      NS_TEST_EXPECT_MSG_EQ(disc->GetFallbacks(), 0, "in range");
    });
    const Weights narrow(0.07F, 0, 0.01F);  // a limit of 20 is 0.2
    disc = Make({{"Weights", narrow.Path()}, {"FlowLimit", "20"}, {"FallbackRtt", "10ms"}});
    Send(disc, 40, MilliSeconds(1), [&](int i) {
      disc->Dequeue();
      NS_TEST_EXPECT_MSG_EQ(disc->GetFallbacks(), ((i + 1) / 10), "every decision");
      const uint32_t bucket = Item()->Hash(0) % 1024;
      const uint32_t expected = i < 9 ? 20 : 10;  // 1000 packets/s · 10 ms
      NS_TEST_EXPECT_MSG_EQ(disc->GetLimit(bucket), expected, "one BDP behind packet " << i);
    });
    disc = Make({{"FlowLimit", "20"}});
    Send(disc, 30, MicroSeconds(10), [&](int i) {
      if (i == 14) {
        disc->Freeze(3);
      }
      NS_TEST_EXPECT_MSG_EQ(disc->GetNPackets(), std::min(i + 1, 15), "20 at first, 3 later");
    });
  }
};

class FileCase : public TestCase {
 public:
  FileCase() : TestCase("a file that cannot be is one line with the file and the tensor") {}

 private:
  void Expect(const std::string& path, const std::string& says) {
    std::string said = "nothing";
    try {
      Make({{"Weights", path}});
    } catch (const std::invalid_argument& error) {
      said = error.what();
    }
    NS_TEST_EXPECT_MSG_EQ(said, "attributes.Weights: " + path + ": " + says, "one line");
  }

  void DoRun() override {
    const Weights other(0, 0, 1, 128);
    Expect(other.Path(), "tensor 'layers.1.weight' has the shape (128, 256), expected (256, 256)");
    Expect("/no/such/file", "No such file or directory");
    std::ofstream(other.Path(), std::ios::trunc) << "none";
    Expect(other.Path(), "truncated: not even a header length");
  }
};

class LfqSuite : public TestSuite {
 public:
  LfqSuite() : TestSuite("swiftqueue-lfq-queue-disc", Type::UNIT) {
    AddTestCase(new StepCase, Duration::QUICK);
    AddTestCase(new SignalCase, Duration::QUICK);
    AddTestCase(new LimitCase, Duration::QUICK);
    AddTestCase(new AskCase, Duration::QUICK);
    AddTestCase(new NetworkCase, Duration::QUICK);
    AddTestCase(new FileCase, Duration::QUICK);
  }
};

LfqSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) {
  return swiftqueue::RunSuite("swiftqueue-lfq-queue-disc", argc, argv);
}
