// Scaled dot-product attention with a running softmax, written once over Vec.
//
// A task owns one key-value head and a tile of query steps: all query heads that share the head, so
// that a block of keys and values is converted to fp32 once for all of them. Per block of kKeyBlock
// keys: scores (rows x keys), running maximum, exponentials, rescaled sums, product with the
// values. Nothing of size T x S is ever held.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// R rows of queries against C keys of D values.
template <int R, int C>
static inline void score_tile(const float* q, const float* k, int D, float* scores) {
  Vec sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      sums[r][c] = Vec::zero();
    }
  }
  for (int d = 0; d < D; d += kLanes) {
    Vec key[C];
    for (int c = 0; c < C; ++c) {
      key[c] = Vec::load(k + c * D + d);
    }
    for (int r = 0; r < R; ++r) {
      const Vec query = Vec::load(q + r * D + d);
      for (int c = 0; c < C; ++c) {
        sums[r][c] = Vec::fma(query, key[c], sums[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      scores[r * kKeyBlock + c] = sums[r][c].sum();
    }
  }
}

template <int R>
static inline void score_rows(const float* q, const float* k, int D, int keys, float* scores) {
  int c = 0;
  for (; c + 2 <= keys; c += 2) {
    score_tile<R, 2>(q, k + c * D, D, scores + c);
  }
  for (; c < keys; ++c) {
    score_tile<R, 1>(q, k + c * D, D, scores + c);
  }
}

// out[r] = factor[r] · out[r] + Σ_key weight[r][key] v[key], for R rows.
template <int R>
static inline void weigh_rows(const float* weights, const float* v, int D, int keys,
                              const float* factors, float* out) {
  for (int d = 0; d < D; d += 2 * kLanes) {
    Vec low[R], high[R];
    for (int r = 0; r < R; ++r) {
      const Vec factor = Vec::broadcast(factors[r]);
      low[r] = Vec::load(out + r * D + d) * factor;
      high[r] = Vec::load(out + r * D + d + kLanes) * factor;
    }
    for (int key = 0; key < keys; ++key) {
      const Vec v0 = Vec::load(v + key * D + d), v1 = Vec::load(v + key * D + d + kLanes);
      for (int r = 0; r < R; ++r) {
        const Vec weight = Vec::broadcast(weights[r * kKeyBlock + key]);
        low[r] = Vec::fma(v0, weight, low[r]);
        high[r] = Vec::fma(v1, weight, high[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      low[r].store(out + r * D + d);
      high[r].store(out + r * D + d + kLanes);
    }
  }
}

// Scores of one row become weights exp(score − maximum); returns what earlier sums must be scaled
// by.
static inline float soften(float* scores, int keys, float& maximum, float& sum) {
  float largest = maximum;
  for (int c = 0; c < keys; ++c) {
    largest = scores[c] > largest ? scores[c] : largest;
  }
  for (int c = keys; c < round_up(keys, kLanes); ++c) {
    scores[c] = -__builtin_inff();
  }
  if (largest == -__builtin_inff()) {  // all masked so far
    __builtin_memset(scores, 0, keys * sizeof(float));
    return 1.f;
  }
  const Vec shift = Vec::broadcast(-largest);
  Vec total = Vec::zero();
  for (int c = 0; c < keys; c += kLanes) {
    const Vec weight = exp(Vec::load(scores + c) + shift);
    weight.store(scores + c);
    total = total + weight;
  }
  const float factor = __builtin_expf(maximum - largest);
  sum = sum * factor + total.sum();
  maximum = largest;
  return factor;
}

// `count` vectors of D values, `stride` elements apart, as fp32 rows padded with zeros to `padded`.
template <class T>
static inline void gather_rows(const T* src, int64_t stride, int64_t step, int count, int D,
                               int padded, float scale, float* dst) {
  for (int i = 0; i < count; ++i, src += stride, dst += padded) {
    for (int d = 0; d < D; ++d) {
      dst[d] = to_float(src[d * step]) * scale;
    }
    for (int d = D; d < padded; ++d) {
      dst[d] = 0.f;
    }
  }
}

static inline void gather(const AttentionInput& a, Element e, int64_t offset, int count, int D,
                          int padded, float scale, float* dst) {
  with_element(e, [&]<class T>(T) {
    gather_rows(static_cast<const T*>(a.data) + offset, a.step_stride, a.value_stride, count, D,
                padded, scale, dst);
  });
}

static inline void apply_mask(const Attention& p, int b, int head, int step, int first_key,
                              int keys, float* scores) {
  if (p.causal) {
    const int last = step + p.S - p.T;  // newest key this step may see
    for (int c = last - first_key + 1 < 0 ? 0 : last - first_key + 1; c < keys; ++c) {
      scores[c] = -__builtin_inff();
    }
  }
  if (p.mask == nullptr) {
    return;
  }
  int64_t at = b * p.mask_strides[0] + head * p.mask_strides[1] + step * p.mask_strides[2] +
               first_key * p.mask_strides[3];
  for (int c = 0; c < keys; ++c, at += p.mask_strides[3]) {
    if (p.mask_is_bool) {
      scores[c] = static_cast<const bool*>(p.mask)[at] ? scores[c] : -__builtin_inff();
    } else {
      scores[c] += load_element(p.mask, p.mask_element, at);
    }
  }
}

static void attention(const Attention& p, int b, int kv_head, int step0, int steps,
                      float* scratch) {
  const int group = p.H / p.Hk;
  const int rows = group * steps;  // row = head in the group · steps + step
  const int D = round_up(p.D, 2 * kLanes);
  float* q = scratch;
  float* out = q + rows * D;
  float* k = out + rows * D;
  float* v = k + kKeyBlock * D;
  float* scores = v + kKeyBlock * D;
  float* maxima = scores + rows * kKeyBlock;
  float* sums = maxima + rows;
  float* factors = sums + rows;
  for (int h = 0; h < group; ++h) {
    const int64_t offset =
        b * p.q.batch_stride + (kv_head * group + h) * p.q.head_stride + step0 * p.q.step_stride;
    gather(p.q, p.element, offset, steps, p.D, D, p.scale, q + h * steps * D);
  }
  __builtin_memset(out, 0, sizeof(float) * rows * D);
  for (int row = 0; row < rows; ++row) {
    maxima[row] = -__builtin_inff();
    sums[row] = 0.f;
  }
  const int seen = p.causal ? step0 + steps + p.S - p.T : p.S;
  for (int first = 0; first < seen; first += kKeyBlock) {
    const int keys = seen - first < kKeyBlock ? seen - first : kKeyBlock;
    const int64_t at_k = b * p.k.batch_stride + kv_head * p.k.head_stride + first * p.k.step_stride;
    const int64_t at_v = b * p.v.batch_stride + kv_head * p.v.head_stride + first * p.v.step_stride;
    gather(p.k, p.element, at_k, keys, p.D, D, 1.f, k);
    gather(p.v, p.element, at_v, keys, p.D, D, 1.f, v);
    int row = 0;
    for (; row + 4 <= rows; row += 4) {
      score_rows<4>(q + row * D, k, D, keys, scores + row * kKeyBlock);
    }
    for (; row < rows; ++row) {
      score_rows<1>(q + row * D, k, D, keys, scores + row * kKeyBlock);
    }
    for (row = 0; row < rows; ++row) {
      float* mine = scores + row * kKeyBlock;
      apply_mask(p, b, kv_head * group + row / steps, step0 + row % steps, first, keys, mine);
      factors[row] = soften(mine, keys, maxima[row], sums[row]);
    }
    for (row = 0; row + 4 <= rows; row += 4) {
      weigh_rows<4>(scores + row * kKeyBlock, v, D, keys, factors + row, out + row * D);
    }
    for (; row < rows; ++row) {
      weigh_rows<1>(scores + row * kKeyBlock, v, D, keys, factors + row, out + row * D);
    }
  }
  for (int row = 0; row < rows; ++row) {
    // A row that may see nothing gives zeros.
    const float inverse = sums[row] > 0.f ? 1.f / sums[row] : 0.f;
    const int head = kv_head * group + row / steps, step = step0 + row % steps;
    float* o = out + row * D;
    scale_row(o, p.D, inverse);
    if (p.gate.data != nullptr) {
      float* gate = k;  // the block of keys has served
      const int64_t at =
          b * p.gate.batch_stride + head * p.gate.head_stride + step * p.gate.step_stride;
      gather(p.gate, p.element, at, 1, p.D, D, 1.f, gate);
      for (int d = 0; d < p.D; ++d) {
        o[d] *= sigmoid(gate[d]);
      }
    }
    const size_t y = ((static_cast<size_t>(b) * p.T + step) * p.H + head) * p.D;
    for (int d = 0; d < p.D; ++d) {
      store_element(p.y, p.element, y + d, o[d]);
    }
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
