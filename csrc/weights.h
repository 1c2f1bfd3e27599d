// Weight matrices as the operations see them: which arrays they consist of, whether those fit, and
// how the kernels are told.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernels.h"
#include "mlx/array.h"
#include "mlx/ops.h"
#include "mlx/utils.h"

// Exported from the library so that the Python module can link against it.
#define MIXBIT_API __attribute__((visibility("default")))

namespace mixbit {

namespace mx = mlx::core;

// Storage of a weight [..., N, K], without the arrays.
struct WeightFormat {
  cpu::WeightKind kind;
  int bits = 0;
  int group_size = 0;

  bool operator==(const WeightFormat&) const = default;

  // Arrays that hold it: the weight itself, scales, biases.
  int num_arrays() const;
  // Values of K behind `columns` of the stored array.
  int64_t in_dims(int64_t columns) const;
};

inline constexpr WeightFormat kDense{cpu::WeightKind::dense};

// Throws std::invalid_argument: "[op] what".
[[noreturn]] void refuse(std::string_view op, const std::string& what);

// The format that (bits, group_size, mode) name. Throws std::invalid_argument, prefixed with `op`,
// for a combination that MLX does not have.
MIXBIT_API WeightFormat packed_format(std::string_view op, int bits, int group_size,
                                      const std::string& mode);

// MLX's name of a packed kind.
const char* mode_name(cpu::WeightKind kind);

// The arrays of a packed weight; refuses biases that the format lacks, or their absence.
std::vector<mx::array> packed_arrays(std::string_view op, const WeightFormat& format,
                                     const mx::array& w, const mx::array& scales,
                                     const std::optional<mx::array>& biases);

// Throws std::invalid_argument unless the arrays hold a weight of this format with `leading`
// dimensions before [N, K], and K equals x's last dimension.
void check_weight(std::string_view op, const WeightFormat& format, const mx::array& x,
                  const std::vector<mx::array>& arrays, int leading);

void check_floating(std::string_view op, std::string_view name, const mx::array& a);

// An RMSNorm of x that is part of the product: x · weight / √(mean x² + eps), weight [K], in fp32
// and not rounded before the product.
struct Norm {
  mx::array weight;
  float eps;
};

// `a` itself where it is known to be row-contiguous, else a node that makes it so.
mx::array row_contiguous(const mx::array& a, mx::StreamOrDevice s);

// Lets an input of a primitive with several outputs be donated to one of them: each output holds
// all the inputs, so with two of them nothing would ever be donatable. For the begin of an eval,
// with its own arguments; the outputs that are not evaluated through need their inputs no more.
void release_inputs_of_siblings(const std::vector<mx::array>& inputs,
                                std::vector<mx::array>& outputs);

MIXBIT_API cpu::Element element_of(const mx::Dtype& dtype);
mx::Dtype dtype_of(cpu::Element element);

// The type of a dense weight, or of affine scales; float32 where there is no such array.
cpu::Element weight_element(const WeightFormat& format, const mx::array* arrays);

// Pointers into evaluated, row-contiguous arrays, of matrix `index` of a stack of them.
cpu::Weights weights_of(const WeightFormat& format, const mx::array* arrays, size_t index = 0);

std::string shape_string(const mx::Shape& shape);

// [B, steps, heads, head_dim] from [B, heads, steps, head_dim], or the other way round.
mx::Shape swapped(const mx::Shape& shape);

}  // namespace mixbit
