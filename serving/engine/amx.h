// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Matrix products on AMX tiles (Intel, Software Developer's Manual, volume 1, chapter 18). Included
// by forward.h inside the namespace of kernel_amx.cc.

// Holds the tiles' shape while it lives: 16 rows of 64 bytes each. Without it they hold nothing.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Shape {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Shape shape;
    _tile_loadconfig(&shape);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Rounds x[16][depth] to bfloat16; `depth` is a multiple of 32.
SWIFTQUEUE_INLINE void round_rows(const float* x, int x_row, int depth, std::uint16_t* rounded) {
  for (int r = 0; r < kTile; ++r) {
    for (int k = 0; k < depth; k += 2 * kLanes) {
      const float* at = x + static_cast<std::ptrdiff_t>(r) * x_row + k;
      const __m512bh both = _mm512_cvtne2ps_pbh(load(at + kLanes), load(at));
      _mm512_store_si512(rounded + r * depth + k, reinterpret_cast<const __m512i&>(both));
    }
  }
}

// sums[16][64] = rounded[16][depth] * four panels of weights.
SWIFTQUEUE_INLINE void multiply_tiles(const std::uint16_t* rounded, const std::uint16_t* weight,
                                      int depth, float* sums) {
  constexpr int kPairs = 2 * kPanel;  // numbers in a row of a tile
  const std::ptrdiff_t panel = static_cast<std::ptrdiff_t>(depth) * kPanel;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < depth; k += kPairs) {
    const std::uint16_t* at = weight + static_cast<std::ptrdiff_t>(k) * kPanel;
    _tile_loadd(4, rounded + k, depth * 2);
    _tile_loadd(5, at, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, at + panel, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, at + 2 * panel, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, at + 3 * panel, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  constexpr int kRowBytes = 4 * kPanel * 4;
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kPanel, kRowBytes);
  _tile_stored(2, sums + 2 * kPanel, kRowBytes);
  _tile_stored(3, sums + 3 * kPanel, kRowBytes);
}
