// SPDX-License-Identifier: GPL-2.0-only
//
// How large a call makes its frames, without a network: run `build/simulation/call-test`. What
// becomes of them in one is in tests/simulation/test_calls.py.

#include <algorithm>
#include <cstdint>

#include "../model/frame-application.h"
#include "ns3/test.h"
#include "suite.h"

namespace {

using ns3::TestCase;
using swiftqueue::FrameRule;

constexpr FrameRule kRule{0.02, 0.1e6, 50e6};  // 50 frames a second, 0.1 to 50 Mbit/s

class FrameRuleCase : public TestCase {
 public:
  FrameRuleCase() : TestCase("a frame is what the rate carries, less what waits") {}

 private:
  void DoRun() override {
    // 10 Mbit/s · 0.02 s / 8 = 25,000 bytes, of which nine tenths
    NS_TEST_EXPECT_MSG_EQ(kRule.Bytes(10e6, 0), 22'500, "nothing waits");
    NS_TEST_EXPECT_MSG_EQ(kRule.Bytes(10e6, 12'500), 10'000, "half a frame waits");
    NS_TEST_EXPECT_MSG_EQ(kRule.Bytes(10e6, 22'500), 250, "a frame waits: the least rate");
    NS_TEST_EXPECT_MSG_EQ(kRule.Bytes(10e6, 1'000'000'000), 250, "much waits");
    NS_TEST_EXPECT_MSG_EQ(kRule.Bytes(0, 0), 250, "no rate yet");
    NS_TEST_EXPECT_MSG_EQ(kRule.Bytes(1e9, 0), 125'000, "the most");
    const FrameRule slow{0.001, 1, 1e6};
    NS_TEST_EXPECT_MSG_EQ(slow.Bytes(0, 0), 1, "no frame is empty");
  }
};

class FramesDrainCase : public TestCase {
 public:
  FramesDrainCase()
      : TestCase("what waits at a sender that became slower is gone, and stays away") {}

 private:
  void DoRun() override {
    // A sender at 20 Mbit/s that has 2 Mbit/s from now on, and knows it.
    double waiting = 50'000;
    int frames = 0;
    for (; waiting > 5'000 && frames < 1000; ++frames) {
      waiting += static_cast<double>(kRule.Bytes(2e6, static_cast<uint64_t>(waiting)));
      waiting = std::max(0.0, waiting - 5'000);  // 2 Mbit/s · 0.02 s / 8
    }
    // Each period takes 5,000 and adds the least, 250 bytes.
    NS_TEST_EXPECT_MSG_EQ(frames, 10, "drained");
    for (int i = 0; i < 100; ++i) {
      const auto bytes = kRule.Bytes(2e6, static_cast<uint64_t>(waiting));
      waiting = std::max(0.0, waiting + static_cast<double>(bytes) - 5'000);
      NS_TEST_EXPECT_MSG_LT_OR_EQ(waiting, 4'500, "no more than a frame");
    }
    NS_TEST_EXPECT_MSG_EQ(waiting, 0, "nothing in the end");
  }
};

class CallSuite : public ns3::TestSuite {
 public:
  CallSuite() : TestSuite("swiftqueue-call", Type::UNIT) {
    AddTestCase(new FrameRuleCase, Duration::QUICK);
    AddTestCase(new FramesDrainCase, Duration::QUICK);
  }
};

CallSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) { return swiftqueue::RunSuite("swiftqueue-call", argc, argv); }
