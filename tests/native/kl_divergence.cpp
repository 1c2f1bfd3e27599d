// Softmax statistics of two rows of logits.
#include "harness.h"

namespace native {

void test_kl_divergence(Report& report) {
  for (int count : {1, 3, 6, 17, kVocabularyTile}) {
    for (bool is_difference : {false, true}) {
      Random random(count);
      const int first = 1000, target = first + count / 2;
      const Array p = Array::normal(random, Element::f32, count, 8);
      const Array second = Array::normal(random, Element::f32, count, is_difference ? 0.1 : 8);
      LogitTile tile;
      kernels().logit_tile(p.floats(), second.floats(), is_difference, count, first, target, tile);
      std::vector<double> q(count);
      double max_p = -INFINITY, max_q = -INFINITY;
      for (int i = 0; i < count; ++i) {
        q[i] = is_difference ? p[i] - second[i] : second[i];
        max_p = std::fmax(max_p, p[i]);
        max_q = std::fmax(max_q, q[i]);
      }
      double sum_p = 0, sum_q = 0, forward = 0, reverse = 0;
      for (int i = 0; i < count; ++i) {
        sum_p += std::exp(p[i] - max_p);
        sum_q += std::exp(q[i] - max_q);
        forward += std::exp(p[i] - max_p) * (p[i] - q[i]);
        reverse += std::exp(q[i] - max_q) * (q[i] - p[i]);
      }
      auto near = [](double got, double want) {
        return std::fabs(got - want) <= 1e-12 * (1 + std::fabs(want));
      };
      bool right = tile.max_p == max_p && tile.max_q == max_q && tile.target_p == p[count / 2] &&
                   tile.target_q == q[count / 2] && tile.top_p[0] == max_p &&
                   tile.top_q[0] == max_q;
      right &= near(tile.sum_p, sum_p) && near(tile.sum_q, sum_q) && near(tile.forward, forward) &&
               near(tile.reverse, reverse);
      for (int i = 0; i < kTop; ++i) {
        const bool filled = i < count;
        right &= filled ? p[static_cast<int>(tile.top_p_tokens[i]) - first] == tile.top_p[i]
                        : tile.top_p_tokens[i] == -1;
        right &= i == 0 || tile.top_p[i] <= tile.top_p[i - 1];
      }
      report.expect(right, "logit tile of ", count, is_difference ? " by difference" : "");
      report.digest(&tile, sizeof(tile));  // the same bits everywhere too
    }
  }
}

}  // namespace native
