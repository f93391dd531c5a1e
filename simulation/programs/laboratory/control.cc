// SPDX-License-Identifier: GPL-2.0-only

#include "control.h"

#include <type_traits>
#include <variant>

#include "model-controller.h"
#include "rungs.h"
#include "simple-controls.h"
#include "trees.h"

namespace swiftqueue::lab {

std::unique_ptr<QueueControl> MakeControl(const Run& run, const Network& network) {
  return std::visit(
      [&](const auto& params) -> std::unique_ptr<QueueControl> {
        using Params = std::decay_t<decltype(params)>;
        if constexpr (std::is_same_v<Params, RandomControl>) {
          return std::make_unique<RandomMove>(params);
        } else if constexpr (std::is_same_v<Params, OracleControl>) {
          return std::make_unique<OracleMove>(params, run, network);
        } else if constexpr (std::is_same_v<Params, LastLatencyControl>) {
          return std::make_unique<LastLatencyMove>(params);
        } else if constexpr (std::is_same_v<Params, VirtualQueueControl>) {
          return std::make_unique<VirtualQueueMove>(params, run);
        } else if constexpr (std::is_same_v<Params, LeastLatencyControl>) {
          return std::make_unique<LeastLatencyMove>(params);
        } else if constexpr (std::is_same_v<Params, ModelControl>) {
          if (!Trees::AreIn(params.artifact)) {
            return ModelMove::Make(params, run.questions);
          }
          if (run.fineTuning) {
            throw engine::InvalidError(params.artifact +
                                       ": trees have no head to be tuned in a run");
          }
          return std::make_unique<TreesMove>(params, run.questions);
        } else if constexpr (std::is_same_v<Params, AgentRuleControl>) {
          return MakeAgentRule(params);
        } else if constexpr (std::is_same_v<Params, FlowSplitControl>) {
          return std::make_unique<FlowSplitMove>(params);
        } else if constexpr (std::is_same_v<Params, BatchedControl>) {
          return MakeRung(params, run, network);
        } else {
          return std::make_unique<NoMove>();
        }
      },
      run.control);
}

}  // namespace swiftqueue::lab
