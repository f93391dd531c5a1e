// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/decision/decision_loop.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "serving/agent/io/clock.h"

namespace swiftqueue::agent {
namespace {

// Batches whose ACKs are waited for: 1 Gbit/s of 1,500-byte packets over 100 ms has 1,042 of them.
constexpr std::size_t kDecidedBatches = 4096;
constexpr float kMaxErrorUs = 1e12F;  // a sender may send any number as a latency
constexpr int kRoom = 64;  // packets given up at once: few, since other senders wait meanwhile
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

DecisionLoop::DecidedBatch* DecisionLoop::Stream::decided_about(std::int64_t packet) {
  if (decided.empty()) return nullptr;
  const std::int64_t number = packet / kHorizon;
  DecidedBatch& batch = decided[static_cast<std::size_t>(number) % kDecidedBatches];
  return batch.first_packet == number * kHorizon ? &batch : nullptr;
}

DecisionLoop::DecisionLoop(Predictor& predictor, const ControllerParams& params,
                           Statistics& statistics, FrameSink* telemetry, Heartbeat* heartbeat)
    : predictor_(predictor),
      params_(params),
      statistics_(statistics),
      telemetry_(telemetry),
      heartbeat_(heartbeat),
      x_QF_(std::size_t{kMaxQueries} * kEventWindowFeatureCount),
      pending_(kMaxOutstanding) {
  due_.reserve(2 * kMaxOutstanding);
}

std::uint32_t DecisionLoop::open(std::string_view name, DecisionTaker& taker) {
  do {
    ++last_stream_;
  } while (last_stream_ == 0 || streams_.contains(last_stream_));
  const std::uint32_t id = last_stream_;
  const int reach = predictor_.model().reach;
  streams_.emplace(id, std::make_unique<Stream>(id, name, reach, params_, pool_, taker));
  statistics_.senders.add();
  if (telemetry_ != nullptr) {
    HelloFrame hello;
    hello.name = text_field<sizeof hello.name>(name);
    telemetry_->put(hello, id);
  }
  return id;
}

void DecisionLoop::close(std::uint32_t sender) {
  Stream& stream = stream_of(sender);
  for (PendingBatch& pending : pending_) {
    if (stream.outstanding == 0) break;
    if (pending.ticket != 0 && pending.stream == &stream) end(pending, Outcome::kLate);
  }
  statistics_.moved_unacked.add(-static_cast<std::int64_t>(stream.sender.moved_unacked()));
  statistics_.remembered.add(-stream.sender.remembered());
  for (std::size_t i = 0; i < Guard::kStateNames.size(); ++i) {
    statistics_.guard.receivers[i].add(-stream.sender.guarded().receivers[i]);
  }
  statistics_.senders.add(-1);
  flows_ -= stream.sender.flows();
  receivers_ -= stream.sender.receivers();
  predictor_.forget(sender);
  streams_.erase(sender);
  if (telemetry_ != nullptr) telemetry_->put(ByeFrame{}, sender);
}

template <typename Change>
auto DecisionLoop::counted(Stream& stream, Change change) {
  const Sender& sender = stream.sender;
  const auto moved = static_cast<std::int64_t>(sender.moved_unacked());
  const std::int64_t remembered = sender.remembered();
  const std::int64_t overflowed = sender.overflowed();
  const std::size_t flows = sender.flows();
  const std::size_t receivers = sender.receivers();
  const Guard::Counts guarded = sender.guarded();
  const auto result = change();
  statistics_.guard.add(guarded, sender.guarded());
  statistics_.moved_unacked.add(static_cast<std::int64_t>(sender.moved_unacked()) - moved);
  statistics_.remembered.add(sender.remembered() - remembered);
  flows_ += sender.flows() - flows;
  receivers_ += sender.receivers() - receivers;
  if (sender.overflowed() != overflowed) {
    statistics_.overflowed.add(sender.overflowed() - overflowed);
    if (!stream.overflowed) {
      complaints_.say("sender " + std::to_string(stream.id) + " (" + stream.name +
                      "): more packets wait for an ACK than are remembered; the oldest are given "
                      "up before their time");
    }
    stream.overflowed = true;
  }
  return result;
}

void DecisionLoop::make_room() {
  if (statistics_.remembered.get() <= kAllRemembered) return;
  Stream& most =
      *std::max_element(streams_.begin(), streams_.end(), [](const auto& a, const auto& b) {
         return a.second->sender.remembered() < b.second->sender.remembered();
       })->second;
  counted(most, [&] {
    int given_up = 0;
    while (given_up < kRoom && most.sender.give_up_oldest()) ++given_up;
    return given_up;
  });
}

bool DecisionLoop::sent(std::uint32_t sender, const SentFrame& frame, const char*& why) {
  Stream& stream = stream_of(sender);
  DecidedBatch* const batch = stream.decided_about(frame.packet);
  const auto i = static_cast<std::size_t>(frame.packet % kHorizon);
  const Arm arm = batch == nullptr ? 0 : batch->arms[i];
  if (!counted(stream, [&] {
        return stream.sender.sent(frame.packet, frame.sent_ns, candidate_of(frame), arm);
      })) {
    why = "packets must be numbered in send order";
    return false;
  }
  if (stream.sender.flows() > kMaxFlows) {
    why = "it has opened more than 1048576 flows; use their ids again, or connect anew";
    return false;
  }
  if (flows_ > kAllFlows && stream.sender.flows() > kAllFlows / kMaxSenders) {
    why = "all senders together have opened more than 2097152 flows, and it more than its share";
    return false;
  }
  make_room();
  stream.last_packet = frame.packet;
  if (batch != nullptr) batch->sent[i] = frame.queue;
  if (telemetry_ != nullptr) telemetry_->put(frame, sender);
  return true;
}

bool DecisionLoop::acked(std::uint32_t sender, const AckedFrame& frame, const char*& why) {
  Stream& stream = stream_of(sender);
  if (!counted(stream, [&] {
        return stream.sender.acked(frame.packet, frame.acked_ns, frame.latency_us);
      })) {
    return true;  // the packet is unknown by now
  }
  if (stream.sender.receivers() > kMaxFlows) {
    why = "it has sent to more than 1048576 receivers; use their ids again, or connect anew";
    return false;
  }
  if (receivers_ > kAllFlows && stream.sender.receivers() > kAllFlows / kMaxSenders) {
    why =
        "all senders together have sent to more than 2097152 receivers, and it to more than its "
        "share";
    return false;
  }
  const DecidedBatch* const batch = stream.decided_about(frame.packet);
  if (batch != nullptr && !batch->by_rule && std::isfinite(frame.latency_us)) {
    const auto i = static_cast<std::size_t>(frame.packet % kHorizon);
    const BatchLatencies& predicted = batch->predicted;
    const float us =
        batch->sent[i] == kClassic ? predicted.classic_us_H[i] : predicted.default_us_H[i];
    statistics_.predicted_latency.observe(
        static_cast<std::int64_t>(std::min(us, kMaxErrorUs) * 1e3F));
    statistics_.prediction_error.observe(
        static_cast<std::int64_t>(std::min(std::fabs(us - frame.latency_us), kMaxErrorUs) * 1e3F));
  }
  if (telemetry_ != nullptr) telemetry_->put(frame, sender);
  return true;
}

bool DecisionLoop::batch(std::uint32_t sender, const BatchFrame& frame, std::int64_t due_ns,
                         const char*& why) {
  Stream& stream = stream_of(sender);
  if (frame.first_packet <= stream.last_packet) {
    why = "a batch is asked about before its first packet is sent";
    return false;
  }
  if (frame.first_packet <= stream.last_batch) {
    why = "batches are asked about once, in send order";
    return false;
  }
  stream.last_batch = frame.first_packet;
  const Batch batch = batch_of(frame);
  const auto keep = [&](Outcome outcome) {
    go_without(stream, frame.now_ns, frame.first_packet, batch, outcome);
    return true;
  };
  const Model model = predictor_.model();
  if (model.reach == 0) return keep(Outcome::kNoModel);
  stream.sender.keep(model.reach);
  const std::int64_t asked_ns = monotonic_ns();
  if (asked_ns >= due_ns) return keep(Outcome::kLate);
  const auto question = stream.sender.ask(frame.first_packet, frame.now_ns, batch, x_QF_.data());
  if (!question || stream.outstanding >= pending_.size() - outstanding_) {
    return keep(Outcome::kError);
  }
  // A batch that is due long after the others keeps its slot; the others go round it.
  while (slot_of(last_ticket_ + 1).ticket != 0) ++last_ticket_;
  PendingBatch& pending = slot_of(last_ticket_ + 1);
  if (!predictor_.ask({last_ticket_ + 1, sender, stream.sender.rows(), x_QF_.data(),
                       question->alternatives, due_ns})) {
    return keep(Outcome::kError);
  }
  pending = {++last_ticket_, &stream, *question, frame.now_ns, asked_ns, due_ns};
  ++outstanding_;
  ++stream.outstanding;
  if (due_.size() == 2 * kMaxOutstanding) {  // half of them or more have ended
    std::erase_if(due_,
                  [&](const Deadline& each) { return slot_of(each.ticket).ticket != each.ticket; });
    std::make_heap(due_.begin(), due_.end(), later);
  }
  due_.push_back({due_ns, pending.ticket});
  std::push_heap(due_.begin(), due_.end(), later);
  return true;
}

void DecisionLoop::run(std::int64_t until_ns) {
  if (!due_.empty()) until_ns = std::min(until_ns, due_.front().due_ns);
  bool answered = false;
  do {  // the first answer is waited for, further ones are taken where they are there
    answered = predictor_.next(answer_, until_ns);
    const std::int64_t now_ns = monotonic_ns();
    if (heartbeat_ != nullptr) heartbeat_->beat(now_ns);
    end_due(now_ns);
    if (answered) take_answer(now_ns);
    until_ns = 0;
  } while (answered);
}

void DecisionLoop::take_answer(std::int64_t now_ns) {
  PendingBatch& pending = slot_of(answer_.ticket);
  if (pending.ticket != answer_.ticket) {
    statistics_.stale.add();
    return;
  }
  if (!answer_.ok) {
    end(pending, Outcome::kError);
    return;
  }
  Stream& stream = *pending.stream;
  const Decision decision = counted(stream, [&] {
    return stream.sender.decide(pending.question, pending.now_ns, answer_.y_BH.data());
  });
  pending.ticket = 0;
  --outstanding_;
  --stream.outstanding;
  const std::int64_t first_packet = pending.question.first_packet;
  if (decision.outcome != Outcome::kDecided) {
    deliver(stream, pending.now_ns, first_packet, decision, -1, kNaN);
    return;
  }
  const std::int64_t round_trip_ns = now_ns - pending.asked_ns;
  statistics_.round_trip.observe(round_trip_ns);
  remember(stream, first_packet, pending.question.batch, decision);
  deliver(stream, pending.now_ns, first_packet, decision, answer_.version,
          static_cast<float>(round_trip_ns) / 1e3F);
}

// Ends the batches that are due; answered ones fall out as well, once they are the earliest.
void DecisionLoop::end_due(std::int64_t now_ns) {
  while (!due_.empty()) {
    const Deadline first = due_.front();
    PendingBatch& pending = slot_of(first.ticket);
    const bool waits = pending.ticket == first.ticket;
    if (waits && first.due_ns > now_ns) return;
    if (waits) end(pending, Outcome::kLate);
    std::pop_heap(due_.begin(), due_.end(), later);
    due_.pop_back();
  }
}

void DecisionLoop::end(PendingBatch& pending, Outcome outcome) {
  pending.ticket = 0;
  --outstanding_;
  Stream& stream = *pending.stream;
  --stream.outstanding;
  go_without(stream, pending.now_ns, pending.question.first_packet, pending.question.batch,
             outcome);
}

void DecisionLoop::go_without(Stream& stream, std::int64_t now_ns, std::int64_t first_packet,
                              const Batch& batch, Outcome outcome) {
  const Decision decision = counted(
      stream, [&] { return stream.sender.go_without(first_packet, now_ns, batch, outcome); });
  if (decision.by_rule) {
    statistics_.by_rule.add();
    remember(stream, first_packet, batch, decision);
  }
  deliver(stream, now_ns, first_packet, decision, -1, kNaN);
}

// Remembers a decision for the packets that follow it.
void DecisionLoop::remember(Stream& stream, std::int64_t first_packet, const Batch& batch,
                            const Decision& decision) {
  if (stream.decided.empty()) stream.decided.resize(kDecidedBatches);
  DecidedBatch& decided =
      stream.decided[static_cast<std::size_t>(first_packet / kHorizon) % kDecidedBatches];
  decided = {first_packet, decision.predicted, {}, decision.arms, decision.by_rule};
  // A packet sent before its decision came went to its default queue, as far as is known.
  for (std::size_t i = 0; i < kHorizon; ++i) decided.sent[i] = batch[i].queue;
}

void DecisionLoop::deliver(Stream& stream, std::int64_t now_ns, std::int64_t first_packet,
                           const Decision& decision, std::int64_t version, float round_trip_us) {
  statistics_.batches[static_cast<std::size_t>(decision.outcome)].add();
  for (const std::uint8_t queue : decision.queues) statistics_.packets[queue].add();
  DecisionFrame frame;
  frame.first_packet = first_packet;
  frame.now_ns = now_ns;
  frame.version = version;
  frame.round_trip_us = round_trip_us;
  frame.outcome = decision.outcome;
  frame.queues = decision.queues;
  frame.classic_us_H.fill(kNaN);
  frame.default_us_H.fill(kNaN);
  if (decision.outcome == Outcome::kDecided) {
    frame.classic_us_H = decision.predicted.classic_us_H;
    frame.default_us_H = decision.predicted.default_us_H;
  }
  stream.taker.take(stream.id, frame);
}

}  // namespace swiftqueue::agent
