// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
#include "serving/engine/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "serving/engine/error.h"

namespace swiftqueue::engine::json {
namespace {

constexpr int kMaxDepth = 16;  // model.json nests 3 deep; a hostile file must not exhaust the stack
constexpr std::size_t kMaxMembers = 4096;  // most of an object; bounds the search for a repeat

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Value document() {
    Value value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("something follows the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw InvalidError(reason + " at byte " + std::to_string(at_));
  }

  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  char peek() {
    skip_space();
    if (at_ == text_.size()) fail("the text ends early");
    return text_[at_];
  }

  bool take(char expected) {
    if (peek() != expected) return false;
    ++at_;
    return true;
  }

  void require(char expected) {
    if (!take(expected)) fail(std::string("'") + expected + "' is missing");
  }

  Value parse_value(int depth) {
    if (depth > kMaxDepth) fail("nested too deep");
    switch (peek()) {
      case '{':
        return parse_object(depth);
      case '[':
        return parse_array(depth);
      case '"':
        return Value(parse_string());
      case 't':
        return parse_word("true", Value(true));
      case 'f':
        return parse_word("false", Value(false));
      case 'n':
        return parse_word("null", Value());
      default:
        return Value(parse_number());
    }
  }

  Value parse_word(std::string_view word, Value value) {
    if (text_.substr(at_, word.size()) != word) fail("not a JSON value");
    at_ += word.size();
    return value;
  }

  Value parse_object(int depth) {
    require('{');
    Object members;
    if (take('}')) return Value(std::move(members));
    do {
      if (peek() != '"') fail("a key is missing");
      std::string key = parse_string();
      const bool known = std::any_of(members.begin(), members.end(),
                                     [&](const auto& member) { return member.first == key; });
      if (known) fail("key " + quoted(key) + " stands twice");
      require(':');
      Value value = parse_value(depth + 1);
      if (members.size() == kMaxMembers) fail("an object of too many members");
      members.emplace_back(std::move(key), std::move(value));
    } while (take(','));
    require('}');
    return Value(std::move(members));
  }

  Value parse_array(int depth) {
    require('[');
    Array elements;
    if (take(']')) return Value(std::move(elements));
    do {
      elements.push_back(parse_value(depth + 1));
    } while (take(','));
    require(']');
    return Value(std::move(elements));
  }

  std::string parse_string() {
    ++at_;  // skips the quote
    std::string out;
    while (true) {
      if (at_ == text_.size()) fail("a string does not end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        parse_escape(out);
      } else {
        out.push_back(c);
      }
    }
  }

  void parse_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ == text_.size()) fail("a string does not end");
    const char c = text_[at_++];
    if (const auto which = kNames.find(c); which != std::string_view::npos) {
      out.push_back(kMeanings[which]);
    } else if (c == 'u') {
      append_utf8(parse_code_point(), out);
    } else {
      fail("an unknown escape");
    }
  }

  std::uint32_t parse_hex4() {
    const std::string_view digits = text_.substr(at_, 4);
    std::uint32_t unit = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
    if (digits.size() != 4 || error != std::errc() || end != digits.data() + 4) {
      fail("a \\u escape without 4 hexadecimal digits");
    }
    at_ += 4;
    return unit;
  }

  std::uint32_t parse_code_point() {
    const std::uint32_t first = parse_hex4();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
    at_ += 2;
    const std::uint32_t second = parse_hex4();
    if (second < 0xDC00 || second > 0xDFFF) fail("half of a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  static void append_utf8(std::uint32_t code, std::string& out) {
    const auto continuation = [&](int shift) {
      out.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3F)));
    };
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      out.push_back(static_cast<char>(0xC0 | (code >> 6)));
      continuation(0);
    } else if (code < 0x10000) {
      out.push_back(static_cast<char>(0xE0 | (code >> 12)));
      continuation(6);
      continuation(0);
    } else {
      out.push_back(static_cast<char>(0xF0 | (code >> 18)));
      continuation(12);
      continuation(6);
      continuation(0);
    }
  }

  // from_chars takes more than JSON does ("inf", "01", "1."), so the grammar is checked here.
  double parse_number() {
    const std::size_t start = at_;
    const auto digits = [&] {
      const std::size_t first = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      if (at_ == first) fail("not a JSON value");
    };
    const auto is = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
    if (is('-')) ++at_;
    if (is('0')) {
      ++at_;
    } else {
      digits();
    }
    if (is('.')) {
      ++at_;
      digits();
    }
    if (is('e') || is('E')) {
      ++at_;
      if (is('+') || is('-')) ++at_;
      digits();
    }
    double value = 0;
    const auto result = std::from_chars(text_.data() + start, text_.data() + at_, value);
    if (result.ec != std::errc() || !std::isfinite(value)) fail("a number out of range");
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
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
  throw InvalidError(what + ": key " + quoted(key) + " is missing");
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
      throw InvalidError(what + ": unknown key " + quoted(name));
    }
  }
}

Value parse(std::string_view text) { return Parser(text).document(); }

std::string quoted(std::string_view text) {
  constexpr std::size_t kMaxShown = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShown)) out.push_back(c < ' ' || c > '~' ? '?' : c);
  return out + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace swiftqueue::engine::json
