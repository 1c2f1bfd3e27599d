// Threads inside one operation. MLX gives a CPU stream one thread and no more.
#pragma once

#include <functional>

namespace mixbit::cpu {

// Threads that an operation may use, the caller's included: MIXBIT_NUM_THREADS, else the processors
// that this process may run on (affinity and cgroup quota respected; performance cores on Apple
// silicon). Read once.
int num_threads();

// Runs task(0) … task(count − 1) and returns when all are done. The caller takes part; helpers take
// the next index from a shared counter, so slow cores simply take fewer. Idle helpers look out for
// the next call for 50 µs and then sleep. Tasks must not throw. Concurrent calls (several MLX
// streams) do not wait for each other: the pool serves one of them and the others run on their own
// thread.
void parallel_for(int count, const std::function<void(int)>& task);

}  // namespace mixbit::cpu
