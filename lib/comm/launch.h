#pragma once
// How this process was started, read from the environment before any communication.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

namespace fp8train {

/// The traces that a launcher left in the environment of this process.
struct Launch {
  int slurm_step_tasks = 0;  ///< tasks of the job step that this process belongs to; 0: none
  int slurm_job_tasks = 0;   ///< tasks of the job around it; 0: none
  int mpi_ranks = 0;         ///< ranks that mpirun or a process manager reports; 0: none does
  int torch_processes = 0;   ///< processes that a launcher of PyTorch has started; 0: none has
  bool manager = false;      ///< a process manager (PMIx, PMI, Open MPI's) has left its address

  /// Whether MPI is worth starting: a process alone saves itself the time.
  bool wants_mpi() const { return mpi_ranks > 1 || (manager && slurm_step_tasks > 1); }
  /// Returns how many processes were started with this one, itself included.
  int processes() const { return std::max({mpi_ranks, slurm_step_tasks, torch_processes, 1}); }
};

/// `variable` returns an environment variable, null where there is none.
using Environment = std::function<const char*(const char*)>;
/// Return the traces in the environment that `variable` reads, and in that of this process.
Launch detect_launch(const Environment& variable);
Launch detect_launch();

/// Returns the rank that the launcher gives this process, for use until the ranks have met, or 0 if
/// it gives none.
int rank_of_launcher();

/// Throws ConfigError with the fix where several tasks were started and each is alone, where a
/// launcher of PyTorch has started them, which uses no MPI, or where a job of several tasks has
/// started the program once, outside of srun and mpirun. `ranks` is the number that the
/// communicator has found.
void check_launch(const Launch& launch, int ranks);

/// Returns the number of threads for a rank: SLURM_CPUS_PER_TASK where ranks are the tasks of a
/// step, which those of mpirun are not, at most the cores that there are; else the cores that it
/// may use, shared among the `sharing` ranks that may use them too. At least 1.
int64_t threads_per_rank(int sharing, int64_t available_cores, const Launch& launch,
                         const Environment& variable);

}  // namespace fp8train
