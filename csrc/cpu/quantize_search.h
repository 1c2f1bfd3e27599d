// Codes, scales and biases of affine groups that lie closer to the weights than rounding to
// nearest.
#pragma once

#include "cpu/elements.h"

namespace mixbit::cpu {

// For each group of `group_size` weights along K it looks for scale s, bias b and codes q in
// [0, 2^bits) with the least  Σ_k h_k (w_k − s q_k − b)². h is the importance of the input
// channels; a group of which all importances are zero counts them as equal.
struct QuantizeSearch {
  size_t rows;
  int K, bits, group_size;
  const void* w;  // [rows, K]
  Element element;
  const float* importance;  // [rows / rows_per_importance, K], not negative, or null for ones
  size_t rows_per_importance;
  uint32_t* codes;  // [rows, K · bits / 32], each row one little-endian bit stream
  void* scales;     // [rows, K / group_size]
  void* biases;     // as scales
  Element scale_element;
};

// The same bits for any number of threads and on every processor.
void quantize_search(const QuantizeSearch& problem);

}  // namespace mixbit::cpu
