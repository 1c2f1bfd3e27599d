// The thread pool from several callers at once, and after a fork; and what CPU quotas allow it.
#include "cpu/thread_pool.h"

#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/available_processors.h"
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

#ifndef __APPLE__

struct QuotaCase {
  const char* what;
  double processors;
  std::vector<std::pair<const char*, const char*>> files;
};

void test_quotas(Report& report) {
  constexpr double none = std::numeric_limits<double>::infinity();
  const QuotaCase cases[] = {
      {"no control groups", none, {}},
      {"version 2, none",
       none,
       {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "max 100000"}}},
      {"version 2, a container",
       1.5,
       {{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "150000 100000"}}},
      {"version 2, its own less than that around it",
       2,
       {{"proc/self/cgroup", "0::/a.slice/b.service\n"},
        {"sys/fs/cgroup/a.slice/cpu.max", "400000 100000"},
        {"sys/fs/cgroup/a.slice/b.service/cpu.max", "200000 100000"}}},
      {"version 2, that around it less",
       0.25,
       {{"proc/self/cgroup", "0::/a.slice/b.service\n"},
        {"sys/fs/cgroup/a.slice/cpu.max", "25000 100000"},
        {"sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000"}}},
      {"version 2, another group's",
       none,
       {{"proc/self/cgroup", "0::/a\n"}, {"sys/fs/cgroup/b/cpu.max", "100000 100000"}}},
      {"version 1",
       3,
       {{"proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/y\n1:cpuset:/z\n"},
        {"sys/fs/cgroup/cpu/y/cpu.cfs_quota_us", "150000"},
        {"sys/fs/cgroup/cpu/y/cpu.cfs_period_us", "50000"},
        {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "1"},
        {"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "50000"}}},
      {"version 1, none",
       none,
       {{"proc/self/cgroup", "4:cpuacct,cpu:/\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"},
        {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}}},
      {"version 1, the host's path",
       2,
       {{"proc/self/cgroup", "4:cpu:/docker/0123\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000"},
        {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}}},
      {"lines of another kind", none, {{"proc/self/cgroup", "\nnone\n0:\n"}}},
  };
  std::string folder = std::filesystem::temp_directory_path() / "mixbit-cgroup-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return report.expect(false, "no folder can be made: ", folder);
  }
  const std::filesystem::path base = folder;
  int number = 0;
  for (const QuotaCase& c : cases) {
    const std::filesystem::path root = base / std::to_string(number++);
    for (const auto& [name, text] : c.files) {
      std::filesystem::create_directories((root / name).parent_path());
      std::ofstream(root / name) << text;
    }
    const double found = quota_processors(root);
    report.expect(found == c.processors, c.what, ": ", found, " processors for ", c.processors);
  }
  std::filesystem::remove_all(base);
}

#endif

}  // namespace

void test_threads(Report& report) {
#ifndef __APPLE__
  test_quotas(report);
#endif
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
