// SPDX-License-Identifier: GPL-2.0-only
//
// When a forecast of a rate is used, how much of it, and until when
// (samples/feedback.h, dispersion.h): run `build/simulation/rate-feedback-test`. What
// becomes of flows is in test_rate_feedback.py.

#include <cmath>
#include <limits>

#include "ns3/test.h"
#include "simulation/test/suite.h"
#include "studies/rate/samples/dispersion.h"
#include "studies/rate/samples/feedback.h"

namespace {

using ns3::TestCase;

constexpr sq_u64 kMbps = 125'000;    // bytes/s
constexpr sq_u64 kTripUs = 100'000;  // least round trip

sq_seen Seen() { return {1 * kMbps, 100 * kMbps, 1000, kTripUs, 1}; }

class JudgeCase : public TestCase {
 public:
  JudgeCase() : TestCase("which forecast is used") {}

 private:
  void DoRun() override {
    const sq_seen seen = Seen();
    NS_TEST_EXPECT_MSG_EQ(sq_judge(80 * kMbps, &seen), SQ_USED, "a plain one");
    for (const double wild : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity(),
                              -std::numeric_limits<double>::infinity(), 1.25e11, 0.5}) {
      NS_TEST_EXPECT_MSG_EQ(sq_judge(sq_rate_of(wild), &seen), SQ_NOT_A_RATE, "no rate: " << wild);
    }
    NS_TEST_EXPECT_MSG_EQ(sq_rate_of(12'500'000.4), 100 * kMbps, "whole bytes");
    NS_TEST_EXPECT_MSG_EQ(sq_judge(seen.own, &seen), SQ_NOTHING_NEW, "BBR knows as much");
    sq_seen other = Seen();
    other.age_us = kTripUs;
    NS_TEST_EXPECT_MSG_EQ(sq_judge(80 * kMbps, &other), SQ_USED, "a round trip old");
    other.age_us = kTripUs + 1;
    NS_TEST_EXPECT_MSG_EQ(sq_judge(80 * kMbps, &other), SQ_STALE, "older");
    other = Seen();
    other.in_startup = 0;
    NS_TEST_EXPECT_MSG_EQ(sq_judge(80 * kMbps, &other), SQ_TOO_LATE, "STARTUP is over");
    other = Seen();
    other.dispersion = 0;
    NS_TEST_EXPECT_MSG_EQ(sq_judge(80 * kMbps, &other), SQ_NOTHING_SEEN, "nothing to hold it to");
    other = Seen();
    other.min_rtt_us = 0;
    NS_TEST_EXPECT_MSG_EQ(sq_judge(80 * kMbps, &other), SQ_NOTHING_SEEN, "no round trip");
  }
};

class BoundCase : public TestCase {
 public:
  BoundCase() : TestCase("how much of it is followed") {}

 private:
  void DoRun() override {
    NS_TEST_EXPECT_MSG_EQ(sq_bounded(80 * kMbps, 100 * kMbps), 80 * kMbps, "below what was seen");
    NS_TEST_EXPECT_MSG_EQ(sq_bounded(10'000 * kMbps, 100 * kMbps), 100 * kMbps, "a hundredfold");
    NS_TEST_EXPECT_MSG_EQ(sq_pace(80 * kMbps, 0, kTripUs), 100 * kMbps, "5/4, window unknown");
    // 64 KiB a round trip of 100 ms are 655,360 bytes/s.
    NS_TEST_EXPECT_MSG_EQ(sq_pace(80 * kMbps, 65'536, kTripUs), 655'360, "the window rules");
    NS_TEST_EXPECT_MSG_EQ(sq_pace(80 * kMbps, 8 << 20, kTripUs), 80'000'000 / 8 / 4 * 5,
                          "a window that does not");
    NS_TEST_EXPECT_MSG_LT(sq_pace(SQ_LARGEST_RATE, 3 << 20, kTripUs), 31'457'281, "no overflow");
  }
};

class FollowCase : public TestCase {
 public:
  FollowCase() : TestCase("until when") {}

 private:
  void DoRun() override {
    const sq_u64 rate = 80 * kMbps;
    const auto follow = [&](sq_u64 own, int round, int whole, int lost, sq_u64 rtt) {
      return sq_follow(rate, own, round, whole, lost, rtt, kTripUs);
    };
    NS_TEST_EXPECT_MSG_EQ(follow(kMbps, 0, 0, 0, kTripUs), SQ_GOES_ON, "what was sent before");
    NS_TEST_EXPECT_MSG_EQ(follow(kMbps, 1, 1, 0, 2 * kTripUs), SQ_GOES_ON,
                          "a queue that others may have made");
    NS_TEST_EXPECT_MSG_EQ(follow(kMbps, 2, 2, 0, 2 * kTripUs), SQ_QUEUED, "a queue");
    NS_TEST_EXPECT_MSG_EQ(follow(rate, 2, 2, 0, kTripUs), SQ_CONFIRMED, "as it said");
    NS_TEST_EXPECT_MSG_EQ(follow(kMbps, 2, 1, 0, kTripUs), SQ_GOES_ON, "the window ruled");
    NS_TEST_EXPECT_MSG_EQ(follow(kMbps, 5, -1, 0, 2 * kTripUs), SQ_QUEUED, "a queue all the same");
    NS_TEST_EXPECT_MSG_EQ(follow(rate * 116 / 100, 1, 1, 0, kTripUs), SQ_EXCEEDED, "there is more");
    NS_TEST_EXPECT_MSG_EQ(follow(kMbps, 0, 0, 1, kTripUs), SQ_LOST, "a loss, at once");
  }
};

class DispersionCase : public TestCase {
 public:
  DispersionCase() : TestCase("what the first ACKs show") {}

 private:
  void DoRun() override {
    swiftqueue::rate::Dispersion train;
    NS_TEST_EXPECT_MSG_EQ(train.get(), 0, "no ACK");
    train.acked(0, 1);
    NS_TEST_EXPECT_MSG_EQ(train.get(), 0, "one ACK");
    train.acked(0, 1001);
    train.acked(100, 1001);
    NS_TEST_EXPECT_MSG_EQ(train.get(), 0, "no time, or nothing delivered");
    train.acked(200, 2001);
    train.acked(400, 3001);
    NS_TEST_EXPECT_MSG_EQ(train.get(), 5'000'000, "the lower of two");
    for (int more = 0; more < 6; ++more) {
      train.acked(401 + more, 4001 + 1000 * more);
    }
    NS_TEST_EXPECT_MSG_EQ(train.get(), 1'000'000'000, "the median");
  }
};

class RateFeedbackSuite : public ns3::TestSuite {
 public:
  RateFeedbackSuite() : TestSuite("swiftqueue-rate-feedback", Type::UNIT) {
    AddTestCase(new DispersionCase, Duration::QUICK);
    AddTestCase(new JudgeCase, Duration::QUICK);
    AddTestCase(new BoundCase, Duration::QUICK);
    AddTestCase(new FollowCase, Duration::QUICK);
  }
};

RateFeedbackSuite g_suite;  // registers itself

}  // namespace

int main(int argc, char** argv) {
  return swiftqueue::RunSuite("swiftqueue-rate-feedback", argc, argv);
}
