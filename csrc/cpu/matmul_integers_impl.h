// Products of affine weights with 16-bit activations in exact integer arithmetic, written once over
// X (int16_t or int8_t, the integers of x), Codes and Inputs (64 codes of weights, 64 integers of
// x) and Sums (of their products).
//
// A group of x becomes integers with one scale: x = s q. Then
//   Σ (scale code + bias) x = scale s Σ code q + bias s Σ q,
// where both sums are exact integers (255 · 32767 · 128 < 2^31). Rounding q to 16 bits costs 3e-5
// of the result, a fiftieth of what bf16 itself does; codes need no conversion to float, which is
// what the fp32 kernel spends its time on. Rounding q to 8 bits, for those who ask for it and codes
// of at most 6 bits, costs 5e-3 to 1e-2 of the result and spares about a third of the operations.
//
// Weights are unpacked 64 at a time, in whatever order is cheapest for their width and the
// instruction set; the integers of x are stored in the same order, and a sum of
// integers does not mind. Four groups are finished together, so that their scales and biases are
// vectors. Everything that is rounded happens in the same order on every instruction set, so all of
// them give the same bits, for any number of rows.
#pragma once

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/matmul_output.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// f of the type of x's integers.
template <class F>
static inline void with_integer(int x_bits, const F& f) {
  return x_bits == 8 ? f(int8_t{}) : f(int16_t{});
}

// f with a width of codes as template argument; beside x of 8 bits there are none of 8.
template <class X, class F>
static inline void with_bits_for(int bits, const F& f) {
  with_bits(bits, [&]<int width>() {
    if constexpr (width < 8 || sizeof(X) > 1) {
      f.template operator()<width>();
    }
  });
}

// ---- x in integers ----------------------------------------------------------------------------

// One group: its integers in their own order, its scale and the scaled sum of the integers.
template <class X>
static void quantize_group(const float* x, int group, X* q, float& scale, float& scaled_sum) {
  constexpr float top = sizeof(X) == 1 ? 127.f : 32767.f;
  // As integers the magnitudes of floats keep their order, infinities and NaNs at the top.
  int32_t largest_bits = 0;
  for (int j = 0; j < group; ++j) {
    const int32_t magnitude = bits_as<int32_t>(x[j]) & 0x7fffffff;
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
  }
  const float largest = bits_as<float>(largest_bits);
  const bool finite = largest_bits < 0x7f800000;
  // A group of subnormals has no inverse in fp32; next to anything else it is nothing.
  if (!finite || largest < 1e-37f) {
    __builtin_memset(q, 0, group * sizeof(*q));
    scale = finite ? 0.f : __builtin_nanf("");
    scaled_sum = scale;
    return;
  }
  const float inverse = top / largest;
  int32_t sum = 0;
  for (int j = 0; j < group; ++j) {
    // Adding 1.5 · 2^23 leaves the nearest integer in the low bits.
    const int32_t value = bits_as<int32_t>(x[j] * inverse + 12582912.f) - 0x4b400000;
    q[j] = static_cast<X>(value);
    sum += value;
  }
  scale = largest / top;
  scaled_sum = scale * static_cast<float>(sum);
}

// Which of its 64 codes stands at each place of an unpacked unit.
template <class X, int bits>
struct UnitOrder {
  uint8_t code[kUnit] = {};

  constexpr UnitOrder() {
    for (int i = 0; i < kUnit; ++i) {
      code[i] = static_cast<uint8_t>(code_at(X{}, bits, i));
    }
  }
};

template <int bits, class X>
static void order_units(X* q, int count) {
  static constexpr UnitOrder<X, bits> order;
  for (X* unit = q; unit < q + count; unit += kUnit) {
    X own[kUnit];
    __builtin_memcpy(own, unit, sizeof(own));
    for (int i = 0; i < kUnit; ++i) {
      unit[i] = own[order.code[i]];
    }
  }
}

template <class X>
static void quantize_rows(const float* x, size_t x_stride, int rows, int K, int group, int bits,
                          X* q, float* scales, float* sums) {
  const int padded = integer_columns(K, group);
  for (int m = 0; m < rows; ++m, x += x_stride, q += padded) {
    for (int k = 0; k < K; k += group) {
      quantize_group(x + k, group, q + k, *scales++, *sums++);
    }
    __builtin_memset(q + K, 0, (padded - K) * sizeof(*q));
    for (int k = K; k < padded; k += group) {
      *scales++ = 0.f;
      *sums++ = 0.f;
    }
    with_bits_for<X>(bits, [&]<int width>() { order_units<width>(q, padded); });
  }
}

static void quantize_rows(const float* x, size_t x_stride, int rows, int K, int group, int bits,
                          int x_bits, void* q, float* scales, float* sums) {
  with_integer(x_bits, [&]<class X>(X) {
    quantize_rows(x, x_stride, rows, K, group, bits, static_cast<X*>(q), scales, sums);
  });
}

// ---- the product ------------------------------------------------------------------------------

MIXBIT_INLINE Quad load_quad(const void* p, Element e, int at) {
  Quad q;
  uint64_t four;
  switch (e) {
    case Element::f32:
      __builtin_memcpy(&q, static_cast<const float*>(p) + at, sizeof(q));
      return q;
    case Element::f16:
      __builtin_memcpy(&four, static_cast<const half_bits*>(p) + at, sizeof(four));
      return quad_of(four, half_bits{});
    default:
      __builtin_memcpy(&four, static_cast<const bfloat_bits*>(p) + at, sizeof(four));
      return quad_of(four, bfloat_bits{});
  }
}

// Codes are asked for this many bytes before they are used: the processor's own prefetcher stops at
// every page of 4 KB. A page ahead, products from memory gain a tenth to a fourth.
constexpr int kPrefetch = 4096;

// Four groups of a row of weights.
struct QuadWeights {
  const uint8_t* codes;
  Quad scale, bias;
};

// y[r] += the product with four groups of R rows of x, starting at group g.
template <class X, int bits, int group, int R>
MIXBIT_INLINE void add_quad(const Matmul& p, int m, int g, const QuadWeights& w, Quad (&y)[R]) {
  constexpr int units = kQuad * group / kUnit;
  constexpr int sums_per_row = group == 32 ? 2 : 4;  // of 32 there are two groups to a sum
  const int padded = integer_columns(p.K, group);
  const X* x = static_cast<const X*>(p.x_codes) + static_cast<size_t>(m) * padded + g * group;
  for (int line = 0; line < kQuad * group / 8 * bits; line += 64) {
    __builtin_prefetch(w.codes + kPrefetch + line);
  }
  Sums sums[R][sums_per_row];
  auto add_up = [&](int i) __attribute__((always_inline)) {
    Sums sum[R];
    for (int r = 0; r < R; ++r) {
      sum[r] = Sums::zero();
    }
    for (int u = i * units / sums_per_row; u < (i + 1) * units / sums_per_row; ++u) {
      Codes<X> codes;
      unpack_unit<bits>(w.codes + u * 8 * bits, codes);
      for (int r = 0; r < R; ++r) {
        sum[r].add_products(codes,
                            Inputs<X>::load(x + static_cast<size_t>(r) * padded + u * kUnit));
      }
    }
    for (int r = 0; r < R; ++r) {
      sums[r][i] = sum[r];
    }
  };
  // The sums of one row stay in registers; those of more would not, unrolled.
  if constexpr (R == 1) {
#pragma GCC unroll 4
    for (int i = 0; i < sums_per_row; ++i) {
      add_up(i);
    }
  } else {
#pragma GCC unroll 1
    for (int i = 0; i < sums_per_row; ++i) {
      add_up(i);
    }
  }
  for (int r = 0; r < R; ++r) {
    const size_t at = static_cast<size_t>(m + r) * (padded / group) + g;
    const Quad x_scale = load_quad(p.x_scales, Element::f32, at);
    const Quad x_sum = load_quad(p.x_sums, Element::f32, at);
    y[r] += w.scale * x_scale * totals(sums[r]) + w.bias * x_sum;
  }
}

// y += the product with groups [0, count) of one row of x, eight at a time: on processors whose
// vectors hold so many, a third of the operations that finish groups is spared. O is Octets, a
// parameter so that its members are looked for only where it has them.
template <class O, class X, int bits, int group, class T>
MIXBIT_INLINE void add_octets(const Matmul& p, int m, int count, const uint8_t* codes,
                              const T* scales, const T* biases, Quad& y) {
  constexpr int octet = 2 * kQuad;
  constexpr int fours = group == 32 ? 1 : 2;  // of sums; of 32 there are two groups to a sum
  constexpr int units = octet * group / kUnit / (4 * fours);  // of a sum
  const int padded = integer_columns(p.K, group);
  const X* x = static_cast<const X*>(p.x_codes) + static_cast<size_t>(m) * padded;
  const float* x_scales = p.x_scales + static_cast<size_t>(m) * (padded / group);
  const float* x_sums = p.x_sums + static_cast<size_t>(m) * (padded / group);
  for (int g = 0; g < count; g += octet) {
    typename O::Four totals[fours];
#pragma GCC unroll 2
    for (auto& four : totals) {
      for (int line = 0; line < 4 * units * 8 * bits; line += 64) {
        __builtin_prefetch(codes + kPrefetch + line);
      }
      Sums sums[4];
#pragma GCC unroll 4
      for (Sums& sum : sums) {
        sum = Sums::zero();
        for (int u = 0; u < units; ++u) {
          Codes<X> unit;
          unpack_unit<bits>(codes, unit);
          sum.add_products(unit, Inputs<X>::load(x));
          codes += 8 * bits;
          x += kUnit;
        }
      }
      four = O::four(sums);
    }
    const auto more = O::load(scales + g) * O::load(x_scales + g) * O::totals(totals) +
                      O::load(biases + g) * O::load(x_sums + g);
    y += O::first(more);
    y += O::second(more);
  }
}

// The last groups of a row where they are fewer than four, completed with zeros: nothing past the
// end of the row is read.
template <int bits, int group>
struct LastQuad {
  uint8_t codes[kQuad * group / 8 * bits];
  float scales[kQuad], biases[kQuad];

  void fill(const Weights& w, const uint8_t* row, const void* row_scales, const void* row_biases,
            int g, int groups) {
    const int bytes = group / 8 * bits;
    __builtin_memset(this, 0, sizeof(*this));
    __builtin_memcpy(codes, row + static_cast<size_t>(g) * bytes, (groups - g) * bytes);
    for (int i = g; i < groups; ++i) {
      scales[i - g] = load_element(row_scales, w.element, i);
      biases[i - g] = load_element(row_biases, w.element, i);
    }
  }
};

// sums[r · kPanelColumns] = row m + r times column n.
template <class X, int bits, int group, int R>
MIXBIT_INLINE void integer_column(const Matmul& p, int m, int n, float* sums) {
  const int groups = p.K / group, whole = groups / kQuad * kQuad;
  const uint8_t* codes =
      static_cast<const uint8_t*>(p.w.data) + n * (static_cast<size_t>(p.K / 8) * bits);
  const size_t first = static_cast<size_t>(n) * groups * size_of(p.w.element);
  const char* scales = static_cast<const char*>(p.w.scales) + first;
  const char* biases = static_cast<const char*>(p.w.biases) + first;
  LastQuad<bits, group> last;
  if (whole < groups) {
    last.fill(p.w, codes, scales, biases, whole, groups);
  }
  Quad y[R] = {};
  int g = 0;
  if constexpr (R == 1 && !std::is_void_v<Octets>) {
    g = groups / (2 * kQuad) * (2 * kQuad);
    with_element(p.w.element, [&]<class T>(T) {
      add_octets<Octets, X, bits, group>(p, m, g, codes, reinterpret_cast<const T*>(scales),
                                         reinterpret_cast<const T*>(biases), y[0]);
    });
  }
  for (; g < groups; g += kQuad) {
    QuadWeights w;
    if (g < whole) {
      w = {codes + static_cast<size_t>(g) * group / 8 * bits, load_quad(scales, p.w.element, g),
           load_quad(biases, p.w.element, g)};
    } else {
      w = {last.codes, load_quad(last.scales, Element::f32, 0),
           load_quad(last.biases, Element::f32, 0)};
    }
    add_quad<X, bits, group, R>(p, m, g, w, y);
  }
  for (int r = 0; r < R; ++r) {
    sums[r * kPanelColumns] = (y[r][0] + y[r][2]) + (y[r][1] + y[r][3]);
  }
}

template <class X, int bits, int group, int R>
static void integer_row_tile(const Matmul& p, int m, int n0, int n1) {
  for (int n = n0; n < n1; n += kPanelColumns) {
    const int columns = n1 - n < kPanelColumns ? n1 - n : kPanelColumns;
    float sums[R][kPanelColumns];
    for (int c = 0; c < columns; ++c) {
      integer_column<X, bits, group, R>(p, m, n + c, sums[0] + c);
    }
    for (int r = 0; r < R; ++r) {
      write_row(p, m + r, n, columns, sums[r]);
    }
  }
}

template <class X, int bits, int group>
static void integer_tile(const Matmul& p, int m0, int m1, int n0, int n1) {
  int m = m0;
  for (; m + 4 <= m1; m += 4) {
    integer_row_tile<X, bits, group, 4>(p, m, n0, n1);
  }
  switch (m1 - m) {
    case 3:
      return integer_row_tile<X, bits, group, 3>(p, m, n0, n1);
    case 2:
      return integer_row_tile<X, bits, group, 2>(p, m, n0, n1);
    case 1:
      return integer_row_tile<X, bits, group, 1>(p, m, n0, n1);
    default:
      return;
  }
}

static void matmul_integers(const Matmul& p, int m0, int m1, int n0, int n1) {
  with_integer(p.x_bits, [&]<class X>(X) {
    with_bits_for<X>(p.w.bits, [&]<int bits>() {
      switch (p.w.group_size) {
        case 32:
          return integer_tile<X, bits, 32>(p, m0, m1, n0, n1);
        case 64:
          return integer_tile<X, bits, 64>(p, m0, m1, n0, n1);
        default:
          return integer_tile<X, bits, 128>(p, m0, m1, n0, n1);
      }
    });
  });
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
