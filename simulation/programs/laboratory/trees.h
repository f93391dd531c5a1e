// SPDX-License-Identifier: GPL-2.0-only
//
// Boosted trees in the loop: an artifact of models/trees answers what the batches ask.

#ifndef SWIFTQUEUE_LABORATORY_TREES_H
#define SWIFTQUEUE_LABORATORY_TREES_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "batch-move.h"

namespace swiftqueue::lab {

/** The trees of an artifact, which give the latency of a query's row. */
class Trees {
 public:
  /** Whether the artifact in a folder holds trees. Throws InvalidError or FileError. */
  static bool AreIn(const std::string& folder);

  /** Throws InvalidError or FileError, one line, for an artifact that is not whole. */
  explicit Trees(const std::string& folder);

  float LatencyUs(const float* x_F) const;

 private:
  struct Node {
    int column;    // input of a query's row
    float below;   // smaller inputs go left
    int64_t left;  // place among the nodes of all trees; a leaf leads to itself
    int64_t right;
    float leaf;  // part of the log-latency in us
  };

  void Fill(std::string_view weights, const std::vector<int>& columns, int64_t trees,
            int64_t nodes);

  int64_t m_steps{0};    // from a root to the deepest leaf
  int64_t m_perTree{0};  // nodes
  float m_base{0};
  std::vector<Node> m_nodes;
};

class TreesMove : public BatchMove {
 public:
  TreesMove(const ModelControl& params, bool logged)
      : BatchMove(params.batching, 0, logged), m_trees(params.artifact) {}

 protected:
  void Forecast(const agent::Question& question, const float* x_QF, float* y_BHL) override;

 private:
  Trees m_trees;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_TREES_H
