// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// One sender: its event window, its queue controller and its counts. The agent and the
// simulator compile this file. Pure: no I/O, no clock, no thread; every time is an argument, on the
// sender's own clock. A question contains only what `sent` and `acked` have said by then.
//
//   const auto question = sender.ask(first_packet, now_ns, batch, x_BWF);   // windows to predict
//   ... the answer may take its time; other batches may be asked about meanwhile ...
//   sender.decide(*question, then_ns, y_BHL)   or    sender.keep_default(batch, Outcome::kLate)
//
// Each batch ends in exactly one of `decide` and `keep_default`: batches = decided + late + failed.
//
// Shapes: B windows asked about (1 or 2), W window rows, F features of a row, H horizon (8
// packets), L levels of quantiles.
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

#include "feature_store/events/event_window.h"
#include "serving/agent/decision/controller.h"

namespace swiftqueue::agent {

inline constexpr int kMaxWindows = 2;  // windows of a batch: one for each candidate queue

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
  Queues queues;             // the chosen ones; unless decided, each packet's default
  BatchLatencies predicted;  // valid if decided
  Arms arms{};               // arms of the guard, for `sent` of each packet that followed
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
  int windows;  // B: 1 where both candidate queues make the same window
  std::int32_t in_flight;
};

class Sender {
 public:
  // `tokens` is W. Throws std::invalid_argument for impossible sizes or parameters.
  explicit Sender(int tokens, const ControllerParams& params = {},
                  EventStream::Pool pool = std::make_shared<swiftqueue::detail::EventPool>())
      : pool_(std::move(pool)), log_(std::in_place, tokens, pool_), controller_(params) {}

  int tokens() const { return log_->tokens(); }
  // Takes windows of another size, for another model: history starts anew, as after a restart.
  // Packets sent before are forgotten.
  void set_tokens(int tokens) {
    if (tokens == this->tokens()) return;
    overflowed_ = overflowed();
    log_.emplace(tokens, pool_);
  }

  // Numbers of packets remembered because an ACK may come, and of their flows.
  std::int32_t remembered() const { return log_->remembered(); }
  std::size_t flows() const { return log_->flows(); }
  // Number of receivers whose least latency is remembered.
  std::size_t receivers() const { return log_->receivers(); }
  // Number of packets given up before their time, for want of room.
  std::int64_t overflowed() const { return overflowed_ + log_->overflowed(); }
  // Gives up the oldest packet before its time. False: there is none.
  bool give_up_oldest() { return log_->give_up_oldest(); }

  // Logs a packet as it is sent, in the queue it is marked for; `arm` belongs to the decision that
  // it followed. False: refused, nothing changed.
  bool sent(std::int64_t packet, std::int64_t sent_ns, const Candidate& what, Arm arm = 0) {
    if (!log_->sent(packet, sent_ns, what)) return false;
    controller_.sent(packet, sent_ns, what, arm);
    return true;
  }

  // Logs the first ACK that covers a packet; NaN where the latency is unknown (Karn).
  bool acked(std::int64_t packet, std::int64_t acked_ns, float latency_us) {
    controller_.acked(packet, acked_ns, std::isfinite(latency_us));
    return log_->acked(packet, acked_ns, latency_us);
  }

  // Writes the windows of a decision taken at `now_ns` about packets `first_packet` .. + H - 1:
  // window 0 has all of them in the classic queue, window 1 each in its default queue, unless that
  // is the same window. x_BWF takes kMaxWindows windows. Returns nothing if a packet of the batch
  // is impossible (size below 1, unknown queue).
  std::optional<Question> ask(std::int64_t first_packet, std::int64_t now_ns, const Batch& batch,
                              float* x_BWF) const {
    Question question{first_packet, batch, 1, 0};
    Batch classic = batch;
    for (Candidate& packet : classic) packet.queue = kClassic;
    question.in_flight = log_->window(now_ns, classic, x_BWF);
    if (question.in_flight < 0) return std::nullopt;
    if (std::any_of(batch.begin(), batch.end(),
                    [](const Candidate& packet) { return packet.queue != kClassic; })) {
      float* const default_WF = x_BWF + std::ptrdiff_t{tokens()} * kEventWindowFeatureCount;
      if (log_->window(now_ns, batch, default_WF) < 0) return std::nullopt;
      question.windows = 2;
    }
    return question;
  }

  // Chooses the queues of a batch from the answer y_BHL (us) to its question: one latency of each
  // packet, or its quantiles of these levels, whose median is the prediction. An answer that is not
  // finite, or negative, is an error, and the batch keeps its default marking.
  Decision decide(const Question& question, std::int64_t now_ns, const float* y_BHL,
                  std::span<const double> levels = {}) {
    BatchAnswer answered{levels, y_BHL, y_BHL};
    const std::size_t values = kHorizon * answered.outputs();  // values of a window
    const float* const end = y_BHL + static_cast<std::size_t>(question.windows) * values;
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
  EventStream::Pool pool_;
  std::optional<EventWindow> log_;  // always has a value; a window of another size takes its place
  std::int64_t overflowed_ = 0;     // overflowed packets in windows of other sizes
  QueueController controller_;
  Counts counts_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SENDER_H_
