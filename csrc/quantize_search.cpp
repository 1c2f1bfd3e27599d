#include "quantize_search.h"

#include <stdexcept>

#include "cpu/quantize_search.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "quantize_search";

std::vector<mx::Shape> packed_shapes(const mx::array& w, int group_size, int bits) {
  mx::Shape codes = w.shape(), scales = w.shape();
  codes.back() = w.shape(-1) / 32 * bits;
  scales.back() = w.shape(-1) / group_size;
  return {codes, scales, scales};
}

}  // namespace

std::tuple<mx::array, mx::array, mx::array> quantize_search(
    const mx::array& w, const std::optional<mx::array>& importance, int group_size, int bits,
    mx::Dtype dtype, mx::StreamOrDevice s) {
  check_floating(kOp, "w", w);
  packed_format(kOp, bits, group_size, "affine");
  if (w.ndim() < 2 || w.shape(-1) % group_size != 0) {
    refuse(kOp, "w must be [..., N, K] with K a multiple of the group size " +
                    std::to_string(group_size) + "; its shape is " + shape_string(w.shape()) + ".");
  }
  if (dtype != mx::float32 && dtype != mx::float16 && dtype != mx::bfloat16) {
    refuse(kOp, "scales must be float32, float16 or bfloat16.");
  }
  std::vector<mx::array> inputs{row_contiguous(w, s)};
  if (importance) {
    mx::Shape channels = w.shape();
    channels.erase(channels.end() - 2);
    check_floating(kOp, "importance", *importance);
    if (importance->shape() != channels) {
      refuse(kOp, "importance must have shape " + shape_string(channels) + "; got " +
                      shape_string(importance->shape()) + ".");
    }
    inputs.push_back(row_contiguous(mx::astype(*importance, mx::float32, s), s));
  }
  const auto outputs = mx::array::make_arrays(
      packed_shapes(w, group_size, bits), {mx::uint32, dtype, dtype},
      std::make_shared<QuantizeSearch>(mx::to_stream(s), group_size, bits), inputs);
  return {outputs[0], outputs[1], outputs[2]};
}

void QuantizeSearch::eval_cpu(const std::vector<mx::array>& inputs,
                              std::vector<mx::array>& outputs) {
  for (mx::array& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
  const mx::array& w = inputs[0];
  cpu::QuantizeSearch p{};
  p.K = w.shape(-1);
  p.rows = w.size() / p.K;
  p.bits = bits_;
  p.group_size = group_size_;
  p.w = w.data<void>();
  p.element = element_of(w.dtype());
  p.importance = inputs.size() > 1 ? inputs[1].data<float>() : nullptr;
  p.rows_per_importance = w.shape(-2);
  p.codes = outputs[0].data<uint32_t>();
  p.scales = outputs[1].data<void>();
  p.biases = outputs[2].data<void>();
  p.scale_element = element_of(outputs[1].dtype());
  run_on_cpu(stream(), outputs[0], [p] { cpu::quantize_search(p); });
}

void QuantizeSearch::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("[quantize_search] runs on the CPU only; give it a CPU stream.");
}

bool QuantizeSearch::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const QuantizeSearch&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_;
}

std::vector<mx::Shape> QuantizeSearch::output_shapes(const std::vector<mx::array>& inputs) {
  return packed_shapes(inputs[0], group_size_, bits_);
}

}  // namespace mixbit
