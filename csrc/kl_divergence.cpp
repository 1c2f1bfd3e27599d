#include "kl_divergence.h"

#include "cpu/kl_divergence.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "params.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "kl_divergence";

static_assert(kLogitStatistics == cpu::kLogitFields && kTopLogits == cpu::kTop);

bool is_gpu(const mx::Stream& stream) {
  return stream.device == mx::Device::gpu;
}

mx::Shape tiles_shape(int rows, int vocabulary, const mx::Stream& stream) {
  const int tiles = is_gpu(stream) ? static_cast<int>(gpu::ceil_div(vocabulary, kVocabularySpan))
                                   : cpu::vocabulary_tiles(vocabulary);
  return {rows, tiles, cpu::kLogitFields};
}

void check_hidden(const mx::array& hidden, const char* name) {
  check_floating(kOp, name, hidden);
  if (hidden.ndim() != 2) {
    refuse(kOp, std::string(name) + " must have 2 dimensions: [T, K].");
  }
}

// Appends the arrays of a head that fits `hidden` and holds the vocabulary.
void add_head(const mx::array& hidden, const Weight& head, int vocabulary,
              std::vector<mx::array>& inputs, mx::StreamOrDevice s) {
  check_weight(kOp, head.format, hidden, head.arrays, 0);
  const int rows = head.arrays[0].shape(0);
  if (vocabulary < 1 || vocabulary > rows) {
    refuse(kOp, "a head of " + std::to_string(rows) + " rows has no vocabulary of " +
                    std::to_string(vocabulary) + ".");
  }
  for (const mx::array& a : head.arrays) {
    inputs.push_back(row_contiguous(a, s));
  }
  if (head.bias) {
    check_floating(kOp, "bias", *head.bias);
    if (head.bias->shape() != mx::Shape{rows}) {
      refuse(kOp, "bias must have shape " + shape_string({rows}) + "; got " +
                      shape_string(head.bias->shape()) + ".");
    }
    inputs.push_back(row_contiguous(*head.bias, s));
  }
}

cpu::HeadInput head_input(const mx::array& hidden, const QuantizedMatmul::Part& part,
                          const mx::array* arrays) {
  cpu::HeadInput head{};
  head.K = hidden.shape(1);
  head.hidden = hidden.data<void>();
  head.element = element_of(hidden.dtype());
  head.w = weights_of(part.format, arrays);
  if (part.has_bias) {
    const mx::array& bias = arrays[part.format.num_arrays()];
    head.bias = bias.data<void>();
    head.bias_element = element_of(bias.dtype());
  }
  return head;
}

}  // namespace

mx::array kl_divergence(const mx::array& p_hidden, const Weight& p_head, const mx::array& q_hidden,
                        const std::optional<Weight>& q_head, const mx::array& targets,
                        int vocabulary, mx::StreamOrDevice s) {
  check_hidden(p_hidden, "p_hidden");
  check_hidden(q_hidden, "q_hidden");
  const int rows = p_hidden.shape(0);
  if (q_hidden.shape(0) != rows || targets.shape() != mx::Shape{rows}) {
    refuse(kOp,
           "p_hidden, q_hidden and targets must have the same number of rows; their shapes "
           "are " +
               shape_string(p_hidden.shape()) + ", " + shape_string(q_hidden.shape()) + " and " +
               shape_string(targets.shape()) + ".");
  }
  if (!q_head && q_hidden.shape() != p_hidden.shape()) {
    refuse(kOp, "models that share a head must have hidden states of one size.");
  }
  std::vector<mx::array> inputs{row_contiguous(p_hidden, s), row_contiguous(q_hidden, s),
                                row_contiguous(mx::astype(targets, mx::int32, s), s)};
  std::vector<QuantizedMatmul::Part> heads{{p_head.format, p_head.bias.has_value()}};
  add_head(p_hidden, p_head, vocabulary, inputs, s);
  if (q_head) {
    heads.push_back({q_head->format, q_head->bias.has_value()});
    add_head(q_hidden, *q_head, vocabulary, inputs, s);
  }
  const mx::array tiles =
      KlDivergence::tiles(mx::to_stream(s), std::move(heads), vocabulary, std::move(inputs));
  gpu::require({tiles});
  return tiles;
}

mx::array KlDivergence::tiles(const mx::Stream& stream, std::vector<QuantizedMatmul::Part> heads,
                              int vocabulary, std::vector<mx::array> inputs) {
  mx::Shape shape = tiles_shape(inputs[0].shape(0), vocabulary, stream);
  return mx::array(std::move(shape), is_gpu(stream) ? mx::float32 : mx::float64,
                   std::make_shared<KlDivergence>(stream, std::move(heads), vocabulary),
                   std::move(inputs));
}

void KlDivergence::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  cpu::KlDivergence p{};
  p.M = out.shape(0);
  p.vocabulary = vocabulary_;
  p.shared_head = heads_.size() == 1;
  p.p = head_input(inputs[0], heads_[0], &inputs[3]);
  const int q_arrays = p.shared_head ? 3 : 3 + heads_[0].num_arrays();
  p.q = head_input(inputs[1], heads_.back(), &inputs[q_arrays]);
  p.targets = inputs[2].data<int>();
  p.tiles = static_cast<cpu::LogitTile*>(out.data<void>());
  run_on_cpu(stream(), out, [p] { cpu::kl_divergence(p); });
}

bool KlDivergence::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const KlDivergence&>(other);
  return heads_ == o.heads_ && vocabulary_ == o.vocabulary_;
}

std::vector<mx::Shape> KlDivergence::output_shapes(const std::vector<mx::array>& inputs) {
  return {tiles_shape(inputs[0].shape(0), vocabulary_, stream())};
}

}  // namespace mixbit
