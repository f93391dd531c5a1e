// SPDX-License-Identifier: GPL-2.0-only

#include "model-controller.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "npy.h"
#include "ns3/simulator.h"
#include "packet-log.h"
#include "serving/agent/usable_model.h"

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

template <typename Key>
int32_t IdOf(std::unordered_map<Key, int32_t>& ids, Key key) {
  return ids.try_emplace(key, static_cast<int32_t>(ids.size())).first->second;
}

const std::string& Checked(const std::string& folder) {
  const engine::Description model = engine::load_artifact(folder).description;
  const auto features = static_cast<int64_t>(model.features.size());
  const std::string why =
      agent::why_not_usable(model.schema_hash, model.tokens, features, model.horizon);
  if (!why.empty()) {
    throw engine::InvalidError(folder + ": " + why);
  }
  return folder;
}

}  // namespace

ModelMove::ModelMove(const ModelControl& params, bool logged)
    : m_params(params),
      m_engine(Checked(params.artifact), "auto", params.version),
      m_sender(m_engine.description().tokens, {.margin_us = params.marginUs,
                                               .margin_share = params.marginShare,
                                               .max_moved_unacked = params.maxMovedUnacked}),
      m_x_BWF(static_cast<std::size_t>(agent::kMaxWindows * m_sender.tokens() * kFeatureCount)),
      m_logged(logged) {}

void ModelMove::SwapHead(const std::string& artifact, int64_t version) {
  m_engine.swap_head(artifact, version);
}

Candidate ModelMove::Known(const DataPacket& packet) {
  return {.size_bytes = static_cast<int32_t>(packet.sizeBytes),
          .flow_id = IdOf(m_flowIds, packet.flow),
          .receiver_id = IdOf(m_receiverIds, packet.receiver),
          .queue = packet.defaultQueue};
}

agent::Batch ModelMove::Candidates(const DataPacket& first, const Waiting& behind) {
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

void ModelMove::Ask(const DataPacket& first, const Waiting& behind) {
  ForgetInFlight();
  m_batch = std::make_shared<Batch>();
  m_batch->number = first.number / kHorizon;
  m_batch->candidates = Candidates(first, behind);
  const auto question = m_sender.ask(first.number, TimeNs(), m_batch->candidates, m_x_BWF.data());
  if (!question) {
    m_sender.keep_default(m_batch->candidates, agent::Outcome::kError);
    return;
  }
  m_batch->question = *question;
  if (m_logged && m_batch->number % kLoggedEvery == 0) {
    Log(*question);
  }
  const auto started = std::chrono::steady_clock::now();
  const int64_t version = m_engine.forward(m_x_BWF.data(), question->windows, m_sender.tokens(),
                                           m_batch->y_BH.data(), nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  m_engineS += took.count();
  ++m_engineCalls;
  ++m_askedByVersion[version];
  if (m_params.inferenceUs == 0) {
    Due(m_batch);
  } else {
    Simulator::Schedule(ns3::Seconds(m_params.inferenceUs * 1e-6), &ModelMove::Due, this, m_batch);
  }
}

void ModelMove::Due(std::shared_ptr<Batch> batch) {
  if (batch != m_batch && !m_params.holdPrevious) {
    m_sender.keep_default(batch->candidates, agent::Outcome::kLate);
    return;
  }
  const agent::Decision decision = m_sender.decide(batch->question, TimeNs(), batch->y_BH.data());
  if (decision.outcome != agent::Outcome::kDecided) {
    return;
  }
  batch->queues = decision.queues;
  batch->decided = true;
  if (m_params.holdPrevious) {
    for (std::size_t i = 0; i < kHorizon; ++i) {
      m_lastQueue[batch->candidates[i].flow_id] = decision.queues[i];
    }
  }
}

void ModelMove::Log(const agent::Question& question) {
  QuestionRow row{TimeNs(), question.first_packet, question.windows, {}, {}, {}, {}};
  for (std::size_t i = 0; i < kHorizon; ++i) {
    const Candidate& candidate = question.batch[i];
    row.sizeBytes[i] = candidate.size_bytes;
    row.flow[i] = candidate.flow_id;
    row.receiver[i] = candidate.receiver_id;
    row.queue[i] = candidate.queue;
  }
  const auto append = [this](const void* data, std::size_t bytes) {
    const auto* first = static_cast<const char*>(data);
    m_questionRows.insert(m_questionRows.end(), first, first + bytes);
  };
  append(&row, sizeof(row));
  append(m_x_BWF.data(), m_x_BWF.size() * sizeof(float));
  ++m_questions;
}

void ModelMove::WriteQuestions(const std::string& path) const {
  const auto field = [](const std::string& name, const std::string& type,
                        const std::string& shape) {
    return ", ('" + name + "', '" + type + "', (" + shape + "))";
  };
  const std::string horizon = std::to_string(kHorizon) + ",";
  const std::string windows = std::to_string(agent::kMaxWindows) + ", " +
                              std::to_string(m_sender.tokens()) + ", " +
                              std::to_string(kFeatureCount);
  const std::string descr = "[('asked_ns', '<i8'), ('first_packet', '<i8'), ('windows', '<i4')" +
                            field("size_bytes", "<i4", horizon) + field("flow", "<i4", horizon) +
                            field("receiver", "<i4", horizon) + field("queue", "|u1", horizon) +
                            field("x_BWF", "<f4", windows) + "]";
  WriteNpy(path, descr, m_questionRows.data(), m_questions,
           sizeof(QuestionRow) + m_x_BWF.size() * sizeof(float));
}

bool ModelMove::Move(const DataPacket& packet, const Waiting& behind) {
  if (packet.number % kHorizon == 0) {
    Ask(packet, behind);
  }
  // The next candidate of its flow, or the last one of it.
  const int32_t flow = IdOf(m_flowIds, packet.flow);
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
      return m_batch->queues[mine] == agent::kClassic;
    }
  } else if (packet.defaultQueue == kL4sQueue) {
    ++m_unforeseen;
  }
  const auto last = m_lastQueue.find(flow);
  return last != m_lastQueue.end() && last->second == agent::kClassic;
}

void ModelMove::Sent(const DataPacket& packet, uint8_t queue) {
  Candidate what = Known(packet);
  what.queue = queue;
  m_sender.sent(packet.number, TimeNs(), what);
  if (packet.acknowledged) {
    m_inFlight.push_back({packet, TimeNs(), false});
  }
}

void ModelMove::Acked(int64_t packet, uint16_t, uint8_t, float latencyUs) {
  m_sender.acked(packet, TimeNs(), latencyUs);
  const auto place =
      std::lower_bound(m_inFlight.begin(), m_inFlight.end(), packet,
                       [](const InFlight& f, int64_t number) { return f.packet.number < number; });
  if (place != m_inFlight.end() && place->packet.number == packet) {
    place->acked = true;
  }
  ForgetInFlight();
}

void ModelMove::ForgetInFlight() {
  while (!m_inFlight.empty() &&
         (m_inFlight.front().acked || TimeNs() - m_inFlight.front().sentNs >= kGiveUpNs)) {
    m_inFlight.pop_front();
  }
}

void ModelMove::AddTo(JsonObject& summary, JsonObject& cost) const {
  const agent::Counts& counts = m_sender.counts();
  JsonObject versions;
  for (const auto& [version, asked] : m_askedByVersion) {
    versions.Add(std::to_string(version), JsonNumber(asked));
  }
  summary.Add("decisions", JsonObject()
                               .Add("batches", JsonNumber(counts.batches()))
                               .Add("decided", JsonNumber(counts.decided()))
                               .Add("late", JsonNumber(counts.late()))
                               .Add("failed", JsonNumber(counts.failed()))
                               .Add("unforeseen", JsonNumber(m_unforeseen))
                               .Add("versions", versions.Text())
                               .Add("schema_hash", JsonString(m_engine.description().schema_hash))
                               .Text());
  cost.Add("engine_s", JsonNumber(m_engineS)).Add("engine_calls", JsonNumber(m_engineCalls));
}

}  // namespace swiftqueue::lab
