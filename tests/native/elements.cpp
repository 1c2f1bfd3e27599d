// Conversions between element types, over every 16-bit pattern.
#include "harness.h"

namespace native {

namespace {

// The value of a binary float with `mantissa_bits` of mantissa and 15 − `mantissa_bits` of
// exponent.
double value_of(uint32_t pattern, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = pattern & ((1 << mantissa_bits) - 1);
  const int exponent = pattern >> mantissa_bits & ((1 << exponent_bits) - 1);
  const double sign = pattern & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * INFINITY : NAN;
  }
  const double fraction = std::ldexp(mantissa, -mantissa_bits) + (exponent > 0);
  return sign * std::ldexp(fraction, (exponent > 0 ? exponent : 1) - bias);
}

bool same(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

void test_widening(Report& report, Element e, int mantissa_bits) {
  // An odd number of columns, so that both the vectors and what is left over are seen.
  constexpr int rows = 1 << 6, columns = 1 << 10, padded = columns + 19;
  for (int skip : {0, 1, 5}) {
    const int count = columns - skip;
    Array in(e, size_t(rows) * count), out(Element::f32, size_t(rows) * padded);
    uint16_t* patterns = static_cast<uint16_t*>(in.data());
    for (size_t i = 0; i < in.count; ++i) {
      patterns[i] = static_cast<uint16_t>(i);
    }
    kernels().to_float(in.data(), e, rows, count, out.floats(), padded);
    size_t wrong = 0;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < padded; ++c) {
        const double want =
            c < count ? value_of(patterns[size_t(r) * count + c], mantissa_bits) : 0;
        wrong += !same(out[size_t(r) * padded + c], want);
      }
    }
    report.expect(wrong == 0, "to_float ", name_of(e), " ", count, ": ", wrong, " wrong");
  }
}

// Each value rounds to itself; between two neighbours the middle goes to the even one, and what
// is beside the middle to the nearer one.
void test_narrowing(Report& report, Element e, int mantissa_bits) {
  Array out(e, 1);
  auto rounded = [&](double v) {
    out.set(0, v);
    return *static_cast<const uint16_t*>(out.data());
  };
  size_t wrong = 0;
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const double value = value_of(pattern, mantissa_bits);
    if (std::isnan(value)) {
      wrong += !std::isnan(value_of(rounded(value), mantissa_bits));
      continue;
    }
    wrong += rounded(value) != pattern;
    const double next =
        value_of((pattern & 0x7fff) + 1, mantissa_bits) * (pattern & 0x8000 ? -1 : 1);
    if (!std::isfinite(value) || !std::isfinite(next)) {
      continue;
    }
    const float middle = static_cast<float>((value + next) / 2);
    wrong += rounded(middle) != pattern + (pattern & 1);
    wrong += rounded(std::nextafterf(middle, static_cast<float>(value))) != pattern;
    wrong += rounded(std::nextafterf(middle, static_cast<float>(next))) != pattern + 1;
  }
  report.expect(wrong == 0, "narrowing to ", name_of(e), ": ", wrong, " wrong");
}

// SiLU(gate) · up, where e^x meets its limits.
void test_swiglu(Report& report) {
  const double gates[] = {0.,   -0.,  1e-8, 1.,    -1.,  20.,   -20.,     86.9,
                          87.5, -87., -88., -103., 1e30, -1e30, INFINITY, NAN};
  for (Element e : {Element::f32, Element::f16, Element::bf16}) {
    for (int count : {1, 7, 16, 35}) {
      const int rows = 2, stride = count + 3;
      Array gate(Element::f32, size_t(rows) * count), up(Element::f32, size_t(rows) * count);
      Array y(e, size_t(rows) * stride);
      for (size_t i = 0; i < gate.count; ++i) {
        gate.set(i, gates[i * 5 % 16]);
        up.set(i, 0.25 + static_cast<double>(i % 3));
      }
      std::memset(y.data(), 0, y.bytes());
      kernels().swiglu(gate.floats(), up.floats(), rows, count, y.data(), e, 3, stride);
      size_t wrong = 0;
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < count; ++c) {
          const double g = gate[r * count + c], got = y[r * stride + 3 + c];
          const double want = (std::isinf(g) ? g : g / (1 + std::exp(-g))) * up[r * count + c];
          const double limit = e == Element::f16 ? 65504. : 1e38;
          if (std::fabs(want) > limit || std::isnan(want)) {
            wrong += !(std::isnan(want) ? std::isnan(got) : std::isinf(got) || got > 1e38);
          } else {
            wrong += !(std::fabs(got - want) <= tolerance(e) * std::fabs(want) + 1e-7);
          }
        }
        wrong += y[r * stride] != 0;
      }
      report.expect(wrong == 0, "swiglu ", name_of(e), " ", count, ": ", wrong, " wrong");
    }
  }
}

}  // namespace

void test_elements(Report& report) {
  test_widening(report, Element::f16, 10);
  test_widening(report, Element::bf16, 7);
  test_narrowing(report, Element::f16, 10);
  test_narrowing(report, Element::bf16, 7);
  test_swiglu(report);
}

}  // namespace native
