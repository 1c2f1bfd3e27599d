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

// The bytes of a piece: the codes of a column that lie side by side.
constexpr int kPiece = kTogether * sizeof(PanelCode);
constexpr int kPackedColumns = 4;  // that are packed together

// Four pieces of four bytes.
typedef int32_t Pieces __attribute__((vector_size(16)));

// Lanes i, j, k, l of a and b, whose lanes go on counting at 4.
template <int i, int j, int k, int l>
MIXBIT_INLINE Pieces pick(Pieces a, Pieces b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, i, j, k, l);
#else
  return __builtin_shuffle(a, b, Pieces{i, j, k, l});
#endif
}

// A unit of a few columns, piece by piece side by side. Pieces of four bytes are turned four by
// four in registers, which takes half as long as moving them one by one.
MIXBIT_INLINE void interleave(const Codes<int16_t> (&columns)[kPackedColumns], PanelCode* target) {
  constexpr int bytes = kUnit * sizeof(PanelCode), row = kPiece * kIntegerColumns;
  static_assert(sizeof(columns[0].v) == bytes);
  char* to = reinterpret_cast<char*>(target);
  auto from = [&](int c) { return reinterpret_cast<const char*>(&columns[c].v); };
  if constexpr (kPiece == 4) {
    for (int at = 0; at < bytes; at += sizeof(Pieces)) {
      Pieces w[kPackedColumns];
      for (int c = 0; c < kPackedColumns; ++c) {
        __builtin_memcpy(&w[c], from(c) + at, sizeof(w[c]));
      }
      const Pieces low01 = pick<0, 4, 1, 5>(w[0], w[1]), high01 = pick<2, 6, 3, 7>(w[0], w[1]);
      const Pieces low23 = pick<0, 4, 1, 5>(w[2], w[3]), high23 = pick<2, 6, 3, 7>(w[2], w[3]);
      const Pieces rows[] = {pick<0, 1, 4, 5>(low01, low23), pick<2, 3, 6, 7>(low01, low23),
                             pick<0, 1, 4, 5>(high01, high23), pick<2, 3, 6, 7>(high01, high23)};
      for (const Pieces& pieces : rows) {
        __builtin_memcpy(to, &pieces, sizeof(pieces));
        to += row;
      }
    }
  } else {
    for (int at = 0; at < bytes; at += kPiece, to += row) {
      for (int c = 0; c < kPackedColumns; ++c) {
        __builtin_memcpy(to + kPiece * c, from(c) + at, kPiece);
      }
    }
  }
}

// Columns `to` and after of a panel: units [unit, unit + units) of `columns` <= kPackedColumns rows
// of the weights from row n on; what is left of kPackedColumns becomes zeros.
template <int bits, int group>
static void pack_columns(const Matmul& p, int n, int columns, int unit, int units,
                         IntegerPanel& panel, int to) {
  const size_t row_bytes = static_cast<size_t>(p.K / 8) * bits;
  const uint8_t* rows = static_cast<const uint8_t*>(p.w.data) + n * row_bytes;
  for (int u = 0; u < units; ++u) {
    Codes<int16_t> codes[kPackedColumns] = {};
    for (int c = 0; c < columns; ++c) {
      const uint8_t* source = rows + c * row_bytes + static_cast<size_t>(unit + u) * 8 * bits;
      uint8_t padded[8 * bits] = {};
      if ((unit + u + 1) * kUnit > p.K) {
        __builtin_memcpy(padded, source, 4 * bits);  // half a unit is left
        source = padded;
      }
      unpack_unit<bits>(source, codes[c]);
    }
    interleave(codes,
               panel.codes + static_cast<size_t>(u) * kUnit * kIntegerColumns + to * kTogether);
  }
  const int begin = unit * kUnit / group, groups = p.K / group;
  const int end = (unit + units) * kUnit / group;
  for (int c = 0; c < columns; ++c) {
    const size_t first = static_cast<size_t>(n + c) * groups;
    for (int g = begin; g < end && g < groups; ++g) {
      const int at = (g - begin) * kIntegerColumns + to + c;
      panel.scales[at] = load_element(p.w.scales, p.w.element, first + g);
      panel.biases[at] = load_element(p.w.biases, p.w.element, first + g);
    }
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
  // Asked for once: to the compiler a sum that is written could be any of these.
  const int at = (g - unit * kUnit / group) * kIntegerColumns;
  Vec scales[2], biases[2];
  for (int c = 0; c < 2; ++c) {
    scales[c] = Vec::load(panel.scales + at + kLanes * c);
    biases[c] = Vec::load(panel.biases + at + kLanes * c);
  }
  const size_t groups = stride / group;
  const float* x_scales = p.x_scales + m * groups + g;
  const float* x_sums = p.x_sums + m * groups + g;
  acc += g % kQuad * kIntegerColumns;
  for (int r = 0; r < R; ++r, acc += kQuad * kIntegerColumns) {
    const Vec x_scale = Vec::broadcast(x_scales[r * groups]);
    const Vec x_sum = Vec::broadcast(x_sums[r * groups]);
    for (int c = 0; c < 2; ++c) {
      float* lane = acc + kLanes * c;
      const Vec more = scales[c] * x_scale * sums.to_float(r, c) + biases[c] * x_sum;
      (Vec::load(lane) + more).store(lane);
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
    for (int c = 0; c < columns; c += kPackedColumns) {
      const int left = columns - c;
      pack_columns<bits, group>(p, n0 + c, left < kPackedColumns ? left : kPackedColumns, unit,
                                count, panel, c);
    }
    const int begin = unit * kUnit / group;
    const int last = (unit + count) * kUnit / group, end = last < p.K / group ? last : p.K / group;
    int m = m0;
    float* acc = panel.acc;
    auto tiles = [&]<int R>() {
      for (; m + R <= m1; m += R, acc += R * row_floats) {
        for (int g = begin; g < end; ++g) {
          add_group<bits, group, R>(p, m, g, unit, panel, acc);
        }
      }
    };
    tiles.template operator()<kTileRows>();
    if constexpr (kTileRows > 4) {
      tiles.template operator()<4>();
    }
    tiles.template operator()<1>();
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
