// Small cases with which a kernel is tried before it serves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/launch_plan.h"

namespace mixbit::gpu {

// At most so much of an operation: an odd piece beyond a tile of the kernels.
inline constexpr int kTrialRows = 33, kTrialColumns = 40, kTrialExperts = 8;

bool same_kernels(const LaunchPlan& a, const LaunchPlan& b);

// Arrays of fixed noise, evaluated on the CPU.
class Noise {
 public:
  // In (−size, size).
  mx::array values(const mx::Shape& shape, mx::Dtype dtype, float size = 1);

  // Rows [..., K], or a norm's weight for such, whose products with weight() are of about one, so
  // that nothing overflows 16 bits.
  mx::array rows(const mx::Shape& shape, mx::Dtype dtype);

  // Weights of the shape [..., N, K], finite and of about one; `dtype` is that of dense ones, or of
  // affine scales.
  std::vector<mx::array> weight(const WeightFormat& format, mx::Dtype dtype,
                                const mx::Shape& shape);

  // uint32 in [0, end).
  mx::array integers(const mx::Shape& shape, uint32_t end);

 private:
  uint32_t next();

  uint32_t state_ = 1;
};

// What is wrong with `got` against `expected`, arrays alike in shape and type, or "". Floats may
// differ by roundings in their type and by another order of sums in fp32.
MIXBIT_API std::string difference(const std::vector<mx::array>& got,
                                  const std::vector<mx::array>& expected);

}  // namespace mixbit::gpu
