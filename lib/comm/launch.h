#pragma once
// How this process was started, read from the environment before any communication.

#include <cstdint>
#include <functional>
#include <string>

namespace fp8train {

struct Launch {
  int slurm_step_tasks = 0;  ///< tasks of the job step that this process belongs to; 0: none
  int slurm_job_tasks = 0;   ///< tasks of the job around it; 0: none
  int mpi_ranks = 0;         ///< as mpirun or a process manager says; 0: nobody does
  bool manager = false;      ///< a process manager (PMIx, PMI, Open MPI's) has left its address

  /// Whether MPI is worth starting: a process alone saves itself the time.
  bool wants_mpi() const { return mpi_ranks > 1 || (manager && slurm_step_tasks > 1); }
};

/// `variable` returns an environment variable, null where there is none.
using Environment = std::function<const char*(const char*)>;
Launch detect_launch(const Environment& variable);
Launch detect_launch();

/// The rank of this process as its launcher says, until the ranks have met; 0 where nobody does.
int rank_of_launcher();

/// Throws ConfigError with the fix where several tasks were started and each is alone: `ranks` is
/// what the communicator has found.
void check_launch(const Launch& launch, int ranks);

/// Threads for a rank: SLURM_CPUS_PER_TASK where ranks are the tasks of a step, which those of
/// mpirun are not, at most the cores that there are; else the cores that it may use, shared among
/// the ranks that may use them too. At least 1.
int64_t threads_per_rank(int sharing, int64_t available_cores, const Launch& launch,
                         const Environment& variable);

}  // namespace fp8train
