// Where the state of the gated delta rule lies on the CPU.
#pragma once

#include <cstdint>
#include <utility>

#include "cpu/scratch.h"
#include "mlx/allocator.h"
#include "mlx/array.h"

namespace mixbit {

// Gives `state` memory from the begin of a cache line on: that of the state before it, or null,
// where nobody else needs its old value. MLX's own arrays begin 8 bytes past a multiple of 16 on
// Linux, where each AVX-512 load and store takes two lines and a step a third longer.
inline void set_state_data(mlx::core::array& state, const mlx::core::array* before) {
  auto past_line = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % cpu::kCacheLine; };
  if (before != nullptr && before->is_donatable() && past_line(before->data<float>()) == 0) {
    state.copy_shared_buffer(*before);
    return;
  }
  auto data = mlx::core::allocator::malloc(state.nbytes() + cpu::kCacheLine);
  const size_t offset = (cpu::kCacheLine - past_line(data.buffer().raw_ptr())) % cpu::kCacheLine;
  mlx::core::array::Flags flags{};
  flags.contiguous = flags.row_contiguous = true;
  flags.col_contiguous = state.size() <= 1;
  state.set_data(std::move(data), state.size(), state.strides(), flags,
                 static_cast<int64_t>(offset));
}

}  // namespace mixbit
