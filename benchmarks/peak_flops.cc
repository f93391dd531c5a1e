// SPDX-License-Identifier: Apache-2.0
//
// The highest rate of a core, for `swiftqueue bench inference`: multiply-adds that do not wait for
// each other, all in registers of the instruction set that this is compiled for.
#include <algorithm>
#include <chrono>

#if defined __AVX512F__
typedef float Vec __attribute__((vector_size(64)));
#elif defined __AVX2__
typedef float Vec __attribute__((vector_size(32)));
#else
typedef float Vec __attribute__((vector_size(16)));
#endif

// Returns floating-point operations a second, measured for about `seconds`; of the least disturbed
// stretch.
extern "C" double peak_flops(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kIterations = 20'000;  // a tenth of a millisecond
  constexpr int kSums = 12;  // hides a latency of 4 cycles on two units, and fits 16 registers
  constexpr double kOperations = 2.0 * kSums * (sizeof(Vec) / sizeof(float)) * kIterations;
  volatile float start = 1.0F;  // a value that the compiler cannot see through
  const Vec factor = start * 0.999F - Vec{};
  const Vec term = start * 0.001F - Vec{};
  Vec sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = start + static_cast<float>(i) - Vec{};
  double best = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto begin = Clock::now();
#pragma GCC unroll 4
    for (int n = 0; n < kIterations; ++n) {
#pragma GCC unroll 12
      for (int i = 0; i < kSums; ++i) sum[i] = sum[i] * factor + term;
    }
    asm volatile("" : "+m"(sum));  // forces the sums before the clock is read
    best =
        std::max(best, kOperations / std::chrono::duration<double>(Clock::now() - begin).count());
  } while (Clock::now() < end);
  return best;
}
