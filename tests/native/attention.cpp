// Attention against its definition in fp64.
#include "cpu/attention.h"

#include "harness.h"

namespace native {

namespace {

enum class Mask { none, causal, boolean, added };

struct Case {
  int B, H, Hk, T, S, D;
  Mask mask;
  Element element;
  double spread;
};

void test_one(Report& report, const Case& c) {
  Random random(uint64_t(c.T) << 40 | uint64_t(c.S) << 20 | c.D);
  const size_t q_count = size_t(c.B) * c.T * c.H * c.D, k_count = size_t(c.B) * c.S * c.Hk * c.D;
  const Array q = Array::normal(random, c.element, q_count, c.spread);
  const Array k = Array::normal(random, c.element, k_count, c.spread);
  const Array v = Array::normal(random, c.element, k_count);
  Array y(c.element, q_count);
  // One mask for all heads and batches: row 0 sees nothing where it is boolean.
  Guarded seen(size_t(c.T) * c.S);
  Array added(c.element, c.S);
  uint8_t* sees = static_cast<uint8_t*>(seen.data());
  for (size_t i = 0; i < seen.bytes(); ++i) {
    sees[i] = i >= size_t(c.S) && random.bits() % 4 != 0;
  }
  for (int s = 0; s < c.S; ++s) {
    added.set(s, -0.1 * s);
  }
  Attention p{};
  p.B = c.B, p.H = c.H, p.Hk = c.Hk, p.T = c.T, p.S = c.S, p.D = c.D;
  // As models have it: heads beside the values.
  p.q = {q.data(), int64_t(c.T) * c.H * c.D, c.D, int64_t(c.H) * c.D, 1};
  p.k = {k.data(), int64_t(c.S) * c.Hk * c.D, c.D, int64_t(c.Hk) * c.D, 1};
  p.v = p.k;
  p.v.data = v.data();
  p.element = p.mask_element = c.element;
  p.scale = static_cast<float>(1 / std::sqrt(c.D));
  p.causal = c.mask == Mask::causal;
  if (c.mask == Mask::boolean) {
    p.mask = sees;
    p.mask_is_bool = true;
    p.mask_strides[2] = c.S;
    p.mask_strides[3] = 1;
  } else if (c.mask == Mask::added) {
    p.mask = added.data();
    p.mask_strides[3] = 1;
  }
  p.y = y.data();
  attention(p);

  std::vector<double> want(q_count);
  for (int b = 0; b < c.B; ++b) {
    for (int h = 0; h < c.H; ++h) {
      for (int t = 0; t < c.T; ++t) {
        const size_t row = ((size_t(b) * c.T + t) * c.H + h) * c.D;
        auto key = [&](int s) { return ((size_t(b) * c.S + s) * c.Hk + h / (c.H / c.Hk)) * c.D; };
        std::vector<double> scores(c.S);
        double largest = -INFINITY, total = 0;
        for (int s = 0; s < c.S; ++s) {
          double dot = 0;
          for (int d = 0; d < c.D; ++d) {
            dot += q[row + d] * k[key(s) + d];
          }
          const bool hidden = (c.mask == Mask::causal && s > t + c.S - c.T) ||
                              (c.mask == Mask::boolean && !sees[size_t(t) * c.S + s]);
          scores[s] =
              hidden ? -INFINITY : dot / std::sqrt(c.D) + (c.mask == Mask::added ? added[s] : 0);
          largest = std::fmax(largest, scores[s]);
        }
        for (int s = 0; s < c.S; ++s) {
          scores[s] = std::isinf(largest) ? 0 : std::exp(scores[s] - largest);
          total += scores[s];
        }
        for (int d = 0; d < c.D; ++d) {
          double sum = 0;
          for (int s = 0; s < c.S; ++s) {
            sum += scores[s] * v[key(s) + d];
          }
          want[row + d] = total > 0 ? sum / total : 0;
        }
      }
    }
  }
  const double error = relative_error(y, want);
  report.expect(error <= tolerance(c.element) && y.intact(), "attention B", c.B, " H", c.H, "/",
                c.Hk, " T", c.T, " S", c.S, " D", c.D, " mask ", static_cast<int>(c.mask), " ",
                name_of(c.element), ": ", error);
}

}  // namespace

void test_attention(Report& report) {
  for (Mask mask : {Mask::none, Mask::causal, Mask::boolean, Mask::added}) {
    for (auto [T, S] : {std::pair{1, 1}, {1, 130}, {5, 64}, {37, 37}, {17, 90}}) {
      test_one(report, {2, 4, 2, T, S, 64, mask, Element::f32, 1});
    }
    test_one(report, {2, 6, 1, 9, 80, 40, mask, Element::f32, 1});
    test_one(report, {1, 3, 3, 9, 9, 5, mask, Element::f32, 1});
  }
  test_one(report, {1, 4, 2, 20, 70, 256, Mask::causal, Element::f32, 2});
  for (Element e : {Element::f16, Element::bf16}) {
    test_one(report, {2, 4, 2, 20, 70, 64, Mask::causal, e, 1});
    test_one(report, {1, 2, 1, 3, 20, 33, Mask::added, e, 1});
  }
}

}  // namespace native
