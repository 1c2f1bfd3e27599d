#include "attention.h"

#include <stdexcept>

#include "composed_vjp.h"
#include "cpu/attention.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "mlx/fast.h"
#include "mlx/utils.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "attention";

cpu::AttentionInput input_of(const mx::array& a) {
  return {a.data<void>(), a.strides(0), a.strides(1), a.strides(2), a.strides(3)};
}

}  // namespace

mx::array attention(const mx::array& q, const mx::array& k, const mx::array& v, float scale,
                    bool causal, const std::optional<mx::array>& mask,
                    const std::optional<mx::array>& gate, mx::StreamOrDevice s) {
  check_floating(kOp, "q", q);
  if (q.ndim() != 4 || k.ndim() != 4) {
    refuse(kOp, "q, k and v must have 4 dimensions: [B, heads, steps, head_dim].");
  }
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype()) {
    refuse(kOp, "q, k and v must have the same dtype.");
  }
  if (v.shape() != k.shape()) {
    refuse(kOp, "v must have k's shape " + shape_string(k.shape()) + "; got " +
                    shape_string(v.shape()) + ".");
  }
  if (k.shape(0) != q.shape(0) || k.shape(3) != q.shape(3) || k.shape(1) == 0 ||
      q.shape(1) % k.shape(1) != 0) {
    refuse(kOp, "k of shape " + shape_string(k.shape()) + " does not fit q of shape " +
                    shape_string(q.shape()) +
                    ": batch and head_dim must agree, and q's heads be a multiple of k's.");
  }
  if (causal && k.shape(2) < q.shape(2)) {
    refuse(kOp, "causal attention needs as many keys as queries.");
  }
  if (causal && mask) {
    refuse(kOp, "give a mask or causal=True, not both.");
  }
  std::vector<mx::array> inputs{q, k, v};
  if (mask) {
    if (mask->dtype() != mx::bool_) {
      check_floating(kOp, "a mask that is not bool", *mask);
    }
    const mx::Shape full{q.shape(0), q.shape(1), q.shape(2), k.shape(2)};
    if (mx::broadcast_shapes(mask->shape(), full) != full) {
      refuse(kOp, "the mask of shape " + shape_string(mask->shape()) + " does not broadcast to " +
                      shape_string(full) + ".");
    }
    inputs.push_back(mx::broadcast_to(*mask, full, s));
  }
  if (gate) {
    if (gate->shape() != swapped(q.shape()) || gate->dtype() != q.dtype()) {
      refuse(kOp, "the gate must have shape " + shape_string(swapped(q.shape())) +
                      " and q's dtype; got " + shape_string(gate->shape()) + ".");
    }
    inputs.push_back(*gate);
  }
  const auto kind = causal ? Attention::Mask::causal
                    : mask ? Attention::Mask::array
                           : Attention::Mask::none;
  return mx::array(swapped(q.shape()), q.dtype(),
                   std::make_shared<Attention>(mx::to_stream(s), scale, kind), std::move(inputs));
}

void Attention::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  const mx::array& q = inputs[0];
  const mx::array& k = inputs[1];
  cpu::Attention p{};
  p.B = q.shape(0);
  p.H = q.shape(1);
  p.T = q.shape(2);
  p.D = q.shape(3);
  p.Hk = k.shape(1);
  p.S = k.shape(2);
  p.q = input_of(q);
  p.k = input_of(k);
  p.v = input_of(inputs[2]);
  p.element = element_of(q.dtype());
  p.scale = scale_;
  p.causal = mask_ == Mask::causal;
  size_t next = 3;
  if (mask_ == Mask::array) {
    const mx::array& mask = inputs[next++];
    p.mask = mask.data<void>();
    p.mask_is_bool = mask.dtype() == mx::bool_;
    p.mask_element = element_of(mask.dtype());
    for (int i = 0; i < 4; ++i) {
      p.mask_strides[i] = mask.strides(i);
    }
  }
  if (next < inputs.size()) {
    const mx::array& gate = inputs[next];  // steps before heads
    p.gate = {gate.data<void>(), gate.strides(0), gate.strides(2), gate.strides(1),
              gate.strides(3)};
  }
  p.y = out.data<void>();
  run_on_cpu(stream(), out, [p] { cpu::attention(p); });
}

void Attention::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error(
      "[attention] has no GPU kernel; use mx.fast.scaled_dot_product_attention there.");
}

std::vector<mx::array> Attention::vjp(const std::vector<mx::array>& primals,
                                      const std::vector<mx::array>& cotangents,
                                      const std::vector<int>& argnums,
                                      const std::vector<mx::array>&) {
  const bool masked = mask_ == Mask::array;
  for (int arg : argnums) {
    if (masked && arg == 3) {
      throw std::invalid_argument("[attention] the mask has no gradient.");
    }
  }
  auto composed = [&](const std::vector<mx::array>& inputs) {
    const auto mask = masked ? std::optional(inputs[3]) : std::nullopt;
    const char* mode = mask_ == Mask::causal ? "causal" : masked ? "array" : "";
    mx::array y = mx::swapaxes(
        mx::fast::scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], scale_, mode, mask,
                                               std::nullopt, false, stream()),
        1, 2, stream());
    if (const size_t gate = masked ? 4 : 3; gate < inputs.size()) {
      y = mx::multiply(y, mx::sigmoid(inputs[gate], stream()), stream());
    }
    return std::vector<mx::array>{y};
  };
  return composed_vjp(composed, primals, cotangents, argnums);
}

bool Attention::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Attention&>(other);
  return scale_ == o.scale_ && mask_ == o.mask_;
}

std::vector<mx::Shape> Attention::output_shapes(const std::vector<mx::array>& inputs) {
  return {swapped(inputs[0].shape())};
}

}  // namespace mixbit
