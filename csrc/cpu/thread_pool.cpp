#include "cpu/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "cpu/available_processors.h"

namespace mixbit::cpu {

namespace {

// How long a thread looks out for work, or for the end of it, before it sleeps: as long as falling
// asleep and being woken takes (some 50 µs in a virtual machine), so that it never wastes more than
// the wiser choice would have. In a model the next product mostly comes within that time.
constexpr auto kLookOut = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
void look_out_for(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  while (!condition() && std::chrono::steady_clock::now() < end) {
    relax();
  }
}

struct Job {
  const std::function<void(int)>* task;
  int count;
  std::atomic<int> next{0};
  std::atomic<int> done{0};

  // Takes tasks until none is left; true for whoever finished the last one.
  bool work() {
    bool last = false;
    for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      (*task)(i);
      last = done.fetch_add(1, std::memory_order_acq_rel) + 1 == count;
    }
    return last;
  }

  bool finished() const { return done.load(std::memory_order_acquire) == count; }
};

class Pool {
 public:
  explicit Pool(int helpers) : owner_(getpid()) {
    for (int i = 0; i < helpers; ++i) {
      std::thread([this] { serve(); }).detach();
    }
  }

  pid_t owner() const { return owner_; }

  void run(int count, const std::function<void(int)>& task) {
    std::unique_lock<std::mutex> busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) {
      for (int i = 0; i < count; ++i) {
        task(i);
      }
      return;
    }
    auto job = std::make_shared<Job>();
    job->task = &task;
    job->count = count;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      posted_.fetch_add(1, std::memory_order_release);
    }
    work_.notify_all();
    job->work();
    look_out_for([&] { return job->finished(); });
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [&] { return job->finished(); });
    // A helper that wakes up only now must find no job: `task` is about to go away. One that holds
    // the job already finds its counter used up and never touches the task.
    job_.reset();
  }

 private:
  void serve() {
    uint64_t seen = 0;
    const auto is_new = [&] { return posted_.load(std::memory_order_acquire) != seen; };
    for (;;) {
      look_out_for(is_new);
      std::unique_lock<std::mutex> lock(mutex_);
      work_.wait(lock, is_new);
      seen = posted_;
      const std::shared_ptr<Job> job = job_;
      lock.unlock();
      if (job != nullptr && job->work()) {
        // Under the lock, or the one who waits might miss it between looking and falling asleep.
        lock.lock();
        finished_.notify_one();
      }
    }
  }

  const pid_t owner_;
  std::mutex busy_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_;
  std::shared_ptr<Job> job_;
  std::atomic<uint64_t> posted_ = 0;
};

// Made at first use. A forked child has none of its parent's threads: it gets a pool of its own,
// and the inherited object, whose locks may be held by threads that no longer exist, is left alone.
// Pools are never destroyed, as helpers wait in them until the process ends.
Pool& pool() {
  static std::mutex making;
  static std::atomic<Pool*> current{nullptr};
  Pool* existing = current.load(std::memory_order_acquire);
  if (existing != nullptr && existing->owner() == getpid()) {
    return *existing;
  }
  std::lock_guard<std::mutex> lock(making);
  existing = current.load(std::memory_order_acquire);
  if (existing == nullptr || existing->owner() != getpid()) {
    existing = new Pool(num_threads() - 1);
    current.store(existing, std::memory_order_release);
  }
  return *existing;
}

}  // namespace

int num_threads() {
  static const int count = [] {
    const char* wanted = std::getenv("MIXBIT_NUM_THREADS");
    const int asked = wanted == nullptr ? 0 : std::atoi(wanted);
    return std::clamp(asked > 0 ? asked : available_processors(), 1, 256);
  }();
  return count;
}

void parallel_for(int count, const std::function<void(int)>& task) {
  if (count <= 1 || num_threads() == 1) {
    for (int i = 0; i < count; ++i) {
      task(i);
    }
    return;
  }
  pool().run(count, task);
}

}  // namespace mixbit::cpu
