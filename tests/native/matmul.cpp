// Products with weights of every format, through the scheduling, against sums in fp64.
#include "cpu/matmul.h"

#include <memory>

#include "harness.h"

namespace native {

namespace {

double e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8., exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

double e2m1(int code) {
  const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

constexpr float kEps = 1e-5f;

struct Format {
  WeightKind kind;
  int bits, group;
  Element element;  // of a dense weight or of affine scales
};

std::string name_of(const Format& f) {
  const char* kinds[] = {"dense", "affine", "mxfp4", "mxfp8", "nvfp4"};
  return std::string(kinds[static_cast<int>(f.kind)]) + " " + std::to_string(f.bits) + "/" +
         std::to_string(f.group) + " " + native::name_of(f.element);
}

// A random weight [N, K], and its values in fp64.
class Weight {
 public:
  Weight(Random& random, const Format& f, int N, int K)
      : weights{f.kind, f.bits, f.group, f.element, nullptr, nullptr, nullptr} {
    values.resize(size_t(N) * K);
    if (f.kind == WeightKind::dense) {
      dense_ = std::make_unique<Array>(Array::normal(random, f.element, values.size()));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = (*dense_)[i];
      }
      weights.data = dense_->data();
      return;
    }
    codes_ = std::make_unique<Guarded>(values.size() / 8 * f.bits);
    uint8_t* codes = static_cast<uint8_t*>(codes_->data());
    for (size_t i = 0; i < codes_->bytes(); ++i) {
      codes[i] = static_cast<uint8_t>(random.bits());
    }
    if (f.kind == WeightKind::mxfp8) {
      for (size_t i = 0; i < codes_->bytes(); ++i) {
        codes[i] = (codes[i] & 0x7f) == 0x7f ? 0 : codes[i];  // not a number
      }
    }
    weights.data = codes;
    const size_t groups = values.size() / f.group;
    auto code = [&](size_t i) {
      int c = 0;
      for (int bit = 0; bit < f.bits; ++bit) {
        const size_t at = i * f.bits + bit;
        c |= (codes[at / 8] >> (at % 8) & 1) << bit;
      }
      return c;
    };
    if (f.kind == WeightKind::affine) {
      scales_ = std::make_unique<Array>(Array::uniform(random, f.element, groups, 0.01, 0.1));
      biases_ = std::make_unique<Array>(Array::uniform(random, f.element, groups, -1, 0.2));
      weights.scales = scales_->data();
      weights.biases = biases_->data();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = (*scales_)[i / f.group] * code(i) + (*biases_)[i / f.group];
      }
      return;
    }
    bytes_ = std::make_unique<Guarded>(groups);
    uint8_t* scales = static_cast<uint8_t*>(bytes_->data());
    for (size_t i = 0; i < groups; ++i) {
      scales[i] = static_cast<uint8_t>(random.uniform(f.kind == WeightKind::nvfp4 ? 0x20 : 120,
                                                      f.kind == WeightKind::nvfp4 ? 0x50 : 130));
    }
    weights.scales = scales;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint8_t scale = scales[i / f.group];
      values[i] = (f.kind == WeightKind::mxfp8 ? e4m3(code(i)) : e2m1(code(i))) *
                  (f.kind == WeightKind::nvfp4 ? e4m3(scale) : std::ldexp(1., scale - 127));
    }
  }

  Weights weights;
  std::vector<double> values;

 private:
  std::unique_ptr<Array> dense_, scales_, biases_;
  std::unique_ptr<Guarded> codes_, bytes_;
};

// What remains of x when each group becomes integers of 8 bits with one scale.
void round_to_8_bits(std::vector<double>& x, int group) {
  for (size_t g = 0; g < x.size(); g += group) {
    float largest = 0;
    for (size_t i = g; i < g + group; ++i) {
      largest = std::fmax(largest, std::fabs(static_cast<float>(x[i])));
    }
    const float inverse = 127 / largest;
    for (size_t i = g; i < g + group; ++i) {
      x[i] = std::nearbyint(static_cast<float>(x[i]) * inverse) * (largest / 127.);
    }
  }
}

// With `rounded` x in groups of as many values as integers of 8 bits.
std::vector<double> product(const Array& x, int M, int K, const std::vector<double>& w, int N,
                            const Array* norm = nullptr, int rounded = 0) {
  std::vector<double> y(size_t(M) * N), row(K);
  for (int m = 0; m < M; ++m) {
    double squares = 0;
    for (int k = 0; k < K; ++k) {
      row[k] = x[size_t(m) * K + k];
      squares += row[k] * row[k];
    }
    for (int k = 0; k < K && norm != nullptr; ++k) {
      row[k] *= (*norm)[k] / std::sqrt(squares / K + kEps);
    }
    if (rounded != 0) {
      round_to_8_bits(row, rounded);
    }
    for (int n = 0; n < N; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k) {
        sum += row[k] * w[size_t(n) * K + k];
      }
      y[size_t(m) * N + n] = sum;
    }
  }
  return y;
}

MatmulPart part_of(int N, const Weights& w, const Array* y) {
  MatmulPart part{};
  part.N = N;
  part.w = w;
  part.y = y == nullptr ? nullptr : y->data();
  part.y_element = y == nullptr ? Element::f32 : y->element;
  return part;
}

struct Shape {
  int M, K, N;
};

// With `dressed` also the norm before the product, and bias and residual after it. The norm is left
// out beside integers of 8 bits: a difference in its last place may become one of a whole step.
void test_one(Report& report, const Format& f, Element e, const Shape& s, bool dressed,
              int activation_bits = 16) {
  Random random(uint64_t(s.M) << 40 | uint64_t(s.K) << 20 | s.N);
  const Array x = Array::normal(random, e, size_t(s.M) * s.K);
  const Weight w(random, f, s.N, s.K);
  const Array bias = Array::normal(random, Element::f16, s.N);
  const Array norm = Array::uniform(random, Element::bf16, s.K, 0.5, 2);
  const Array residual = Array::normal(random, e, size_t(s.M) * s.N);
  Array y(s.M % 3 == 0 ? e : Element::f32, size_t(s.M) * s.N);
  MatmulRequest request{};
  request.M = s.M;
  request.K = s.K;
  request.x = x.data();
  request.x_element = e;
  request.parts = {part_of(s.N, w.weights, &y)};
  request.parts[0].activation_bits = activation_bits;
  const bool rounded = activation_bits == 8 && s.M <= kIntegerDirectRows;
  const bool normed = dressed && !rounded;
  std::vector<double> want =
      product(x, s.M, s.K, w.values, s.N, normed ? &norm : nullptr, rounded ? f.group : 0);
  if (normed) {
    request.norm = norm.data();
    request.norm_element = norm.element;
    request.eps = kEps;
  }
  if (dressed) {
    request.parts[0].bias = bias.data();
    request.parts[0].bias_element = bias.element;
    request.parts[0].residual = residual.data();
    request.parts[0].residual_element = residual.element;
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] += bias[i % s.N] + residual[i];
    }
  }
  matmul(request);
  const bool integers = f.kind == WeightKind::affine && e != Element::f32;
  const double allowed = std::fmax(tolerance(y.element), integers && !rounded ? 1e-4 : 1e-6);
  const double error = relative_error(y, want);
  report.expect(error <= allowed && y.intact(), "matmul ", name_of(f), " x ", native::name_of(e),
                " of ", activation_bits, " bits ", s.M, "x", s.K, "x", s.N, ": ", error);
  if (integers) {
    report.digest(y.data(), y.bytes());
  }
}

// Several matrices of unlike formats that share rows of x, picked and put elsewhere by index; and
// row by row, which must give the same bits.
void test_parts(Report& report, int activation_bits) {
  const int K = 256, tokens = 5, rows = 9, Ns[] = {7, 24, 13};
  const Format formats[] = {{WeightKind::affine, 3, 32, Element::f16},
                            {WeightKind::affine, 8, 128, Element::bf16},
                            {WeightKind::dense, 0, 0, Element::bf16}};
  const int x_rows[tokens] = {8, 0, 3, 3, 7}, y_rows[tokens] = {1, 4, 0, 3, 2};
  Random random(7);
  const Array x = Array::normal(random, Element::bf16, size_t(rows) * K);
  std::vector<Weight> weights;
  std::vector<Array> ys, singles;
  MatmulRequest request{};
  request.M = tokens;
  request.K = K;
  request.x = x.data();
  request.x_element = Element::bf16;
  request.x_rows = x_rows;
  request.y_rows = y_rows;
  for (int i = 0; i < 3; ++i) {
    weights.emplace_back(random, formats[i], Ns[i], K);
    ys.emplace_back(Element::bf16, size_t(tokens) * Ns[i]);
    singles.emplace_back(Element::bf16, size_t(tokens) * Ns[i]);
    request.parts.push_back(part_of(Ns[i], weights[i].weights, &ys[i]));
    request.parts[i].activation_bits = activation_bits;
  }
  matmul(request);
  for (int i = 0; i < 3; ++i) {
    const bool rounded = activation_bits == 8 && i == 0;  // the others have more than 6 bits
    const std::vector<double> all =
        product(x, rows, K, weights[i].values, Ns[i], nullptr, rounded ? formats[i].group : 0);
    std::vector<double> want(size_t(tokens) * Ns[i]);
    for (int m = 0; m < tokens; ++m) {
      for (int n = 0; n < Ns[i]; ++n) {
        want[size_t(y_rows[m]) * Ns[i] + n] = all[size_t(x_rows[m]) * Ns[i] + n];
      }
    }
    const double error = relative_error(ys[i], want);
    report.expect(error <= tolerance(Element::bf16), "parts ", name_of(formats[i]), " x of ",
                  activation_bits, " bits: ", error);
  }
  MatmulRequest single = request;
  single.M = 1;
  for (int m = 0; m < tokens; ++m) {
    single.x_rows = x_rows + m;
    single.y_rows = y_rows + m;
    for (int i = 0; i < 3; ++i) {
      single.parts[i].y = singles[i].data();
    }
    matmul(single);
  }
  for (int i = 0; i < 3; ++i) {
    report.expect(std::memcmp(ys[i].data(), singles[i].data(), ys[i].bytes()) == 0,
                  "a row alone differs: ", name_of(formats[i]));
  }
}

void test_gate_and_up(Report& report, Element e, const Shape& s, int activation_bits) {
  Random random(s.M);
  const Array x = Array::normal(random, e, size_t(s.M) * s.K, 0.1);
  const Weight gate(random, {WeightKind::affine, 4, 64, Element::f32}, s.N, s.K);
  const Weight up(random, {WeightKind::affine, 6, 32, Element::f16}, s.N, s.K);
  Array y(e, size_t(s.M) * s.N);
  MatmulRequest request{};
  request.M = s.M;
  request.K = s.K;
  request.x = x.data();
  request.x_element = e;
  request.swiglu = true;
  request.parts = {part_of(s.N, gate.weights, &y), part_of(s.N, up.weights, nullptr)};
  const bool rounded = activation_bits == 8 && e != Element::f32 && s.M <= kIntegerDirectRows;
  for (MatmulPart& part : request.parts) {
    part.activation_bits = activation_bits;
  }
  matmul(request);
  auto half = [&](const Weight& w) {
    const int group = rounded ? w.weights.group_size : 0;
    return product(x, s.M, s.K, w.values, s.N, nullptr, group);
  };
  std::vector<double> want = half(gate);
  const std::vector<double> factor = half(up);
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] *= factor[i] / (1 + std::exp(-want[i]));
  }
  const double error = relative_error(y, want);
  report.expect(error <= tolerance(e) && y.intact(), "swiglu of products ", native::name_of(e),
                " of ", activation_bits, " bits ", s.M, "x", s.K, "x", s.N, ": ", error);
}

// Scales and sums of the integers of x: a group of zeros, of subnormals, of the largest values, and
// one that is not finite. The integers themselves lie as each instruction set wants them.
void test_integers(Report& report, int x_bits) {
  constexpr int group = 32, groups = 6, K = group * groups;
  Random random(3);
  Array x = Array::normal(random, Element::f32, K);
  for (int i = 0; i < group; ++i) {
    x.set(group + i, 0);
    x.set(2 * group + i, 1e-39);
    x.set(3 * group + i, i % 2 ? 60000 : -59000);
  }
  x.set(4 * group + 5, INFINITY);
  const int padded = integer_columns(K, group);
  Guarded codes(padded * x_bits / 8);
  Array scales(Element::f32, padded / group), sums(Element::f32, padded / group);
  kernels().quantize_rows(x.floats(), K, 1, K, group, 4, x_bits, codes.data(), scales.floats(),
                          sums.floats());
  const int top = (1 << (x_bits - 1)) - 1;
  for (int g = 0; g < padded / group; ++g) {
    double largest = 0, sum = 0;
    for (int i = g * group; i < (g + 1) * group && g < groups; ++i) {
      largest = std::fmax(largest, std::fabs(x[i]));
      sum += x[i];
    }
    largest = largest < 1e-37 ? 0 : largest;
    const bool right = g == 4 ? std::isnan(scales[g]) && std::isnan(sums[g])
                              : std::fabs(scales[g] - largest / top) <= 1e-6 * largest &&
                                    std::fabs(sums[g] - sum) <= .6 * group / top * largest + 1e-37;
    report.expect(right, "integers of ", x_bits, " bits of group ", g, ": scale ", scales[g],
                  ", sum ", sums[g]);
  }
}

// The largest sums: every code and every value of x at its end.
void test_extremes(Report& report, int bits, double sign, int activation_bits) {
  const int K = 256, N = 5, group = 128;
  Array x(Element::bf16, K), scales(Element::f32, N * 2), biases(Element::f32, N * 2);
  Array y(Element::bf16, N);
  Guarded codes(size_t(N) * K / 8 * bits);
  std::memset(codes.data(), 0xff, codes.bytes());
  std::vector<double> want(N);
  for (int k = 0; k < K; ++k) {
    x.set(k, k % group == 0 ? 2 : 2 * sign);
  }
  for (int i = 0; i < N * 2; ++i) {
    scales.set(i, 1 + i);
    biases.set(i, 0);
    want[i / 2] += (1 + i) * ((1 << bits) - 1) * 2 * (1 + (group - 1) * sign);
  }
  MatmulRequest request{};
  request.M = 1;
  request.K = K;
  request.x = x.data();
  request.x_element = Element::bf16;
  const Weights w{WeightKind::affine, bits,          group,        Element::f32,
                  codes.data(),       scales.data(), biases.data()};
  request.parts = {part_of(N, w, &y)};
  request.parts[0].activation_bits = activation_bits;
  matmul(request);
  const double error = relative_error(y, want);
  report.expect(error <= tolerance(Element::bf16), "largest sums of ", bits, " bits, x of ",
                activation_bits, ": ", error);
  report.digest(y.data(), y.bytes());
}

}  // namespace

void test_matmul(Report& report) {
  std::vector<Format> packed = {{WeightKind::mxfp4, 4, 32, Element::bf16},
                                {WeightKind::mxfp8, 8, 32, Element::bf16},
                                {WeightKind::nvfp4, 4, 16, Element::bf16}};
  const Element elements[] = {Element::f32, Element::f16, Element::bf16};
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      packed.push_back({WeightKind::affine, bits, group, elements[(bits + group / 32) % 3]});
    }
  }
  const Shape shapes[] = {{1, 128, 13}, {2, 384, 5},  {3, 128, 1},
                          {4, 256, 12}, {33, 128, 9}, {131, 640, 3}};
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int activation_bits : {8, 16}) {
      test_extremes(report, bits, 1, activation_bits);
      test_extremes(report, bits, -1, activation_bits);
    }
  }
  for (const Format& f : packed) {
    for (Element e : elements) {
      for (const Shape& s : shapes) {
        test_one(report, f, e, s, s.M % 2 == 0);
      }
    }
    if (f.kind == WeightKind::affine && f.bits < 8) {
      for (const Shape& s : {Shape{1, 1152, 7}, {2, 384, 5}, {3, 128, 1}, {19, 256, 12}}) {
        test_one(report, f, Element::bf16, s, s.M % 2 == 0, 8);
      }
    }
  }
  for (int K : {16, 48, 336}) {  // half a block at the end
    for (int M : {1, 7}) {
      test_one(report, {WeightKind::nvfp4, 4, 16, Element::bf16}, Element::bf16, {M, K, 9}, false);
    }
  }
  for (Element e : elements) {
    for (int K : {1, 7, 31, 33, 515, 1030}) {
      for (int M : {1, 3, 6}) {
        test_one(report, {WeightKind::dense, 0, 0, e}, e, {M, K, 11}, M == 3);
      }
    }
    for (int activation_bits : {8, 16}) {
      test_gate_and_up(report, e, {1, 128, 29}, activation_bits);
      test_gate_and_up(report, e, {40, 128, 29}, activation_bits);
    }
  }
  for (int activation_bits : {8, 16}) {
    test_parts(report, activation_bits);
    test_integers(report, activation_bits);
  }
}

}  // namespace native
