// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The schema hash of the windows that this program makes: SHA-256 (FIPS 180-4) of schema_text(), as
// feature_store/window_library.py computes it. A model made for another hash is not asked.
#ifndef SWIFTQUEUE_SERVING_AGENT_SCHEMA_HASH_H_
#define SWIFTQUEUE_SERVING_AGENT_SCHEMA_HASH_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "feature_store/window.h"

namespace swiftqueue::agent {
namespace detail {

// The first 32 bits of the fractional part of the square (or cube) root of the n-th prime, as
// FIPS 180-4 sections 4.2.2 and 5.3.3 define its constants; exact in long double (64-bit mantissa)
// on x86-64, in quad precision elsewhere. The test compares the hash with Python's.
template <std::size_t N>
std::array<std::uint32_t, N> fractions_of_roots(bool cube) {
  std::array<std::uint32_t, N> out;
  std::size_t found = 0;
  for (int n = 2; found < N; ++n) {
    bool prime = true;
    for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
    if (!prime) continue;
    const long double root =
        cube ? std::cbrt(static_cast<long double>(n)) : std::sqrt(static_cast<long double>(n));
    out[found++] = static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
  }
  return out;
}

}  // namespace detail

// Lower-case hexadecimal SHA-256 of `text`.
inline std::string sha256(std::string text) {
  static const auto round_constants = detail::fractions_of_roots<64>(true);
  auto state = detail::fractions_of_roots<8>(false);
  const std::uint64_t bits = std::uint64_t{text.size()} * 8;
  text.push_back('\x80');
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8);
  for (int shift = 56; shift >= 0; shift -= 8) text.push_back(static_cast<char>(bits >> shift));

  for (std::size_t block = 0; block < text.size(); block += 64) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) {
      w[i / 4] = w[i / 4] << 8 | static_cast<std::uint8_t>(text[block + i]);
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                               ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
      const std::uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> round{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += round[i];
  }
  std::string hex;
  for (const std::uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

inline std::string schema_hash() { return sha256(schema_text()); }

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SCHEMA_HASH_H_
