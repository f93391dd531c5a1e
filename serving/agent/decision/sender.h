// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// One sender: its events, its queue controller and its counts. The agent and the simulator compile
// this file. Pure: no I/O, no clock, no thread; every time is an argument, on the sender's own
// clock. A question contains only what `sent` and `acked` have said by then.
//
//   const auto question = sender.ask(first_packet, now_ns, batch, x_QF);   // rows of candidates
//   ... the answer may take its time; other batches may be asked about meanwhile ...
//   sender.decide(*question, then_ns, y_BHL)
//   or sender.go_without(first_packet, now_ns, batch, Outcome::kLate)
//
// Each batch ends in exactly one of the two: batches = decided + late + failed.
//
// Shapes: B alternatives asked about (1 or 2), H horizon (8 packets), Q queries (8 for each
// alternative), F features of a row, L levels of quantiles.
#ifndef SWIFTQUEUE_SERVING_AGENT_SENDER_H_
#define SWIFTQUEUE_SERVING_AGENT_SENDER_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "feature_store/events/event_stream.h"
#include "feature_store/events/virtual_queue.h"
#include "serving/agent/decision/controller.h"
#include "serving/agent/decision/event_rows.h"

namespace swiftqueue::agent {

inline constexpr int kMaxAlternatives = 2;  // the classic queue, and each packet's default queue
inline constexpr int kMaxQueries = kMaxAlternatives * kHorizon;  // queries of a batch

// The end of a batch.
enum class Outcome : std::uint8_t {
  kDecided = 0,
  kLate = 1,     // no answer when it was due
  kError = 2,    // the server is gone, or refuses
  kNoModel = 3,  // none is served, or one made for other features
};
inline constexpr std::array kOutcomeNames{"decided", "late", "error", "no_model"};

struct Decision {
  Outcome outcome;
  Queues queues;             // the chosen ones; unless decided, or by the rule, the default ones
  BatchLatencies predicted;  // valid if decided
  Arms arms{};               // arms of the guard, for `sent` of each packet that followed
  bool by_rule = false;      // whether the virtual queue stood in for the answer
};

// Batches by outcome.
struct Counts {
  std::array<std::int64_t, kOutcomeNames.size()> by_outcome{};

  std::int64_t of(Outcome outcome) const { return by_outcome[static_cast<std::size_t>(outcome)]; }
  std::int64_t batches() const { return decided() + late() + failed(); }
  std::int64_t decided() const { return of(Outcome::kDecided); }
  std::int64_t late() const { return of(Outcome::kLate); }
  // Number of batches without a prediction for another reason than time.
  std::int64_t failed() const { return of(Outcome::kError) + of(Outcome::kNoModel); }
};

// A batch that was asked about.
struct Question {
  std::int64_t first_packet;
  Batch batch;
  int alternatives;  // B: 1 where all default queues are the classic one
  std::int32_t in_flight;

  int queries() const { return alternatives * kHorizon; }
};

class Sender {
 public:
  // `reach` events are those that a question looks back at. Throws std::invalid_argument for
  // impossible parameters.
  explicit Sender(int reach, const ControllerParams& params = {},
                  EventStream::Pool pool = std::make_shared<swiftqueue::detail::EventPool>())
      : rows_(reach), stream_(std::move(pool)), controller_(params) {
    if (params.rule_stands_in) rule_ = std::make_unique<VirtualQueue>();
  }

  // Rows of its last events, for whoever answers.
  const EventRows& rows() const { return rows_; }
  // Keeps as many rows as another model looks back at.
  void keep(int reach) { rows_.keep(reach); }

  // Numbers of packets remembered because an ACK may come, and of their flows.
  std::int32_t remembered() const { return stream_.remembered(); }
  std::size_t flows() const { return stream_.flows(); }
  // Number of receivers whose least latency is remembered.
  std::size_t receivers() const { return stream_.receivers(); }
  // Number of packets given up before their time, for want of room.
  std::int64_t overflowed() const { return stream_.overflowed(); }
  // Gives up the oldest packet before its time. False: there is none.
  bool give_up_oldest() {
    if (rule_ != nullptr) rule_->give_up_oldest();
    return stream_.give_up_oldest();
  }

  // Logs a packet as it is sent, in the queue it is marked for; `arm` belongs to the decision that
  // it followed. False: refused, nothing changed.
  bool sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what, Arm arm = 0) {
    if (!stream_.sent(packet, sent_ns, what, rows_.place())) return false;
    add(0);
    if (rule_ != nullptr) rule_->sent(packet, sent_ns, what);
    controller_.sent(packet, sent_ns, what, arm);
    return true;
  }

  // Logs the first ACK that covers a packet; NaN where the latency is unknown (Karn).
  bool acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    controller_.acked(packet, acked_ns, std::isfinite(latency_us));
    if (rule_ != nullptr) rule_->acked(packet, acked_ns, latency_us);
    if (!stream_.acked(packet, acked_ns, latency_us, rows_.place())) return false;
    add(1);
    return true;
  }

  // Writes the queries x_QF of a decision taken at `now_ns` about packets `first_packet` .. + H -
  // 1: all of them in the classic queue, then each in its default queue, unless that is the same.
  // x_QF takes kMaxQueries rows. Returns nothing if a packet of the batch is impossible (size below
  // 1, unknown queue).
  std::optional<Question> ask(std::int64_t first_packet, std::int64_t now_ns, const Batch& batch,
                              float* x_QF) const {
    Question question{first_packet, batch, 1, 0};
    Batch classic = batch;
    for (Candidate& packet : classic) packet.queue = kClassic;
    if (!query(now_ns, classic, x_QF)) return std::nullopt;
    question.in_flight = static_cast<std::int32_t>(x_QF[event_input("in_flight")]);
    if (std::any_of(batch.begin(), batch.end(),
                    [](const Candidate& packet) { return packet.queue != kClassic; })) {
      if (!query(now_ns, batch, x_QF + kHorizon * kEventWindowFeatureCount)) return std::nullopt;
      question.alternatives = 2;
    }
    return question;
  }

  // Chooses the queues of a batch from the answer y_BHL (us) to its question: one latency of each
  // packet, or its quantiles of these levels, whose median is the prediction. An answer that is not
  // finite, or negative, is an error, and the batch keeps its default marking.
  Decision decide(const Question& question, std::int64_t now_ns, const float* y_BHL,
                  std::span<const double> levels = {}) {
    BatchAnswer answered{levels, y_BHL, y_BHL};
    const std::size_t values = kHorizon * answered.outputs();  // values of an alternative
    const float* const end = y_BHL + static_cast<std::size_t>(question.alternatives) * values;
    answered.default_us_HL = end - values;
    if (!std::all_of(y_BHL, end, [](float us) { return std::isfinite(us) && us >= 0; })) {
      return keep_default(question.batch, Outcome::kError);
    }
    Decision decision{Outcome::kDecided, {}, answered.predicted(), {}};
    const BatchChoice chosen = controller_.choose(question.first_packet, now_ns, question.batch,
                                                  answered, question.in_flight);
    decision.queues = chosen.queues;
    decision.arms = chosen.arms;
    ++counts_.by_outcome[static_cast<std::size_t>(Outcome::kDecided)];
    return decision;
  }

  // Ends a batch that has no answer, for one of the reasons other than kDecided. The virtual queue
  // decides it where it stands in and knows a latency; otherwise the default marking stays.
  Decision go_without(std::int64_t first_packet, std::int64_t now_ns, const Batch& batch,
                      Outcome why) {
    BatchLatencies said;
    std::array<float, kEventWindowFeatureCount> row;
    if (rule_ == nullptr || !stream_.query(now_ns, batch[0], 0, row.data()) ||
        !rule_says(now_ns, batch, said)) {
      return keep_default(batch, why);
    }
    const BatchChoice chosen = controller_.choose(
        first_packet, now_ns, batch, {{}, said.classic_us_H.data(), said.default_us_H.data()},
        static_cast<std::int32_t>(row[event_input("in_flight")]));
    ++counts_.by_outcome[static_cast<std::size_t>(why)];
    return {why, chosen.queues, {}, chosen.arms, true};
  }

  // Ends a batch with its default marking, for one of the reasons other than kDecided.
  Decision keep_default(const Batch& batch, Outcome why) {
    Decision decision{why, {}, {}, {}};
    for (std::size_t i = 0; i < batch.size(); ++i) {
      decision.queues[i] = batch[i].queue;
      controller_.keep_default(batch[i].flow_id);
    }
    ++counts_.by_outcome[static_cast<std::size_t>(why)];
    return decision;
  }

  const Counts& counts() const { return counts_; }
  // Number of packets moved to the classic queue and not acknowledged yet.
  std::size_t moved_unacked() const { return controller_.moved_unacked(); }
  // Returns whether an earlier decision to move counts for the flow's next packet (guard.h).
  bool moves(std::int32_t receiver, bool decided, Arm arm) {
    return controller_.moves(receiver, decided, arm);
  }
  const Guard::Counts& guarded() const { return controller_.guarded(); }

 private:
  // Takes up the row that was just written; `ack` says whether it is an ACK's.
  void add(float ack) {
    rows_.place()[kEventInputCount] = ack;
    rows_.add();
  }
  bool query(std::int64_t now_ns, const Batch& batch, float* x_HF) const {
    for (int place = 0; place < kHorizon; ++place, x_HF += kEventWindowFeatureCount) {
      if (!stream_.query(now_ns, batch[static_cast<std::size_t>(place)], place, x_HF)) return false;
      x_HF[kEventInputCount] = 0;
    }
    return true;
  }

  // Writes the rule's forecasts of a batch, all in the classic queue and each in its default one.
  // False: no latency is known, or a queue is impossible.
  bool rule_says(std::int64_t now_ns, const Batch& batch, BatchLatencies& said) const {
    std::array<double, kQueues> ahead{};  // bytes of the batch by default queue
    double all_ahead = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Candidate& packet = batch[i];
      if (packet.queue >= kQueues) return false;
      const auto us = [&](std::uint8_t queue, double ahead_bytes) {
        return static_cast<float>(
            virtual_queue_us(rule_->query(now_ns, packet.receiver_id, queue, ahead_bytes),
                             VirtualQueueRule::online()));
      };
      said.classic_us_H[i] = us(kClassic, all_ahead);
      said.default_us_H[i] = us(packet.queue, ahead[packet.queue]);
      if (std::isnan(said.classic_us_H[i])) return false;  // then the other one is NaN, too
      all_ahead += packet.size_bytes;
      ahead[packet.queue] += packet.size_bytes;
    }
    return true;
  }

  EventRows rows_;
  EventStream stream_;
  std::unique_ptr<VirtualQueue> rule_;  // null unless it stands in
  QueueController controller_;
  Counts counts_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SENDER_H_
