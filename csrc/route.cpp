#include "route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/elements.h"
#include "cpu_queue.h"
#include "mlx/allocator.h"
#include "mlx/transforms.h"

namespace mixbit {

namespace {

constexpr const char* kOp = "route";

mx::Shape chosen_shape(const mx::array& logits, int slots) {
  mx::Shape shape = logits.shape();
  shape.back() = slots;
  return shape;
}

// One token; `logits` is its own copy.
void choose(std::vector<float>& logits, int slots, bool normalise, uint32_t* indices,
            float* scores) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float top = kNone;
  for (float v : logits) {
    top = std::max(top, v);  // passes over NaN
  }
  float total = 0;
  for (float v : logits) {
    total += std::exp(v - top);
  }
  std::vector<uint32_t> order;
  for (uint32_t e = 0; e < logits.size(); ++e) {
    if (!std::isnan(logits[e])) {
      order.push_back(e);
    }
  }
  const auto larger = [&](uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const int found = std::min(slots, static_cast<int>(order.size()));
  std::partial_sort(order.begin(), order.begin() + found, order.end(), larger);
  float chosen = 0;
  for (int s = 0; s < slots; ++s) {
    indices[s] = s < found ? order[s] : std::numeric_limits<uint32_t>::max();
    scores[s] = s < found ? std::exp(logits[order[s]] - top) : 0;
    chosen += scores[s];
  }
  for (int s = 0; s < slots; ++s) {
    scores[s] /= normalise ? chosen : total;
  }
}

}  // namespace

std::pair<mx::array, mx::array> route(const mx::array& logits, int slots, bool normalise,
                                      mx::StreamOrDevice s) {
  check_floating(kOp, "logits", logits);
  if (logits.ndim() == 0 || logits.shape(-1) > kMaxExperts) {
    refuse(kOp, "logits must be those of at most " + std::to_string(kMaxExperts) +
                    " experts; their shape is " + shape_string(logits.shape()) + ".");
  }
  if (slots < 1 || slots > std::min(kMaxSlots, logits.shape(-1))) {
    refuse(kOp, "slots must be from 1 to " + std::to_string(kMaxSlots) + " and to the " +
                    std::to_string(logits.shape(-1)) + " experts; got " + std::to_string(slots) +
                    ".");
  }
  const mx::Shape shape = chosen_shape(logits, slots);
  auto outputs = mx::array::make_arrays({shape, shape}, {mx::uint32, mx::float32},
                                        std::make_shared<Route>(mx::to_stream(s), slots, normalise),
                                        {row_contiguous(logits, s)});
  gpu::require(outputs);
  return {outputs[0], outputs[1]};
}

void Route::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  for (mx::array& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
  const mx::array& logits = inputs[0];
  const int experts = logits.shape(-1);
  run_on_cpu(stream(), outputs[0],
             [slots = slots_, normalise = normalise_, experts, tokens = logits.size() / experts,
              source = logits.data<void>(), element = element_of(logits.dtype()),
              indices = outputs[0].data<uint32_t>(), scores = outputs[1].data<float>()] {
               std::vector<float> row(experts);
               for (size_t t = 0; t < tokens; ++t) {
                 for (int e = 0; e < experts; ++e) {
                   row[e] = cpu::load_element(source, element, t * experts + e);
                 }
                 choose(row, slots, normalise, indices + t * slots, scores + t * slots);
               }
             });
}

std::vector<mx::array> Route::vjp(const std::vector<mx::array>& primals,
                                  const std::vector<mx::array>& cotangents, const std::vector<int>&,
                                  const std::vector<mx::array>& outputs) {
  auto scores = [&](const std::vector<mx::array>& inputs) {
    const mx::array logits = mx::astype(inputs[0], mx::float32, stream());
    auto chosen = [&](const mx::array& of) {
      return mx::take_along_axis(of, outputs[0], -1, stream());
    };
    return std::vector{normalise_ ? mx::softmax(chosen(logits), -1, true, stream())
                                  : chosen(mx::softmax(logits, -1, true, stream()))};
  };
  return mx::vjp(scores, primals, {cotangents[1]}).second;
}

bool Route::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Route&>(other);
  return slots_ == o.slots_ && normalise_ == o.normalise_;
}

std::vector<mx::Shape> Route::output_shapes(const std::vector<mx::array>& inputs) {
  const mx::Shape shape = chosen_shape(inputs[0], slots_);
  return {shape, shape};
}

}  // namespace mixbit
