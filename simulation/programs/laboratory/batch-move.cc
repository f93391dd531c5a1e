// SPDX-License-Identifier: GPL-2.0-only

#include "batch-move.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "npy.h"
#include "ns3/simulator.h"
#include "packet-log.h"

namespace swiftqueue::lab {

using ns3::Simulator;

namespace {

constexpr int64_t kLoggedEvery = 8;  // batches

/** A row of `questions.npy` but for its windows, which follow. */
struct [[gnu::packed]] QuestionRow {
  int64_t askedNs;
  int64_t firstPacket;
  int32_t windows;
  std::array<int32_t, kHorizon> sizeBytes;
  std::array<int32_t, kHorizon> flow;
  std::array<int32_t, kHorizon> receiver;
  std::array<uint8_t, kHorizon> queue;
};

int64_t TimeNs() { return Simulator::Now().GetNanoSeconds(); }

/** Number of a key, by first appearance; `keys` has them by number. */
template <typename Key>
int32_t IdOf(std::unordered_map<Key, int32_t>& ids, std::vector<Key>& keys, Key key) {
  const auto [place, isNew] = ids.try_emplace(key, static_cast<int32_t>(ids.size()));
  if (isNew) {
    keys.push_back(key);
  }
  return place->second;
}

}  // namespace

BatchMove::BatchMove(const Batching& params, int reach, bool logged, std::vector<double> levels)
    : m_params(params),
      m_levels(std::move(levels)),
      m_sender(reach, {.margin_us = params.marginUs,
                       .margin_share = params.marginShare,
                       .max_moved_unacked = params.maxMovedUnacked,
                       .max_moved_share = params.maxMovedShare,
                       .guard = {.on = params.guard}}),
      m_x_QF(static_cast<std::size_t>(agent::kMaxQueries * kEventWindowFeatureCount)),
      m_tokens(reach + kHorizon),
      m_logged(logged),
      m_x_BWF(
          static_cast<std::size_t>(agent::kMaxAlternatives * m_tokens * kEventWindowFeatureCount)) {
}

Candidate BatchMove::Known(const DataPacket& packet) {
  return {.size_bytes = static_cast<int32_t>(packet.sizeBytes),
          .flow_id = IdOf(m_flowIds, m_flows, packet.flow),
          .receiver_id = IdOf(m_receiverIds, m_receivers, packet.receiver),
          .queue = packet.defaultQueue};
}

agent::Batch BatchMove::Candidates(const DataPacket& first, const Waiting& behind) {
  std::vector<DataPacket> packets = behind.First(kHorizon - 1);
  packets.insert(packets.begin(), first);
  for (auto old = m_inFlight.begin(); old != m_inFlight.end() && packets.size() < kHorizon; ++old) {
    if (!old->acked) {
      packets.push_back(old->packet);
    }
  }
  packets.resize(kHorizon, first);
  agent::Batch batch;
  std::transform(packets.begin(), packets.end(), batch.begin(),
                 [this](const DataPacket& packet) { return Known(packet); });
  return batch;
}

void BatchMove::Ask(const DataPacket& first, const Waiting& behind) {
  ForgetInFlight();
  m_batch = std::make_shared<Batch>();
  m_batch->number = first.number / kHorizon;
  m_batch->candidates = Candidates(first, behind);
  const auto question = m_sender.ask(first.number, TimeNs(), m_batch->candidates, m_x_QF.data());
  if (!question) {
    m_sender.keep_default(m_batch->candidates, agent::Outcome::kError);
    return;
  }
  m_batch->question = *question;
  if (m_logged && m_batch->number % kLoggedEvery == 0) {
    Log(*question);
  }
  Forecast(*question, m_x_QF.data(), m_batch->y_BHL.data());
  if (m_params.inferenceUs == 0) {
    Due(m_batch);
  } else {
    Simulator::Schedule(ns3::Seconds(m_params.inferenceUs * 1e-6), &BatchMove::Due, this, m_batch);
  }
}

void BatchMove::Due(std::shared_ptr<Batch> batch) {
  if (batch != m_batch && !m_params.holdPrevious) {
    m_sender.keep_default(batch->candidates, agent::Outcome::kLate);
    return;
  }
  const agent::Decision decision =
      m_sender.decide(batch->question, TimeNs(), batch->y_BHL.data(), m_levels);
  if (decision.outcome != agent::Outcome::kDecided) {
    return;
  }
  batch->queues = decision.queues;
  batch->arms = decision.arms;
  batch->decided = true;
  if (m_params.holdPrevious) {
    for (std::size_t i = 0; i < kHorizon; ++i) {
      const Candidate& candidate = batch->candidates[i];
      const uint8_t queue = decision.queues[i];
      const auto [last, isNew] = m_last.try_emplace(candidate.flow_id, queue, 0);
      if (isNew || last->second.queue != queue) {
        m_changes.push_back({TimeNs(), FlowOf(candidate), queue});
      }
      last->second = {queue, decision.arms[i]};
    }
  }
}

void BatchMove::Log(const agent::Question& question) {
  QuestionRow row{TimeNs(), question.first_packet, question.alternatives, {}, {}, {}, {}};
  for (std::size_t i = 0; i < kHorizon; ++i) {
    const Candidate& candidate = question.batch[i];
    row.sizeBytes[i] = candidate.size_bytes;
    row.flow[i] = candidate.flow_id;
    row.receiver[i] = candidate.receiver_id;
    row.queue[i] = candidate.queue;
  }
  for (int i = 0; i < question.alternatives; ++i) {
    Rows().window(m_tokens, Rows().next(), m_x_QF.data() + i * kHorizon * kEventWindowFeatureCount,
                  m_x_BWF.data() + i * m_tokens * kEventWindowFeatureCount);
  }
  const auto append = [this](const void* data, std::size_t bytes) {
    const auto* first = static_cast<const char*>(data);
    m_questionRows.insert(m_questionRows.end(), first, first + bytes);
  };
  append(&row, sizeof(row));
  append(m_x_BWF.data(), m_x_BWF.size() * sizeof(float));
  ++m_questions;
}

void BatchMove::WriteQuestions(const std::string& path) const {
  const auto field = [](const std::string& name, const std::string& type,
                        const std::string& shape) {
    return ", ('" + name + "', '" + type + "', (" + shape + "))";
  };
  const std::string horizon = std::to_string(kHorizon) + ",";
  const std::string windows = std::to_string(agent::kMaxAlternatives) + ", " +
                              std::to_string(m_tokens) + ", " +
                              std::to_string(kEventWindowFeatureCount);
  const std::string descr = "[('asked_ns', '<i8'), ('first_packet', '<i8'), ('windows', '<i4')" +
                            field("size_bytes", "<i4", horizon) + field("flow", "<i4", horizon) +
                            field("receiver", "<i4", horizon) + field("queue", "|u1", horizon) +
                            field("x_BWF", "<f4", windows) + "]";
  WriteNpy(path, descr, m_questionRows.data(), m_questions,
           sizeof(QuestionRow) + m_x_BWF.size() * sizeof(float));
}

bool BatchMove::Move(const DataPacket& packet, const Waiting& behind) {
  m_arm = 0;
  if (packet.number % kHorizon == 0) {
    Ask(packet, behind);
  }
  // The next candidate of its flow, or the last one of it.
  const int32_t flow = IdOf(m_flowIds, m_flows, packet.flow);
  std::size_t mine = kHorizon;
  for (std::size_t i = 0; i < kHorizon; ++i) {
    if (m_batch->candidates[i].flow_id == flow) {
      mine = i;
      if (!m_batch->used[i]) {
        break;
      }
    }
  }
  if (mine < kHorizon) {
    m_batch->used[mine] = true;
    if (m_batch->decided) {
      return Follow(packet, m_batch->queues[mine], m_batch->arms[mine]);
    }
  } else if (packet.defaultQueue == kL4sQueue) {
    ++m_unforeseen;
  }
  const auto last = m_last.find(flow);
  if (last == m_last.end()) {
    return false;
  }
  const auto [queue, arm] = last->second;
  return Follow(packet, queue, arm);
}

bool BatchMove::Follow(const DataPacket& packet, uint8_t queue, agent::Arm arm) {
  m_arm = arm;
  return m_sender.moves(Known(packet).receiver_id, queue == agent::kClassic, arm);
}

void BatchMove::Sent(const DataPacket& packet, uint8_t queue) {
  Candidate what = Known(packet);
  what.queue = queue;
  m_sender.sent(packet.number, TimeNs(), what, m_arm);
  if (packet.acknowledged) {
    m_inFlight.push_back({packet, TimeNs(), false});
  }
}

void BatchMove::Acked(int64_t packet, uint16_t, uint8_t, float latencyUs) {
  m_sender.acked(packet, TimeNs(), latencyUs);
  const auto place =
      std::lower_bound(m_inFlight.begin(), m_inFlight.end(), packet,
                       [](const InFlight& f, int64_t number) { return f.packet.number < number; });
  if (place != m_inFlight.end() && place->packet.number == packet) {
    place->acked = true;
  }
  ForgetInFlight();
}

void BatchMove::ForgetInFlight() {
  while (!m_inFlight.empty() &&
         (m_inFlight.front().acked || TimeNs() - m_inFlight.front().sentNs >= kGiveUpNs)) {
    m_inFlight.pop_front();
  }
}

void BatchMove::WriteDecisions(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  for (const Change& change : m_changes) {
    file << change.atNs << ' ' << change.flow << ' ' << int{change.queue} << '\n';
  }
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write all of " + path + ": is the disk full?");
  }
}

void BatchMove::AddTo(JsonObject& summary, JsonObject&) const {
  const agent::Counts& counts = m_sender.counts();
  JsonObject decisions;
  decisions.Add("batches", JsonNumber(counts.batches()))
      .Add("decided", JsonNumber(counts.decided()))
      .Add("late", JsonNumber(counts.late()))
      .Add("failed", JsonNumber(counts.failed()))
      .Add("unforeseen", JsonNumber(m_unforeseen));
  if (m_params.guard) {
    const agent::Guard::Counts& guarded = m_sender.guarded();
    JsonObject guard;
    for (std::size_t i = 0; i < agent::Guard::kStateNames.size(); ++i) {
      guard.Add(agent::Guard::kStateNames[i], JsonNumber(guarded.receivers[i]));
    }
    guard.Add("trials", JsonNumber(guarded.trials))
        .Add("admitted", JsonNumber(guarded.admitted))
        .Add("stops", JsonNumber(guarded.stops))
        .Add("pairs", JsonNumber(guarded.pairs))
        .Add("grown", JsonNumber(guarded.grown))
        .Add("advantage", JsonNumber(guarded.advantage));
    decisions.Add("guard", guard.Text());
  }
  Describe(decisions);
  summary.Add("decisions", decisions.Text());
}

}  // namespace swiftqueue::lab
