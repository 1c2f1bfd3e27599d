#include "gather_quantized_matmul.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "composed_vjp.h"
#include "cpu/matmul.h"
#include "cpu/thread_pool.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"

namespace mixbit {

namespace {

mx::Shape batch_of(const mx::array& x) {
  return mx::Shape(x.shape().begin(), x.shape().end() - 2);
}

using Epilogue = GatherQuantizedMatmul::Epilogue;

constexpr const char* kOp = "gather_matmul";

mx::Shape result_shape(const mx::array& x, const mx::array& indices, const mx::array& w,
                       Epilogue epilogue) {
  mx::Shape shape = indices.shape();
  if (epilogue == Epilogue::mix) {
    shape.pop_back();
  }
  shape.push_back(x.shape(-2));
  shape.push_back(w.shape(-2));
  return shape;
}

// x with a block for each index, or with one for all along the last dimension of the indices: other
// ways to broadcast are not worth a kernel's while.
mx::array blocks_of(const mx::array& x, const mx::array& indices, mx::StreamOrDevice s) {
  mx::Shape batch = batch_of(x), shape = indices.shape();
  batch.insert(batch.begin(), shape.size() - batch.size(), 1);
  mx::Shape shared = shape;
  if (!shared.empty()) {
    shared.back() = 1;
  }
  if (batch == shape || batch == shared) {
    return row_contiguous(x, s);
  }
  shape.insert(shape.end(), x.shape().end() - 2, x.shape().end());
  return row_contiguous(mx::broadcast_to(x, shape, s), s);
}

mx::array build(const mx::array& x, const std::vector<Weight>& weights, const mx::array& indices,
                const std::optional<mx::array>& scores, Epilogue epilogue, mx::StreamOrDevice s) {
  check_floating(kOp, "x", x);
  if (x.ndim() < 2) {
    refuse(kOp, "x must have at least 2 dimensions.");
  }
  if (!mx::issubdtype(indices.dtype(), mx::integer)) {
    refuse(kOp, "indices must be integers.");
  }
  const mx::Shape batch = batch_of(x);
  bool fits = batch.size() <= indices.ndim();
  for (size_t i = 0; fits && i < batch.size(); ++i) {
    const int extent = indices.shape(static_cast<int>(indices.ndim() - batch.size() + i));
    fits = batch[i] == extent || batch[i] == 1;
  }
  if (!fits) {
    refuse(kOp, "the leading dimensions of x, " + shape_string(batch) +
                    ", do not broadcast to the indices' shape " + shape_string(indices.shape()) +
                    ".");
  }
  std::vector<mx::array> inputs{blocks_of(x, indices, s),
                                row_contiguous(mx::astype(indices, mx::uint32, s), s)};
  if (scores) {
    check_floating(kOp, "scores", *scores);
    if (scores->shape() != indices.shape() || indices.ndim() == 0) {
      refuse(kOp, "scores must have the indices' shape " + shape_string(indices.shape()) +
                      ", of at least one dimension; got " + shape_string(scores->shape()) + ".");
    }
    inputs.push_back(row_contiguous(mx::astype(*scores, mx::float32, s), s));
  }
  std::vector<QuantizedMatmul::Part> parts;
  for (const Weight& weight : weights) {
    check_weight(kOp, weight.format, x, weight.arrays, 1);
    if (weight.bias) {
      refuse(kOp, "expert weights take no bias.");
    }
    for (const mx::array& a : weight.arrays) {
      inputs.push_back(row_contiguous(a, s));
    }
    parts.push_back({weight.format, false, weight.activation_bits});
  }
  const mx::array y(
      result_shape(x, indices, weights[0].arrays[0], epilogue), x.dtype(),
      std::make_shared<GatherQuantizedMatmul>(mx::to_stream(s), std::move(parts), epilogue),
      std::move(inputs));
  gpu::require({y});
  return y;
}

// The same out of MLX operations that have gradients in x and the scores.
mx::array composed(const std::vector<mx::array>& inputs,
                   const std::vector<QuantizedMatmul::Part>& parts, Epilogue epilogue,
                   mx::Dtype dtype, mx::Stream s) {
  const mx::array &x = inputs[0], &indices = inputs[1];
  std::vector<mx::array> products;
  const mx::array* a = &inputs[epilogue == Epilogue::mix ? 3 : 2];
  for (const QuantizedMatmul::Part& part : parts) {
    const WeightFormat& f = part.format;
    products.push_back(
        f.kind == cpu::WeightKind::dense
            ? mx::gather_mm(x, mx::swapaxes(a[0], -1, -2, s), std::nullopt, indices, false, s)
            : mx::gather_qmm(x, a[0], a[1],
                             f.kind == cpu::WeightKind::affine ? std::optional(a[2]) : std::nullopt,
                             std::nullopt, indices, true, f.group_size, f.bits, mode_name(f.kind),
                             std::nullopt, false, s));
    a += f.num_arrays();
  }
  mx::array y = products[0];
  if (epilogue == Epilogue::swiglu) {
    y = mx::multiply(mx::multiply(y, mx::sigmoid(y, s), s), products[1], s);
  } else if (epilogue == Epilogue::mix) {
    y = mx::sum(mx::multiply(y, mx::expand_dims(inputs[2], {-1, -2}, s), s), -3, false, s);
  }
  return mx::astype(y, dtype, s);
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

// How the products of a token's slots become one, for tokens of `slots` blocks of `values` each.
struct Mix {
  int slots;  // 0: they do not
  size_t values;
  const float* scores;  // [tokens, slots]
  void* y;              // [tokens, values]
  cpu::Element y_element;
};

void mix_blocks(const Mix& mix, const float* products, int tokens) {
  cpu::parallel_for(tokens, [&](int t) {
    const float* scores = mix.scores + static_cast<size_t>(t) * mix.slots;
    const float* block = products + t * mix.slots * mix.values;
    for (size_t i = 0; i < mix.values; ++i) {
      float sum = 0;
      for (int slot = 0; slot < mix.slots; ++slot) {
        sum += scores[slot] * block[slot * mix.values + i];
      }
      cpu::store_element(mix.y, mix.y_element, t * mix.values + i, sum);
    }
  });
}

}  // namespace

int slots_of(const mx::array& x, const mx::array& indices, bool mixed) {
  const bool tokens = indices.ndim() == 1 && !mixed && !shares_blocks(x, indices);
  return indices.ndim() == 0 || tokens ? 1 : indices.shape(-1);
}

bool shares_blocks(const mx::array& x, const mx::array& indices) {
  const mx::Shape batch = batch_of(x);
  const size_t blocks = std::accumulate(batch.begin(), batch.end(), size_t{1}, std::multiplies<>());
  return blocks != indices.size();
}

mx::array gather_matmul(const mx::array& x, const Weight& w, const mx::array& indices,
                        const std::optional<mx::array>& scores, mx::StreamOrDevice s) {
  return build(x, {w}, indices, scores, scores ? Epilogue::mix : Epilogue::none, s);
}

mx::array gather_swiglu(const mx::array& x, const Weight& gate, const Weight& up,
                        const mx::array& indices, mx::StreamOrDevice s) {
  const mx::array &a = gate.arrays[0], &b = up.arrays[0];
  if (a.ndim() != b.ndim() || a.shape(0) != b.shape(0) || a.shape(-2) != b.shape(-2)) {
    refuse(kOp, "gate and up must have the same number of experts and of rows.");
  }
  return build(x, {gate, up}, indices, std::nullopt, Epilogue::swiglu, s);
}

void GatherQuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  const mx::array& x = inputs[0];
  const mx::array& indices = inputs[1];
  const bool mixed = epilogue_ == Epilogue::mix;
  const mx::array* first = &inputs[mixed ? 3 : 2];
  const int experts = first->shape(0);
  const int rows = x.shape(-2);

  cpu::MatmulRequest request{};
  request.K = x.shape(-1);
  request.x = x.data<void>();
  request.x_element = element_of(x.dtype());
  request.swiglu = epilogue_ == Epilogue::swiglu;
  request.parts.resize(parts_.size());
  // An expert has few rows of a prompt, too; whether there are few is asked of all tokens.
  const size_t tokens = indices.size() / std::max(slots_of(x, indices, mixed), 1);
  const bool few = tokens * rows <= cpu::kIntegerDirectRows;
  for (size_t i = 0; i < parts_.size(); ++i) {
    cpu::MatmulPart& part = request.parts[i];
    part.N = out.shape(-1);
    part.activation_bits = few ? parts_[i].activation_bits : 16;
    part.y = out.data<void>();
    part.y_element = element_of(out.dtype());
  }
  std::vector<std::vector<cpu::Weights>> weights(experts);  // of each expert, one a part
  for (const QuantizedMatmul::Part& part : parts_) {
    for (int e = 0; e < experts; ++e) {
      weights[e].push_back(weights_of(part.format, first, e));
    }
    first += part.num_arrays();
  }
  Mix mix{};
  if (mixed) {
    mix = {indices.shape(-1), static_cast<size_t>(rows) * out.shape(-1), inputs[2].data<float>(),
           out.data<void>(), element_of(out.dtype())};
  }
  auto run = [request, rows, mix, weights = std::move(weights), index = indices.data<uint32_t>(),
              count = static_cast<int>(indices.size()),
              sharing = shares_blocks(x, indices) ? indices.shape(-1) : 1]() mutable {
    const Grouped g = group_by_expert(index, count, static_cast<int>(weights.size()));
    const size_t block = static_cast<size_t>(rows) * request.parts[0].N;
    std::vector<float> products;
    if (mix.slots != 0) {
      products.resize(count * block);
      request.parts[0].y = products.data();
      request.parts[0].y_element = cpu::Element::f32;
    }
    std::vector<int> x_rows, y_rows;
    for (size_t e = 0; e < weights.size(); ++e) {
      x_rows.clear();
      y_rows.clear();
      for (int i = g.begin[e]; i < g.begin[e + 1]; ++i) {
        for (int r = 0; r < rows; ++r) {
          x_rows.push_back(g.blocks[i] / sharing * rows + r);
          y_rows.push_back(g.blocks[i] * rows + r);
        }
      }
      request.M = static_cast<int>(x_rows.size());
      request.x_rows = x_rows.data();
      request.y_rows = y_rows.data();
      for (size_t part = 0; part < request.parts.size(); ++part) {
        request.parts[part].w = weights[e][part];
      }
      cpu::matmul(request);
    }
    const cpu::MatmulPart& part = request.parts[0];
    for (int i : g.invalid) {
      for (size_t j = 0; j < block; ++j) {
        cpu::store_element(part.y, part.y_element, i * block + j,
                           std::numeric_limits<float>::quiet_NaN());
      }
    }
    if (mix.slots != 0) {
      mix_blocks(mix, products.data(), count / mix.slots);
    }
  };
  run_on_cpu(stream(), out, std::move(run));
}

std::vector<mx::array> GatherQuantizedMatmul::vjp(const std::vector<mx::array>& primals,
                                                  const std::vector<mx::array>& cotangents,
                                                  const std::vector<int>& argnums,
                                                  const std::vector<mx::array>& outputs) {
  for (int arg : argnums) {
    if (arg != 0 && (epilogue_ != Epilogue::mix || arg != 2)) {
      refuse(kOp, "expert weights have no gradient; freeze them, or train adapters.");
    }
  }
  auto function = [&](const std::vector<mx::array>& inputs) {
    return std::vector{composed(inputs, parts_, epilogue_, outputs[0].dtype(), stream())};
  };
  return composed_vjp(function, primals, cotangents, argnums);
}

bool GatherQuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const GatherQuantizedMatmul&>(other);
  return parts_ == o.parts_ && epilogue_ == o.epilogue_;
}

std::vector<mx::Shape> GatherQuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
  const mx::array& w = inputs[epilogue_ == Epilogue::mix ? 3 : 2];
  return {result_shape(inputs[0], inputs[1], w, epilogue_)};
}

}  // namespace mixbit
