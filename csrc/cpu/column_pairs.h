// The sums of many rows and columns over ColumnSums, whose multiply-adds take pairs of codes: per
// pair of a row that is one broadcast, and two such instructions for 2 kLanes columns, where fp32
// takes four FMAs.
#pragma once

#include "cpu/elements.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

using PanelCode = int16_t;
constexpr int kIntegerColumns = 2 * kLanes;  // of a panel
constexpr int kTogether = 2;                 // codes of a column that lie side by side in a panel
// Rows that share the loads of a panel: as many as have their sums in registers, of which AVX-512
// has twice as many as AVX2.
constexpr int kTileRows = kLanes == 16 ? 8 : sizeof(ColumnSums) > kLanes * sizeof(int32_t) ? 2 : 4;

// The sums of R rows of x.
template <int, int R>
struct Tile {
  ColumnSums sums[R][2];

  static Tile zero() {
    Tile t;
    for (int r = 0; r < R; ++r) {
      t.sums[r][0] = t.sums[r][1] = ColumnSums::zero();
    }
    return t;
  }

  // `count` places of x and of the panel w from `begin` on, a multiple of four. As a `for`, or
  // unrolled further, GCC moves the sums from register to register, which takes a third of the
  // time.
  inline __attribute__((always_inline)) void add(const int16_t* x, size_t stride,
                                                 const PanelCode* w, int begin, int count) {
    x += begin;
    w += begin * kIntegerColumns;
    const PanelCode* const end = w + kIntegerColumns * count;
#pragma GCC unroll 2
    do {
      for (int r = 0; r < R; ++r) {
        sums[r][0].add_pair(w, x + r * stride);
        sums[r][1].add_pair(w + 2 * kLanes, x + r * stride);
      }
      x += kTogether;
      w += kTogether * kIntegerColumns;
    } while (w != end);
  }

  // Row r, columns [kLanes c, kLanes c + kLanes).
  Vec to_float(int r, int c) const { return sums[r][c].to_float(); }
};

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
