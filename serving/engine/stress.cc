// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Hostile artifacts and windows against the engine, to be run under sanitizers (`make sanitize`):
// whatever comes, the answer is a prediction or one error line. Also: predicting allocates nothing,
// and heads may be swapped under three predicting threads.
//
// stress_SANITIZER ARTIFACT ROUNDS [SEED]   ARTIFACT: a valid one, which is mutated in memory
//                                           ROUNDS 0: only what has threads
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "feature_store/events/event_window.h"
#include "serving/engine/artifact.h"
#include "serving/engine/engine.h"
#include "serving/engine/safetensors.h"
#include "serving/engine/stress_artifact.h"

namespace swiftqueue::engine {
namespace {

using stress::allocations;
using stress::below;
using stress::fuzz_loader;
using stress::mutated;
using stress::Random;
using stress::require;

constexpr auto kFeatures = static_cast<std::size_t>(kEventWindowFeatureCount);

void load_predictor(const std::string& description, const std::string& weights) {
  const Description parsed = parse_description(description);
  if (weights.empty()) return;
  const Artifact artifact = parse_artifact(parsed, weights);
  const EncoderWeights encoder(artifact);
  HeadWeights().assign(artifact);
}

// Tests small files with the right header length, so that nearly every edit reaches the offsets.
void fuzz_tensors(long rounds, Random& random) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"F32","shape":[4],"data_offsets":[24,40]},"__metadata__":{"x":"y"}})";
  long accepted = 0;
  for (long i = 0; i < rounds; ++i) {
    std::string text = header;
    if (i % 4 != 0) text = mutated(header, header.size(), random);
    if (i % 4 >= 2) {  // another digit in place of one
      const std::size_t digit = text.find_first_of("0123456789", below(random, text.size() + 1));
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(random, 10));
    }
    const std::uint64_t length = text.size();
    std::string file(sizeof length, '\0');
    std::memcpy(file.data(), &length, sizeof length);
    file += text + std::string(i % 3 == 0 ? 40 : below(random, 64), '\1');
    file.shrink_to_fit();
    try {
      const Tensors tensors = parse_safetensors(file);
      ++accepted;
      for (const auto& [name, tensor] : tensors) {
        std::size_t elements = 1;
        for (const std::int64_t size : tensor.shape) elements *= static_cast<std::size_t>(size);
        require(tensor.values.size() == elements, "a tensor does not fit its shape");
      }
    } catch (const InvalidError&) {
    }
  }
  std::printf("tensors: %ld of %ld files accepted\n", accepted, rounds);
  require(accepted > 0 && accepted < rounds, "the fuzzer does not reach both outcomes");
}

float any_float(Random& random) {
  static const float kSpecial[] = {0.0F,  -0.0F,    1e-40F, 3.4e38F,   -3.4e38F,
                                   1e30F, INFINITY, NAN,    -INFINITY, 1.0F};
  if (below(random, 40) == 0) return kSpecial[below(random, std::size(kSpecial))];
  return static_cast<float>(std::lognormal_distribution<double>(6, 3)(random));
}

void stress_windows(const std::string& folder, long rounds, Random& random) {
  for (const char* isa : {"avx512", "avx2", "portable"}) {
    std::unique_ptr<Engine> engine;
    try {
      engine = std::make_unique<Engine>(folder, isa);
    } catch (const InvalidError& error) {
      std::printf("%s: left out: %s\n", isa, error.what());
      continue;
    }
    const Description& model = engine->description();
    const std::size_t features = kFeatures;
    const std::size_t horizon = kHorizon;
    const std::size_t size = event_input("size_bytes");
    long refused = 0;
    std::vector<float> earlier;
    for (long i = 0; i < rounds; ++i) {
      const bool goes_on = !earlier.empty() && below(random, 2) == 0;
      const std::size_t tokens =
          goes_on ? earlier.size() / features
                  : horizon + below(random, static_cast<std::size_t>(model.tokens) - horizon + 1);
      const std::size_t padding = below(random, tokens + 1);
      // The window is exactly as large as it must be, so that one step too far is seen.
      std::vector<float> x_WF(tokens * features);
      std::vector<float> y_HL(horizon * static_cast<std::size_t>(model.outputs()));
      std::vector<float> feature_HD(horizon * kWidth);
      const bool tame = i % 4 != 0;
      for (std::size_t at = padding * features; at < x_WF.size(); ++at) {
        x_WF[at] = tame ? static_cast<float>(below(random, 100'000)) : any_float(random);
        if (tame && at % features == size) x_WF[at] += 1;  // no padding between packets
      }
      if (goes_on) {  // some rows of the window before it have left, and as many came
        const std::size_t history = tokens - horizon;
        const std::size_t gone = std::min(history, below(random, 40));
        std::copy(earlier.begin() + static_cast<std::ptrdiff_t>(gone * features),
                  earlier.begin() + static_cast<std::ptrdiff_t>(history * features), x_WF.begin());
        for (std::size_t row = history - gone; row < history; ++row) {
          if (tame) x_WF[row * features + size] = 1500;
        }
      }
      if (tame) earlier = x_WF;
      const long before = allocations.load();
      try {
        engine->forward(x_WF.data(), 1, static_cast<int>(tokens), y_HL.data(), feature_HD.data(),
                        model.outputs());
        require(allocations.load() == before, "forward allocates memory");
        const auto sane = [](float y) { return y >= 0 && y <= 6.1e7F; };
        require(std::all_of(y_HL.begin(), y_HL.end(), sane), "a latency out of range");
      } catch (const InvalidError&) {
        require(!tame, "a plain window is refused");
        ++refused;
      }
    }
    std::printf("%s: %ld windows, %ld refused\n", isa, rounds, refused);
  }
}

void swap_under_load(const std::string& folder, long swaps) {
  Engine first(folder, "portable", 0);
  const Description& model = first.description();
  const int tokens = kHorizon;  // the shortest window: most predictions
  const std::vector<float> x_WF(kHorizon * kFeatures, 7);
  std::atomic<bool> done{false};
  std::atomic<long> predictions{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, engine = first.share()] {
      std::vector<float> y_HL(static_cast<std::size_t>(kHorizon * model.outputs()));
      std::int64_t last = 0;
      while (!done) {
        const std::int64_t version =
            engine->forward(x_WF.data(), 1, tokens, y_HL.data(), nullptr, model.outputs());
        require(version >= last, "an older head comes back");
        last = version;
        ++predictions;
      }
    });
  }
  for (long version = 1; version <= swaps; ++version) first.swap_head(folder, version);
  while (predictions < 30) std::this_thread::yield();
  done = true;
  for (std::thread& thread : threads) thread.join();
  require(first.version() == swaps, "a swap is lost");
  std::printf("swap: %ld heads under %ld predictions\n", swaps, predictions.load());
}

}  // namespace
}  // namespace swiftqueue::engine

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s ARTIFACT ROUNDS [SEED]\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  const long rounds = std::atol(argv[2]);
  std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  using namespace swiftqueue::engine;
  if (rounds > 0) {
    fuzz_loader(folder, rounds, random, load_predictor);
    fuzz_tensors(rounds, random);
    stress_windows(folder, rounds / 50, random);
  }
  swap_under_load(folder, 100);
  return 0;
}
