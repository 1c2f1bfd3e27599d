#include "quantized_matmul.h"

#include <numeric>
#include <stdexcept>

#include "cpu/matmul.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"

namespace mixbit {

namespace {

mx::array build(const char* op, const mx::array& x, std::vector<mx::array> weight,
                const WeightFormat& format, const std::optional<mx::array>& bias,
                mx::StreamOrDevice s) {
  check_floating(op, "x", x);
  check_weight(op, format, x, weight, 0);
  const int N = weight[0].shape(0);
  std::vector<mx::array> inputs{row_contiguous(x, s)};
  for (const mx::array& a : weight) {
    inputs.push_back(row_contiguous(a, s));
  }
  if (bias) {
    check_floating(op, "bias", *bias);
    if (bias->shape() != mx::Shape{N}) {
      throw std::invalid_argument("[" + std::string(op) + "] bias must have shape (" +
                                  std::to_string(N) + ",); got " + shape_string(bias->shape()) +
                                  ".");
    }
    inputs.push_back(row_contiguous(*bias, s));
  }
  mx::Shape shape = x.shape();
  shape.back() = N;
  return mx::array(std::move(shape), x.dtype(),
                   std::make_shared<QuantizedMatmul>(mx::to_stream(s), format, bias.has_value()),
                   std::move(inputs));
}

}  // namespace

mx::array quantized_matmul(const mx::array& x, const mx::array& w, const mx::array& scales,
                           const std::optional<mx::array>& biases,
                           const std::optional<mx::array>& bias, int group_size, int bits,
                           const std::string& mode, mx::StreamOrDevice s) {
  const char* op = "quantized_matmul";
  const WeightFormat format = packed_format(op, bits, group_size, mode);
  std::vector<mx::array> weight{w, scales};
  if (biases) {
    weight.push_back(*biases);
  }
  if (static_cast<int>(weight.size()) != format.num_arrays()) {
    throw std::invalid_argument(std::string("[quantized_matmul] mode '") + mode +
                                (biases ? "' takes no biases." : "' needs biases."));
  }
  return build(op, x, std::move(weight), format, bias, s);
}

mx::array linear(const mx::array& x, const mx::array& w, const std::optional<mx::array>& bias,
                 mx::StreamOrDevice s) {
  return build("linear", x, {w}, kDense, bias, s);
}

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  const mx::array& x = inputs[0];
  cpu::MatmulRequest request{};
  request.K = x.shape(-1);
  request.N = out.shape(-1);
  request.M = request.N == 0 ? 0 : static_cast<int>(out.size() / request.N);
  request.x = x.data<void>();
  request.x_element = element_of(x.dtype());
  request.w = weights_of(format_, &inputs[1]);
  if (has_bias_) {
    request.bias = inputs.back().data<void>();
    request.bias_element = element_of(inputs.back().dtype());
  }
  request.y = out.data<void>();
  request.y_element = element_of(out.dtype());
  mx::cpu::get_command_encoder(stream()).dispatch([request] { cpu::matmul(request); });
}

void QuantizedMatmul::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("[quantized_matmul] has no GPU kernel; use mx.quantized_matmul there.");
}

std::vector<mx::array> QuantizedMatmul::vjp(const std::vector<mx::array>& primals,
                                            const std::vector<mx::array>& cotangents,
                                            const std::vector<int>& argnums,
                                            const std::vector<mx::array>&) {
  const mx::array& dy = cotangents[0];
  const int bias = has_bias_ ? static_cast<int>(primals.size()) - 1 : -1;
  std::vector<mx::array> grads;
  for (int arg : argnums) {
    if (arg == 0 && format_.kind == cpu::WeightKind::dense) {
      grads.push_back(mx::astype(mx::matmul(dy, primals[1], stream()), dy.dtype(), stream()));
    } else if (arg == 0) {
      const bool affine = format_.kind == cpu::WeightKind::affine;
      grads.push_back(mx::astype(
          mx::quantized_matmul(dy, primals[1], primals[2],
                               affine ? std::optional(primals[3]) : std::nullopt, false,
                               format_.group_size, format_.bits, mode_name(format_.kind), stream()),
          dy.dtype(), stream()));
    } else if (arg == bias) {
      std::vector<int> rows(dy.ndim() - 1);
      std::iota(rows.begin(), rows.end(), 0);
      grads.push_back(
          mx::astype(mx::sum(dy, rows, false, stream()), primals[arg].dtype(), stream()));
    } else if (arg == 1 && format_.kind == cpu::WeightKind::dense) {
      const int N = dy.shape(-1);
      const int K = primals[0].shape(-1);
      grads.push_back(
          mx::astype(mx::matmul(mx::transpose(mx::reshape(dy, {-1, N}, stream()), stream()),
                                mx::reshape(primals[0], {-1, K}, stream()), stream()),
                     primals[1].dtype(), stream()));
    } else {
      throw std::invalid_argument(
          "[quantized_matmul] packed weights have no gradient; freeze them, or train adapters.");
    }
  }
  return grads;
}

bool QuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const QuantizedMatmul&>(other);
  return format_ == o.format_ && has_bias_ == o.has_bias_;
}

std::vector<mx::Shape> QuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
  mx::Shape shape = inputs[0].shape();
  shape.back() = inputs[1].shape(0);
  return {shape};
}

}  // namespace mixbit
