#include "delta_net.h"

#include "cpu/gated_delta.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "state_memory.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "delta_net";

void check(const char* name, const mx::array& a, const mx::Shape& shape, mx::Dtype dtype) {
  if (a.shape() != shape) {
    refuse(kOp, std::string(name) + " must have shape " + shape_string(shape) + "; got " +
                    shape_string(a.shape()) + ".");
  }
  if (a.dtype() != dtype) {
    refuse(kOp, std::string(name) + " has the wrong dtype; see the operation's description.");
  }
}

void check_parameter(const char* name, const mx::array& a, const mx::Shape& shape) {
  check_floating(kOp, name, a);
  check(name, a, shape, a.dtype());
}

mx::Shape state_shape(int B, int T, int Hv, int Dv, int Dk, bool keep_steps) {
  return keep_steps ? mx::Shape{B, T, Hv, Dv, Dk} : mx::Shape{B, Hv, Dv, Dk};
}

cpu::Parameter parameter(const mx::array& a) {
  return {a.data<void>(), element_of(a.dtype())};
}

}  // namespace

std::tuple<mx::array, mx::array, mx::array> delta_net(
    const mx::array& qkv, const std::optional<mx::array>& z, const mx::array& a,
    const std::optional<mx::array>& b, const mx::array& conv_weight, const mx::array& A_log,
    const mx::array& dt_bias, const mx::array& norm_weight, const DeltaNetState& state,
    int num_k_heads, float eps, bool keep_steps, mx::StreamOrDevice s) {
  check_floating(kOp, "qkv", qkv);
  const bool interleaved = !z;
  if (z.has_value() != b.has_value()) {
    refuse(kOp, "z and b must both be given, or both be interleaved with the others.");
  }
  if (qkv.ndim() != 3 || a.ndim() != 3 || norm_weight.ndim() != 1) {
    refuse(kOp, "qkv must be [B, T, channels], a [B, T, value heads] and norm_weight [head_dim].");
  }
  const int B = qkv.shape(0), T = qkv.shape(1), Hk = num_k_heads;
  const int Hv = interleaved ? a.shape(2) / 2 : a.shape(2), Dv = norm_weight.shape(0);
  if (Hk <= 0 || Hv % Hk != 0) {
    refuse(kOp, "the number of value heads, " + std::to_string(Hv) +
                    ", must be a multiple of the number of key heads, " + std::to_string(Hk) + ".");
  }
  const int channels = qkv.shape(2), values = (interleaved ? 2 : 1) * Hv * Dv;
  const int Dk = (channels - values) / 2 / Hk, C = 2 * Hk * Dk + Hv * Dv;
  if (Dk <= 0 || 2 * Hk * Dk + values != channels) {
    refuse(kOp, "qkv has " + std::to_string(channels) + " channels, which do not divide into " +
                    std::to_string(Hk) + " heads of q and k beside " + std::to_string(Hv) + " of " +
                    std::to_string(Dv) + (interleaved ? " values and z." : " values."));
  }
  if (conv_weight.ndim() != 3 || conv_weight.shape(1) < 1 || conv_weight.shape(1) > cpu::kMaxTaps) {
    refuse(kOp, "conv_weight must be [channels, taps, 1] with at most 16 taps.");
  }
  if (keep_steps && T == 0) {
    refuse(kOp, "there are no steps to keep the states of.");
  }
  const int taps = conv_weight.shape(1);
  if (interleaved) {
    check("a", a, {B, T, 2 * Hv}, mx::float32);
  } else {
    check("z", *z, {B, T, Hv * Dv}, qkv.dtype());
    check("a", a, {B, T, Hv}, mx::float32);
    check("b", *b, {B, T, Hv}, mx::float32);
  }
  check_parameter("conv_weight", conv_weight, {C, taps, 1});
  check_parameter("A_log", A_log, {Hv});
  check_parameter("dt_bias", dt_bias, {Hv});
  check_parameter("norm_weight", norm_weight, {Dv});

  std::vector<mx::array> inputs{qkv,         z.value_or(qkv), a,       b.value_or(a),
                                conv_weight, A_log,           dt_bias, norm_weight};
  const mx::Shape conv_shape{B, taps - 1, C};
  if (state.conv) {
    check("the convolution's state", *state.conv, conv_shape, qkv.dtype());
    inputs.push_back(*state.conv);
  }
  if (state.recurrent) {
    check("the recurrent state", *state.recurrent, state_shape(B, T, Hv, Dv, Dk, false),
          mx::float32);
    inputs.push_back(*state.recurrent);
  }
  if (state.mask) {
    check("the mask", *state.mask, {B, T}, mx::bool_);
    inputs.push_back(*state.mask);
  }
  if (state.lengths) {
    check("lengths", *state.lengths, {B}, mx::int32);
    inputs.push_back(*state.lengths);
  }
  for (mx::array& input : inputs) {
    input = row_contiguous(input, s);
  }
  if (interleaved) {
    inputs[1] = inputs[0];
    inputs[3] = inputs[2];
  }
  const DeltaNet::Present present{state.conv.has_value(), state.recurrent.has_value(),
                                  state.mask.has_value(), state.lengths.has_value()};
  auto outputs = mx::array::make_arrays(
      {{B, T, Hv * Dv}, conv_shape, state_shape(B, T, Hv, Dv, Dk, keep_steps)},
      {qkv.dtype(), qkv.dtype(), mx::float32},
      std::make_shared<DeltaNet>(mx::to_stream(s), interleaved, present, num_k_heads, eps,
                                 keep_steps),
      std::move(inputs));
  gpu::require(outputs);
  return {outputs[0], outputs[1], outputs[2]};
}

void DeltaNet::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  release_inputs_of_siblings(inputs, outputs);
  const mx::array& qkv = inputs[0];
  size_t next = 8;
  auto optional = [&](bool there) { return there ? &inputs[next++] : nullptr; };
  const mx::array* conv = optional(present_.conv);
  const mx::array* recurrent = optional(present_.recurrent);
  const mx::array* mask = optional(present_.mask);
  const mx::array* lengths = optional(present_.lengths);

  mx::array& y = outputs[0];
  mx::array& conv_out = outputs[1];
  mx::array& state_out = outputs[2];
  y.set_data(mx::allocator::malloc(y.nbytes()));
  conv_out.set_data(mx::allocator::malloc(conv_out.nbytes()));
  set_state_data(state_out, keep_steps_ ? nullptr : recurrent);

  cpu::DeltaNetLayer layer{};
  cpu::DeltaNet& net = layer.net;
  net.B = qkv.shape(0);
  net.T = qkv.shape(1);
  net.Hk = num_k_heads_;
  net.Hv = state_out.shape(-3);
  net.Dk = state_out.shape(-1);
  net.Dv = state_out.shape(-2);
  net.taps = inputs[4].shape(1);
  net.element = element_of(qkv.dtype());
  net.layout = delta_net_layout(interleaved_, net.Hk, net.Hv, net.Dk, net.Dv);
  net.qkv = qkv.data<void>();
  net.conv_state = conv == nullptr ? nullptr : conv->data<void>();
  net.mask = mask == nullptr ? nullptr : mask->data<bool>();
  net.z = inputs[1].data<void>();
  net.eps = eps_;
  net.y = y.data<void>();
  layer.a = inputs[2].data<float>();
  layer.b = inputs[3].data<float>();
  layer.conv_weight = parameter(inputs[4]);
  layer.A_log = parameter(inputs[5]);
  layer.dt_bias = parameter(inputs[6]);
  layer.norm_weight = parameter(inputs[7]);
  layer.state_in = recurrent == nullptr ? nullptr : recurrent->data<float>();
  layer.state_out = state_out.data<float>();
  layer.keep_steps = keep_steps_;
  layer.lengths = lengths == nullptr ? nullptr : lengths->data<int>();
  layer.conv_state_out = conv_out.data<void>();
  run_on_cpu(stream(), y, [layer] { cpu::delta_net(layer); });
}

bool DeltaNet::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const DeltaNet&>(other);
  return interleaved_ == o.interleaved_ && present_ == o.present_ &&
         num_k_heads_ == o.num_k_heads_ && eps_ == o.eps_ && keep_steps_ == o.keep_steps_;
}

std::vector<mx::Shape> DeltaNet::output_shapes(const std::vector<mx::array>& inputs) {
  const int B = inputs[0].shape(0), T = inputs[0].shape(1);
  const int C = inputs[4].shape(0), taps = inputs[4].shape(1);
  const int Hv = inputs[5].shape(0), Dv = inputs[7].shape(0);
  const int Dk = (C - Hv * Dv) / 2 / num_k_heads_;
  return {{B, T, Hv * Dv}, {B, taps - 1, C}, state_shape(B, T, Hv, Dv, Dk, keep_steps_)};
}

}  // namespace mixbit
