// Softmax statistics of two rows of logits over one tile of the vocabulary, all in fp64.
//
// Four lanes take every fourth logit in ascending order and are added up in a fixed tree; products
// and sums are rounded one by one. So every instruction set gives the same bits for the same
// logits.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

struct Doubles {
  typedef double Lanes __attribute__((vector_size(32)));
  typedef int64_t Masks __attribute__((vector_size(32)));
  Lanes v;

  static Doubles broadcast(double s) { return {Lanes{s, s, s, s}}; }
  static Doubles load(const double* p) {
    Doubles r;
    __builtin_memcpy(&r.v, p, sizeof(r.v));
    return r;
  }
  static Doubles load(const float* p) { return {Lanes{p[0], p[1], p[2], p[3]}}; }
  void store(double* p) const { __builtin_memcpy(p, &v, sizeof(v)); }

  friend Doubles operator+(Doubles a, Doubles b) { return {a.v + b.v}; }
  friend Doubles operator-(Doubles a, Doubles b) { return {a.v - b.v}; }
  friend Doubles operator*(Doubles a, Doubles b) { return {a.v * b.v}; }

  // `a` where it is greater, else `b`, also where either is NaN.
  static Doubles greater(Doubles a, Doubles b) {
    const Masks keep = a.v > b.v;
    return {__builtin_bit_cast(
        Lanes, (__builtin_bit_cast(Masks, a.v) & keep) | (__builtin_bit_cast(Masks, b.v) & ~keep))};
  }

  double sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
  double max() const {
    double m = v[0];
    for (int i = 1; i < 4; ++i) {
      m = v[i] > m ? v[i] : m;
    }
    return m;
  }
};

// e^x for x <= 0 within two ulp; 0 below −708, NaN for NaN. x = n ln 2 + r, ln 2 in two parts,
// then the Taylor polynomial of e^r, whose rest is below 5e-18 for |r| <= ln 2 / 2.
static inline Doubles exp(Doubles x) {
  const Doubles::Masks below = x.v < -708.0;
  // Adding 1.5 · 2^52 leaves the nearest integer in the low bits.
  const Doubles shifted = x * Doubles::broadcast(1.4426950408889634) + Doubles::broadcast(0x1.8p52);
  const Doubles n = shifted - Doubles::broadcast(0x1.8p52);
  const Doubles r =
      x - n * Doubles::broadcast(0x1.62e42feep-1) - n * Doubles::broadcast(0x1.a39ef35793c76p-33);
  // Paired up (Estrin), so that the products do not wait for each other.
  const auto pair = [&](double low, double high) __attribute__((always_inline)) {
    return Doubles::broadcast(low) + Doubles::broadcast(high) * r;
  };
  const Doubles r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
  const Doubles low = (pair(1.0, 1.0) + pair(1.0 / 2, 1.0 / 6) * r2) +
                      (pair(1.0 / 24, 1.0 / 120) + pair(1.0 / 720, 1.0 / 5040) * r2) * r4;
  const Doubles high =
      (pair(1.0 / 40320, 1.0 / 362880) + pair(1.0 / 3628800, 1.0 / 39916800) * r2) +
      pair(1.0 / 479001600, 1.0 / 6227020800) * r4;
  const Doubles y = low + high * r8;
  const Doubles::Masks scale = (__builtin_bit_cast(Doubles::Masks, shifted.v) + 1023) << 52;
  const Doubles value = y * Doubles{__builtin_bit_cast(Doubles::Lanes, scale)};
  return {__builtin_bit_cast(Doubles::Lanes, __builtin_bit_cast(Doubles::Masks, value.v) & ~below)};
}

// Values whose maximum is found together.
constexpr int kGroup = 16;
constexpr int kGroups = kVocabularyTile / kGroup;
static_assert(kVocabularyTile % kGroup == 0);

// Maximum of each group of `count` values and of all, at least `least`; NaN counts for nothing.
static double group_maxima(const double* x, int count, double least, double* maxima) {
  Doubles all = Doubles::broadcast(least);
  for (int c = 0; c < count; c += kGroup) {
    Doubles group = Doubles::broadcast(least);
    for (int i = 0; i < kGroup; i += 4) {
      group = Doubles::greater(Doubles::load(x + c + i), group);
    }
    maxima[c / kGroup] = group.max();
    all = Doubles::greater(group, all);
  }
  return all.max();
}

// Puts a value among the kTop largest, behind those that equal it.
static inline void insert(double value, double token, double* values, double* tokens) {
  if (!(value > values[kTop - 1])) {
    return;
  }
  int place = kTop - 1;
  for (; place > 0 && value > values[place - 1]; --place) {
    values[place] = values[place - 1];
    tokens[place] = tokens[place - 1];
  }
  values[place] = value;
  tokens[place] = token;
}

static void clear(double* values, double* tokens) {
  for (int i = 0; i < kTop; ++i) {
    values[i] = -__builtin_inf();
    tokens[i] = -1;
  }
}

// The kTop largest of `count` values, the earlier one first where two are equal. None of them is
// below the kTop-th largest maximum of a group, which few other values reach.
static void top_values(const double* x, const double* maxima, int count, int first, double* values,
                       double* tokens) {
  double largest[kTop], groups[kTop];
  clear(largest, groups);
  for (int g = 0; g * kGroup < count; ++g) {
    insert(maxima[g], g, largest, groups);
  }
  clear(values, tokens);
  for (int g = 0; g * kGroup < count; ++g) {
    if (!(maxima[g] >= largest[kTop - 1])) {
      continue;
    }
    const int end = (g + 1) * kGroup < count ? (g + 1) * kGroup : count;
    for (int c = g * kGroup; c < end; ++c) {
      if (x[c] >= largest[kTop - 1]) {
        insert(x[c], first + c, values, tokens);
      }
    }
  }
}

// Logits that are infinite or not a number. A token that one side rules out (−∞) has no weight
// there; a NaN or +∞ makes the whole side NaN.
static void odd_sums(const double* p, const double* q, int count, LogitTile& out) {
  double sums[2] = {0, 0}, costs[2] = {0, 0}, tops[2];
  const double* sides[2] = {p, q};
  for (int side = 0; side < 2; ++side) {
    const double* x = sides[side];
    const double* other = sides[1 - side];
    double top = -__builtin_inf();
    for (int c = 0; c < count; ++c) {
      top = x[c] > top ? x[c] : top;
    }
    for (int c = 0; c < count; ++c) {
      if (x[c] == -__builtin_inf()) {
        continue;
      }
      const double weight = __builtin_exp(x[c] - top);
      sums[side] += weight;
      costs[side] += other[c] == -__builtin_inf() ? __builtin_inf() : weight * (x[c] - other[c]);
    }
    tops[side] = top;
  }
  out.max_p = tops[0];
  out.max_q = tops[1];
  out.sum_p = sums[0];
  out.sum_q = sums[1];
  out.forward = costs[0];
  out.reverse = costs[1];
}

static void logit_tile(const float* p, const float* second, bool is_difference, int count,
                       int first, int target, LogitTile& out) {
  // Padded to whole groups with logits that weigh nothing and differ by nothing.
  constexpr double nothing = -1e39;
  double x[kVocabularyTile], y[kVocabularyTile], max_x[kGroups], max_y[kGroups];
  const int padded = round_up(count, kGroup);
  for (int c = 0; c < count; ++c) {
    x[c] = p[c];
    y[c] = is_difference ? x[c] - second[c] : second[c];
  }
  for (int c = count; c < padded; ++c) {
    x[c] = y[c] = nothing;
  }
  out.max_p = group_maxima(x, padded, nothing, max_x);
  out.max_q = group_maxima(y, padded, nothing, max_y);
  const Doubles top_p = Doubles::broadcast(out.max_p), top_q = Doubles::broadcast(out.max_q);
  Doubles sum_p = Doubles::broadcast(0), sum_q = sum_p, forward = sum_p, reverse = sum_p;
  for (int c = 0; c < padded; c += 4) {
    const Doubles a = Doubles::load(x + c), b = Doubles::load(y + c);
    const Doubles weight_p = exp(a - top_p), weight_q = exp(b - top_q), difference = a - b;
    sum_p = sum_p + weight_p;
    sum_q = sum_q + weight_q;
    forward = forward + weight_p * difference;
    reverse = reverse - weight_q * difference;
  }
  out.sum_p = sum_p.sum();
  out.sum_q = sum_q.sum();
  out.forward = forward.sum();
  out.reverse = reverse.sum();
  // Whatever is not finite among the logits has left its trace here.
  const double trace = out.sum_p + out.sum_q + out.forward + out.reverse;
  if (!(trace - trace == 0)) {
    odd_sums(x, y, count, out);
  }
  const int at = target - first;
  out.target_p = 0 <= at && at < count ? x[at] : 0;
  out.target_q = 0 <= at && at < count ? y[at] : 0;
  top_values(x, max_x, count, first, out.top_p, out.top_p_tokens);
  top_values(y, max_y, count, first, out.top_q, out.top_q_tokens);
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
