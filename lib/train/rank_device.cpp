#include "train/rank_device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "comm/backends/backends.h"
#include "comm/backends/nccl_library.h"
#include "comm/backends/rendezvous.h"
#include "device/cuda/cuda_device.h"
#include "train/session.h"

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
    throw ConfigError(fmt::format(
        "comm.bootstrap: file is for ranks on GPUs, and this one computes on the cpu ({}); ranks "
        "on CPUs need MPI",
        rank_device.reason));
  }
  rank_device.comm = make_nccl_communicator(rendezvous, *rank_device.device);
  rank_device.note = "met by a file";
  return rank_device;
}

void check_backend(const Settings& settings, const RankDevice& rank_device) {
  if (settings.comm.backend == CommBackend::nccl &&
      rank_device.device->kind() != DeviceKind::cuda) {
    throw ConfigError(fmt::format(
        "comm.backend: nccl is for ranks on GPUs, and this one computes on the cpu ({})",
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

}  // namespace fp8train
