#include "gpu/trial.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "mlx/transforms.h"

namespace mixbit::gpu {

namespace {

size_t count(const mx::Shape& shape) {
  size_t n = 1;
  for (int extent : shape) {
    n *= extent;
  }
  return n;
}

// Of the largest value.
float tolerance(mx::Dtype dtype) {
  if (!mx::issubdtype(dtype, mx::floating)) {
    return 0;
  }
  const float half_unit = dtype == mx::float32 ? 0 : dtype == mx::float16 ? 0x1p-11f : 0x1p-8f;
  return 4 * half_unit + 1e-4f;
}

}  // namespace

bool same_kernels(const LaunchPlan& a, const LaunchPlan& b) {
  return std::equal(a.launches.begin(), a.launches.end(), b.launches.begin(), b.launches.end(),
                    [](const Launch& x, const Launch& y) { return x.kernel == y.kernel; });
}

uint32_t Noise::next() {
  state_ = state_ * 1664525u + 1013904223u;  // Numerical Recipes
  return state_ ^ (state_ >> 16);            // the low bits alone have short periods
}

mx::array Noise::values(const mx::Shape& shape, mx::Dtype dtype, float size) {
  std::vector<float> values(count(shape));
  std::generate(values.begin(), values.end(),
                [&] { return size * (std::ldexp(static_cast<float>(next() >> 8), -23) - 1); });
  mx::array a = mx::astype(mx::array(values.data(), shape, mx::float32), dtype, mx::Device::cpu);
  mx::eval(a);
  return a;
}

mx::array Noise::rows(const mx::Shape& shape, mx::Dtype dtype) {
  return values(shape, dtype, 3 / std::sqrt(static_cast<float>(shape.back())));
}

std::vector<mx::array> Noise::weight(const WeightFormat& format, mx::Dtype dtype,
                                     const mx::Shape& shape) {
  using cpu::WeightKind;
  if (format.kind == WeightKind::dense) {
    return {values(shape, dtype)};
  }
  mx::Shape words = shape, groups = shape;
  words.back() = shape.back() * format.bits / 32;
  groups.back() = shape.back() / format.group_size;
  std::vector<uint32_t> codes(count(words));
  // This bit off keeps clear of E4M3's NaN, which no quantised weight holds.
  const uint32_t finite = format.kind == WeightKind::mxfp8 ? 0xbfbfbfbfu : ~0u;
  std::generate(codes.begin(), codes.end(), [&] { return next() & finite; });
  std::vector<mx::array> arrays{mx::array(codes.data(), words, mx::uint32)};
  if (format.kind == WeightKind::affine) {
    arrays.push_back(values(groups, dtype, 2.0f / static_cast<float>(1 << format.bits)));
    arrays.push_back(values(groups, dtype));
    return arrays;
  }
  // Near 1: E8M0 has its 1 at 127, E4M3 at 56.
  const uint32_t one = format.kind == WeightKind::nvfp4 ? 56 : 127;
  std::vector<uint8_t> scales(count(groups));
  std::generate(scales.begin(), scales.end(),
                [&] { return static_cast<uint8_t>(one - 2 + next() % 4); });
  arrays.push_back(mx::array(scales.data(), groups, mx::uint8));
  return arrays;
}

mx::array Noise::integers(const mx::Shape& shape, uint32_t end) {
  std::vector<uint32_t> values(count(shape));
  std::generate(values.begin(), values.end(), [&] { return next() % end; });
  return mx::array(values.data(), shape, mx::uint32);
}

std::string difference(const std::vector<mx::array>& got, const std::vector<mx::array>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    mx::array a = mx::astype(got[i], mx::float32, mx::Device::cpu);
    mx::array b = mx::astype(expected[i], mx::float32, mx::Device::cpu);
    mx::eval(a, b);
    const float* x = a.data<float>();
    const float* y = b.data<float>();
    float largest = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      largest = std::max(largest, std::fabs(y[j]));
    }
    const float allowed = largest * tolerance(expected[i].dtype());
    for (size_t j = 0; j < b.size(); ++j) {
      if (!(std::fabs(x[j] - y[j]) <= allowed)) {
        std::ostringstream text;
        text << "it computes " << x[j] << " instead of " << y[j];
        return text.str();
      }
    }
  }
  return "";
}

}  // namespace mixbit::gpu
