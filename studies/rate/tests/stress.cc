// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Hostile artifacts and flows against the network that forecasts rates, to be run under a sanitizer
// (`make -C studies/rate sanitize`): whatever comes, the answer is a forecast or one error line. A
// flow allocates nothing.
//
// stress_address ARTIFACT ROUNDS [SEED]   ARTIFACT: a valid one, which is mutated in memory
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "studies/rate/native/rate_model.h"
#include "tests/stress/stress_artifact.h"

namespace swiftqueue::rate {
namespace {

using engine::InvalidError;
using stress::allocations;
using stress::below;
using stress::Random;
using stress::require;

// Tests samples of any size, in flows of any length: a forecast or one line, without allocation.
void stress_flows(const std::string& folder, long rounds, Random& random) {
  for (const char* isa : {"avx512", "avx2", "portable"}) {
    std::unique_ptr<RateModel> model;
    try {
      model = std::make_unique<RateModel>(folder, isa);
    } catch (const InvalidError& error) {
      std::printf("%s: left out: %s\n", isa, error.what());
      continue;
    }
    RateFlow flow(*model);
    long forecasts = 0;
    long refused = 0;
    for (long i = 0; i < rounds; ++i) {
      flow.reset();
      std::vector<std::int64_t> sample(kFields.size());
      const long before = allocations.load();
      long errors = 0;  // an error's line is allocated
      for (std::size_t n = 1 + below(random, 36); n > 0; --n) {
        for (std::size_t f = 0; f < sample.size(); ++f) {
          const std::int64_t drawn = static_cast<std::int64_t>(random() >> below(random, 64)) &
                                     std::numeric_limits<std::int64_t>::max();
          const bool flag = kFields[f].kind == Kind::flag;
          const bool count = kFields[f].kind == Kind::count;
          sample[f] = flag ? drawn % 2 : count ? sample[f] + (drawn >> 8) : drawn;
        }
        if (below(random, 100) == 0) sample[below(random, sample.size())] = -1;
        try {
          flow.push(sample.data());
        } catch (const InvalidError&) {
          ++errors;
        }
      }
      try {
        flow.forecast();
        ++forecasts;
      } catch (const InvalidError&) {
        ++errors;
      }
      require(errors > 0 || allocations.load() == before, "a flow allocates memory");
      refused += errors > 0 ? 1 : 0;
    }
    std::printf("%s: %ld flows, %ld refused\n", isa, rounds, refused);
    require(forecasts > 0 && refused > 0, "the flows do not reach both outcomes");
  }
}

}  // namespace
}  // namespace swiftqueue::rate

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s ARTIFACT ROUNDS [SEED]\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  const long rounds = std::atol(argv[2]);
  std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  const std::string whole = swiftqueue::engine::read_file(folder + "/model.safetensors", 1 << 26);
  const auto load = [&](const std::string& description, const std::string& weights) {
    swiftqueue::rate::RateModel(description, weights.empty() ? whole : weights, "portable");
  };
  swiftqueue::stress::fuzz_loader(folder, rounds, random, load);
  swiftqueue::rate::stress_flows(folder, rounds / 50 + 1, random);
  return 0;
}
