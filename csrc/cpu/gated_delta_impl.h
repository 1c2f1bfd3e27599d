// The sequential gated delta rule, written once over Vec and compiled for each instruction set.
//
// With u = S k and w = S q taken from the old state in one read,
//   δ = beta (v − g u),   y = g w + δ (k·q),   S ← g S + δ kᵀ
// is the usual decay, correct, read, but its two reductions do not wait for each other. Rows of S
// are independent, so a task walks a few rows, which stay in L1, through all T steps.
#pragma once

#include "cpu/kernels.h"
#include "cpu/vec_math.h"

namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE {

// u[r] = S[r]·k and w[r] = S[r]·q for R rows of Dk values.
template <int R>
static inline void read_rows(const float* s, const float* k, const float* q, int Dk, float* u,
                             float* w) {
  Vec us[R], ws[R];
  for (int r = 0; r < R; ++r) {
    us[r] = Vec::zero();
    ws[r] = Vec::zero();
  }
  int i = 0;
  for (; i + kLanes <= Dk; i += kLanes) {
    const Vec kv = Vec::load(k + i), qv = Vec::load(q + i);
    for (int r = 0; r < R; ++r) {
      const Vec sv = Vec::load(s + r * Dk + i);
      us[r] = Vec::fma(sv, kv, us[r]);
      ws[r] = Vec::fma(sv, qv, ws[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    u[r] = us[r].sum();
    w[r] = ws[r].sum();
  }
  for (; i < Dk; ++i) {
    for (int r = 0; r < R; ++r) {
      u[r] += s[r * Dk + i] * k[i];
      w[r] += s[r * Dk + i] * q[i];
    }
  }
}

// S[r] ← g S[r] + delta[r] k for R rows.
template <int R>
static inline void update_rows(float* s, const float* k, int Dk, float g, const float* delta) {
  const Vec gv = Vec::broadcast(g);
  int i = 0;
  for (; i + kLanes <= Dk; i += kLanes) {
    const Vec kv = Vec::load(k + i);
    for (int r = 0; r < R; ++r) {
      Vec::fma(kv, Vec::broadcast(delta[r]), Vec::load(s + r * Dk + i) * gv).store(s + r * Dk + i);
    }
  }
  for (; i < Dk; ++i) {
    for (int r = 0; r < R; ++r) {
      s[r * Dk + i] = g * s[r * Dk + i] + delta[r] * k[i];
    }
  }
}

struct Step {
  const float* q;
  const float* k;
  const float* v;  // of this head
  float g, beta, kq;
};

template <int R>
static inline void step_rows(const GatedDelta& p, const Step& t, float* s, int row, size_t y) {
  float u[R], w[R], delta[R];
  read_rows<R>(s, t.k, t.q, p.Dk, u, w);
  for (int r = 0; r < R; ++r) {
    delta[r] = t.beta * (t.v[row + r] - t.g * u[r]);
    store_element(p.y, p.y_element, y + row + r, t.g * w[r] + delta[r] * t.kq);
  }
  update_rows<R>(s, t.k, p.Dk, t.g, delta);
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
  const int hk = hv / (p.Hv / p.Hk);  // a key head serves consecutive value heads
  for (int t = 0; t < p.T; ++t) {
    if (p.keep_steps && t > 0) {
      __builtin_memcpy(state + all_heads, state, bytes);
      state += all_heads;
    }
    const size_t bt = static_cast<size_t>(b) * p.T + t;
    const size_t y = (bt * p.Hv + hv) * p.Dv;
    if (p.mask != nullptr && !p.mask[bt]) {
      for (int row = row_begin; row < row_end; ++row) {
        store_element(p.y, p.y_element, y + row, 0.f);
      }
      continue;
    }
    Step step;
    step.q = p.q + bt * p.qk_step + hk * p.Dk;
    step.k = p.k + bt * p.qk_step + hk * p.Dk;
    step.v = p.v + bt * p.v_step + hv * p.Dv;
    step.g = p.g[bt * p.Hv + hv];
    step.beta = p.beta[bt * p.Hv + hv];
    step.kq = dot(step.k, step.q, p.Dk);
    int row = row_begin;
    float* s = state;
    for (; row + 4 <= row_end; row += 4, s += 4 * p.Dk) {
      step_rows<4>(p, step, s, row, y);
    }
    for (; row < row_end; ++row, s += p.Dk) {
      step_rows<1>(p, step, s, row, y);
    }
  }
}

}  // namespace mixbit::cpu::MIXBIT_ISA_NAMESPACE
