// The sequential gated delta rule, written once over Vec and compiled for each instruction set.
//
// With u = S k and w = S q taken from the old state in one read,
//   δ = beta (v − g u),   y = g w + δ (k·q),   S ← g S + δ kᵀ
// is the usual decay, correct, read, but its two reductions do not wait for each other. Rows of S
// are independent, so a task walks a few rows, which stay in L1, through all T steps. Within a step
// it goes by blocks of rows and updates one while it reads the next, as the reductions of a block
// take longer than its products.
#pragma once

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// A value for each of R rows: one row or four.
template <int R>
using Rows = std::conditional_t<R == 4, Quad, float>;

static inline float sums(const Vec (&v)[1]) {
  return v[0].sum();
}
static inline Quad sums(const Vec (&v)[4]) {
  return Vec::sums(v);
}

// What a step reads of R rows, and what it adds to them: u[r] = S[r]·k, w[r] = S[r]·q, delta[r].
template <int R>
struct Block {
  Rows<R> u, w, delta;
};

// Reads R rows of Dk values at `next`, or updates the R rows before them, or both.
template <int R, bool updates, bool reads>
static inline void pass(float* next, const float* k, const float* q, int Dk, float g,
                        Block<R>& block) {
  const Vec gv = Vec::broadcast(g);
  Vec us[R], ws[R], deltas[R];
  float delta[R];
  __builtin_memcpy(delta, &block.delta, sizeof(delta));
  for (int r = 0; r < R; ++r) {
    us[r] = Vec::zero();
    ws[r] = Vec::zero();
    deltas[r] = Vec::broadcast(updates ? delta[r] : 0.f);
  }
  int i = 0;
  for (; i + kLanes <= Dk; i += kLanes) {
    const Vec kv = Vec::load(k + i), qv = Vec::load(q + i);
    for (int r = 0; r < R; ++r) {
      if constexpr (reads) {
        const Vec sv = Vec::load(next + r * Dk + i);
        us[r] = Vec::fma(sv, kv, us[r]);
        ws[r] = Vec::fma(sv, qv, ws[r]);
      }
      if constexpr (updates) {
        float* s = next + (r - R) * Dk + i;
        Vec::fma(kv, deltas[r], Vec::load(s) * gv).store(s);
      }
    }
  }
  if constexpr (reads) {
    block.u = sums(us);
    block.w = sums(ws);
  }
  if (i < Dk) {
    float u[R], w[R];
    __builtin_memcpy(u, &block.u, sizeof(u));
    __builtin_memcpy(w, &block.w, sizeof(w));
    for (; i < Dk; ++i) {
      for (int r = 0; r < R; ++r) {
        if constexpr (reads) {
          u[r] += next[r * Dk + i] * k[i];
          w[r] += next[r * Dk + i] * q[i];
        }
        if constexpr (updates) {
          float& s = next[(r - R) * Dk + i];
          s = g * s + delta[r] * k[i];
        }
      }
    }
    __builtin_memcpy(&block.u, u, sizeof(u));
    __builtin_memcpy(&block.w, w, sizeof(w));
  }
}

struct Step {
  const float* q;
  const float* k;
  const float* v;  // of this head
  float g, beta, kq;
};

// A step of as many blocks of R rows as there are; returns the row after them.
template <int R>
static inline int step_rows(const GatedDelta& p, const Step& t, float* s, int row, int row_end,
                            size_t y) {
  if (row + R > row_end) {
    return row;
  }
  Block<R> block{};
  auto finish = [&] {
    Rows<R> v;
    __builtin_memcpy(&v, t.v + row, sizeof(v));
    block.delta = t.beta * (v - t.g * block.u);
    const Rows<R> more = t.g * block.w + block.delta * t.kq;
    float values[R];
    __builtin_memcpy(values, &more, sizeof(values));
    for (int r = 0; r < R; ++r) {
      store_element(p.y, p.y_element, y + row + r, values[r]);
    }
    row += R;
    s += R * p.Dk;
  };
  pass<R, false, true>(s, t.k, t.q, p.Dk, t.g, block);
  finish();
  while (row + R <= row_end) {
    pass<R, true, true>(s, t.k, t.q, p.Dk, t.g, block);
    finish();
  }
  pass<R, true, false>(s, t.k, t.q, p.Dk, t.g, block);
  return row;
}

static void gated_delta(const GatedDelta& p, int b, int hv, int row_begin, int row_end) {
  const size_t all_heads = static_cast<size_t>(p.Hv) * p.Dv * p.Dk;
  const size_t rows = (static_cast<size_t>(hv) * p.Dv + row_begin) * p.Dk;
  const size_t bytes = sizeof(float) * (row_end - row_begin) * p.Dk;
  float* state = p.state_out + b * all_heads * (p.keep_steps ? p.T : 1) + rows;
  if (p.state_in == nullptr) {
    __builtin_memset(state, 0, bytes);
  } else if (p.state_in != p.state_out) {
    __builtin_memcpy(state, p.state_in + b * all_heads + rows, bytes);
  }
  // The first of the head's rows of keys and values; a key head serves consecutive value heads.
  const size_t keys = (static_cast<size_t>(b) * p.Hk + hv / (p.Hv / p.Hk)) * p.T;
  const size_t values = (static_cast<size_t>(b) * p.Hv + hv) * p.T;
  for (int t = 0; t < p.T; ++t) {
    if (p.keep_steps && t > 0) {
      __builtin_memcpy(state + all_heads, state, bytes);
      state += all_heads;
    }
    const size_t bt = static_cast<size_t>(b) * p.T + t;
    const size_t y = (p.y_by_head ? values + t : bt * p.Hv + hv) * p.Dv;
    if (p.mask != nullptr && !p.mask[bt]) {
      for (int row = row_begin; row < row_end; ++row) {
        store_element(p.y, p.y_element, y + row, 0.f);
      }
      continue;
    }
    Step step;
    step.q = p.q + (keys + t) * p.Dk;
    step.k = p.k + (keys + t) * p.Dk;
    step.v = p.v + (values + t) * p.Dv;
    step.g = p.g[bt * p.Hv + hv];
    step.beta = p.beta[bt * p.Hv + hv];
    step.kq = dot(step.k, step.q, p.Dk);
    const int rest = step_rows<4>(p, step, state, row_begin, row_end, y);
    step_rows<1>(p, step, state + size_t(rest - row_begin) * p.Dk, rest, row_end, y);
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
