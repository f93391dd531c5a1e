// SPDX-License-Identifier: GPL-2.0-only

#include "trees.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "feature_store/_build/schema_hash.h"
#include "feature_store/events/event_window.h"
#include "serving/engine/reading.h"

namespace swiftqueue::lab {

using engine::InvalidError;
using engine::json::Value;

namespace {

constexpr int kMostTrees = 65'536;  // as models/networks/artifact.py
constexpr int kMostNodes = 131'072;
constexpr int kMostSteps = 64;
constexpr std::size_t kLengthBytes = 8;  // bytes of the header's length, in a safetensors file

std::string DescriptionOf(const std::string& folder) { return folder + "/model.json"; }

int ColumnOf(const Value& input) {
  const std::string& name = input.at("name", "queries").string("queries: name");
  const auto found = std::find(kEventWindowFeatures.begin(), kEventWindowFeatures.end(), name);
  if (found == kEventWindowFeatures.end()) {
    throw InvalidError("feature " + engine::json::quoted(name) + " is none of an event's row");
  }
  return static_cast<int>(found - kEventWindowFeatures.begin());
}

/** Copies a tensor of `count` numbers of type `dtype` out of a safetensors file. */
template <typename Number>
std::vector<Number> TensorOf(const Value& header, std::string_view data, const std::string& name,
                             const std::string& dtype, int64_t count) {
  const Value& entry = header.at(name, "the header");
  const auto& offsets = entry.at("data_offsets", name).array(name);
  const auto bytes = static_cast<std::size_t>(count) * sizeof(Number);
  if (entry.at("dtype", name).string(name) != dtype || offsets.size() != 2) {
    throw InvalidError(name + " is not of type " + dtype);
  }
  const auto begin = static_cast<std::size_t>(offsets[0].count(name));
  const auto end = static_cast<std::size_t>(offsets[1].count(name));
  if (begin > end || end - begin != bytes || end > data.size()) {
    throw InvalidError(name + " is cut off, or has another size than the trees");
  }
  std::vector<Number> values(static_cast<std::size_t>(count));
  std::memcpy(values.data(), data.data() + begin, bytes);
  return values;
}

}  // namespace

bool Trees::AreIn(const std::string& folder) {
  return engine::with_file(DescriptionOf(folder), engine::kMaxDescriptionBytes,
                           [](std::string_view text) {
                             const Value described = engine::parse_json(text);
                             return described.at("architecture", "the description")
                                        .at("name", "architecture")
                                        .string("architecture: name") == "trees";
                           });
}

Trees::Trees(const std::string& folder) {
  std::vector<int> columns;
  int64_t trees = 0;
  engine::with_file(
      DescriptionOf(folder), engine::kMaxDescriptionBytes, [&](std::string_view text) {
        const Value described = engine::parse_json(text);
        if (described.at("schema_hash", "the description").string("schema_hash") !=
            kEventWindowSchemaHash) {
          throw InvalidError("made for other features than this program computes; train it again");
        }
        const Value& sizes = described.at("architecture", "the description");
        trees = engine::bounded(sizes, "trees", "architecture", 1, kMostTrees);
        m_perTree = engine::bounded(sizes, "nodes", "architecture", 1, kMostNodes);
        m_steps = engine::bounded(sizes, "depth", "architecture", 0, kMostSteps);
        for (const Value& input : described.at("queries", "the description").array("queries")) {
          columns.push_back(ColumnOf(input));
        }
        return 0;
      });
  engine::with_file(folder + "/model.safetensors", engine::kMaxWeightBytes,
                    [&](std::string_view file) {
                      Fill(file, columns, trees, m_perTree);
                      return 0;
                    });
}

void Trees::Fill(std::string_view weights, const std::vector<int>& columns, int64_t trees,
                 int64_t nodes) {
  uint64_t headerBytes = 0;
  if (weights.size() < kLengthBytes) {
    throw InvalidError("truncated: not even a header length");
  }
  std::memcpy(&headerBytes, weights.data(), kLengthBytes);
  if (headerBytes > weights.size() - kLengthBytes) {
    throw InvalidError("truncated: its header is cut off");
  }
  const Value header = engine::parse_json(weights.substr(kLengthBytes, headerBytes));
  const std::string_view data = weights.substr(kLengthBytes + headerBytes);
  const auto count = static_cast<std::size_t>(trees * nodes);
  const auto places = [&](const std::string& name, int64_t most) {
    auto found = TensorOf<int64_t>(header, data, name, "I64", trees * nodes);
    if (std::any_of(found.begin(), found.end(), [&](int64_t p) { return p < 0 || p >= most; })) {
      throw InvalidError(name + " has a place beyond the " + std::to_string(most) +
                         " that there are");
    }
    return found;
  };
  const auto floats = [&](const std::string& name, int64_t size) {
    auto found = TensorOf<float>(header, data, name, "F32", size);
    if (!std::all_of(found.begin(), found.end(), [](float v) { return std::isfinite(v); })) {
      throw InvalidError(name + " holds NaN or infinity");
    }
    return found;
  };
  const auto inputs = places("head.input_TN", static_cast<int64_t>(columns.size()));
  const auto left = places("head.left_TN", nodes);
  const auto right = places("head.right_TN", nodes);
  const auto below = floats("head.below_TN", trees * nodes);
  const auto leaf = floats("head.leaf_TN", trees * nodes);
  m_base = floats("head.base", 1)[0];
  m_nodes.reserve(count);
  for (std::size_t n = 0; n < count; ++n) {
    const int64_t root = static_cast<int64_t>(n) / nodes * nodes;
    m_nodes.push_back({columns[static_cast<std::size_t>(inputs[n])], below[n], root + left[n],
                       root + right[n], leaf[n]});
  }
}

float Trees::LatencyUs(const float* x_F) const {
  float log = m_base;
  for (std::size_t root = 0; root < m_nodes.size(); root += static_cast<std::size_t>(m_perTree)) {
    std::size_t at = root;
    for (int64_t step = 0; step < m_steps; ++step) {
      const Node& node = m_nodes[at];
      at = static_cast<std::size_t>(x_F[node.column] < node.below ? node.left : node.right);
    }
    log += m_nodes[at].leaf;
  }
  return std::exp(log);
}

void TreesMove::Forecast(const agent::Question& question, const float* x_QF, float* y_BHL) {
  for (int q = 0; q < question.queries(); ++q) {
    y_BHL[q] = m_trees.LatencyUs(x_QF + static_cast<std::ptrdiff_t>(q) * kEventWindowFeatureCount);
  }
}

}  // namespace swiftqueue::lab
