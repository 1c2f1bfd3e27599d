// KlDivergence on a Metal GPU.
#include <algorithm>

#include "gpu/key.h"
#include "gpu/trial.h"
#include "kl_divergence.h"
#include "mlx/transforms.h"

namespace mixbit {

namespace {

// Fits into one tile of the CPU's and of the GPU's, and has a last slice that is not full.
constexpr int kTrialVocabulary = 9 * gpu::kTrialColumns;

gpu::Description description(const gpu::KlDivergence& op) {
  gpu::Key key("kl_divergence");
  key.add(op.M, op.vocabulary, op.p, op.q);
  for (const auto& head : op.heads) {
    key.add(head.format.kind, head.format.bits, head.format.group_size, head.element, head.bias,
            head.K);
  }
  return {key.text(), [op](const gpu::Device& device) {
            return op.M == 0 ? gpu::LaunchPlan{} : launch_plan(op, device);
          }};
}

}  // namespace

gpu::KlDivergence KlDivergence::on_gpu(const std::vector<mx::array>& inputs) const {
  gpu::KlDivergence op{inputs[0].shape(0),
                       vocabulary_,
                       element_of(inputs[0].dtype()),
                       element_of(inputs[1].dtype()),
                       {}};
  const mx::array* a = &inputs[3];
  for (size_t i = 0; i < heads_.size(); ++i) {
    const WeightFormat& format = heads_[i].format;
    gpu::KlDivergence::Head head{format, weight_element(format, a), {}, inputs[i].shape(1)};
    if (heads_[i].has_bias) {
      head.bias = element_of(a[format.num_arrays()].dtype());
    }
    op.heads.push_back(head);
    a += heads_[i].num_arrays();
  }
  return op;
}

gpu::Description KlDivergence::describe(const std::vector<mx::array>& inputs,
                                        const std::vector<mx::array>&) const {
  return description(on_gpu(inputs));
}

std::vector<mx::array> KlDivergence::small_case(const std::vector<mx::array>& inputs,
                                                const std::vector<mx::array>&, const gpu::Device&,
                                                const mx::Stream& s) const {
  const gpu::KlDivergence op = on_gpu(inputs);
  const int rows = std::min(op.M, gpu::kTrialRows);
  gpu::Noise noise;
  std::vector<mx::array> noises{
      noise.rows({rows, op.heads[0].K}, inputs[0].dtype()),
      noise.rows({rows, op.heads.back().K}, inputs[1].dtype()),
      mx::astype(noise.integers({rows}, kTrialVocabulary), mx::int32, mx::Device::cpu)};
  mx::eval(noises);
  for (const auto& head : op.heads) {
    for (mx::array& a :
         noise.weight(head.format, dtype_of(head.element), {kTrialVocabulary, head.K})) {
      noises.push_back(std::move(a));
    }
    if (head.bias) {
      noises.push_back(noise.values({kTrialVocabulary}, dtype_of(*head.bias)));
    }
  }
  const mx::array made = tiles(s, heads_, kTrialVocabulary, std::move(noises));
  // Apart, for each is judged by its own largest.
  std::vector<mx::array> fields;
  for (const auto& [begin, end] :
       {std::pair{0, 6}, {6, 8}, {8, 13}, {13, 18}, {18, 23}, {23, 28}}) {
    fields.push_back(mx::astype(mx::slice(made, {0, 0, begin}, {rows, 1, end}, s), mx::float32, s));
  }
  return fields;
}

void KlDivergence::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};  // shares its description, so `out` gets the data too
  gpu::run(describe(inputs, outputs), stream(), inputs, outputs);
}

}  // namespace mixbit
