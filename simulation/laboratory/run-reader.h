// SPDX-License-Identifier: GPL-2.0-only
//
// Reads checked values out of a run file.

#ifndef SWIFTQUEUE_LABORATORY_RUN_READER_H
#define SWIFTQUEUE_LABORATORY_RUN_READER_H

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/engine/error.h"
#include "serving/engine/json.h"

namespace swiftqueue::lab {

/** A value of the run file, with the path that its errors name. */
class Node {
 public:
  Node(const engine::json::Value& value, std::string path)
      : m_value(value), m_path(std::move(path)) {}

  [[noreturn]] void Fail(const std::string& problem) const {
    throw engine::InvalidError(m_path + " " + problem);
  }

  void Keys(const std::vector<std::string_view>& keys) const { m_value.require_keys(keys, m_path); }

  Node operator[](std::string_view key) const {
    return {m_value.at(key, m_path), (m_path == kRoot ? "" : m_path + ".") + std::string(key)};
  }

  std::vector<Node> Items() const {
    std::vector<Node> items;
    for (const engine::json::Value& value : m_value.array(m_path)) {
      items.emplace_back(value, m_path + "[" + std::to_string(items.size()) + "]");
    }
    return items;
  }

  bool IsNull() const { return m_value.is_null(); }

  bool Is(std::string_view text) const {
    try {
      return m_value.string(m_path) == text;
    } catch (const engine::InvalidError&) {
      return false;
    }
  }

  const std::string& Text() const { return m_value.string(m_path); }

  double Number(double low, double high) const {
    const double value = m_value.number(m_path);
    if (!(value >= low && value <= high)) {
      std::ostringstream line;
      line << "is " << value << ": it must be between " << low << " and " << high;
      Fail(line.str());
    }
    return value;
  }

  uint32_t Count(uint32_t low, uint32_t high) const {
    m_value.count(m_path);
    return static_cast<uint32_t>(Number(low, high));
  }

  /** What the text stands for. */
  template <typename T>
  T OneOf(std::initializer_list<std::pair<std::string_view, T>> known) const {
    std::string names;
    for (const auto& [name, value] : known) {
      if (Text() == name) {
        return value;
      }
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    Fail("is " + engine::json::quoted(Text()) + ": it must be one of " + names);
  }

  std::string Name() const {
    const auto plain = [](unsigned char c) {
      return std::isalnum(c) || c == '.' || c == '_' || c == '-';
    };
    if (Text().empty() || Text().size() > 100 ||
        !std::all_of(Text().begin(), Text().end(), plain)) {
      Fail("is " + engine::json::quoted(Text()) +
           ": letters, digits, '.', '_' and '-', at most 100");
    }
    return Text();
  }

  static constexpr const char* kRoot = "run file";

 private:
  const engine::json::Value& m_value;
  std::string m_path;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_RUN_READER_H
