#include "train/threads.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

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

}  // namespace

int64_t configure_threads(int64_t requested, int sharing) {
  int64_t threads = requested > 0 ? requested : count_from_environment("OMP_NUM_THREADS");
  if (threads == 0) {
    threads = threads_per_rank(sharing, available_cores(), detect_launch(),
                               [](const char* name) { return std::getenv(name); });
  }
#ifdef _OPENMP
  omp_set_num_threads(static_cast<int>(threads));
#else
  threads = 1;
#endif
  return threads;
}

}  // namespace fp8train
