#include "quantized_matmul.h"

#include <functional>
#include <numeric>

#include "composed_vjp.h"
#include "cpu/matmul.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "mlx/fast.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "quantized_matmul";

struct Operands {
  std::vector<QuantizedMatmul::Part> parts;
  std::vector<mx::array> inputs;
};

void check_vector(const char* what, const mx::array& a, int size) {
  check_floating(kOp, what, a);
  const mx::Shape expected{size};
  if (a.shape() != expected) {
    refuse(kOp, std::string(what) + " must have shape " + shape_string(expected) + "; got " +
                    shape_string(a.shape()) + ".");
  }
}

Operands operands_of(const mx::array& x, const std::vector<Weight>& weights,
                     const std::optional<Norm>& norm, mx::StreamOrDevice s) {
  check_floating(kOp, "x", x);
  Operands operands{{}, {row_contiguous(x, s)}};
  for (const Weight& weight : weights) {
    check_weight(kOp, weight.format, x, weight.arrays, 0);
    for (const mx::array& a : weight.arrays) {
      operands.inputs.push_back(row_contiguous(a, s));
    }
    if (weight.bias) {
      check_vector("bias", *weight.bias, weight.arrays[0].shape(0));
      operands.inputs.push_back(row_contiguous(*weight.bias, s));
    }
    operands.parts.push_back({weight.format, weight.bias.has_value(), weight.activation_bits});
  }
  if (norm) {
    check_vector("norm", norm->weight, x.shape(-1));
    operands.inputs.push_back(row_contiguous(norm->weight, s));
  }
  return operands;
}

mx::Shape product_shape(const mx::array& x, int N) {
  mx::Shape shape = x.shape();
  shape.back() = N;
  return shape;
}

// The products out of MLX operations that have gradients in all but packed weights.
std::vector<mx::array> composed(const std::vector<mx::array>& inputs,
                                const std::vector<QuantizedMatmul::Part>& parts,
                                const QuantizedMatmul::Fusion& fusion,
                                const std::vector<mx::Dtype>& dtypes, mx::Stream s) {
  const size_t norm_at = inputs.size() - 1 - fusion.residual;
  const mx::array x =
      fusion.norm ? mx::fast::rms_norm(inputs[0], inputs[norm_at], fusion.eps, s) : inputs[0];
  std::vector<mx::array> products;
  size_t next = 1;
  for (const auto& part : parts) {
    const mx::array* a = &inputs[next];
    const auto& f = part.format;
    mx::array y = f.kind == cpu::WeightKind::dense
                      ? mx::matmul(x, mx::swapaxes(a[0], -1, -2, s), s)
                      : mx::quantized_matmul(
                            x, a[0], a[1],
                            f.kind == cpu::WeightKind::affine ? std::optional(a[2]) : std::nullopt,
                            true, f.group_size, f.bits, mode_name(f.kind), s);
    if (part.has_bias) {
      y = mx::add(y, a[f.num_arrays()], s);
    }
    products.push_back(y);
    next += part.num_arrays();
  }
  if (fusion.swiglu) {
    const mx::array gate = products[0];
    products = {mx::multiply(mx::multiply(gate, mx::sigmoid(gate, s), s), products[1], s)};
  }
  if (fusion.residual) {
    products[0] = mx::add(products[0], inputs.back(), s);
  }
  for (size_t i = 0; i < products.size(); ++i) {
    products[i] = mx::astype(products[i], dtypes[i], s);
  }
  return products;
}

}  // namespace

Weight::Weight(const mx::array& w, const std::optional<mx::array>& scales,
               const std::optional<mx::array>& biases, const std::optional<mx::array>& bias,
               int group_size, int bits, const std::string& mode,
               const std::optional<mx::Dtype>& dtype, int activation_bits)
    : format(scales ? packed_format(kOp, bits, group_size, mode) : kDense),
      arrays(scales ? packed_arrays(kOp, format, w, *scales, biases) : std::vector{w}),
      bias(bias),
      dtype(dtype),
      activation_bits(activation_bits) {
  if (!scales && biases) {
    refuse(kOp, "a dense weight takes no biases.");
  }
  if (activation_bits != 8 && activation_bits != 16) {
    refuse(kOp, "activation_bits must be 8 or 16, not " + std::to_string(activation_bits) + ".");
  }
}

std::vector<mx::array> matmul(const mx::array& x, const std::vector<Weight>& weights,
                              const std::optional<Norm>& norm,
                              const std::optional<mx::array>& residual, mx::StreamOrDevice s) {
  Operands operands = operands_of(x, weights, norm, s);
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const Weight& weight : weights) {
    shapes.push_back(product_shape(x, weight.arrays[0].shape(0)));
    dtypes.push_back(weight.dtype.value_or(x.dtype()));
    if (!mx::issubdtype(dtypes.back(), mx::floating) || dtypes.back() == mx::float64) {
      refuse(kOp, "a product comes in float32, float16 or bfloat16.");
    }
  }
  if (residual) {
    check_floating(kOp, "residual", *residual);
    if (shapes.size() != 1 || residual->shape() != shapes[0]) {
      refuse(kOp, "a residual has the shape of the product and goes with a single weight.");
    }
    operands.inputs.push_back(row_contiguous(*residual, s));
  }
  const QuantizedMatmul::Fusion fusion{false, norm.has_value(), residual.has_value(),
                                       norm ? norm->eps : 0};
  auto products = mx::array::make_arrays(
      std::move(shapes), dtypes,
      std::make_shared<QuantizedMatmul>(mx::to_stream(s), std::move(operands.parts), fusion),
      std::move(operands.inputs));
  gpu::require(products);
  return products;
}

mx::array swiglu(const mx::array& x, const Weight& gate, const Weight& up,
                 const std::optional<Norm>& norm, mx::StreamOrDevice s) {
  const int N = gate.arrays[0].shape(0);
  if (up.arrays[0].shape(0) != N) {
    refuse(kOp, "gate and up must have the same number of rows.");
  }
  Operands operands = operands_of(x, {gate, up}, norm, s);
  const QuantizedMatmul::Fusion fusion{true, norm.has_value(), false, norm ? norm->eps : 0};
  const mx::array y(
      product_shape(x, N), x.dtype(),
      std::make_shared<QuantizedMatmul>(mx::to_stream(s), std::move(operands.parts), fusion),
      std::move(operands.inputs));
  gpu::require({y});
  return y;
}

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs,
                               std::vector<mx::array>& outputs) {
  for (mx::array& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
  const mx::array& x = inputs[0];
  cpu::MatmulRequest request{};
  request.K = x.shape(-1);
  request.M = std::accumulate(x.shape().begin(), x.shape().end() - 1, 1, std::multiplies<>());
  request.x = x.data<void>();
  request.x_element = element_of(x.dtype());
  request.swiglu = fusion_.swiglu;
  if (fusion_.norm) {
    const mx::array& weight = inputs[inputs.size() - 1 - fusion_.residual];
    request.norm = weight.data<void>();
    request.norm_element = element_of(weight.dtype());
    request.eps = fusion_.eps;
  }
  size_t next = 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    mx::array& out = outputs[fusion_.swiglu ? 0 : i];
    cpu::MatmulPart part{};
    part.N = out.shape(-1);
    part.w = weights_of(parts_[i].format, &inputs[next]);
    part.activation_bits = parts_[i].activation_bits;
    if (parts_[i].has_bias) {
      const mx::array& bias = inputs[next + parts_[i].format.num_arrays()];
      part.bias = bias.data<void>();
      part.bias_element = element_of(bias.dtype());
    }
    if (fusion_.residual) {
      part.residual = inputs.back().data<void>();
      part.residual_element = element_of(inputs.back().dtype());
    }
    part.y = out.data<void>();
    part.y_element = element_of(out.dtype());
    request.parts.push_back(part);
    next += parts_[i].num_arrays();
  }
  run_on_cpu(stream(), outputs[0], [request = std::move(request)] { cpu::matmul(request); });
}

std::vector<mx::array> QuantizedMatmul::vjp(const std::vector<mx::array>& primals,
                                            const std::vector<mx::array>& cotangents,
                                            const std::vector<int>& argnums,
                                            const std::vector<mx::array>& outputs) {
  std::vector<bool> has_gradient{true};
  for (const Part& part : parts_) {
    for (int i = 0; i < part.num_arrays(); ++i) {
      has_gradient.push_back(part.format.kind == cpu::WeightKind::dense ||
                             i >= part.format.num_arrays());
    }
  }
  has_gradient.resize(primals.size(), true);  // norm and residual
  for (int arg : argnums) {
    if (!has_gradient[arg]) {
      refuse(kOp, "packed weights have no gradient; freeze them, or train adapters.");
    }
  }
  std::vector<mx::Dtype> dtypes;
  for (const mx::array& out : outputs) {
    dtypes.push_back(out.dtype());
  }
  auto function = [&](const std::vector<mx::array>& inputs) {
    return composed(inputs, parts_, fusion_, dtypes, stream());
  };
  return composed_vjp(function, primals, cotangents, argnums);
}

bool QuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const QuantizedMatmul&>(other);
  return parts_ == o.parts_ && fusion_ == o.fusion_;
}

std::vector<mx::Shape> QuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
  std::vector<mx::Shape> shapes;
  size_t next = 1;
  for (const Part& part : parts_) {
    shapes.push_back(product_shape(inputs[0], inputs[next].shape(0)));
    next += part.num_arrays();
  }
  if (fusion_.swiglu) {
    shapes.pop_back();
  }
  return shapes;
}

}  // namespace mixbit
