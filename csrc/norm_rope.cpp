#include "norm_rope.h"

#include <stdexcept>

#include "composed_vjp.h"
#include "cpu/norm_rope.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "mlx/fast.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "norm_rope";

}  // namespace

mx::array norm_rope(const mx::array& x, const Norm& norm, int dims, float base, float scale,
                    const RopeOffset& offset, mx::StreamOrDevice s) {
  check_floating(kOp, "x", x);
  check_floating(kOp, "the norm's weight", norm.weight);
  if (x.ndim() != 4) {
    refuse(kOp, "x must be [B, steps, heads, head_dim].");
  }
  if (norm.weight.shape() != mx::Shape{x.shape(3)}) {
    refuse(kOp, "the norm's weight must have shape " + shape_string({x.shape(3)}) + "; got " +
                    shape_string(norm.weight.shape()) + ".");
  }
  if (dims < 2 || dims % 2 != 0 || dims > x.shape(3)) {
    refuse(kOp, "dims must be even, at least 2 and at most the head_dim " +
                    std::to_string(x.shape(3)) + "; got " + std::to_string(dims) + ".");
  }
  std::vector<mx::array> inputs{x, row_contiguous(norm.weight, s)};
  Rotation rotation{dims, base, scale, 0};
  if (const auto* all = std::get_if<int>(&offset)) {
    rotation.offset = *all;
  } else {
    const mx::array& rows = std::get<mx::array>(offset);
    if (rows.size() != 1 && rows.shape() != mx::Shape{x.shape(0)}) {
      refuse(kOp, "offset must be one integer or have shape " + shape_string({x.shape(0)}) +
                      "; got " + shape_string(rows.shape()) + ".");
    }
    const mx::array each = mx::broadcast_to(mx::astype(rows, mx::int32, s), {x.shape(0)}, s);
    inputs.push_back(row_contiguous(each, s));
  }
  return mx::array(swapped(x.shape()), x.dtype(),
                   std::make_shared<NormRope>(mx::to_stream(s), norm.eps, rotation),
                   std::move(inputs));
}

void NormRope::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  const mx::array& x = inputs[0];
  const mx::array& weight = inputs[1];
  cpu::NormRope p{};
  p.B = x.shape(0);
  p.T = x.shape(1);
  p.H = x.shape(2);
  p.D = x.shape(3);
  p.x = x.data<void>();
  for (int i = 0; i < 4; ++i) {
    p.strides[i] = x.strides(i);
  }
  p.element = element_of(x.dtype());
  p.weight = weight.data<void>();
  p.weight_element = element_of(weight.dtype());
  p.eps = eps_;
  p.dims = rotation_.dims;
  p.base = rotation_.base;
  p.scale = rotation_.scale;
  p.offset = rotation_.offset;
  p.offsets = inputs.size() > 2 ? inputs[2].data<int>() : nullptr;
  p.y = out.data<void>();
  run_on_cpu(stream(), out, [p] { cpu::norm_rope(p); });
}

void NormRope::eval_gpu(const std::vector<mx::array>&, mx::array&) {
  throw std::runtime_error("[norm_rope] has no GPU kernel; use mx.fast.rms_norm and rope there.");
}

std::vector<mx::array> NormRope::vjp(const std::vector<mx::array>& primals,
                                     const std::vector<mx::array>& cotangents,
                                     const std::vector<int>& argnums,
                                     const std::vector<mx::array>&) {
  for (int arg : argnums) {
    if (arg > 1) {
      throw std::invalid_argument("[norm_rope] the offset has no gradient.");
    }
  }
  auto composed = [&](const std::vector<mx::array>& inputs) {
    const mx::array normed = mx::fast::rms_norm(inputs[0], inputs[1], eps_, stream());
    const mx::array heads = mx::swapaxes(normed, 1, 2, stream());
    const Rotation& r = rotation_;
    return std::vector<mx::array>{inputs.size() > 2
                                      ? mx::fast::rope(heads, r.dims, false, r.base, r.scale,
                                                       inputs[2], std::nullopt, stream())
                                      : mx::fast::rope(heads, r.dims, false, r.base, r.scale,
                                                       r.offset, std::nullopt, stream())};
  };
  return composed_vjp(composed, primals, cotangents, argnums);
}

bool NormRope::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const NormRope&>(other);
  return eps_ == o.eps_ && rotation_ == o.rotation_;
}

std::vector<mx::Shape> NormRope::output_shapes(const std::vector<mx::array>& inputs) {
  return {swapped(inputs[0].shape())};
}

}  // namespace mixbit
