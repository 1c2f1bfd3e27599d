// The search for scales and biases against what fp64 makes of the packed bytes. Its results are the
// same bits everywhere.
#include "cpu/quantize_search.h"

#include <algorithm>

#include "harness.h"

namespace native {

namespace {

struct Case {
  Element element;
  int bits, group_size;
  bool weighed;
};

constexpr int kGroups = 3, kRows = 5, kRowsPerImportance = 2;

// Rows of weights among which there are groups of zeros, of one value, and with one that stands
// out.
Array weights(Random& random, const Case& c, int K) {
  Array w = Array::normal(random, c.element, size_t(kRows) * K, 0.02);
  for (int i = 0; i < c.group_size; ++i) {
    w.set(i, 0);
    w.set(K + i, 0.37);
  }
  w.set(2 * K + 7, 1.5);
  return w;
}

// Uneven, the second group of the last row's all zero.
Array importances(Random& random, const Case& c, int K) {
  const int sets = (kRows + kRowsPerImportance - 1) / kRowsPerImportance;
  Array h(Element::f32, size_t(sets) * K);
  for (size_t i = 0; i < h.count; ++i) {
    const double v = random.normal();
    h.set(i, v * v * v * v);
  }
  for (int i = 0; i < c.group_size; ++i) {
    h.set(size_t(sets - 1) * K + c.group_size + i, 0);
  }
  return h;
}

int code(const uint32_t* words, size_t index, int bits) {
  const size_t at = index * bits;
  uint64_t word = words[at / 32];
  if (at % 32 + bits > 32) {
    word |= uint64_t(words[at / 32 + 1]) << 32;
  }
  return static_cast<int>((word >> at % 32) & ((1u << bits) - 1));
}

// One group: its weights, importances and codes, and the stored scale and bias.
struct Packed {
  std::vector<double> w, h, q;
  double scale, bias;

  double error(double s, double b) const {
    double sum = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      sum += h[i] * (w[i] - s * q[i] - b) * (w[i] - s * q[i] - b);
    }
    return sum;
  }
  double error() const { return error(scale, bias); }

  // The least error that these codes allow, over all scales and biases.
  double least() const {
    double n = 0, q1 = 0, q2 = 0, w1 = 0, wq = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      n += h[i];
      q1 += h[i] * q[i];
      q2 += h[i] * q[i] * q[i];
      w1 += h[i] * w[i];
      wq += h[i] * w[i] * q[i];
    }
    const double determinant = n * q2 - q1 * q1;
    if (determinant <= 1e-9 * n * q2) {
      return error(0, w1 / n);
    }
    const double s = (n * wq - q1 * w1) / determinant;
    return error(s, (w1 - s * q1) / n);
  }

  // What evenly spaced codes from the least weight to the greatest lose.
  double rounding(int bits) const {
    const auto [low, high] = std::minmax_element(w.begin(), w.end());
    const double s = (*high - *low) / ((1 << bits) - 1);
    double sum = 0;
    for (size_t i = 0; i < w.size() && s > 0; ++i) {
      const double miss = w[i] - *low - s * std::nearbyint((w[i] - *low) / s);
      sum += h[i] * miss * miss;
    }
    return sum;
  }

  bool has_nearest_codes(int bits) const {
    for (size_t i = 0; i < w.size(); ++i) {
      for (double other : {q[i] - 1, q[i] + 1}) {
        const bool exists = other >= 0 && other < (1 << bits);
        const double miss = std::fabs(w[i] - scale * q[i] - bias);
        const double its = std::fabs(w[i] - scale * other - bias);
        if (exists && its < miss - 1e-5 * std::fabs(scale) - 1e-6 * std::fabs(bias)) {
          return false;
        }
      }
    }
    return true;
  }
};

void check(Report& report, const Case& c) {
  Random random(c.bits * 1000 + c.group_size);
  const int K = kGroups * c.group_size;
  const Array w = weights(random, c, K), h = importances(random, c, K);
  const size_t words = size_t(K) * c.bits / 32;
  Guarded codes(kRows * words * sizeof(uint32_t));
  Array scales(c.element, kRows * kGroups), biases(c.element, kRows * kGroups);

  QuantizeSearch p{};
  p.rows = kRows;
  p.K = K;
  p.bits = c.bits;
  p.group_size = c.group_size;
  p.w = w.data();
  p.element = p.scale_element = c.element;
  p.importance = c.weighed ? h.floats() : nullptr;
  p.rows_per_importance = kRowsPerImportance;
  p.codes = static_cast<uint32_t*>(codes.data());
  p.scales = scales.data();
  p.biases = biases.data();
  quantize_search(p);

  bool finite = true, nearest = true, fitted = true, better = true;
  for (int group = 0; group < kRows * kGroups; ++group) {
    const int row = group / kGroups;
    Packed g{{}, {}, {}, scales[group], biases[group]};
    double total = 0;
    for (int i = 0; i < c.group_size; ++i) {
      const size_t k = size_t(group % kGroups) * c.group_size + i;
      g.w.push_back(w[size_t(row) * K + k]);
      g.h.push_back(c.weighed ? h[size_t(row / kRowsPerImportance) * K + k] : 1);
      g.q.push_back(code(p.codes + row * words, k, c.bits));
      total += g.h.back();
    }
    if (total == 0) {
      g.h.assign(c.group_size, 1);
    }
    finite &= std::isfinite(g.scale) && std::isfinite(g.bias);
    nearest &= g.has_nearest_codes(c.bits);
    // A bias of 16 bits moves the whole group, by up to so much.
    double slack = 0;
    for (double hi : g.h) {
      const double ulp = tolerance(c.element) * (std::fabs(g.bias) + std::fabs(g.scale) * 255);
      slack += hi * ulp * ulp;
    }
    // Codes and fit are found in turns that end before all is won.
    fitted &= g.error() <= 1.3 * g.least() + slack;
    better &= g.error() <= 1.001 * g.rounding(c.bits) + slack;
  }
  const auto told = [&](const char* what) {
    return std::string(what) + " of " + name_of(c.element) + ", " + std::to_string(c.bits) +
           " bits, groups of " + std::to_string(c.group_size) + (c.weighed ? ", weighed" : "");
  };
  report.expect(finite, told("finite scales"));
  report.expect(nearest, told("nearest codes"));
  report.expect(fitted, told("least squares"));
  report.expect(better, told("less than rounding"));
  report.expect(w.intact() && h.intact() && scales.intact() && biases.intact() && codes.intact(),
                told("bounds"));
  report.digest(codes.data(), codes.bytes());
  report.digest(scales.data(), scales.bytes());
  report.digest(biases.data(), biases.bytes());
}

}  // namespace

void test_quantize_search(Report& report) {
  for (Element element : {Element::f32, Element::f16, Element::bf16}) {
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      for (int group_size : {32, 64, 128}) {
        check(report, {element, bits, group_size, group_size != 64 || bits % 2 == 0});
      }
    }
  }
}

}  // namespace native
