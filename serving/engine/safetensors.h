// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Reader of safetensors files (https://github.com/huggingface/safetensors, "Format"): an 8-byte
// little-endian header length, a JSON header, the tensors. Only float32 tensors are accepted.
#ifndef SWIFTQUEUE_SERVING_ENGINE_SAFETENSORS_H_
#define SWIFTQUEUE_SERVING_ENGINE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace swiftqueue::engine {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

using Tensors = std::map<std::string, Tensor, std::less<>>;

// Parses a whole file. Throws InvalidError where it is truncated, offsets overlap, leave a gap or
// do not fit the shape, the type is another one, or a value is NaN or infinite.
Tensors parse_safetensors(std::string_view file);

// Reads a whole file of at most `max_bytes`. Throws FileError, or InvalidError if it is larger.
std::string read_file(const std::string& path, std::size_t max_bytes);

// Returns a text like "(64, 24)".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_SAFETENSORS_H_
