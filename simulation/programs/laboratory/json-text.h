// SPDX-License-Identifier: GPL-2.0-only
//
// JSON, written: numbers in the shortest form that reads back the same, so equal runs give equal
// bytes.

#ifndef SWIFTQUEUE_LABORATORY_JSON_TEXT_H
#define SWIFTQUEUE_LABORATORY_JSON_TEXT_H

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

namespace swiftqueue::lab {

/** NaN and infinity are null. */
template <typename T>
  requires std::integral<T> || std::floating_point<T>
std::string JsonNumber(T value) {
  if constexpr (std::floating_point<T>) {
    if (!std::isfinite(value)) {
      return "null";
    }
  }
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

inline std::string JsonString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
    }
    out.push_back(static_cast<unsigned char>(c) < ' ' ? ' ' : c);
  }
  return out + "\"";
}

class JsonObject {
 public:
  /** `value` is JSON itself. */
  JsonObject& Add(std::string_view key, std::string_view value) {
    m_members += (m_members.empty() ? "" : ", ") + JsonString(key) + ": " + std::string(value);
    return *this;
  }
  std::string Text() const { return "{" + m_members + "}"; }

 private:
  std::string m_members;
};

class JsonArray {
 public:
  JsonArray& Add(std::string_view value) {
    m_elements += (m_elements.empty() ? "" : ", ") + std::string(value);
    return *this;
  }
  std::string Text() const { return "[" + m_elements + "]"; }

 private:
  std::string m_elements;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_JSON_TEXT_H
