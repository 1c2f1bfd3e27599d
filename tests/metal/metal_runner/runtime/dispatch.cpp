// Runs a grid: threadgroup after threadgroup, each until all its threads are done.
#include "dispatch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "fibre.h"
#include "findings.h"
#include "races.h"
#include "traffic.h"

namespace runner {

namespace {

struct Extent {
  unsigned of[3];
  size_t volume() const { return size_t(of[0]) * of[1] * of[2]; }
};

void thread_main() {
  machine.entry(&machine.current->position, machine.buffers, machine.threadgroup_arguments);
  settle_store();
  machine.current->state = State::done;
  void* unused;
  switch_stack(&unused, machine.main_stack);
  __builtin_unreachable();
}

void wait_in(State state, Place place, unsigned flags, Post* post) {
  Thread& thread = *machine.current;
  thread.state = state, thread.place = place, thread.barrier_flags = flags, thread.post = post;
  settle_store();
  switch_stack(&thread.stack, machine.main_stack);
}

// 0 to n - 1 in the order that the launch asks for.
template <class Index>
void fill_order(Index* indices, size_t n) {
  for (size_t i = 0; i < n; i++) {
    indices[i] = Index(machine.order == Order::backward ? n - 1 - i : i);
  }
  if (machine.order != Order::shuffled)
    return;
  for (size_t i = n; i-- > 1;)
    std::swap(indices[i], indices[next_random() % (i + 1)]);
}

struct Simdgroup {
  Thread* threads;
  int size;
  unsigned index;

  void run_until_all_wait() {
    int order[kSimdWidth];
    fill_order(order, size_t(size));
    for (int i = 0; i < size; i++) {
      Thread& thread = threads[order[i]];
      if (thread.state != State::running)
        continue;
      machine.current = &thread;
      switch_stack(&machine.main_stack, thread.stack);
      machine.current = nullptr;
    }
  }

  // The waiting thread whose place comes first in the source. Others wait for it, as on a GPU
  // the lanes that are behind are run until they have caught up.
  const Thread* first_waiting() const {
    const Thread* first = nullptr;
    for (int i = 0; i < size; i++) {
      const Thread& thread = threads[i];
      if (thread.state != State::in_simd_function && thread.state != State::at_simd_barrier) {
        continue;
      }
      unsigned line = thread.place.site & kLineMask;
      if (!first || line < (first->place.site & kLineMask))
        first = &thread;
    }
    return first;
  }

  void report_divergence(const Thread& at, int present) const {
    bool barrier = at.state == State::at_simd_barrier;
    const char* kind = barrier ? "divergent simdgroup_barrier" : "divergent simdgroup function";
    add_finding(kind, at.place, [&] {
      std::string others;
      for (int i = 0; i < size && others.empty(); i++) {
        const Thread& thread = threads[i];
        if (thread.waits_with(at))
          continue;
        others = thread.state == State::done ? "have returned" : "wait at " + name_of(thread.place);
      }
      return format("%s at %s: %d of %d lanes take part, others %s",
                    barrier ? "simdgroup_barrier" : at.post->name, name_of(at.place).c_str(),
                    present, size, others.c_str());
    });
  }

  // Serves the lanes that wait where `at` waits.
  void serve(const Thread at) const {
    Post* posts[kSimdWidth] = {};
    int present = 0, alive = 0;
    unsigned flags = ~0u;
    for (int i = 0; i < size; i++) {
      alive += threads[i].state != State::done;
      if (!threads[i].waits_with(at))
        continue;
      posts[i] = threads[i].post;
      flags &= threads[i].barrier_flags;
      present++;
    }
    bool function = at.state == State::in_simd_function;
    if (present != alive || (function && alive != size))
      report_divergence(at, present);
    Epochs& epochs = machine.of_simdgroup[index];
    if (function) {
      simd_functions[at.post->name]++;
      epochs.simd_functions++;
      const uint64_t reads_before = traffic.inactive_reads;
      at.post->combine(posts);
      if (traffic.inactive_reads != reads_before) {
        add_finding("simdgroup function reads a lane that takes no part", at.place, [&] {
          return at.post->name + (" at " + name_of(at.place)) + " in the simdgroup of " +
                 name_of(at);
        });
      }
    } else {
      traffic.simdgroup_barriers++;
      epochs.threadgroup += (flags & kThreadgroup) != 0;
      epochs.device += (flags & kDevice) != 0;
    }
    for (int i = 0; i < size; i++) {
      if (threads[i].waits_with(at))
        threads[i].state = State::running;
    }
  }

  void run_to_barrier() {
    for (;;) {
      run_until_all_wait();
      const Thread* first = first_waiting();
      if (!first)
        return;
      serve(*first);
    }
  }
};

// Lets the threads at a threadgroup barrier go on; false if there are none.
bool pass_barrier(size_t n) {
  const Thread* first = nullptr;
  bool some_done = false;
  for (size_t i = 0; i < n; i++) {
    bool done = machine.threads[i].state == State::done;
    some_done |= done;
    if (!done && !first)
      first = &machine.threads[i];
  }
  if (!first)
    return false;
  const char* kind = "divergent threadgroup_barrier";
  unsigned flags = ~0u;
  for (size_t i = 0; i < n; i++) {
    Thread& thread = machine.threads[i];
    if (thread.state == State::done)
      continue;
    flags &= thread.barrier_flags;
    if (thread.place.site == first->place.site && thread.place.file == first->place.file) {
      continue;
    }
    add_finding(kind, first->place, [&] {
      return name_of(*first) + " waits at " + name_of(first->place) + ", " + name_of(thread) +
             " at " + name_of(thread.place);
    });
  }
  if (some_done) {
    add_finding(kind, first->place, [&] {
      return "the threadgroup_barrier at " + name_of(first->place) +
             " is reached after other threads of the threadgroup have returned";
    });
  }
  for (size_t i = 0; i < n; i++) {
    if (machine.threads[i].state != State::done)
      machine.threads[i].state = State::running;
  }
  traffic.threadgroup_barriers++;
  machine.of_threadgroup.threadgroup += (flags & kThreadgroup) != 0;
  machine.of_threadgroup.device += (flags & kDevice) != 0;
  return true;
}

ThreadPosition position_of(unsigned index, const Extent& group, const Extent& groups,
                           const Extent& full, const Extent& grid, const Extent& size) {
  ThreadPosition p = {};
  const unsigned within[3] = {index % size.of[0], index / size.of[0] % size.of[1],
                              index / (size.of[0] * size.of[1])};
  for (int d = 0; d < 3; d++) {
    p.thread_position_in_threadgroup[d] = within[d];
    p.thread_position_in_grid[d] = group.of[d] * full.of[d] + within[d];
    p.threadgroup_position_in_grid[d] = group.of[d];
    p.threads_per_grid[d] = grid.of[d];
    p.threadgroups_per_grid[d] = groups.of[d];
    p.threads_per_threadgroup[d] = size.of[d];
    p.dispatch_threads_per_threadgroup[d] = full.of[d];
  }
  auto blocks = [](size_t threads, unsigned of) { return unsigned((threads + of - 1) / of); };
  p.thread_index_in_threadgroup = index;
  p.thread_index_in_simdgroup = index % kSimdWidth;
  p.simdgroup_index_in_threadgroup = index / kSimdWidth;
  p.simdgroups_per_threadgroup = blocks(size.volume(), kSimdWidth);
  p.dispatch_simdgroups_per_threadgroup = blocks(full.volume(), kSimdWidth);
  p.threads_per_simdgroup = p.thread_execution_width = kSimdWidth;
  p.quadgroup_index_in_threadgroup = index / 4;
  p.thread_index_in_quadgroup = index % 4;
  p.quadgroups_per_threadgroup = blocks(size.volume(), 4);
  return p;
}

void begin_threadgroup(size_t n) {
  machine.threadgroup++;
  machine.of_threadgroup.threadgroup++;
  machine.of_threadgroup.device++;
  for (Epochs& epochs : machine.of_simdgroup)
    epochs = {};
  memset(machine.arena, 0xff, std::max<size_t>(machine.arena_peak, 64));  // NaN
  traffic.threadgroups++;
  traffic.threads += n;
  traffic.simdgroups += (n + kSimdWidth - 1) / kSimdWidth;
  if (machine.count)
    begin_thread_traffic();
}

void begin_thread(size_t index) {
  // Equal tops would make all stacks share a few sets of the cache.
  constexpr size_t kStagger = 1088, kPatterned = 8192;
  char* top = machine.stacks + (index + 1) * kStackBytes - index % kSimdWidth * kStagger;
  if (machine.instrumented)
    memset(top - kPatterned, 0xff, kPatterned);
  machine.threads[index].state = State::running;
  machine.threads[index].stack = new_stack(top, thread_main);
}

void guard_stacks(size_t n) {
  for (; machine.guarded_stacks < n; machine.guarded_stacks++) {
    char* lowest = machine.stacks + machine.guarded_stacks * kStackBytes;
    mprotect(lowest, page_bytes(), PROT_NONE);
  }
}

void run_threadgroup(const Extent& group, const Extent& groups, const Extent& full,
                     const Extent& grid) {
  Extent size;  // smaller at the end of a grid of threads
  for (int d = 0; d < 3; d++) {
    size.of[d] = std::min(full.of[d], grid.of[d] - group.of[d] * full.of[d]);
  }
  size_t n = size.volume();
  guard_stacks(n);
  begin_threadgroup(n);
  for (unsigned i = 0; i < n; i++) {
    machine.threads[i].position = position_of(i, group, groups, full, grid, size);
    begin_thread(i);
  }
  size_t simdgroups = (n + kSimdWidth - 1) / kSimdWidth;
  do {
    unsigned order[kMaxThreads / kSimdWidth];
    fill_order(order, simdgroups);
    for (size_t i = 0; i < simdgroups; i++) {
      size_t first = size_t(order[i]) * kSimdWidth;
      int lanes = int(std::min<size_t>(kSimdWidth, n - first));
      Simdgroup{machine.threads + first, lanes, order[i]}.run_to_barrier();
    }
  } while (pass_barrier(n));
  if (machine.count)
    join_lanes();
}

// Memory of [[threadgroup(n)]] arguments, at the beginning of the arena.
void place_arguments(const unsigned* bytes, size_t count, std::vector<void*>& arguments) {
  machine.arena_used = 0;
  for (size_t i = 0; i < count; i++) {
    arguments[i] = machine.arena + machine.arena_used;
    machine.arena_used += (size_t(bytes[i]) + 15) / 16 * 16;
  }
  machine.arena_peak = std::max(machine.arena_peak, machine.arena_used);
  if (machine.arena_used > kThreadgroupMemory) {
    fail("%zu bytes of threadgroup memory, where a threadgroup may have %zu", machine.arena_used,
         kThreadgroupMemory);
  }
}

void run_grid(const LaunchRequest& request) {
  Extent full, grid, groups;
  for (int d = 0; d < 3; d++) {
    full.of[d] = request.threads_per_threadgroup[d];
    grid.of[d] = request.grid[d] * (request.grid_of_threads ? 1 : full.of[d]);
    groups.of[d] = (grid.of[d] + full.of[d] - 1) / full.of[d];
  }
  if (full.volume() > kMaxThreads) {
    fail("%zu threads in a threadgroup, where %zu are the most", full.volume(), kMaxThreads);
  }
  std::vector<void*> arguments(request.threadgroup_arguments);
  machine.threadgroup_arguments = arguments.data();
  std::vector<size_t> order(groups.volume());
  fill_order(order.data(), order.size());
  for (size_t i : order) {
    unsigned x = unsigned(i % groups.of[0]), yz = unsigned(i / groups.of[0]);
    place_arguments(request.threadgroup_bytes, arguments.size(), arguments);
    run_threadgroup({{x, yz % groups.of[1], yz / groups.of[1]}}, groups, full, grid);
  }
}

void reset(const LaunchRequest& request) {
  map_memory();
  machine.entry = request.entry;
  machine.buffers = request.buffers;
  machine.instrumented = request.instrumented;
  machine.find_races = request.find_races;
  machine.count = request.count;
  machine.order = Order(request.order);
  machine.random_state = request.seed * 2 + 1;
  machine.variables.clear();
  machine.threadgroup = 0;
  machine.of_threadgroup = {};
  machine.arena_peak = 0;
  machine.error[0] = 0;
  findings.clear();
  forget_traffic();
  if (machine.instrumented)
    forget_threadgroup_accesses();
}

#if defined(__x86_64__)
unsigned float_control() {
  return __builtin_ia32_stmxcsr();
}
void set_float_control(unsigned control) {
  __builtin_ia32_ldmxcsr(control);
}
constexpr unsigned kFlushToZero = 0x8040;
#elif defined(__aarch64__)
uint64_t float_control() {
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
}
void set_float_control(uint64_t control) {
  asm volatile("msr fpcr, %0" : : "r"(control));
}
constexpr uint64_t kFlushToZero = 1u << 24;
#endif

}  // namespace

}  // namespace runner

using namespace runner;

extern "C" {

unsigned runner_lane() {
  return machine.current->lane();
}

void runner_inactive_read() {
  traffic.inactive_reads++;
}

void runner_simd(Post* post, unsigned site, const char* file) {
  wait_in(State::in_simd_function, {site, file}, 0, post);
}

void runner_barrier(int of_simdgroup, unsigned flags, unsigned site, const char* file) {
  State state = of_simdgroup ? State::at_simd_barrier : State::at_barrier;
  wait_in(state, {site, file}, flags, nullptr);
}

void* runner_threadgroup_variable(unsigned id, unsigned long bytes, const char* name) {
  constexpr size_t kAlignment = 16;
  Variable& variable = machine.variables[id];
  if (variable.threadgroup == machine.threadgroup)
    return variable.at;
  size_t offset = (machine.arena_used + kAlignment - 1) / kAlignment * kAlignment;
  if (offset + bytes > kThreadgroupMemory) {
    fail("%zu bytes of threadgroup memory with %s, where a threadgroup may have %zu",
         offset + bytes, name, kThreadgroupMemory);
  }
  variable = {machine.arena + offset, machine.threadgroup};
  machine.arena_used = offset + bytes;
  machine.arena_peak = std::max(machine.arena_peak, machine.arena_used);
  return variable.at;
}

// 0, or not 0 and runner_error() says why the launch was given up.
int runner_launch(const LaunchRequest* request) {
  reset(*request);
  auto control = float_control();
  if (request->flush_denormals)
    set_float_control(control | kFlushToZero);
  FaultHandlers handlers;
  volatile int failed = sigsetjmp(machine.escape, 1);
  if (!failed) {
    machine.launching = true;
    run_grid(*request);
  }
  machine.launching = false;
  machine.current = nullptr;
  set_float_control(control);
  if (!failed)
    check_guards();
  return failed;
}

const char* runner_error() {
  return machine.error;
}

}  // extern "C"
