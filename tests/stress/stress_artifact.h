// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Helpers of the programs that hand a network's reader hostile artifacts under sanitizers. The one
// source file of a program that includes this has its allocations counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "serving/engine/error.h"
#include "serving/engine/safetensors.h"
#include "tests/stress/stress.h"

namespace swiftqueue::stress {

inline std::atomic<long> allocations{0};

inline void* counted(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1);
  void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace swiftqueue::stress

void* operator new(std::size_t size) {
  return swiftqueue::stress::counted(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return swiftqueue::stress::counted(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace swiftqueue::stress {

// Damages the first `reach` bytes of `text` (the rest of a weight file is only numbers).
inline std::string mutated(std::string text, std::size_t reach, Random& random) {
  static const std::vector<std::string> kTokens = {"0",
                                                   "-1",
                                                   "1e999",
                                                   "9007199254740993",
                                                   "18446744073709551615",
                                                   "\"",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "null",
                                                   "\\u",
                                                   "\\",
                                                   "F32",
                                                   "F64",
                                                   "1e-9",
                                                   "\xff",
                                                   "\"shape\"",
                                                   "[0,0]",
                                                   "[]",
                                                   "true",
                                                   "0.5"};
  for (std::size_t edits = 1 + below(random, 4); edits > 0; --edits) {
    const std::size_t at = below(random, std::max<std::size_t>(1, std::min(reach, text.size())));
    switch (below(random, 6)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(below(random, 256));
        break;
      case 1:
        text.resize(std::min(text.size(), at));
        break;
      case 2:
        text.erase(std::min(text.size(), at), 1 + below(random, 20));
        break;
      case 3:
        text.insert(std::min(text.size(), at), kTokens[below(random, kTokens.size())]);
        break;
      case 4: {
        const std::string& token = kTokens[below(random, kTokens.size())];
        text.replace(std::min(text.size(), at), token.size(), token);
        break;
      }
      default:
        text.insert(std::min(text.size(), at), text.substr(at, below(random, 40)));
    }
  }
  return text;
}

// Damages an artifact again and again; `load` is to refuse it in one line, or to take it.
template <typename Load>
void fuzz_loader(const std::string& folder, long rounds, Random& random, Load load) {
  const std::string json = engine::read_file(folder + "/model.json", 1 << 20);
  const std::string weights = engine::read_file(folder + "/model.safetensors", 1 << 26);
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  const std::size_t reach = sizeof header + header + 64;
  // Without the numbers, each try costs microseconds; every path up to them is the same.
  const std::string head = weights.substr(0, reach);
  long refused = 0;
  for (long i = 0; i < rounds; ++i) {
    try {
      const bool description = i % 2 == 0;
      const bool whole = i % 64 == 1;
      const std::string text = description ? mutated(json, json.size(), random) : json;
      load(text, description ? "" : mutated(whole ? weights : head, reach, random));
    } catch (const engine::InvalidError& error) {
      ++refused;
      require(std::strchr(error.what(), '\n') == nullptr, "an error of more than one line");
      require(std::strlen(error.what()) > 5, "an error that says nothing");
    }
  }
  std::printf("loader: %ld of %ld damaged artifacts refused\n", refused, rounds);
  require(refused > rounds / 2, "hardly any damaged artifact is refused");
}

}  // namespace swiftqueue::stress
