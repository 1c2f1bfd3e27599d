// What GatedDeltaNet does around the gated delta rule: convolution, gates, norm. fp32 throughout.
#pragma once

#include <metal_stdlib>

#include "elements.h"
#include "params.h"

using namespace metal;

// ---- the convolution ----------------------------------------------------------------------------

// A channel of q, k and v: where it is among all, and in a step of the input.
struct Channel {
  uint index, place;

  METAL_FUNC Channel operator+(uint i) const { return {index + i, place + i}; }
};

// The steps of one row of the batch as the convolution sees them, those before the first included.
// W is the type of its weights.
template <typename T, typename W, short taps>
struct Steps {
  uint T_, C, pitch, present;
  size_t first;              // the row's first step, among those of all rows
  size_t first_before;       // likewise of the taps − 1 before it
  const device T* qkv;       // [T, pitch]
  const device T* before;    // [taps − 1, C]
  const device uchar* mask;  // [T]
  const device W* weight;    // [C, taps]

  METAL_FUNC Steps(constant DeltaNetParams& p, uint batch, const device T* qkv,
                   const device T* before, const device uchar* mask, const device W* weight)
      : T_(p.T),
        C(2 * p.Hk * p.Dk + p.Hv * p.Dv),
        pitch(p.layout.qkv_step),
        present(p.present),
        first(size_t(batch) * p.T),
        first_before(size_t(batch) * (taps - 1)),
        qkv(qkv + first * pitch),
        before(before + first_before * C),
        mask(mask + first),
        weight(weight) {}

  METAL_FUNC bool seen(uint t) const { return !(present & kMask) || mask[t]; }

  // Zero where nothing was or will be, or a mask hides it; step >= 1 − taps.
  METAL_FUNC float input(int step, Channel channel) const {
    if (step < 0) {
      const size_t row = step + (taps - 1);
      return present & kConvState ? to_float(before[row * C + channel.index]) : 0.0f;
    }
    return uint(step) < T_ && seen(step) ? to_float(qkv[size_t(step) * pitch + channel.place])
                                         : 0.0f;
  }

  // SiLU of the convolution at `run` steps from t on.
  template <short run>
  METAL_FUNC void mix(uint t, Channel channel, thread float* mixed) const {
    float x[taps - 1 + run];
    UNROLL for (short j = 0; j < taps - 1 + run; ++j) {
      x[j] = input(int(t) + j - (taps - 1), channel);
    }
    UNROLL for (short i = 0; i < run; ++i) {
      mixed[i] = 0.0f;
    }
    UNROLL for (short j = 0; j < taps; ++j) {
      const float w = to_float(weight[channel.index * taps + j]);
      UNROLL for (short i = 0; i < run; ++i) {
        mixed[i] = fma(x[i + j], w, mixed[i]);
      }
    }
    UNROLL for (short i = 0; i < run; ++i) {
      mixed[i] = silu(mixed[i]);
    }
  }

  // Writes what the convolution has to remember of so many channels, each by one threadgroup: the
  // inputs before the row's end.
  METAL_FUNC void keep(device T* out, const device int* lengths, uint batch, Channel channel,
                       uint count, uint thread_index, uint threads) const {
    const int end = present & kLengths ? clamp(lengths[batch], 0, int(T_)) : int(T_);
    for (short j = 0; j < taps - 1; ++j) {
      for (uint i = thread_index; i < count; i += threads) {
        const Channel c = channel + i;
        out[(first_before + j) * C + c.index] = T(input(end - (taps - 1) + j, c));
      }
    }
  }
};

// The first channels of heads. All channels are q of all key heads, k of all, v of all value heads.
struct Channels {
  constant DeltaNetParams& p;
  uint hk, hv;

  METAL_FUNC Channels(constant DeltaNetParams& p, uint hk, uint hv) : p(p), hk(hk), hv(hv) {}

  METAL_FUNC Channel q() const { return {hk * p.Dk, place_of(p.layout.q, hk, 0, p.Dk)}; }
  METAL_FUNC Channel k() const { return {(p.Hk + hk) * p.Dk, place_of(p.layout.k, hk, 0, p.Dk)}; }
  METAL_FUNC Channel v() const {
    return {2 * p.Hk * p.Dk + hv * p.Dv, place_of(p.layout.v, hk, hv - hk * p.share, p.Dv)};
  }
};

// What the reference adds to the sum of the squares of q and k.
constant constexpr float kSquaresEps = 1e-6f;

// ---- the gates ----------------------------------------------------------------------------------

// log(1 + e^x) to a few units in the last place. MSL has no log1p: with u = 1 + e rounded,
// e · log(u) / (u − 1) is log(1 + e), as the quotient hardly changes with u (Goldberg 1991,
// theorem 4).
METAL_FUNC float softplus(float x) {
  const float e = exp(-abs(x));
  const float u = 1.0f + e;
  return max(x, 0.0f) + (u == 1.0f ? e : e * (log(u) / (u - 1.0f)));
}

// e^x − 1 for x <= 0, likewise (Kahan's). MSL has no expm1.
METAL_FUNC float expm1_negative(float x) {
  const float e = exp(x);
  return e == 1.0f ? x : e == 0.0f ? -1.0f : (e - 1.0f) * (x / log(e));
}

struct GateWeights {
  Array A_log, dt_bias;  // [Hv]

  // Log of the decay g.
  METAL_FUNC float log_decay(float a, uint hv) const {
    return -exp(A_log[hv]) * softplus(a + dt_bias[hv]);
  }
};

METAL_FUNC float sigmoid(float x) {
  return 1.0f / (1.0f + exp(-x));
}

// ---- the norm -----------------------------------------------------------------------------------

// y = RMSNorm(o) · weight · SiLU(z), by one SIMD group; 0 where the step is masked.
template <typename T>
METAL_FUNC void gated_norm(const threadgroup float* o, const device T* z, Array weight, uint count,
                           float eps, bool seen, device T* y, ushort lane) {
  float squares = 0.0f;
  for (uint i = lane; i < count; i += 32) {
    squares = fma(o[i], o[i], squares);
  }
  const float factor = rsqrt(simd_sum(squares) / float(count) + eps);
  for (uint i = lane; i < count; i += 32) {
    y[i] = T(seen ? o[i] * factor * weight[i] * silu(to_float(z[i])) : 0.0f);
  }
}
