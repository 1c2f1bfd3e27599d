// Where a primitive's work on the CPU goes.
#pragma once

#include <utility>

#include "mlx/scheduler.h"

namespace mixbit {

// Runs `task` after all that the stream was given before. MLX's command encoder would count it as
// well: after some hundred outstanding dispatches the thread that evaluates waits, and is woken, at
// every tenth. MLX dispatches one for each primitive anyway, which keeps its inputs alive and
// bounds how far evaluation runs ahead; another would halve that and double the waits.
template <class Task>
void run_on_cpu(mlx::core::Stream stream, Task&& task) {
  mlx::core::scheduler::enqueue(stream, std::forward<Task>(task));
}

}  // namespace mixbit
