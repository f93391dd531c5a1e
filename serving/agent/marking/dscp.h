// SPDX-License-Identifier: Apache-2.0
//
// The DSCP of each alternative, by which a gateway routes a packet to its uplink. It stands beside
// the ECN codepoint: together they are the DS field (IP_TOS, IPV6_TCLASS).
#ifndef SWIFTQUEUE_SERVING_AGENT_DSCP_H_
#define SWIFTQUEUE_SERVING_AGENT_DSCP_H_

#include <array>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace swiftqueue::agent {

struct DscpPair {
  bool set = false;                  // false: packets have the DSCP that they had
  std::array<std::uint8_t, 2> of{};  // DSCP by alternative

  // Returns the DS field of a packet of this alternative and codepoint, which had DSCP 0.
  std::uint8_t field(std::uint8_t alternative, std::uint8_t ecn) const {
    return static_cast<std::uint8_t>(of[alternative & 1] << 2 | ecn);
  }
};

// Returns the pair of two numbers. Throws std::invalid_argument with a line that begins with
// `name`: a number is not 0 to 63, or both are the same.
inline DscpPair dscp_pair(const std::string& name, long first, long second) {
  for (const long each : {first, second}) {
    if (each < 0 || each > 63)
      throw std::invalid_argument(name + ": DSCP " + std::to_string(each) + " is not 0 to 63");
  }
  if (first == second) {
    throw std::invalid_argument(name + ": both alternatives have DSCP " + std::to_string(first) +
                                ", so no gateway can tell them apart; give two");
  }
  return {true, {static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(second)}};
}

// Returns the pair of a text as `0,46`. Throws as above, and where it is not two numbers.
inline DscpPair dscp_pair(const std::string& name, const std::string& text) {
  std::array<long, 2> numbers{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (long& each : numbers) {
    if (&each != &numbers[0] && (at == end || *at++ != ',')) at = nullptr;
    if (at != nullptr) {
      const auto [after, error] = std::from_chars(at, end, each);
      at = error == std::errc{} ? after : nullptr;
    }
    if (at == nullptr) break;
  }
  if (at != end) {
    throw std::invalid_argument(name + " " + text.substr(0, 40) +
                                ": must be two numbers from 0 to 63, the DSCP of alternative 0 and "
                                "of alternative 1, as 0,46");
  }
  return dscp_pair(name, numbers[0], numbers[1]);
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_DSCP_H_
