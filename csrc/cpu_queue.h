// Where a primitive's work on the CPU goes.
#pragma once

#include <utility>

#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/scheduler.h"

namespace mixbit {

// Results up to this many bytes may lie about in numbers: 100 of them are 25 MB.
constexpr size_t kSmallResult = 256 * 1024;

// Runs `task`, which computes `result`, after all that the stream was given before.
//
// MLX's command encoder counts what it is given: with some hundred outstanding the thread that
// evaluates waits, and is woken, at every tenth. That bounds the memory of results that wait for
// their turn, as all are allocated when they are queued. Small ones need no such bound beyond the
// dispatch that MLX itself makes for every primitive, and a generated token has only small ones.
template <class Task>
void run_on_cpu(mlx::core::Stream stream, const mlx::core::array& result, Task&& task) {
  if (result.nbytes() <= kSmallResult) {
    mlx::core::scheduler::enqueue(stream, std::forward<Task>(task));
  } else {
    mlx::core::cpu::get_command_encoder(stream).dispatch(std::forward<Task>(task));
  }
}

}  // namespace mixbit
