#include "cpu/quantize_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/thread_pool.h"

namespace mixbit::cpu {

namespace {

// Sums run in this many lanes whatever the processor, so that they come out the same on each.
constexpr int kSumLanes = 16;
constexpr int kMaxGroup = 128;
constexpr int kRowsPerTask = 4;

// Where the search starts: both ends of the codes' range moved inwards from the extreme weights by
// these many steps of the grid, since what is lost by clipping few weights is won on all others.
constexpr float kInward[] = {0.f, 0.5f, 1.f, 1.5f};
// Rounds of assigning codes and fitting scale and bias to them. Few groups change in a third.
constexpr int kRounds = 3;

struct Fit {
  float scale, bias;
};

// What a choice of scale and bias amounts to with the nearest codes. Codes c count from the middle
// of their range, which keeps the sums of 8-bit codes exact enough.
struct Sums {
  double c, cc, cw;  // Σ h c, Σ h c², Σ h c w
  double error;      // Σ h (w − s q − b)²
};

struct Group {
  int size;
  float top;               // largest code
  const float* w;          // [size]
  float h[kMaxGroup];      // importances
  double total, weighted;  // Σ h, Σ h w
  Element element;         // of scale and bias
};

float rounded(float v, Element e) {
  switch (e) {
    case Element::f32:
      return v;
    case Element::f16:
      return to_float(to_half(v));
    default:
      return to_float(to_bfloat(v));
  }
}

// The neighbour of v in its storage type, away from zero or towards it.
float neighbour(float v, Element e, int ulps) {
  switch (e) {
    case Element::f32:
      return bits_as<float>(bits_as<uint32_t>(v) + ulps);
    case Element::f16:
      return to_float(half_bits{static_cast<uint16_t>(to_half(v).bits + ulps)});
    default:
      return to_float(bfloat_bits{static_cast<uint16_t>(to_bfloat(v).bits + ulps)});
  }
}

// Nearest code, for |v| below 2^22: adding 1.5 · 2^23 leaves no bits behind the point.
MIXBIT_INLINE float code_of(float v, float top) {
  const float low = v > 0.f ? v : 0.f;
  const float clamped = low < top ? low : top;
  constexpr float kShift = 12582912.f;
  return (clamped + kShift) - kShift;
}

double sum(const float (&lanes)[kSumLanes]) {
  double total = 0;
  for (float v : lanes) {
    total += v;
  }
  return total;
}

Sums measure(const Group& g, Fit fit) {
  const float inverse = 1.f / fit.scale, middle = g.top / 2;
  float c_sum[kSumLanes]{}, cc_sum[kSumLanes]{}, cw_sum[kSumLanes]{}, error[kSumLanes]{};
  for (int i = 0; i < g.size; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const float w = g.w[i + lane], h = g.h[i + lane];
      const float q = code_of((w - fit.bias) * inverse, g.top);
      const float c = q - middle, hc = h * c;
      const float miss = w - (fit.scale * q + fit.bias);
      c_sum[lane] += hc;
      cc_sum[lane] += hc * c;
      cw_sum[lane] += hc * w;
      error[lane] += h * miss * miss;
    }
  }
  return {sum(c_sum), sum(cc_sum), sum(cw_sum), sum(error)};
}

// Bias that goes best with a scale and the codes of `s`.
float fitted_bias(const Group& g, const Sums& s, float scale) {
  return static_cast<float>((g.weighted - scale * s.c) / g.total) - scale * (g.top / 2);
}

// Weighted least squares over scale and bias for the codes of `s`; false where these are all equal.
bool refit(const Group& g, const Sums& s, Fit& fit) {
  const double determinant = g.total * s.cc - s.c * s.c;
  if (!(determinant > 1e-9 * g.total * s.cc)) {
    return false;
  }
  fit.scale = static_cast<float>((g.total * s.cw - s.c * g.weighted) / determinant);
  fit.bias = fitted_bias(g, s, fit.scale);
  return true;
}

// A scale that can be divided by, of a finite fit.
bool is_usable(Fit fit) {
  return std::isfinite(fit.bias) && std::isfinite(1.f / fit.scale);
}

// As mx.quantize chooses them: the extreme weight of larger magnitude is exact, and so is zero.
Fit rounding_fit(float low, float high, float top, Element e) {
  float scale = std::max((high - low) / top, 1e-7f);
  const bool from_low = std::abs(low) > std::abs(high);
  scale = from_low ? scale : -scale;
  const float edge = from_low ? low : high;
  const float steps = std::rint(edge / scale);
  const bool has_zero = steps == 0;
  return {rounded(has_zero ? scale : edge / steps, e), rounded(has_zero ? 0 : edge, e)};
}

struct Best {
  Fit fit{};
  Sums sums{};

  bool offer(const Group& g, Fit candidate) {
    if (!is_usable(candidate)) {
      return false;
    }
    const Sums s = measure(g, candidate);
    if (s.error < sums.error) {
      fit = candidate;
      sums = s;
    }
    return true;
  }
};

Fit best_fit(const Group& g) {
  const auto [low, high] = std::minmax_element(g.w, g.w + g.size);
  const Fit start = rounding_fit(*low, *high, g.top, g.element);
  Best stored{start, measure(g, start)};
  const float step = (*high - *low) / g.top;
  if (!(step > 0)) {
    return start;
  }
  Best free{start, stored.sums};
  for (float up : kInward) {
    for (float down : kInward) {
      const float low_end = *low + up * step, high_end = *high - down * step;
      if (high_end <= low_end) {
        continue;
      }
      Fit fit{(high_end - low_end) / g.top, low_end};
      for (int round = 0; round < kRounds && is_usable(fit); ++round) {
        const Sums s = measure(g, fit);
        if (s.error < free.sums.error) {
          free = {fit, s};
        }
        if (!refit(g, s, fit)) {
          break;
        }
      }
    }
  }
  // What is stored is coarser, and scale and bias round together: try those around.
  const Best found = free;
  for (int scale_ulps = -1; scale_ulps <= 1; ++scale_ulps) {
    const float scale = neighbour(found.fit.scale, g.element, scale_ulps);
    const float bias = fitted_bias(g, found.sums, scale);
    for (int bias_ulps = -1; bias_ulps <= 1; ++bias_ulps) {
      stored.offer(g, {scale, neighbour(bias, g.element, bias_ulps)});
    }
  }
  return stored.fit;
}

void pack(const Group& g, Fit fit, int bits, uint32_t* words) {
  const float inverse = 1.f / fit.scale;
  uint64_t pending = 0;
  int held = 0;
  for (int i = 0; i < g.size; ++i) {
    const auto code = static_cast<uint64_t>(code_of((g.w[i] - fit.bias) * inverse, g.top));
    pending |= code << held;
    held += bits;
    if (held >= 32) {
      *words++ = static_cast<uint32_t>(pending);
      pending >>= 32;
      held -= 32;
    }
  }
}

void weigh(Group& g, const float* importance) {
  double total = 0;
  for (int i = 0; importance != nullptr && i < g.size; ++i) {
    total += importance[i];
  }
  // One on average in every group, so that no product of them leaves fp32's range.
  const double factor = total > 0 ? g.size / total : 0;
  g.total = g.weighted = 0;
  for (int i = 0; i < g.size; ++i) {
    g.h[i] = total > 0 ? static_cast<float>(importance[i] * factor) : 1.f;
    g.total += g.h[i];
    g.weighted += double(g.h[i]) * g.w[i];
  }
}

void search_row(const QuantizeSearch& p, size_t row, float* w) {
  const char* source = static_cast<const char*>(p.w) + row * p.K * size_of(p.element);
  kernels().to_float(source, p.element, 1, p.K, w, p.K);
  const float* importance =
      p.importance ? p.importance + row / p.rows_per_importance * p.K : nullptr;
  const size_t groups = p.K / p.group_size, words = size_t(p.group_size) * p.bits / 32;
  for (size_t i = 0; i < groups; ++i) {
    Group g{};
    g.size = p.group_size;
    g.top = static_cast<float>((1 << p.bits) - 1);
    g.w = w + i * p.group_size;
    g.element = p.scale_element;
    weigh(g, importance ? importance + i * p.group_size : nullptr);
    const Fit fit = best_fit(g);
    const size_t at = row * groups + i;
    store_element(p.scales, p.scale_element, at, fit.scale);
    store_element(p.biases, p.scale_element, at, fit.bias);
    pack(g, fit, p.bits, p.codes + at * words);
  }
}

}  // namespace

void quantize_search(const QuantizeSearch& p) {
  const int tasks = static_cast<int>((p.rows + kRowsPerTask - 1) / kRowsPerTask);
  parallel_for(tasks, [&](int task) {
    thread_local std::vector<float> w;
    w.resize(std::max(w.size(), size_t(p.K)));
    const size_t begin = size_t(task) * kRowsPerTask;
    for (size_t row = begin; row < std::min(p.rows, begin + kRowsPerTask); ++row) {
      search_row(p, row, w.data());
    }
  });
}

}  // namespace mixbit::cpu
