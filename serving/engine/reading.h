// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The shared part of readers of artifacts, whichever network is in it; defined in artifact.cc.
#ifndef SWIFTQUEUE_SERVING_ENGINE_READING_H_
#define SWIFTQUEUE_SERVING_ENGINE_READING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/artifact.h"
#include "serving/engine/error.h"
#include "serving/engine/json.h"
#include "serving/engine/safetensors.h"

namespace swiftqueue::engine {

inline constexpr std::size_t kMaxDescriptionBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxWeightBytes = std::size_t{1} << 26;

using Shapes = std::map<std::string, std::vector<std::int64_t>, std::less<>>;

// Parses a description's text; its errors say that it is no JSON.
json::Value parse_json(std::string_view text);
// Reads inputs with their scaling; names are distinct.
std::vector<Scaling> read_features(const json::Array& list);
// Returns the member `key`, a whole number in least..most.
int bounded(const json::Value& parent, std::string_view key, const std::string& what, int least,
            int most);
// Adds the weights of a torch.nn.TransformerEncoderLayer whose names begin with `layer`.
void add_layer_shapes(Shapes& shapes, const std::string& layer, std::int64_t width,
                      std::int64_t hidden);
// Refuses tensors with other names or shapes than `expected`.
void require_shapes(const Tensors& tensors, const Shapes& expected);

// Runs `read` on a file's content; its errors get the file's name.
template <typename Read>
auto with_file(const std::string& path, std::size_t max_bytes, Read read) {
  const std::string content = read_file(path, max_bytes);
  try {
    return read(std::string_view(content));
  } catch (const InvalidError& error) {
    throw InvalidError(path + ": " + error.what());
  }
}

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_READING_H_
