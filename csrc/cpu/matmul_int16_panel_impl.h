// Integer products of many rows: the sums of matmul_integers_impl.h, bit for bit, with the decoding
// of the weights shared by all rows.
//
// A panel holds 512 codes of a few columns. As many neighbouring codes as an instruction adds the
// products of (kTogether) lie side by side, those of all columns after each other, so that one
// instruction advances a vector of columns and a group's sum needs no adding across lanes. Written
// over Tile (the sums of a few rows and all columns of a panel), which column_pairs.h gives any
// instruction set with multiply-adds of pairs.
#pragma once

#include "cpu/matmul_integers_impl.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

constexpr int kPanelUnits = kPanelDepth / kUnit;

static_assert(kIntegerColumns == 2 * kLanes && kIntegerColumns <= kRowColumns);
static_assert(kIntegerColumns * (kPanelDepth / 2 + 2 * (kPanelDepth / 32) + kQuad * kPanelRows) <=
              kPanelScratch);

// Unpacked units alternate between codes of their first and of their second half in runs of this
// many; a group of 32 is one of the halves.
template <int bits>
static constexpr int half_run() {
  int run = 0;
  while (run < kUnit / 2 && code_at(int16_t{}, bits, run) < kUnit / 2) {
    ++run;
  }
  return run;
}

template <int bits>
static constexpr bool runs_are_regular() {
  for (int i = 0; i < kUnit; ++i) {
    if ((code_at(int16_t{}, bits, i) >= kUnit / 2) != (i / half_run<bits>() % 2 == 1)) {
      return false;
    }
  }
  return true;
}

struct IntegerPanel {
  PanelCode* codes;  // [units, kUnit / kTogether, kIntegerColumns, kTogether]
  float* scales;     // [groups, kIntegerColumns]
  float* biases;
  float* acc;  // [rows, kQuad, kIntegerColumns]: groups g with equal g mod kQuad add up

  explicit IntegerPanel(float* scratch)
      : codes(reinterpret_cast<PanelCode*>(scratch)),
        scales(scratch + kIntegerColumns * kPanelDepth / 2),
        biases(scales + kIntegerColumns * (kPanelDepth / 32)),
        acc(biases + kIntegerColumns * (kPanelDepth / 32)) {}
};

// Column `to` of a panel: units [unit, unit + units) of row n of the weights.
template <int bits, int group>
static void pack_column(const Matmul& p, int n, int unit, int units, IntegerPanel& panel, int to) {
  const uint8_t* row =
      static_cast<const uint8_t*>(p.w.data) + n * (static_cast<size_t>(p.K / 8) * bits);
  for (int u = 0; u < units; ++u) {
    const uint8_t* source = row + static_cast<size_t>(unit + u) * 8 * bits;
    uint8_t padded[8 * bits] = {};
    if ((unit + u + 1) * kUnit > p.K) {
      __builtin_memcpy(padded, source, 4 * bits);  // half a unit is left
      source = padded;
    }
    Codes<int16_t> codes;
    unpack_unit<bits>(source, codes);
    static_assert(sizeof(codes.v) == kUnit * sizeof(PanelCode));
    const char* from = reinterpret_cast<const char*>(&codes.v);
    constexpr size_t together = kTogether * sizeof(PanelCode);
    PanelCode* target =
        panel.codes + static_cast<size_t>(u) * kUnit * kIntegerColumns + to * kTogether;
    for (int i = 0; i < kUnit; i += kTogether) {
      __builtin_memcpy(target + i * kIntegerColumns, from + i * sizeof(PanelCode), together);
    }
  }
  const int begin = unit * kUnit / group, groups = p.K / group;
  const int end = (unit + units) * kUnit / group;
  const size_t first = static_cast<size_t>(n) * groups;
  for (int g = begin; g < end && g < groups; ++g) {
    const int at = (g - begin) * kIntegerColumns + to;
    panel.scales[at] = load_element(p.w.scales, p.w.element, first + g);
    panel.biases[at] = load_element(p.w.biases, p.w.element, first + g);
  }
}

// Group g of R rows from row m on, in the panel's columns; the panel begins with `unit`.
template <int bits, int group, int R>
static inline void add_group(const Matmul& p, int m, int g, int unit, const IntegerPanel& panel,
                             float* acc) {
  static_assert(runs_are_regular<bits>());
  const size_t stride = integer_columns(p.K, group);
  auto sums = Tile<bits, R>::zero();
  const int16_t* x = static_cast<const int16_t*>(p.x_codes) + m * stride +
                     static_cast<size_t>(g) * group / kUnit * kUnit;
  const PanelCode* w =
      panel.codes + static_cast<size_t>(g * group / kUnit - unit) * kUnit * kIntegerColumns;
  if constexpr (group >= kUnit) {
    sums.add(x, stride, w, 0, group);
  } else {
    constexpr int run = half_run<bits>();
    for (int i = g % 2 * run; i < kUnit; i += 2 * run) {
      sums.add(x, stride, w, i, run);
    }
  }
  const size_t groups = stride / group;
  const int at = (g - unit * kUnit / group) * kIntegerColumns;
  for (int r = 0; r < R; ++r, acc += kQuad * kIntegerColumns) {
    const Vec x_scale = Vec::broadcast(p.x_scales[(m + r) * groups + g]);
    const Vec x_sum = Vec::broadcast(p.x_sums[(m + r) * groups + g]);
    float* lane = acc + g % kQuad * kIntegerColumns;
    for (int c = 0; c < 2; ++c) {
      const int column = kLanes * c;
      const Vec scale = Vec::load(panel.scales + at + column);
      const Vec bias = Vec::load(panel.biases + at + column);
      const Vec more = scale * x_scale * sums.to_float(r, c) + bias * x_sum;
      (Vec::load(lane + column) + more).store(lane + column);
    }
  }
}

template <int bits, int group>
static void int16_panel(const Matmul& p, int m0, int m1, int n0, int columns, float* scratch) {
  IntegerPanel panel(scratch);
  constexpr int row_floats = kQuad * kIntegerColumns;
  __builtin_memset(panel.acc, 0, sizeof(float) * (m1 - m0) * row_floats);
  if (columns < kIntegerColumns) {  // the others are zeros
    __builtin_memset(scratch, 0, (panel.acc - scratch) * sizeof(float));
  }
  const int units = round_up(p.K, kUnit) / kUnit;
  for (int unit = 0; unit < units; unit += kPanelUnits) {
    const int count = units - unit < kPanelUnits ? units - unit : kPanelUnits;
    for (int c = 0; c < columns; ++c) {
      pack_column<bits, group>(p, n0 + c, unit, count, panel, c);
    }
    const int begin = unit * kUnit / group;
    const int last = (unit + count) * kUnit / group, end = last < p.K / group ? last : p.K / group;
    int m = m0;
    float* acc = panel.acc;
    for (; m + kTileRows <= m1; m += kTileRows, acc += kTileRows * row_floats) {
      for (int g = begin; g < end; ++g) {
        add_group<bits, group, kTileRows>(p, m, g, unit, panel, acc);
      }
    }
    for (; m < m1; ++m, acc += row_floats) {
      for (int g = begin; g < end; ++g) {
        add_group<bits, group, 1>(p, m, g, unit, panel, acc);
      }
    }
  }
  const float* acc = panel.acc;
  for (int m = m0; m < m1; ++m, acc += row_floats) {
    float sums[kIntegerColumns];
    for (int c = 0; c < kIntegerColumns; c += kLanes) {
      auto lane = [&](int i) { return Vec::load(acc + i * kIntegerColumns + c); };
      ((lane(0) + lane(2)) + (lane(1) + lane(3))).store(sums + c);
    }
    write_row(p, m, n0, columns, sums);
  }
}

static void matmul_int16_panel(const Matmul& p, int m0, int m1, int n0, int n1, float* scratch) {
  with_bits(p.w.bits, [&]<int bits>() {
    for (int n = n0; n < n1; n += kIntegerColumns) {
      const int columns = n1 - n < kIntegerColumns ? n1 - n : kIntegerColumns;
      switch (p.w.group_size) {
        case 32:
          int16_panel<bits, 32>(p, m0, m1, n, columns, scratch);
          break;
        case 64:
          int16_panel<bits, 64>(p, m0, m1, n, columns, scratch);
          break;
        default:
          int16_panel<bits, 128>(p, m0, m1, n, columns, scratch);
      }
    }
  });
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
