// SPDX-License-Identifier: GPL-2.0-only

#include "model-controller.h"

#include <chrono>
#include <utility>

#include "serving/agent/predictors/up_to_date.h"
#include "serving/agent/predictors/usable_model.h"

namespace swiftqueue::lab {

static_assert(engine::kMaxLevels <= agent::kMostLevels, "a batch has room for fewer levels");

std::unique_ptr<ModelMove> ModelMove::Make(const ModelControl& params, bool logged) {
  const std::string& folder = params.artifact;
  const engine::Description model = engine::load_artifact(folder).description;
  const std::string why =
      agent::why_not_usable(model.schema_hash, model.tokens, kEventWindowFeatureCount, kHorizon);
  if (!why.empty()) {
    throw engine::InvalidError(folder + ": " + why);
  }
  auto engine = std::make_unique<engine::Engine>(folder, "auto", params.version);
  return std::unique_ptr<ModelMove>(new ModelMove(params, std::move(engine), logged));
}

ModelMove::ModelMove(const ModelControl& params, std::unique_ptr<engine::Engine> engine,
                     bool logged)
    : BatchMove(params.batching, engine->reach(), logged, engine->description().levels),
      m_engine(std::move(engine)),
      m_session(m_engine->open_session()) {}

void ModelMove::SwapHead(const std::string& artifact, int64_t version) {
  m_engine->swap_head(artifact, version);
}

void ModelMove::Forecast(const agent::Question& question, const float* x_QF, float* y_BHL) {
  const auto started = std::chrono::steady_clock::now();
  agent::bring_up_to_date(*m_engine, *m_session, Rows(), Rows().next());
  const int64_t version = m_engine->answer(*m_session, x_QF, question.queries(), y_BHL, nullptr,
                                           static_cast<int>(Outputs()));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  m_engineS += took.count();
  ++m_engineCalls;
  ++m_askedByVersion[version];
}

void ModelMove::Describe(JsonObject& decisions) const {
  JsonObject versions;
  for (const auto& [version, asked] : m_askedByVersion) {
    versions.Add(std::to_string(version), JsonNumber(asked));
  }
  decisions.Add("versions", versions.Text())
      .Add("schema_hash", JsonString(m_engine->description().schema_hash));
}

void ModelMove::AddTo(JsonObject& summary, JsonObject& cost) const {
  BatchMove::AddTo(summary, cost);
  cost.Add("engine_s", JsonNumber(m_engineS)).Add("engine_calls", JsonNumber(m_engineCalls));
}

}  // namespace swiftqueue::lab
