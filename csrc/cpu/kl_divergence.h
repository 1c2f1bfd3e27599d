// Schedules the comparison of two models' logits over threads.
#pragma once

#include "cpu/kernels.h"

namespace mixbit::cpu {

// Hidden states [M, K] and the head [N, K] that turns them into logits.
struct HeadInput {
  int K;
  const void* hidden;
  Element element;
  Weights w;
  const void* bias;  // [N] or null
  Element bias_element;
};

// Tiles of the vocabulary [0, vocabulary) for M rows. With `shared_head` q's own head does not
// count: its logits are p's less the head's product with the difference of the hidden states, which
// keeps small divergences clear of rounding.
struct KlDivergence {
  int M, vocabulary;
  HeadInput p, q;
  bool shared_head;
  const int* targets;  // [M]
  LogitTile* tiles;    // [M, vocabulary_tiles(vocabulary)]
};

void kl_divergence(const KlDivergence& problem);

}  // namespace mixbit::cpu
