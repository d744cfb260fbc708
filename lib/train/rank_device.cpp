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

RankDevice place_of(const Settings& settings, int local_rank, int local_ranks) {
  RankDevice place;
  const int index = local_ranks > 1 && settings.device != DeviceChoice::cpu
                        ? gpu_of_rank(local_rank, local_ranks, visible_gpus())
                        : 0;
  place.device = choose_device(settings.device, settings.gemm_tuning, place.reason, index);
  return place;
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
  RankDevice place = place_of(settings, rendezvous.local_rank, rendezvous.local_rank + 1);
  if (place.device->kind() != DeviceKind::cuda) {
    throw ConfigError(fmt::format(
        "comm.bootstrap: file is for ranks on GPUs, and this one computes on the cpu ({}); ranks "
        "on CPUs need MPI",
        place.reason));
  }
  place.comm = make_nccl_communicator(rendezvous, *place.device);
  place.note = "met by a file";
  return place;
}

void check_backend(const Settings& settings, const RankDevice& place) {
  if (settings.comm.backend == CommBackend::nccl && place.device->kind() != DeviceKind::cuda) {
    throw ConfigError(fmt::format(
        "comm.backend: nccl is for ranks on GPUs, and this one computes on the cpu ({})",
        place.reason));
  }
}

void agree_on_kind(Communicator& host, const RankDevice& place) {
  const auto kinds = host.all_gather_values(place.device->kind());
  for (int rank = 0; rank < host.size(); ++rank) {
    if (kinds[static_cast<size_t>(rank)] != kinds[0]) {
      throw ConfigError(fmt::format(
          "rank 0 computes on {} and rank {} on {} (here: {}); set device: cpu, or give "
          "every rank a GPU",
          name_of(kinds[0]), rank, name_of(kinds[static_cast<size_t>(rank)]), place.reason));
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
  if (meets_by_file(settings.comm, detect_launch())) {
    return device_by_rendezvous(settings);
  }
  RankDevice place = place_of(settings, host.local_rank(), host.local_size());
  agree_on_kind(host, place);
  check_backend(settings, place);
  if (host.size() == 1 || place.device->kind() != DeviceKind::cuda) {
    return place;
  }
  const std::string obstacle = why_nccl_is_unusable();
  if (backend == CommBackend::nccl ||
      (backend == CommBackend::automatic && !host.any_rank(!obstacle.empty()))) {
    place.comm = make_nccl_communicator(host, *place.device);
    return place;
  }
  place.comm = make_staged_communicator(host, *place.device);
  place.note = "gradients cross through host memory";
  if (backend == CommBackend::automatic) {
    place.note += ": " + (obstacle.empty() ? "another rank has no NCCL" : obstacle);
  }
  return place;
}

}  // namespace fp8train
