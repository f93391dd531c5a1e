// SPDX-License-Identifier: GPL-2.0-only
//
// The predictor in the loop: the serving engine answers what the batches ask.

#ifndef SWIFTQUEUE_LABORATORY_MODEL_CONTROLLER_H
#define SWIFTQUEUE_LABORATORY_MODEL_CONTROLLER_H

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "batch-move.h"
#include "serving/engine/engine.h"

namespace swiftqueue::lab {

class ModelMove : public BatchMove {
 public:
  /** Throws InvalidError or FileError for the artifact. */
  static std::unique_ptr<ModelMove> Make(const ModelControl& params, bool logged);

  void AddTo(JsonObject& summary, JsonObject& cost) const override;

  /** Another head over the same encoder answers from now on. Throws InvalidError or FileError. */
  void SwapHead(const std::string& artifact, int64_t version);

 protected:
  void Forecast(const agent::Question& question, const float* x_QF, float* y_BHL) override;
  void Describe(JsonObject& decisions) const override;

 private:
  ModelMove(const ModelControl& params, std::unique_ptr<engine::Engine> engine, bool logged);

  std::unique_ptr<engine::Engine> m_engine;
  std::unique_ptr<engine::Session> m_session;
  std::map<int64_t, int64_t> m_askedByVersion;
  double m_engineS{0};
  int64_t m_engineCalls{0};
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_MODEL_CONTROLLER_H
