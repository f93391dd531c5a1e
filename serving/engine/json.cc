// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "serving/engine/error.h"

namespace swiftqueue::engine::json {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 16;      // model.json nests 3 deep
constexpr std::size_t kMaxMembers = 4096;  // most of an object; bounds the search for a repeat

// Makes a Value of what the library's parser finds, and ends it where a document is none of ours.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Value result() { return std::move(result_); }

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value(value)); }
  bool number_integer(Json::number_integer_t value) override {
    return add(Value(static_cast<double>(value)));
  }
  bool number_unsigned(Json::number_unsigned_t value) override {
    return add(Value(static_cast<double>(value)));
  }
  bool number_float(Json::number_float_t value, const std::string& /*text*/) override {
    return add(Value(value));
  }
  bool string(std::string& value) override { return add(Value(std::move(value))); }
  bool binary(Json::binary_t& /*value*/) override { return false; }  // no text of JSON has any
  bool start_object(std::size_t /*size*/) override { return open(Object()); }
  bool start_array(std::size_t /*size*/) override { return open(Array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const Object& members = std::get<Object>(open_.back().content);
    const bool known = std::any_of(members.begin(), members.end(),
                                   [&](const auto& member) { return member.first == name; });
    if (known) throw InvalidError("key " + json::quoted(name) + " stands twice");
    if (members.size() == kMaxMembers) throw InvalidError("an object of too many members");
    open_.back().key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t byte, const std::string& /*read*/,
                   const nlohmann::detail::exception& error) override {
    const bool range = dynamic_cast<const Json::out_of_range*>(&error) != nullptr;
    throw InvalidError((range ? "a number out of range at byte " : "a syntax error at byte ") +
                       std::to_string(byte));
  }

 private:
  struct Container {
    std::variant<Array, Object> content;
    std::string key;  // key of the next member
  };

  bool open(std::variant<Array, Object> content) {
    if (open_.size() == kMaxDepth) throw InvalidError("nested too deep");
    open_.push_back({std::move(content), {}});
    return true;
  }

  bool close() {
    Container closed = std::move(open_.back());
    open_.pop_back();
    return std::visit([&](auto& content) { return add(Value(std::move(content))); },
                      closed.content);
  }

  bool add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (auto* members = std::get_if<Object>(&open_.back().content)) {
      members->emplace_back(std::move(open_.back().key), std::move(value));
    } else {
      std::get<Array>(open_.back().content).push_back(std::move(value));
    }
    return true;
  }

  Value result_;
  std::vector<Container> open_;
};

[[noreturn]] void wrong_kind(const std::string& what, const char* expected) {
  throw InvalidError(what + " is not " + expected);
}

}  // namespace

const std::string& Value::string(const std::string& what) const {
  if (const auto* text = std::get_if<std::string>(&content_)) return *text;
  wrong_kind(what, "a string");
}

const Array& Value::array(const std::string& what) const {
  if (const auto* elements = std::get_if<Array>(&content_)) return *elements;
  wrong_kind(what, "a list");
}

const Object& Value::object(const std::string& what) const {
  if (const auto* members = std::get_if<Object>(&content_)) return *members;
  wrong_kind(what, "a JSON object");
}

double Value::number(const std::string& what) const {
  if (const auto* number = std::get_if<double>(&content_)) return *number;
  wrong_kind(what, "a number");
}

std::int64_t Value::count(const std::string& what) const {
  const double value = number(what);
  if (value < 0 || value > 9007199254740992.0 || value != std::floor(value)) {  // 2^53
    wrong_kind(what, "a whole number");
  }
  return static_cast<std::int64_t>(value);
}

const Value& Value::at(std::string_view key, const std::string& what) const {
  for (const auto& [name, value] : object(what)) {
    if (name == key) return value;
  }
  throw InvalidError(what + ": key " + json::quoted(key) + " is missing");
}

bool Value::has(std::string_view key, const std::string& what) const {
  const Object& members = object(what);
  return std::any_of(members.begin(), members.end(),
                     [&](const auto& member) { return member.first == key; });
}

void Value::require_keys(const std::vector<std::string_view>& keys, const std::string& what) const {
  for (const std::string_view key : keys) at(key, what);
  for (const auto& [name, value] : object(what)) {
    if (std::find(keys.begin(), keys.end(), name) == keys.end()) {
      throw InvalidError(what + ": unknown key " + json::quoted(name));
    }
  }
}

Value parse(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) throw InvalidError("a syntax error at byte 1");  // a BOM
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.result();
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kMaxShown = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShown)) out.push_back(c < ' ' || c > '~' ? '?' : c);
  return out + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace swiftqueue::engine::json
