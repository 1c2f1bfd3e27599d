#include "gather_quantized_matmul.h"

#include <limits>
#include <stdexcept>

#include "cpu/matmul.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"

namespace mixbit {

namespace {

mx::Shape batch_of(const mx::array& x) {
  return mx::Shape(x.shape().begin(), x.shape().end() - 2);
}

mx::Shape result_shape(const mx::array& x, const mx::array& indices, const mx::array& w) {
  mx::Shape shape = indices.shape();
  shape.push_back(x.shape(-2));
  shape.push_back(w.shape(-2));
  return shape;
}

// For every index, which of x's row blocks it goes with.
std::vector<int> broadcast_blocks(const mx::Shape& batch, const mx::Shape& indices) {
  std::vector<int> blocks(1, 0);
  int stride = 1;
  const int lead = static_cast<int>(indices.size() - batch.size());
  // Innermost dimension first; each pass repeats what is there along one more dimension.
  for (int d = static_cast<int>(indices.size()) - 1; d >= 0; --d) {
    const int extent = d < lead ? 1 : batch[d - lead];
    const std::vector<int> inner = std::move(blocks);
    blocks.clear();
    blocks.reserve(inner.size() * indices[d]);
    for (int i = 0; i < indices[d]; ++i) {
      for (int block : inner) {
        blocks.push_back(block + (extent == 1 ? 0 : i * stride));
      }
    }
    stride *= extent;
  }
  return blocks;
}

mx::array build(const char* op, const mx::array& x, std::vector<mx::array> weight,
                const WeightFormat& format, const mx::array& indices, mx::StreamOrDevice s) {
  check_floating(op, "x", x);
  if (x.ndim() < 2) {
    refuse(op, "x must have at least 2 dimensions.");
  }
  check_weight(op, format, x, weight, 1);
  if (!mx::issubdtype(indices.dtype(), mx::integer)) {
    refuse(op, "indices must be integers.");
  }
  const mx::Shape batch = batch_of(x);
  bool fits = batch.size() <= indices.ndim();
  for (size_t i = 0; fits && i < batch.size(); ++i) {
    const int extent = indices.shape(static_cast<int>(indices.ndim() - batch.size() + i));
    fits = batch[i] == extent || batch[i] == 1;
  }
  if (!fits) {
    refuse(op, "the leading dimensions of x, " + shape_string(batch) +
                   ", do not broadcast to the indices' shape " + shape_string(indices.shape()) +
                   ".");
  }
  std::vector<mx::array> inputs{row_contiguous(x, s),
                                row_contiguous(mx::astype(indices, mx::uint32, s), s)};
  for (const mx::array& a : weight) {
    inputs.push_back(row_contiguous(a, s));
  }
  return mx::array(result_shape(x, indices, weight[0]), x.dtype(),
                   std::make_shared<GatherQuantizedMatmul>(mx::to_stream(s), format),
                   std::move(inputs));
}

// Rows of one expert after another: a counting sort of the row blocks by expert.
struct Grouped {
  std::vector<int> begin;  // [E + 1], into blocks
  std::vector<int> blocks;
  std::vector<int> invalid;
};

Grouped group_by_expert(const uint32_t* indices, int count, int experts) {
  Grouped g;
  g.begin.assign(experts + 1, 0);
  for (int i = 0; i < count; ++i) {
    if (indices[i] < static_cast<uint32_t>(experts)) {
      ++g.begin[indices[i] + 1];
    } else {
      g.invalid.push_back(i);
    }
  }
  for (int e = 0; e < experts; ++e) {
    g.begin[e + 1] += g.begin[e];
  }
  g.blocks.resize(g.begin[experts]);
  std::vector<int> next(g.begin.begin(), g.begin.end() - 1);
  for (int i = 0; i < count; ++i) {
    if (indices[i] < static_cast<uint32_t>(experts)) {
      g.blocks[next[indices[i]]++] = i;
    }
  }
  return g;
}

}  // namespace

mx::array gather_quantized_matmul(const mx::array& x, const mx::array& w, const mx::array& scales,
                                  const std::optional<mx::array>& biases, const mx::array& indices,
                                  int group_size, int bits, const std::string& mode,
                                  mx::StreamOrDevice s) {
  const char* op = "gather_quantized_matmul";
  const WeightFormat format = packed_format(op, bits, group_size, mode);
  return build(op, x, packed_arrays(op, format, w, scales, biases), format, indices, s);
}

mx::array gather_linear(const mx::array& x, const mx::array& w, const mx::array& indices,
                        mx::StreamOrDevice s) {
  return build("gather_linear", x, {w}, kDense, indices, s);
}

void GatherQuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  const mx::array& x = inputs[0];
  const mx::array& indices = inputs[1];
  const int experts = inputs[2].shape(0);
  const int rows = x.shape(-2);

  cpu::MatmulRequest request{};
  request.K = x.shape(-1);
  request.x = x.data<void>();
  request.x_element = element_of(x.dtype());
  cpu::MatmulPart part{};
  part.N = out.shape(-1);
  part.y = out.data<void>();
  part.y_element = element_of(out.dtype());
  request.parts = {part};
  std::vector<cpu::Weights> weights;
  for (int e = 0; e < experts; ++e) {
    weights.push_back(weights_of(format_, &inputs[2], e));
  }
  auto run = [request, rows, weights = std::move(weights), index = indices.data<uint32_t>(),
              source = broadcast_blocks(batch_of(x), indices.shape())]() mutable {
    const int count = static_cast<int>(source.size());
    const Grouped g = group_by_expert(index, count, static_cast<int>(weights.size()));
    std::vector<int> x_rows, y_rows;
    for (size_t e = 0; e < weights.size(); ++e) {
      x_rows.clear();
      y_rows.clear();
      for (int i = g.begin[e]; i < g.begin[e + 1]; ++i) {
        for (int r = 0; r < rows; ++r) {
          x_rows.push_back(source[g.blocks[i]] * rows + r);
          y_rows.push_back(g.blocks[i] * rows + r);
        }
      }
      request.M = static_cast<int>(x_rows.size());
      request.x_rows = x_rows.data();
      request.y_rows = y_rows.data();
      request.parts[0].w = weights[e];
      cpu::matmul(request);
    }
    const cpu::MatmulPart& part = request.parts[0];
    const size_t block = static_cast<size_t>(rows) * part.N;
    for (int i : g.invalid) {
      for (size_t j = 0; j < block; ++j) {
        cpu::store_element(part.y, part.y_element, i * block + j,
                           std::numeric_limits<float>::quiet_NaN());
      }
    }
  };
  mx::cpu::get_command_encoder(stream()).dispatch(std::move(run));
}

void GatherQuantizedMatmul::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("[gather_quantized_matmul] has no GPU kernel; use mx.gather_qmm there.");
}

std::vector<mx::array> GatherQuantizedMatmul::vjp(const std::vector<mx::array>& primals,
                                                  const std::vector<mx::array>& cotangents,
                                                  const std::vector<int>& argnums,
                                                  const std::vector<mx::array>&) {
  if (argnums.size() != 1 || argnums[0] != 0) {
    throw std::invalid_argument(
        "[gather_quantized_matmul] expert weights have no gradient; freeze them, or train "
        "adapters.");
  }
  const mx::array& x = primals[0];
  const mx::array& dy = cotangents[0];
  const auto s = stream();
  mx::array dx = dy;
  if (format_.kind == cpu::WeightKind::dense) {
    dx = mx::gather_mm(dy, primals[2], std::nullopt, primals[1], false, s);
  } else {
    const bool affine = format_.kind == cpu::WeightKind::affine;
    dx = mx::gather_qmm(dy, primals[2], primals[3],
                        affine ? std::optional(primals[4]) : std::nullopt, std::nullopt, primals[1],
                        false, format_.group_size, format_.bits, mode_name(format_.kind),
                        std::nullopt, false, s);
  }
  // Sum over the dimensions along which x was broadcast.
  const int extra = static_cast<int>(dx.ndim() - x.ndim());
  std::vector<int> axes;
  for (int d = 0; d < static_cast<int>(dx.ndim()) - 2; ++d) {
    if (d < extra || (x.shape(d - extra) == 1 && dx.shape(d) != 1)) {
      axes.push_back(d);
    }
  }
  if (!axes.empty()) {
    dx = mx::sum(dx, axes, false, s);
  }
  return {mx::astype(mx::reshape(dx, x.shape(), s), x.dtype(), s)};
}

bool GatherQuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  return format_ == static_cast<const GatherQuantizedMatmul&>(other).format_;
}

std::vector<mx::Shape> GatherQuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
  return {result_shape(inputs[0], inputs[1], inputs[2])};
}

}  // namespace mixbit
