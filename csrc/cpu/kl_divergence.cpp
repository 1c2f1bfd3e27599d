#include "cpu/kl_divergence.h"

#include <algorithm>

#include "cpu/scratch.h"
#include "cpu/thread_pool.h"

namespace mixbit::cpu {

namespace {

// Rows [m0, m0 + rows) of hidden states in fp32, padded to whole blocks.
Scratch floats_of(const HeadInput& head, int m0, int rows) {
  const int stride = round_up(head.K, kBlock);
  Scratch x = make_scratch(size_t(rows) * stride);
  const size_t offset = size_t(m0) * head.K * size_of(head.element);
  kernels().to_float(static_cast<const char*>(head.hidden) + offset, head.element, rows, head.K,
                     x.get(), stride);
  return x;
}

Matmul logits_of(const HeadInput& head, int vocabulary, int rows, const Scratch& x, bool biased) {
  Matmul p{};
  p.M = rows;
  p.N = vocabulary;
  p.K = head.K;
  p.x = x.get();
  p.x_stride = round_up(head.K, kBlock);
  p.w = head.w;
  p.bias = biased ? head.bias : nullptr;
  p.bias_element = head.bias_element;
  p.y_element = Element::f32;
  p.y_stride = kVocabularyTile;
  return p;
}

// Columns [n0, n1) of a product, to y as rows of kVocabularyTile.
void multiply(Matmul p, int n0, int n1, float* y, float* panel) {
  p.y = y;
  p.y_column = n0;
  if (p.M <= kDirectRows) {
    return kernels().matmul_direct(p, 0, p.M, n0, n1);
  }
  for (int n = n0; n < n1; n += kPanelColumns) {
    kernels().matmul_panel(p, 0, p.M, n, std::min(n1, n + kPanelColumns), panel);
  }
}

// Up to kPanelRows rows, which share each decoding of the heads.
void row_block(const KlDivergence& problem, int m0, int rows) {
  const Scratch p_rows = floats_of(problem.p, m0, rows);
  Scratch q_rows = floats_of(problem.q, m0, rows);
  if (problem.shared_head) {
    const size_t count = size_t(rows) * round_up(problem.p.K, kBlock);
    for (size_t i = 0; i < count; ++i) {
      q_rows[i] = p_rows[i] - q_rows[i];
    }
  }
  const int V = problem.vocabulary, tiles = vocabulary_tiles(V);
  const Matmul p = logits_of(problem.p, V, rows, p_rows, true);
  const Matmul q =
      logits_of(problem.shared_head ? problem.p : problem.q, V, rows, q_rows, !problem.shared_head);
  parallel_for(tiles, [&](int tile) {
    const size_t logits = size_t(rows) * kVocabularyTile;
    float* scratch = thread_scratch(kPanelScratch + 2 * logits);
    float* first = scratch + kPanelScratch;
    float* second = first + logits;
    const int n0 = tile * kVocabularyTile, n1 = std::min(V, n0 + kVocabularyTile);
    multiply(p, n0, n1, first, scratch);
    multiply(q, n0, n1, second, scratch);
    for (int m = 0; m < rows; ++m) {
      kernels().logit_tile(first + size_t(m) * kVocabularyTile,
                           second + size_t(m) * kVocabularyTile, problem.shared_head, n1 - n0, n0,
                           problem.targets[m0 + m], problem.tiles[size_t(m0 + m) * tiles + tile]);
    }
  });
}

}  // namespace

void kl_divergence(const KlDivergence& problem) {
  for (int m = 0; m < problem.M; m += kPanelRows) {
    row_block(problem, m, std::min(kPanelRows, problem.M - m));
  }
}

}  // namespace mixbit::cpu
