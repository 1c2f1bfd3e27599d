// The gated delta rule, and GatedDeltaNet around it, against their definitions in fp64.
#include "cpu/gated_delta.h"

#include "harness.h"

namespace native {

namespace {

struct Sizes {
  int B, T, Hk, Hv, Dk, Dv;
};

std::string name_of(const Sizes& s) {
  std::ostringstream text;
  text << "B" << s.B << " T" << s.T << " H" << s.Hk << "/" << s.Hv << " D" << s.Dk << "/" << s.Dv;
  return text.str();
}

// Steps that a row really has: which ones, by a mask of [B, T].
enum class Mask { none, left, right };

std::vector<uint8_t> mask_of(Mask mask, const Sizes& s) {
  std::vector<uint8_t> seen(size_t(s.B) * s.T, 1);
  for (int b = 0; b < s.B; ++b) {
    for (int t = 0; t < s.T; ++t) {
      seen[size_t(b) * s.T + t] = mask == Mask::none   ? true
                                  : mask == Mask::left ? t > b
                                                       : t < s.T - 1 - b;
    }
  }
  return seen;
}

// S <- g S;  S <- S + beta (v - S k) kᵀ;  y = S q, from arrays in the order of GatedDelta.
template <class Q, class K, class V>
void delta_rule(const Sizes& s, const Q& q, const K& k, const V& v, const std::vector<double>& g,
                const std::vector<double>& beta, const std::vector<uint8_t>& seen,
                std::vector<double>& state, std::vector<double>& y) {
  y.assign(size_t(s.B) * s.T * s.Hv * s.Dv, 0);
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.Hv; ++h) {
      double* S = state.data() + (size_t(b) * s.Hv + h) * s.Dv * s.Dk;
      for (int t = 0; t < s.T; ++t) {
        const size_t bt = size_t(b) * s.T + t;
        if (!seen[bt]) {
          continue;
        }
        const size_t key = (bt * s.Hk + h / (s.Hv / s.Hk)) * s.Dk;
        for (int i = 0; i < s.Dv; ++i) {
          double* row = S + size_t(i) * s.Dk;
          double dot = 0, out = 0;
          for (int j = 0; j < s.Dk; ++j) {
            row[j] *= g[bt * s.Hv + h];
            dot += row[j] * k(key + j);
          }
          const size_t value = (bt * s.Hv + h) * s.Dv + i;
          const double change = beta[bt * s.Hv + h] * (v(value) - dot);
          for (int j = 0; j < s.Dk; ++j) {
            row[j] += change * k(key + j);
            out += row[j] * q(key + j);
          }
          y[value] = out;
        }
      }
    }
  }
}

std::vector<double> doubles(const Array& a) {
  std::vector<double> values(a.count);
  for (size_t i = 0; i < a.count; ++i) {
    values[i] = a[i];
  }
  return values;
}

void test_rule(Report& report, const Sizes& s, Element e, bool with_state, Mask mask,
               bool in_place = false) {
  Random random(uint64_t(s.T) << 32 | s.Dk << 16 | s.Dv);
  const size_t steps = size_t(s.B) * s.T;
  const Array q = Array::normal(random, e, steps * s.Hk * s.Dk, 1 / std::sqrt(s.Dk));
  const Array k = Array::normal(random, e, steps * s.Hk * s.Dk, 1 / std::sqrt(s.Dk));
  const Array v = Array::normal(random, e, steps * s.Hv * s.Dv);
  const Array g = Array::uniform(random, Element::f32, steps * s.Hv, 0.9, 1);
  const Array beta = Array::uniform(random, Element::f32, steps * s.Hv, 0, 1);
  const Array before = Array::normal(random, Element::f32, size_t(s.B) * s.Hv * s.Dv * s.Dk);
  Array after(Element::f32, before.count), y(e, steps * s.Hv * s.Dv);
  const std::vector<uint8_t> seen = mask_of(mask, s);
  std::vector<double> state(before.count), want;
  if (with_state) {
    state = doubles(before);
  }
  delta_rule(
      s, [&](size_t i) { return q[i]; }, [&](size_t i) { return k[i]; },
      [&](size_t i) { return v[i]; }, doubles(g), doubles(beta), seen, state, want);
  GatedDelta p{};
  p.B = s.B, p.T = s.T, p.Hk = s.Hk, p.Hv = s.Hv, p.Dk = s.Dk, p.Dv = s.Dv;
  p.g = g.floats();
  p.beta = beta.floats();
  p.mask = mask == Mask::none ? nullptr : reinterpret_cast<const bool*>(seen.data());
  p.state_in = with_state ? before.floats() : nullptr;
  p.state_out = in_place ? before.floats() : after.floats();
  p.y = y.data();
  p.y_element = e;
  gated_delta(p, q.data(), k.data(), v.data(), e);
  const double y_error = relative_error(y, want);
  const double state_error = relative_error(in_place ? before : after, state);
  report.expect(y_error <= tolerance(e) && state_error <= 1e-6 && y.intact() && after.intact(),
                "delta rule ", name_of(s), " ", native::name_of(e), " mask ",
                static_cast<int>(mask), ": y ", y_error, ", state ", state_error);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The whole layer between its projections, written as the model writes it.
void test_layer(Report& report, const Sizes& s, Element e, bool with_state, Mask mask, int taps,
                bool keep_steps = false) {
  Random random(uint64_t(s.T) << 32 | s.Dk << 16 | taps);
  const int C = 2 * s.Hk * s.Dk + s.Hv * s.Dv;
  const size_t steps = size_t(s.B) * s.T;
  const Array qkv = Array::normal(random, e, steps * C);
  const Array conv_state = Array::normal(random, e, size_t(s.B) * (taps - 1) * C);
  const Array z = Array::normal(random, e, steps * s.Hv * s.Dv, 2);
  const Array a = Array::normal(random, Element::f32, steps * s.Hv, 3);
  const Array b = Array::normal(random, Element::f32, steps * s.Hv, 2);
  const Array conv_weight = Array::normal(random, e, size_t(C) * taps, 0.7);
  const Array A_log = Array::uniform(random, Element::f32, s.Hv, -4, 0);
  const Array dt_bias = Array::normal(random, Element::bf16, s.Hv);
  const Array norm_weight = Array::uniform(random, e, s.Dv, 0.5, 1.5);
  const Array before = Array::normal(random, Element::f32, size_t(s.B) * s.Hv * s.Dv * s.Dk);
  Array after(Element::f32, before.count * (keep_steps ? s.T : 1)), y(e, steps * s.Hv * s.Dv);
  Array conv_state_out(e, size_t(s.B) * (taps - 1) * C);
  const std::vector<uint8_t> seen = mask_of(mask, s);
  std::vector<int> lengths(s.B, s.T);
  for (int row = 0; row < s.B; ++row) {
    lengths[row] = mask == Mask::right ? std::max(0, s.T - 1 - row) : s.T;
  }
  const double eps = 1e-6;

  // Row t of the convolution's input, counted from taps − 1 steps before the first.
  auto input = [&](int row, int t, int c) -> double {
    if (t < 0) {
      return with_state ? conv_state[(size_t(row) * (taps - 1) + t + taps - 1) * C + c] : 0;
    }
    return seen[size_t(row) * s.T + t] ? qkv[(size_t(row) * s.T + t) * C + c] : 0;
  };
  std::vector<double> mixed(steps * C), kept(conv_state_out.count);
  for (int row = 0; row < s.B; ++row) {
    for (int t = 0; t < s.T; ++t) {
      for (int c = 0; c < C; ++c) {
        double sum = 0;
        for (int j = 0; j < taps; ++j) {
          sum += input(row, t - taps + 1 + j, c) * conv_weight[size_t(c) * taps + j];
        }
        mixed[(size_t(row) * s.T + t) * C + c] = sum * sigmoid(sum);
      }
    }
    for (int j = 0; j < taps - 1; ++j) {
      for (int c = 0; c < C; ++c) {
        kept[(size_t(row) * (taps - 1) + j) * C + c] = input(row, lengths[row] - taps + 1 + j, c);
      }
    }
  }
  const int keys = s.Hk * s.Dk;
  std::vector<double> q(steps * keys), k(steps * keys), v(steps * s.Hv * s.Dv);
  for (size_t bt = 0; bt < steps; ++bt) {
    for (int head = 0; head < 2 * s.Hk; ++head) {
      double squares = 1e-6;
      const double* from = &mixed[bt * C + size_t(head) * s.Dk];
      for (int j = 0; j < s.Dk; ++j) {
        squares += from[j] * from[j];
      }
      for (int j = 0; j < s.Dk; ++j) {
        const double unit = from[j] / std::sqrt(squares);
        if (head < s.Hk) {
          q[bt * keys + head * s.Dk + j] = unit / std::sqrt(s.Dk);
        } else {
          k[bt * keys + (head - s.Hk) * s.Dk + j] = unit;
        }
      }
    }
    for (int j = 0; j < s.Hv * s.Dv; ++j) {
      v[bt * s.Hv * s.Dv + j] = mixed[bt * C + 2 * keys + j];
    }
  }
  std::vector<double> g(steps * s.Hv), beta(g.size()), o, state(before.count);
  for (size_t i = 0; i < g.size(); ++i) {
    const int h = static_cast<int>(i % s.Hv);
    g[i] = std::exp(-std::exp(A_log[h]) * std::log1p(std::exp(a[i] + dt_bias[h])));
    beta[i] = sigmoid(b[i]);
  }
  if (with_state) {
    state = doubles(before);
  }
  auto rule = [&](const std::vector<uint8_t>& mask, std::vector<double>& S) {
    delta_rule(
        s, [&](size_t i) { return q[i]; }, [&](size_t i) { return k[i]; },
        [&](size_t i) { return v[i]; }, g, beta, mask, S, o);
  };
  // A state on the way is what is left when the later steps are masked.
  std::vector<double> on_the_way;
  const size_t row_states = before.count / s.B;
  for (int row = 0; keep_steps && row < s.B; ++row) {
    for (int t = 0; t < s.T; ++t) {
      std::vector<uint8_t> until = seen;
      std::fill(until.begin() + row * s.T + t + 1, until.end(), 0);
      std::vector<double> S = state;
      rule(until, S);
      on_the_way.insert(on_the_way.end(), S.begin() + row * row_states,
                        S.begin() + (row + 1) * row_states);
    }
  }
  rule(seen, state);
  std::vector<double> want(o.size());
  for (size_t row = 0; row < o.size(); row += s.Dv) {
    double squares = 0;
    for (int j = 0; j < s.Dv; ++j) {
      squares += o[row + j] * o[row + j];
    }
    for (int j = 0; j < s.Dv; ++j) {
      want[row + j] = o[row + j] / std::sqrt(squares / s.Dv + eps) * norm_weight[j] * z[row + j] *
                      sigmoid(z[row + j]);
    }
  }

  DeltaNetLayer layer{};
  DeltaNet& net = layer.net;
  net.B = s.B, net.T = s.T, net.Hk = s.Hk, net.Hv = s.Hv, net.Dk = s.Dk, net.Dv = s.Dv;
  net.taps = taps;
  net.element = e;
  net.layout = delta_net_layout(false, s.Hk, s.Hv, s.Dk, s.Dv);
  net.qkv = qkv.data();
  net.conv_state = with_state ? conv_state.data() : nullptr;
  net.mask = mask == Mask::none ? nullptr : reinterpret_cast<const bool*>(seen.data());
  net.z = z.data();
  net.eps = static_cast<float>(eps);
  net.y = y.data();
  layer.a = a.floats();
  layer.b = b.floats();
  layer.conv_weight = {conv_weight.data(), e};
  layer.A_log = {A_log.data(), Element::f32};
  layer.dt_bias = {dt_bias.data(), Element::bf16};
  layer.norm_weight = {norm_weight.data(), e};
  layer.state_in = with_state ? before.floats() : nullptr;
  layer.state_out = after.floats();
  layer.keep_steps = keep_steps;
  layer.lengths = mask == Mask::right ? lengths.data() : nullptr;
  layer.conv_state_out = conv_state_out.data();
  delta_net(layer);
  const double y_error = relative_error(y, want);
  const double state_error = relative_error(after, keep_steps ? on_the_way : state);
  const double kept_error = relative_error(conv_state_out, kept);
  // The norm divides by what little a short product of small vectors leaves.
  const double allowed = e == Element::f32 ? 2e-5 : tolerance(e);
  report.expect(y_error <= allowed && state_error <= 4e-6 && kept_error == 0 && y.intact() &&
                    after.intact() && conv_state_out.intact(),
                "delta net ", name_of(s), " ", native::name_of(e), " mask ", static_cast<int>(mask),
                " taps ", taps, keep_steps ? " all states" : "", ": y ", y_error, ", state ",
                state_error, ", conv state ", kept_error);
}

}  // namespace

void test_delta_net(Report& report) {
  const Element elements[] = {Element::f32, Element::f16, Element::bf16};
  for (auto [Hk, Hv] : {std::pair{2, 4}, {1, 3}, {3, 3}}) {
    for (auto [Dk, Dv] : {std::pair{64, 64}, {48, 32}, {30, 17}, {5, 3}}) {
      test_rule(report, {2, 9, Hk, Hv, Dk, Dv}, Element::f32, false, Mask::none);
      test_rule(report, {1, 1, Hk, Hv, Dk, Dv}, Element::f32, true, Mask::none, true);
    }
  }
  test_rule(report, {1, 40, 1, 2, 128, 128}, Element::f32, true, Mask::none);
  test_rule(report, {2, 40, 1, 2, 60, 75}, Element::f32, true, Mask::none);  // tasks of few rows
  for (Element e : elements) {
    for (Mask mask : {Mask::none, Mask::left, Mask::right}) {
      test_rule(report, {3, 7, 2, 4, 32, 40}, e, mask != Mask::left, mask);
      for (int T : {1, 2, 9}) {
        test_layer(report, {3, T, 2, 4, 24, 20}, e, mask != Mask::left, mask, 4);
      }
      test_layer(report, {1, 5, 1, 3, 17, 33}, e, mask == Mask::left, mask, 3);
      test_layer(report, {2, 4, 2, 4, 24, 20}, e, mask != Mask::left, mask, 4, true);
    }
    test_layer(report, {1, 12, 1, 2, 128, 128}, e, true, Mask::none, 4);
  }
}

}  // namespace native
