// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "serving/engine/error.h"
#include "serving/engine/json.h"

namespace swiftqueue::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian values");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{1} << 20;  // ours has about 2,400
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;

struct Extent {
  std::size_t begin;
  std::size_t end;
  std::string name;
};

// Returns the shape of tensor `name` of the header, and its place in the data.
Extent read_entry(const std::string& name, const json::Value& entry, Tensor& tensor) {
  const std::string what = "tensor " + json::quoted(name);
  entry.require_keys({"dtype", "shape", "data_offsets"}, what);
  if (const std::string& type = entry.at("dtype", what).string(what + ": dtype"); type != "F32") {
    throw InvalidError(what + " is of type " + json::quoted(type) + ", expected 'F32'");
  }
  std::int64_t elements = 1;
  for (const json::Value& size : entry.at("shape", what).array(what + ": shape")) {
    tensor.shape.push_back(size.count(what + ": shape"));
    if (tensor.shape.back() > kMaxElements) throw InvalidError(what + " is too large");
    elements *= tensor.shape.back();
    if (elements > kMaxElements) throw InvalidError(what + " is too large");
  }
  const json::Array& offsets = entry.at("data_offsets", what).array(what + ": data_offsets");
  if (offsets.size() != 2) throw InvalidError(what + ": data_offsets are not 2 numbers");
  const std::int64_t begin = offsets[0].count(what + ": data_offsets");
  const std::int64_t end = offsets[1].count(what + ": data_offsets");
  if (end - begin != elements * static_cast<std::int64_t>(sizeof(float))) {
    throw InvalidError(what + ": data_offsets do not fit its shape " + shape_text(tensor.shape));
  }
  return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end), name};
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + ")";
}

Tensors parse_safetensors(std::string_view file) {
  std::uint64_t header_bytes = 0;
  if (file.size() < kLengthBytes) throw InvalidError("truncated: not even a header length");
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > file.size() - kLengthBytes) {
    throw InvalidError("truncated or not a safetensors file: its header should have " +
                       std::to_string(header_bytes) + " bytes");
  }
  if (header_bytes > kMaxHeaderBytes) throw InvalidError("its header is larger than 1 MiB");
  json::Value header;
  try {
    header = json::parse(file.substr(kLengthBytes, header_bytes));
  } catch (const InvalidError& error) {
    throw InvalidError(std::string("header: ") + error.what());
  }
  const std::string_view data = file.substr(kLengthBytes + header_bytes);

  Tensors tensors;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.object("the header")) {
    if (name != "__metadata__") extents.push_back(read_entry(name, entry, tensors[name]));
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::size_t covered = 0;
  for (const Extent& extent : extents) {
    const std::string what = "tensor " + json::quoted(extent.name);
    if (extent.begin != covered) throw InvalidError(what + " overlaps another, or follows a gap");
    if (extent.end > data.size()) throw InvalidError("truncated: " + what + " is cut off");
    covered = extent.end;
    std::vector<float>& values = tensors[extent.name].values;
    values.resize((extent.end - extent.begin) / sizeof(float));
    // The data need not be aligned: a header may have any length.
    if (!values.empty()) {
      std::memcpy(values.data(), data.data() + extent.begin, extent.end - extent.begin);
    }
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      throw InvalidError(what + " holds NaN or infinity");
    }
  }
  if (covered != data.size()) throw InvalidError("bytes follow the last tensor");
  return tensors;
}

std::string read_file(const std::string& path, std::size_t max_bytes) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) throw FileError(path + ": " + std::strerror(errno));
  std::string content;
  std::vector<char> chunk(1 << 16);
  while (true) {
    const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), file.get());
    content.append(chunk.data(), got);
    if (content.size() > max_bytes) {
      throw InvalidError(path + ": larger than " + std::to_string(max_bytes) + " bytes");
    }
    if (got < chunk.size()) break;
  }
  if (std::ferror(file.get()) != 0) throw FileError(path + ": " + std::strerror(errno));
  return content;
}

}  // namespace swiftqueue::engine
