// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Reads `model.json` and the header of a safetensors file by JSON for Modern C++ (nlohmann-json),
// with checks that name what they miss. Input is not trusted: depth is bounded, keys are distinct.
#ifndef SWIFTQUEUE_SERVING_ENGINE_JSON_H_
#define SWIFTQUEUE_SERVING_ENGINE_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace swiftqueue::engine::json {

class Value;
using Array = std::vector<Value>;
using Object = std::vector<std::pair<std::string, Value>>;

// A JSON value. The readers below throw InvalidError, naming `what`, if it is of another kind.
class Value {
 public:
  Value() = default;
  template <typename T>
  explicit Value(T content) : content_(std::move(content)) {}

  const std::string& string(const std::string& what) const;
  const Array& array(const std::string& what) const;
  const Object& object(const std::string& what) const;
  double number(const std::string& what) const;
  bool is_null() const { return std::holds_alternative<std::monostate>(content_); }
  // Returns a whole number in 0..2^53.
  std::int64_t count(const std::string& what) const;
  // Returns the member `key` of an object.
  const Value& at(std::string_view key, const std::string& what) const;
  bool has(std::string_view key, const std::string& what) const;
  // Throws unless this is an object with exactly these keys.
  void require_keys(const std::vector<std::string_view>& keys, const std::string& what) const;

 private:
  std::variant<std::monostate, bool, double, std::string, Array, Object> content_;
};

// Parses one JSON document (RFC 8259). Throws InvalidError with the reason.
Value parse(std::string_view text);

// Returns `text` between quotes, without unprintable characters, cut short: for error lines.
std::string quoted(std::string_view text);

}  // namespace swiftqueue::engine::json

#endif  // SWIFTQUEUE_SERVING_ENGINE_JSON_H_
