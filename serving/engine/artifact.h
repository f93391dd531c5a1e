// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The artifact on disk (docs/ARCHITECTURE.md): `model.json` and `model.safetensors`, checked.
#ifndef SWIFTQUEUE_SERVING_ENGINE_ARTIFACT_H_
#define SWIFTQUEUE_SERVING_ENGINE_ARTIFACT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "serving/engine/safetensors.h"

namespace swiftqueue::engine {

struct Scaling {
  std::string name;
  bool logarithm;  // log1p of an input, log of the target
  float shift;
  float scale;

  bool operator==(const Scaling&) const = default;
};

// The features of an event window's row (event_window.h) that a network sees, in its own order.
struct Inputs {
  std::vector<Scaling> scaling;
  std::vector<int> columns;  // columns of the row, by the feature's name

  bool operator==(const Inputs&) const = default;
};

// The part of `model.json` that the engine needs.
struct Description {
  int tokens;  // W
  int layers;
  int feed_forward;
  int band;        // events that an event sees
  Inputs events;   // inputs of an event's row
  Inputs queries;  // inputs of a row of a packet about to be sent
  Scaling target;
  int anchor;  // column of a query's row that the head's output corrects, or -1
  // Levels of the quantiles that it gives of each latency, ascending, 0.5 among them; empty: it
  // gives one latency.
  std::vector<double> levels;
  std::string schema_hash;

  // Number of values that it gives of each latency.
  int outputs() const { return levels.empty() ? 1 : static_cast<int>(levels.size()); }
  bool operator==(const Description&) const = default;
};

struct Artifact {
  Description description;
  Tensors tensors;  // exactly the architecture's, of the right shapes, all finite
  std::uint64_t encoder_hash;
};

// Reads and checks an artifact. Throws FileError (a file is missing) or InvalidError (anything in
// it is not exactly right, or the engine does not know its architecture); the line names the file.
Artifact load_artifact(const std::string& folder);

// Throws InvalidError for a model of several quantiles, for callers that act on one latency.
void require_one_latency(const Description& description);

// Parse the two halves of it, of text and bytes already read; their errors do not name the file.
Description parse_description(std::string_view json);
Artifact parse_artifact(Description description, std::string_view safetensors);

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_ARTIFACT_H_
