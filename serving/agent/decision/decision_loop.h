// SPDX-License-Identifier: Apache-2.0
//
// The decision loop: takes senders' packets, ACKs and coming batches, asks the predictor, and
// answers each batch when it is due at the latest. No batch ever waits longer: one without an
// answer keeps its default marking and is counted.
//
// One thread owns it. Apart from a sender's first packets it allocates nothing per packet.
//
// Senders' memory is bounded: remembered packets (kMaxRemembered of one sender, kAllRemembered of
// all), flows and receivers (kMaxFlows, kAllFlows of each) and batches under way (kMaxOutstanding,
// of which a sender gets as many as then stay free).
#ifndef SWIFTQUEUE_SERVING_AGENT_DECISION_LOOP_H_
#define SWIFTQUEUE_SERVING_AGENT_DECISION_LOOP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/agent/decision/sender.h"
#include "serving/agent/decision/statistics.h"
#include "serving/agent/io/complaints.h"
#include "serving/agent/io/frame_sink.h"
#include "serving/agent/io/frames.h"
#include "serving/agent/io/heartbeat.h"
#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

// Most remembered packets of all senders; then the sender with the most gives up its oldest.
inline constexpr std::int64_t kAllRemembered = 1 << 20;
// Flows, and receivers, are remembered until their sender goes. A sender may have kMaxFlows of
// each, or its share once all senders together have kAllFlows.
inline constexpr std::size_t kMaxFlows = 1 << 20;
inline constexpr std::size_t kAllFlows = 1 << 21;
inline constexpr std::size_t kMaxSenders = 256;

// Receives a sender's decisions.
class DecisionTaker {
 public:
  virtual ~DecisionTaker() = default;
  virtual void take(std::uint32_t sender, const DecisionFrame& decision) = 0;
};

class DecisionLoop {
 public:
  // `telemetry` and `heartbeat` may be null; everything given must outlive the loop.
  DecisionLoop(Predictor& predictor, const ControllerParams& params, Statistics& statistics,
               FrameSink* telemetry, Heartbeat* heartbeat = nullptr);

  // Opens a sender (and returns its number, from 1) or closes it; batches of a closed one count as
  // late.
  std::uint32_t open(std::string_view name, DecisionTaker& taker);
  void close(std::uint32_t sender);

  // Take a sender's frames, in order. False: a frame is impossible, and `why` is a line about it.
  bool sent(std::uint32_t sender, const SentFrame& frame, const char*& why);
  bool acked(std::uint32_t sender, const AckedFrame& frame, const char*& why);
  // Decides the batch, or gives it its default marking, by `due_ns`.
  bool batch(std::uint32_t sender, const BatchFrame& frame, std::int64_t due_ns, const char*& why);

  // Takes answers and ends what is due, until `until_ns` at the latest; returns early when
  // something was done or the predictor was woken.
  void run(std::int64_t until_ns);

  std::size_t outstanding() const { return outstanding_; }
  Complaints& complaints() { return complaints_; }

 private:
  struct DecidedBatch {
    std::int64_t first_packet = -1;
    BatchLatencies predicted;
    Queues sent{};  // the queue each packet really went to
    Arms arms{};
    bool by_rule = false;
  };
  struct Stream {
    Stream(std::uint32_t number, std::string_view called, int reach, const ControllerParams& params,
           const EventStream::Pool& pool, DecisionTaker& to)
        : id(number), name(called), sender(reach, params, pool), taker(to) {}
    // Returns the decision about a packet's batch; null if there was none, or it is long ago.
    DecidedBatch* decided_about(std::int64_t packet);

    std::uint32_t id;
    std::string name;
    Sender sender;
    DecisionTaker& taker;
    std::int64_t last_packet = -1;      // last packet sent
    std::int64_t last_batch = -1;       // first packet of the last one asked about
    std::size_t outstanding = 0;        // batches under way
    bool overflowed = false;            // whether it was reported
    std::vector<DecidedBatch> decided;  // ring by batch number, allocated for the first one
  };
  struct PendingBatch {
    std::uint64_t ticket = 0;  // 0: the slot is free
    Stream* stream = nullptr;
    Question question;
    std::int64_t now_ns = 0;  // time of the question, by the sender's clock
    std::int64_t asked_ns = 0;
    std::int64_t due_ns = 0;
  };
  struct Deadline {
    std::int64_t due_ns;
    std::uint64_t ticket;
  };
  static bool later(const Deadline& a, const Deadline& b) { return a.due_ns > b.due_ns; }

  Stream& stream_of(std::uint32_t sender) { return *streams_.at(sender); }
  PendingBatch& slot_of(std::uint64_t ticket) { return pending_[ticket % kMaxOutstanding]; }
  // Runs `change` on a sender, and keeps the totals and the bound on them.
  template <typename Change>
  auto counted(Stream& stream, Change change);
  void make_room();
  void take_answer(std::int64_t now_ns);
  void end_due(std::int64_t now_ns);
  void end(PendingBatch& pending, Outcome outcome);
  void go_without(Stream& stream, std::int64_t now_ns, std::int64_t first_packet,
                  const Batch& batch, Outcome outcome);
  static void remember(Stream& stream, std::int64_t first_packet, const Batch& batch,
                       const Decision& decision);
  void deliver(Stream& stream, std::int64_t now_ns, std::int64_t first_packet,
               const Decision& decision, std::int64_t version, float round_trip_us);

  Predictor& predictor_;
  const ControllerParams params_;
  Statistics& statistics_;
  FrameSink* const telemetry_;
  Heartbeat* const heartbeat_;
  const EventStream::Pool pool_ = std::make_shared<swiftqueue::detail::EventPool>();
  std::map<std::uint32_t, std::unique_ptr<Stream>> streams_;
  std::size_t flows_ = 0;      // flows of all senders
  std::size_t receivers_ = 0;  // receivers of all senders
  std::uint32_t last_stream_ = 0;
  std::vector<float> x_QF_;
  std::vector<PendingBatch> pending_;  // ring by ticket
  std::vector<Deadline> due_;  // heap, earliest first; entries of ended batches are swept out
  std::uint64_t last_ticket_ = 0;
  std::size_t outstanding_ = 0;
  Answer answer_;
  Complaints complaints_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_DECISION_LOOP_H_
