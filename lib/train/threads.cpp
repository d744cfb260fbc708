#include "train/threads.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/launch.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace fp8train {
namespace {

/// Returns 0 where the variable is not set or has no number of threads.
int64_t count_from_environment(const char* name) {
  const char* text = std::getenv(name);
  constexpr long long kMost = 1024;  // as the setting: OpenMP ends the process where it fails
  return text == nullptr ? 0 : std::clamp(std::strtoll(text, nullptr, 10), 0LL, kMost);
}

int64_t available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/// Starts so many threads at once, and ends them.
void require_threads(int64_t threads) {
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> others;
  std::string failure;
  try {
    for (int64_t i = 1; i < threads; ++i) {
      others.emplace_back([ended] { ended.wait(); });
    }
  } catch (const std::system_error& error) {
    failure = error.code().message();
  }
  end.set_value();
  for (std::thread& other : others) {
    other.join();
  }
  if (!failure.empty()) {
    throw DeviceError(fmt::format(
        "cannot start {} threads ({}): set `threads` lower, or raise the limit of processes "
        "(ulimit -u, or that of the container)",
        threads, failure));
  }
}

/// Tiles of attention lie on the stack (ops/attention/attention_backward_cpu.cpp), 930 KiB of them.
void require_stack() {
  constexpr size_t kLeast = size_t{1} << 20;
  rlimit limit = {};
  size_t smallest = kLeast;
  if (getrlimit(RLIMIT_STACK, &limit) == 0) {
    smallest = std::min<rlim_t>(smallest, limit.rlim_cur);
  }
#pragma omp parallel reduction(min : smallest)
  {
    pthread_attr_t attributes;
    size_t size = kLeast;
    const bool is_first = getpid() == gettid();  // whose stack grows up to the limit
    if (!is_first && pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstacksize(&attributes, &size);
      pthread_attr_destroy(&attributes);
    }
    smallest = std::min(smallest, size);
  }
  if (smallest < kLeast) {
    throw DeviceError(
        fmt::format("a thread's stack has {} KiB, and the kernels need {}: raise `ulimit -s`, and "
                    "unset OMP_STACKSIZE",
                    smallest >> 10, kLeast >> 10));
  }
}

}  // namespace

int64_t configure_threads(int64_t requested, int sharing) {
  int64_t threads = requested > 0 ? requested : count_from_environment("OMP_NUM_THREADS");
  if (threads == 0) {
    threads = threads_per_rank(sharing, available_cores(), detect_launch(),
                               [](const char* name) { return std::getenv(name); });
  }
#ifdef _OPENMP
  require_threads(threads);
  omp_set_num_threads(static_cast<int>(threads));
#else
  threads = 1;
#endif
  require_stack();
  return threads;
}

}  // namespace fp8train
