// The thread pool from several callers at once, and after a fork.
#include "cpu/thread_pool.h"

#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <thread>

#include "cpu/matmul.h"
#include "harness.h"

namespace native {

namespace {

// Every index once, whoever runs it; plain writes, so that a sanitizer sees a missing hand-over.
bool each_index_runs_once(int count) {
  std::vector<int> runs(count);
  parallel_for(count, [&](int i) { ++runs[i]; });
  for (int n : runs) {
    if (n != 1) {
      return false;
    }
  }
  return true;
}

void test_callers(Report& report) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 200; ++round) {
        wrong += !each_index_runs_once(round % 37 + caller);
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  report.expect(wrong == 0, "parallel_for from four threads: ", wrong.load(), " wrong");
}

// Products from several threads, which share the pool and keep scratch of their own.
void test_products(Report& report) {
  constexpr int M = 40, K = 256, N = 100, callers = 3;
  Random random(11);
  const Array x = Array::normal(random, Element::f32, M * K);
  const Array w = Array::normal(random, Element::f16, N * K);
  std::vector<Array> ys;
  for (int i = 0; i < callers + 1; ++i) {
    ys.emplace_back(Element::f32, M * N);
  }
  auto run = [&](int i) {
    MatmulRequest request{};
    request.M = M;
    request.K = K;
    request.x = x.data();
    Weights weights{};
    weights.kind = WeightKind::dense;
    weights.element = Element::f16;
    weights.data = w.data();
    MatmulPart part{};
    part.N = N;
    part.w = weights;
    part.y = ys[i].data();
    part.y_element = Element::f32;
    request.parts = {part};
    for (int round = 0; round < 5; ++round) {
      matmul(request);
    }
  };
  run(callers);
  std::vector<std::thread> threads;
  for (int i = 0; i < callers; ++i) {
    threads.emplace_back(run, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int i = 0; i < callers; ++i) {
    report.expect(std::memcmp(ys[i].data(), ys[callers].data(), ys[i].bytes()) == 0,
                  "products of caller ", i, " differ");
  }
}

}  // namespace

void test_threads(Report& report) {
  test_callers(report);
  test_products(report);
}

void test_fork(Report& report) {
  report.expect(each_index_runs_once(50), "parallel_for before the fork");
  const pid_t child = fork();
  if (child == 0) {
    _exit(each_index_runs_once(50) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  report.expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "parallel_for in a forked child");
  report.expect(each_index_runs_once(50), "parallel_for after the fork");
}

}  // namespace native
