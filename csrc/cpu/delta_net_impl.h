// What GatedDeltaNet does before and after the gated delta rule, written once over Vec. Lanes run
// along channels; everything between the 16-bit inputs and the 16-bit output is fp32.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// SiLU of the convolution at one step over `count` channels; rows[j] is the input of tap j or null
// where that step is masked, weights[j · C] its weights.
template <class T>
static inline void convolve(const T* const* rows, int taps, const float* weights, int C, int count,
                            float* out) {
  int c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    Vec sum = Vec::zero();
    for (int j = 0; j < taps; ++j) {
      if (rows[j] != nullptr) {
        sum = Vec::fma(Vec::load(rows[j] + c), Vec::load(weights + j * C + c), sum);
      }
    }
    silu(sum).store(out + c);
  }
  for (; c < count; ++c) {
    float sum = 0.f;
    for (int j = 0; j < taps; ++j) {
      if (rows[j] != nullptr) {
        sum += to_float(rows[j][c]) * weights[j * C + c];
      }
    }
    out[c] = silu(sum);
  }
}

template <class T>
static void mix_head(const DeltaNet& p, int b, int head, int t0, int t1) {
  const int C = 2 * p.Hk * p.Dk + p.Hv * p.Dv;
  const bool is_value = head >= 2 * p.Hk;
  const int count = is_value ? p.Dv : p.Dk;
  const int share = p.Hv / p.Hk, hv = head - 2 * p.Hk;
  const int channel = is_value ? 2 * p.Hk * p.Dk + hv * p.Dv : head * p.Dk;
  const size_t pitch = p.layout.qkv_step;
  const uint32_t place =
      is_value ? place_of(p.layout.v, hv / share, hv % share, p.Dv)
               : place_of(head < p.Hk ? p.layout.q : p.layout.k, head % p.Hk, 0, p.Dk);
  const T* qkv = static_cast<const T*>(p.qkv) + static_cast<size_t>(b) * p.T * pitch + place;
  const T* before = p.conv_state == nullptr
                        ? nullptr
                        : static_cast<const T*>(p.conv_state) +
                              static_cast<size_t>(b) * (p.taps - 1) * C + channel;
  float* to = is_value ? p.v + (static_cast<size_t>(b) * p.Hv + hv) * p.T * p.Dv
                       : (head < p.Hk ? p.q : p.k) +
                             (static_cast<size_t>(b) * p.Hk + head % p.Hk) * p.T * p.Dk;
  const float q_scale = head < p.Hk ? 1.f / __builtin_sqrtf(static_cast<float>(p.Dk)) : 1.f;
  for (int t = t0; t < t1; ++t) {
    const T* rows[kMaxTaps];
    for (int j = 0; j < p.taps; ++j) {
      const int step = t - (p.taps - 1) + j;
      if (step < 0) {
        rows[j] = before == nullptr ? nullptr : before + static_cast<size_t>(step + p.taps - 1) * C;
      } else {
        const bool seen = p.mask == nullptr || p.mask[b * p.T + step];
        rows[j] = seen ? qkv + step * pitch : nullptr;
      }
    }
    float* out = to + static_cast<size_t>(t) * count;
    convolve(rows, p.taps, p.taps_first + channel, C, count, out);
    if (!is_value) {
      // The reference adds its epsilon to the sum of squares, not to their mean.
      scale_row(out, count, q_scale / __builtin_sqrtf(dot(out, out, count) + 1e-6f));
    }
  }
}

static void delta_net_mix(const DeltaNet& p, int b, int head, int t0, int t1) {
  with_element(p.element, [&]<class T>(T) { mix_head<T>(p, b, head, t0, t1); });
}

template <class T>
static inline void gated_norm(const float* o, const T* z, const float* weight, int count, float eps,
                              T* y) {
  const float inverse = 1.f / __builtin_sqrtf(dot(o, o, count) / count + eps);
  const Vec factor = Vec::broadcast(inverse);
  int c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    const Vec normed = Vec::load(o + c) * factor * Vec::load(weight + c);
    store(normed * silu(Vec::load(z + c)), y + c);
  }
  for (; c < count; ++c) {
    store_element(y, element_type(y), c, o[c] * inverse * weight[c] * silu(to_float(z[c])));
  }
}

static void delta_net_norm(const DeltaNet& p, int t0, int t1) {
  with_element(p.element, [&]<class T>(T) {
    const int share = p.Hv / p.Hk;
    for (size_t step = t0; step < static_cast<size_t>(t1); ++step) {
      const T* z = static_cast<const T*>(p.z) + step * p.layout.z_step;
      T* y = static_cast<T*>(p.y) + step * p.Hv * p.Dv;
      const float* o = p.o + (step / p.T * p.Hv * p.T + step % p.T) * p.Dv;
      for (int hv = 0; hv < p.Hv; ++hv, y += p.Dv, o += static_cast<size_t>(p.T) * p.Dv) {
        gated_norm(o, z + place_of(p.layout.z, hv / share, hv % share, p.Dv), p.norm_weight, p.Dv,
                   p.eps, y);
      }
    }
  });
}

static void swiglu(const float* gate, const float* up, int rows, int count, void* y, Element e,
                   size_t y_offset, size_t y_stride) {
  with_element(e, [&]<class T>(T) {
    T* out = static_cast<T*>(y) + y_offset;
    for (int r = 0; r < rows; ++r, gate += count, up += count, out += y_stride) {
      int c = 0;
      for (; c + kLanes <= count; c += kLanes) {
        store(silu(Vec::load(gate + c)) * Vec::load(up + c), out + c);
      }
      for (; c < count; ++c) {
        store_element(out, e, c, silu(gate[c]) * up[c]);
      }
    }
  });
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
