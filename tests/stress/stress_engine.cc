// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Hostile artifacts, windows and sessions against the engine, to be run under sanitizers (`make
// sanitize`): whatever comes, the answer is a prediction or one error line. Also: predicting
// allocates nothing, and heads may be swapped under three predicting threads.
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
#include "tests/stress/stress_artifact.h"

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

// Returns an engine for each kernel that this CPU runs, and names the others.
std::vector<std::unique_ptr<Engine>> engines_here(const std::string& folder) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (const char* isa : {"amx", "avx512", "avx2", "portable"}) {
    try {
      engines.push_back(std::make_unique<Engine>(folder, isa));
    } catch (const InvalidError& error) {
      std::printf("%s: left out: %s\n", isa, error.what());
    }
  }
  return engines;
}

void stress_windows(const std::string& folder, long rounds, Random& random) {
  for (const auto& engine : engines_here(folder)) {
    const char* const isa = engine->kernel().name;
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
        engine->forward(x_WF.data(), 1, static_cast<int>(tokens), y_HL.data(), model.outputs());
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

// Tests sessions with events in calls of any length, some of them again, too early or damaged. What
// a session is left with answers as one that took just these events.
void stress_sessions(const std::string& folder, long rounds, Random& random) {
  for (const auto& engine : engines_here(folder)) {
    const char* const isa = engine->kernel().name;
    const auto outputs = static_cast<std::size_t>(engine->description().outputs());
    const auto reach = static_cast<std::size_t>(engine->reach());
    const std::unique_ptr<Session> session = engine->open_session();
    const std::unique_ptr<Session> other = engine->open_session();
    std::vector<float> kept;  // rows of the events since the last `begin`, the last `reach` of them
    long refused = 0;
    for (long i = 0; i < rounds; ++i) {
      if (below(random, 50) == 0) {
        session->begin(random() >> below(random, 64));
        kept.clear();
      }
      // The rows are exactly as many as are given, so that one step too far is seen.
      const std::size_t count = below(random, below(random, 8) == 0 ? 3 * reach : 40);
      std::vector<float> rows(count * kFeatures);
      const bool tame = below(random, 8) != 0;
      for (float& x : rows) {
        x = tame ? static_cast<float>(below(random, 100'000)) : any_float(random);
      }
      const std::uint64_t next = session->next();
      const std::size_t again = below(random, 4) == 0 ? below(random, 40) : 0;
      const bool early = below(random, 10) == 0;
      const std::uint64_t first =
          early ? next + 1 + below(random, 1000) : next - std::min(next, std::uint64_t{again});
      const long before = allocations.load();
      try {
        const bool taken = engine->take(*session, first, rows.data(), static_cast<int>(count));
        require(allocations.load() == before, "take allocates memory");
        require(taken == (first <= next), "a gap is taken, or none is refused");
      } catch (const InvalidError&) {
        require(!tame, "plain events are refused");
        ++refused;
        if (session->first() == next) kept.clear();  // it has forgotten all
      }
      const std::size_t fresh = session->next() - next;
      require(fresh == 0 || session->next() == first + count, "events are lost");
      kept.insert(kept.end(), rows.end() - static_cast<std::ptrdiff_t>(fresh * kFeatures),
                  rows.end());
      if (kept.size() > reach * kFeatures) {
        kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(reach * kFeatures));
      }
      const std::size_t asked = 1 + below(random, kMostQueries);
      std::vector<float> queries(asked * kFeatures);
      for (float& x : queries) x = static_cast<float>(below(random, 100'000));
      std::vector<float> y(asked * outputs);
      std::vector<float> same(asked * outputs);
      const auto answer = [&](const Session& from, std::vector<float>& to) {
        engine->answer(from, queries.data(), static_cast<int>(asked), to.data(), nullptr,
                       static_cast<int>(outputs));
      };
      const long unanswered = allocations.load();
      try {
        answer(*session, y);
        require(allocations.load() == unanswered, "answer allocates memory");
      } catch (const InvalidError&) {
        ++refused;
        continue;
      }
      const std::size_t held = kept.size() / kFeatures;
      other->begin(session->next() - held);
      require(engine->take(*other, other->next(), kept.data(), static_cast<int>(held)),
              "kept events are refused");
      answer(*other, same);
      require(same == y, "resent events do not restore a session");
    }
    std::printf("%s: %ld calls of a session, %ld refused\n", isa, rounds, refused);
  }
}

void swap_under_load(const std::string& folder, long swaps) {
  Engine first(folder, "portable", 0);
  const Description& model = first.description();
  const std::vector<float> rows(kHorizon * kFeatures, 7);
  std::atomic<bool> done{false};
  std::atomic<long> predictions{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, engine = first.share()] {
      std::vector<float> y_HL(static_cast<std::size_t>(kHorizon * model.outputs()));
      const std::unique_ptr<Session> session = engine->open_session();
      std::int64_t last = 0;
      while (!done) {
        engine->take(*session, session->next(), rows.data(), kHorizon);
        const std::int64_t version =
            engine->answer(*session, rows.data(), kHorizon, y_HL.data(), model.outputs());
        require(version >= last, "an older head comes back");
        last = engine->forward(rows.data(), 1, kHorizon, y_HL.data(), model.outputs());
        require(last >= version, "an older head comes back");
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
    stress_sessions(folder, rounds / 50, random);
  }
  swap_under_load(folder, 100);
  return 0;
}
