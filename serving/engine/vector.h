// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// SIMD vectors of SWIFTQUEUE_LANES floats as the compiler's vector extension, so that one source
// serves every instruction set, and the few functions a Transformer needs on them. To be included
// by kernel sources only, inside their namespace; see kernel.h on what may be included here.

#define SWIFTQUEUE_INLINE inline __attribute__((always_inline))

constexpr int kLanes = SWIFTQUEUE_LANES;
typedef float Vec __attribute__((vector_size(kLanes * 4), may_alias));
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4), may_alias));
typedef std::uint32_t WordVec __attribute__((vector_size(kLanes * 4), may_alias));
alignas(64) constexpr std::int32_t kLaneNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                       8, 9, 10, 11, 12, 13, 14, 15};
// kLanes consecutive floats; no assumption on alignment.
typedef float LooseVec __attribute__((vector_size(kLanes * 4), may_alias, aligned(4)));

SWIFTQUEUE_INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
SWIFTQUEUE_INLINE Vec load_loose(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
SWIFTQUEUE_INLINE void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
SWIFTQUEUE_INLINE void store_loose(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }
SWIFTQUEUE_INLINE Vec splat(float value) { return value - Vec{}; }
// These are instructions, since the compiler makes two of the comparison; for a NaN all return b.
SWIFTQUEUE_INLINE Vec max(Vec a, Vec b) {
#if SWIFTQUEUE_LANES == 16
  return _mm512_maskz_max_ps(0xFFFF, a, b);  // g++ 12 warns falsely about the plain one
#elif SWIFTQUEUE_LANES == 8
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// Shuffles vectors a and b: for each group of 2 * kHalf lanes it takes half of a's lanes and half
// of b's, the first half of each (kPart 0) or the second (1).
template <int kHalf, int kPart>
struct Halves {
  static constexpr int lane(int i) {
    return i % (2 * kHalf) < kHalf ? i + kPart * kHalf : kLanes + i - (1 - kPart) * kHalf;
  }
  template <int... kLane>
  static SWIFTQUEUE_INLINE Vec pick(Vec a, Vec b, std::integer_sequence<int, kLane...>) {
    return __builtin_shuffle(a, b, IntVec{lane(kLane)...});
  }
  static SWIFTQUEUE_INLINE Vec of(Vec a, Vec b) {
    return pick(a, b, std::make_integer_sequence<int, kLanes>());
  }
};

// Exchanges blocks of kHalf lanes between rows that are kHalf apart, then smaller blocks.
template <int kHalf>
SWIFTQUEUE_INLINE void transpose_halves(Vec (&rows)[kLanes]) {
  if constexpr (kHalf > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i % (2 * kHalf) >= kHalf) continue;
      const Vec a = rows[i];
      const Vec b = rows[i + kHalf];
      rows[i] = Halves<kHalf, 0>::of(a, b);
      rows[i + kHalf] = Halves<kHalf, 1>::of(a, b);
    }
    transpose_halves<kHalf / 2>(rows);
  }
}

// Halves the number of rows by joining two into one, whose lanes are still parts of either total.
template <int kHalf, typename Add>
SWIFTQUEUE_INLINE void total_halves(Vec (&rows)[kLanes], Add add) {
  if constexpr (kHalf > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kHalf; ++i) {
      const Vec a = rows[i];
      const Vec b = rows[i + kHalf];
      rows[i] = add(Halves<kHalf, 0>::of(a, b), Halves<kHalf, 1>::of(a, b));
    }
    total_halves<kHalf / 2>(rows, add);
  }
}

// Turns kLanes vectors, the rows of a square, into its columns.
SWIFTQUEUE_INLINE void transpose(Vec (&rows)[kLanes]) { transpose_halves<kLanes / 2>(rows); }

// Returns a vector whose lane i is the total of all lanes of rows[i]; `add` joins two values. The
// order of a row's additions is always the same.
template <typename Add>
SWIFTQUEUE_INLINE Vec total_each(Vec (&rows)[kLanes], Add add) {
  total_halves<kLanes / 2>(rows, add);
  return rows[0];
}

template <int kHalf = kLanes / 2>
SWIFTQUEUE_INLINE float reduce_add(Vec v) {
  if constexpr (kHalf == 0) {
    return v[0];
  } else {
    return reduce_add<kHalf / 2>(v + Halves<kHalf, 1>::of(v, v));
  }
}

// Lanes are numbered from `first`.
SWIFTQUEUE_INLINE IntVec lane_numbers(int first) {
  return *reinterpret_cast<const IntVec*>(kLaneNumbers) + first;
}

SWIFTQUEUE_INLINE Vec inverse_sqrt(Vec v) {
  alignas(64) float values[kLanes];
  store(values, v);
  for (float& value : values) value = 1.0F / __builtin_sqrtf(value);
  return load(values);
}

// Returns 2^x for x <= 0, relative error below 2e-7; below 2^-126 it stays there (weight 0).
SWIFTQUEUE_INLINE Vec exp2_negative(Vec x) {
  const Vec round = splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to a whole number
  x = max(x, splat(-126.0F));
  const Vec shifted = x + round;
  const Vec f = x - (shifted - round);  // in -0.5..0.5
  // Least maximum of the relative error among polynomials of degree 5 that are 1 at 0: 9.2e-8.
  Vec p = splat(1.32647285e-3F);
  p = p * f + 9.67151271e-3F;
  p = p * f + 5.55073374e-2F;
  p = p * f + 2.40222421e-1F;
  p = p * f + 6.93146978e-1F;
  p = p * f + 1.0F;
  // The whole part lies in the lowest bits of `shifted`; unsigned, since for an infinite score (the
  // caller will refuse the window) it may be anything.
  const WordVec exponent = reinterpret_cast<WordVec>(shifted) << 23;
  return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(p) + exponent);
}

// Returns 1 / x to 3 digits or more.
SWIFTQUEUE_INLINE Vec rough_inverse(Vec x) {
#if SWIFTQUEUE_LANES == 16
  return _mm512_maskz_rcp14_ps(0xFFFF, x);
#elif SWIFTQUEUE_LANES == 8
  return _mm256_rcp_ps(x);
#else
  return 1.0F / x;
#endif
}

// Returns log(1 + x) for finite x >= 0. The logarithm's polynomial is that of Cephes' logf
// (S. Moshier); the rounding error of 1 + x is added back to first order.
SWIFTQUEUE_INLINE Vec log1p_positive(Vec x) {
  const Vec u = x + 1.0F;
  const Vec lost = (x - (u - 1.0F)) * rough_inverse(u);
  // u = 2^exponent * m with m in sqrt(1/2)..sqrt(2).
  const IntVec bits = reinterpret_cast<IntVec>(u) - 0x3F3504F3;  // sqrt(1/2)
  const Vec exponent = __builtin_convertvector(bits >> 23, Vec);
  const Vec f = reinterpret_cast<Vec>((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0F;
  Vec p = splat(7.0376836292e-2F);
  p = p * f - 1.1514610310e-1F;
  p = p * f + 1.1676998740e-1F;
  p = p * f - 1.2420140846e-1F;
  p = p * f + 1.4249322787e-1F;
  p = p * f - 1.6668057665e-1F;
  p = p * f + 2.0000714765e-1F;
  p = p * f - 2.4999993993e-1F;
  p = p * f + 3.3333331174e-1F;
  const Vec square = f * f;
  // ln(2) in two parts, so that its product with the exponent is exact in the first.
  const Vec tail = exponent * -2.12194440e-4F + p * f * square - 0.5F * square + lost;
  return exponent * 0.693359375F + (f + tail);
}
