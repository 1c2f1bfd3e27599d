#include "gated_delta.h"

#include <sstream>
#include <stdexcept>

#include "composed_vjp.h"
#include "cpu/gated_delta.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "state_memory.h"

namespace mixbit {

namespace {

void check_shape(const char* name, const mx::array& a, const mx::Shape& expected) {
  if (a.shape() != expected) {
    throw std::invalid_argument(std::string("[gated_delta] ") + name + " must have shape " +
                                shape_string(expected) + "; got " + shape_string(a.shape()) + ".");
  }
}

// y and the last state, out of MLX operations that have gradients. `inputs` as the primitive's.
std::vector<mx::array> composed(const std::vector<mx::array>& inputs, bool has_state, bool has_mask,
                                mx::Stream s) {
  const mx::array& v = inputs[2];
  const int B = v.shape(0), T = v.shape(1), Hv = v.shape(2), Dv = v.shape(3);
  const int Hk = inputs[0].shape(2), Dk = inputs[0].shape(3);
  auto heads = [&](const mx::array& a) {
    return mx::astype(Hv == Hk ? a : mx::repeat(a, Hv / Hk, 2, s), mx::float32, s);
  };
  const mx::array q = heads(inputs[0]), k = heads(inputs[1]);
  const mx::array values = mx::astype(v, mx::float32, s);
  auto step = [&](const mx::array& a, int t) { return mx::take(a, t, 1, s); };
  mx::array state = has_state ? inputs[5] : mx::zeros({B, Hv, Dv, Dk}, mx::float32, s);
  std::vector<mx::array> ys;
  for (int t = 0; t < T; ++t) {
    const mx::array kt = mx::expand_dims(step(k, t), 2, s);
    const mx::array decayed =
        mx::multiply(state, mx::expand_dims(step(inputs[3], t), {-2, -1}, s), s);
    const mx::array read = mx::sum(mx::multiply(decayed, kt, s), -1, false, s);
    const mx::array delta = mx::multiply(mx::subtract(step(values, t), read, s),
                                         mx::expand_dims(step(inputs[4], t), -1, s), s);
    mx::array next = mx::add(decayed, mx::multiply(mx::expand_dims(delta, -1, s), kt, s), s);
    mx::array y = mx::sum(mx::multiply(next, mx::expand_dims(step(q, t), 2, s), s), -1, false, s);
    if (has_mask) {
      const mx::array keep = mx::expand_dims(step(inputs.back(), t), {1, 2}, s);
      next = mx::where(mx::expand_dims(keep, -1, s), next, state, s);
      y = mx::where(keep, y, mx::zeros_like(y, s), s);
    }
    state = next;
    ys.push_back(y);
  }
  return {mx::astype(mx::stack(ys, 1, s), v.dtype(), s), state};
}

}  // namespace

std::pair<mx::array, mx::array> gated_delta(const mx::array& q, const mx::array& k,
                                            const mx::array& v, const mx::array& g,
                                            const mx::array& beta,
                                            const std::optional<mx::array>& state,
                                            const std::optional<mx::array>& mask,
                                            mx::StreamOrDevice s) {
  const char* op = "gated_delta";
  check_floating(op, "v", v);
  if (q.ndim() != 4 || v.ndim() != 4) {
    throw std::invalid_argument(
        "[gated_delta] q, k and v must have 4 dimensions: [B, T, heads, head_dim].");
  }
  if (q.dtype() != v.dtype() || k.dtype() != v.dtype()) {
    throw std::invalid_argument("[gated_delta] q, k and v must have the same dtype.");
  }
  const int B = v.shape(0), T = v.shape(1), Hv = v.shape(2), Dv = v.shape(3);
  const int Hk = q.shape(2), Dk = q.shape(3);
  check_shape("q", q, {B, T, Hk, Dk});
  check_shape("k", k, {B, T, Hk, Dk});
  check_shape("g", g, {B, T, Hv});
  check_shape("beta", beta, {B, T, Hv});
  if (Hk == 0 || Hv % Hk != 0) {
    std::ostringstream text;
    text << "[gated_delta] the number of value heads, " << Hv
         << ", must be a multiple of the number of key heads, " << Hk << ".";
    throw std::invalid_argument(text.str());
  }
  if (g.dtype() != mx::float32 || beta.dtype() != mx::float32) {
    // In 16 bits a gate of 0.999 is 1: the state would never decay.
    throw std::invalid_argument("[gated_delta] g and beta must be float32.");
  }
  std::vector<mx::array> inputs{row_contiguous(q, s), row_contiguous(k, s), row_contiguous(v, s),
                                row_contiguous(g, s), row_contiguous(beta, s)};
  const mx::Shape state_shape{B, Hv, Dv, Dk};
  if (state) {
    check_shape("state", *state, state_shape);
    if (state->dtype() != mx::float32) {
      throw std::invalid_argument("[gated_delta] the state must be float32.");
    }
    inputs.push_back(row_contiguous(*state, s));
  }
  if (mask) {
    check_shape("mask", *mask, {B, T});
    if (mask->dtype() != mx::bool_) {
      throw std::invalid_argument("[gated_delta] the mask must be bool.");
    }
    inputs.push_back(row_contiguous(*mask, s));
  }
  auto outputs = mx::array::make_arrays(
      {v.shape(), state_shape}, {v.dtype(), mx::float32},
      std::make_shared<GatedDelta>(mx::to_stream(s), state.has_value(), mask.has_value()),
      std::move(inputs));
  return {outputs[0], outputs[1]};
}

void GatedDelta::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  release_inputs_of_siblings(inputs, outputs);
  const mx::array& q = inputs[0];
  const mx::array& v = inputs[2];
  mx::array& y = outputs[0];
  mx::array& state = outputs[1];
  y.set_data(mx::allocator::malloc(y.nbytes()));
  set_state_data(state, has_state_ ? &inputs[5] : nullptr);
  cpu::GatedDelta p{};
  p.B = v.shape(0);
  p.T = v.shape(1);
  p.Hk = q.shape(2);
  p.Hv = v.shape(2);
  p.Dk = q.shape(3);
  p.Dv = v.shape(3);
  p.g = inputs[3].data<float>();
  p.beta = inputs[4].data<float>();
  p.state_in = has_state_ ? inputs[5].data<float>() : nullptr;
  p.state_out = state.data<float>();
  p.mask = has_mask_ ? inputs.back().data<bool>() : nullptr;
  p.y = y.data<void>();
  p.y_element = element_of(y.dtype());
  run_on_cpu(stream(), outputs[0],
             [p, q = q.data<void>(), k = inputs[1].data<void>(), v = v.data<void>(),
              element = element_of(v.dtype())] { cpu::gated_delta(p, q, k, v, element); });
}

void GatedDelta::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("[gated_delta] has no GPU kernel.");
}

std::vector<mx::array> GatedDelta::vjp(const std::vector<mx::array>& primals,
                                       const std::vector<mx::array>& cotangents,
                                       const std::vector<int>& argnums,
                                       const std::vector<mx::array>&) {
  for (int arg : argnums) {
    if (has_mask_ && arg + 1 == static_cast<int>(primals.size())) {
      throw std::invalid_argument("[gated_delta] the mask has no gradient.");
    }
  }
  auto function = [&](const std::vector<mx::array>& inputs) {
    return composed(inputs, has_state_, has_mask_, stream());
  };
  return composed_vjp(function, primals, cotangents, argnums);
}

bool GatedDelta::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const GatedDelta&>(other);
  return has_state_ == o.has_state_ && has_mask_ == o.has_mask_;
}

std::vector<mx::Shape> GatedDelta::output_shapes(const std::vector<mx::array>& inputs) {
  const mx::array& v = inputs[2];
  return {v.shape(), {v.shape(0), v.shape(2), v.shape(3), inputs[0].shape(3)}};
}

}  // namespace mixbit
