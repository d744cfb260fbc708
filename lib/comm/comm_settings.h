#pragma once
// Settings: how the ranks of a run find each other and which library moves their bytes.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace fp8train {

/// automatic: mpi where a launcher has started several ranks, else self; for ranks on GPUs nccl
/// where there is one (train/rank_device.h). mpi: on GPUs through host memory.
enum class CommBackend : uint8_t { automatic, self, mpi, nccl };
inline constexpr std::pair<CommBackend, std::string_view> kCommBackends[] = {
    {CommBackend::automatic, "auto"},
    {CommBackend::self, "self"},
    {CommBackend::mpi, "mpi"},
    {CommBackend::nccl, "nccl"}};

/// How ranks find each other. `automatic` is `file` if nccl is requested and srun's tasks have no
/// process manager or the build has no MPI, else `mpi`.
enum class CommBootstrap : uint8_t { automatic, mpi, file };
inline constexpr std::pair<CommBootstrap, std::string_view> kCommBootstraps[] = {
    {CommBootstrap::automatic, "auto"}, {CommBootstrap::mpi, "mpi"}, {CommBootstrap::file, "file"}};

/// The settings under `comm`.
struct CommSettings {
  CommBackend backend = CommBackend::automatic;
  CommBootstrap bootstrap = CommBootstrap::automatic;
  std::string bootstrap_file;      ///< empty: one in the run's folder
  double timeout_seconds = 600.0;  ///< after which a collective fails

  bool operator==(const CommSettings&) const = default;
};

}  // namespace fp8train
