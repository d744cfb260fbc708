#include "train/rank_device.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "comm/backends/backends.h"
#include "comm/backends/nccl_library.h"
#include "comm/backends/rendezvous.h"
#include "comm/launch.h"
#include "device/cuda/cuda_device.h"
#include "train/session.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace fp8train {
namespace {

RankDevice device_of_rank(const Settings& settings, int local_rank, int local_ranks) {
  RankDevice rank_device;
  const int index = local_ranks > 1 && settings.device != DeviceChoice::cpu
                        ? gpu_of_rank(local_rank, local_ranks, visible_gpus())
                        : 0;
  rank_device.device =
      choose_device(settings.device, settings.gemm_tuning, rank_device.reason, index);
  return rank_device;
}

/// By default CUDA loads a kernel at its first launch, which may wait for the work of the device:
/// ranks that load kernels at different points of a collective would wait for each other (CUDA
/// C++ Programming Guide, "Lazy Loading"). A user's setting comes first. To be called before the
/// first call of CUDA.
void load_kernels_at_start() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

/// Ranks that nothing but a file brings together.
RankDevice device_by_rendezvous(const Settings& settings) {
  std::filesystem::path file = settings.comm.bootstrap_file;
  if (file.empty()) {
    file = std::filesystem::path(settings.output_dir) / "rendezvous";
  }
  const Rendezvous rendezvous = slurm_rendezvous([](const char* name) { return std::getenv(name); },
                                                 file, settings.comm.timeout_seconds);
  // How many ranks a node has is not known yet.
  RankDevice rank_device =
      device_of_rank(settings, rendezvous.local_rank, rendezvous.local_rank + 1);
  if (rank_device.device->kind() != DeviceKind::cuda) {
    throw KeyError("comm.bootstrap", fmt::format(": file is for ranks on GPUs, and this one "
                                                 "computes on the cpu ({}); ranks on CPUs need MPI",
                                                 rank_device.reason));
  }
  rank_device.comm = make_nccl_communicator(rendezvous, *rank_device.device);
  rank_device.note = "met by a file";
  return rank_device;
}

void check_backend(const Settings& settings, const RankDevice& rank_device) {
  if (settings.comm.backend == CommBackend::nccl &&
      rank_device.device->kind() != DeviceKind::cuda) {
    throw KeyError("comm.backend",
                   fmt::format(": nccl is for ranks on GPUs, and this one computes on the cpu ({})",
                               rank_device.reason));
  }
}

void agree_on_kind(Communicator& host, const RankDevice& rank_device) {
  const auto kinds = host.all_gather_values(rank_device.device->kind());
  for (int rank = 0; rank < host.size(); ++rank) {
    if (kinds[static_cast<size_t>(rank)] != kinds[0]) {
      throw ConfigError(fmt::format(
          "rank 0 computes on {} and rank {} on {} (here: {}); set device: cpu, or give "
          "every rank a GPU",
          name_of(kinds[0]), rank, name_of(kinds[static_cast<size_t>(rank)]), rank_device.reason));
    }
  }
}

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

int gpu_of_rank(int local_rank, int local_ranks, int visible) {
  if (local_ranks <= 1 || visible <= 1) {
    return 0;
  }
  if (local_rank >= visible) {
    throw ConfigError(fmt::format(
        "this node has at least {} ranks, and each sees {} GPUs: start as many ranks of a node as "
        "it has GPUs (--ntasks-per-node), or set device: cpu",
        std::max(local_ranks, local_rank + 1), visible));
  }
  return local_rank;
}

RankDevice take_device(const Settings& settings, Communicator& host) {
  const CommBackend backend = settings.comm.backend;
  const bool by_file = meets_by_file(settings.comm, detect_launch());
  if (by_file || host.size() > 1) {
    load_kernels_at_start();
  }
  if (by_file) {
    return device_by_rendezvous(settings);
  }
  RankDevice rank_device = device_of_rank(settings, host.local_rank(), host.local_size());
  agree_on_kind(host, rank_device);
  check_backend(settings, rank_device);
  if (host.size() == 1 || rank_device.device->kind() != DeviceKind::cuda) {
    return rank_device;
  }
  const std::string obstacle = why_nccl_is_unusable();
  if (backend == CommBackend::nccl ||
      (backend == CommBackend::automatic && !host.any_rank(!obstacle.empty()))) {
    rank_device.comm = make_nccl_communicator(host, *rank_device.device);
    return rank_device;
  }
  rank_device.comm = make_staged_communicator(host, *rank_device.device);
  rank_device.note = "gradients cross through host memory";
  if (backend == CommBackend::automatic) {
    rank_device.note += ": " + (obstacle.empty() ? "another rank has no NCCL" : obstacle);
  }
  return rank_device;
}

int64_t plan_threads(int64_t requested, int sharing) {
  int64_t threads = requested > 0 ? requested : count_from_environment("OMP_NUM_THREADS");
  if (threads == 0) {
    threads = threads_per_rank(sharing, available_cores(), detect_launch(),
                               [](const char* name) { return std::getenv(name); });
  }
#ifdef _OPENMP
  omp_set_num_threads(static_cast<int>(threads));
  return threads;
#else
  return 1;
#endif
}

int64_t configure_threads(int64_t requested, int sharing) {
  const int64_t threads = plan_threads(requested, sharing);
#ifdef _OPENMP
  require_threads(threads);
#endif
  require_stack();
  return threads;
}

}  // namespace fp8train
