#include "comm/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace fp8train {
namespace {

/// 0 where the variable is absent or is not a number that an int holds.
int number(const Environment& variable, const char* name) {
  const char* found = variable(name);
  return found == nullptr ? 0 : whole_number<int>(found).value_or(0);
}

int first_number(const Environment& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const int found = number(variable, name);
    if (found > 0) {
      return found;
    }
  }
  return 0;
}

bool is_set(const Environment& variable, const char* name) {
  return variable(name) != nullptr;
}

/// Launchers of PyTorch set all three (torch/distributed/elastic/agent/server/
/// local_elastic_agent.py; DeepSpeed, launcher/launch.py; `accelerate launch` starts one of these).
/// Scripts for srun and mpirun set them too, but not TORCHELASTIC_RUN_ID or CROSS_RANK.
int torch_processes(const Environment& variable, const Launch& launch) {
  const int processes = first_number(variable, {"WORLD_SIZE"});
  if (processes < 2 || !is_set(variable, "RANK") || !is_set(variable, "LOCAL_RANK")) {
    return 0;
  }
  const bool marked = is_set(variable, "TORCHELASTIC_RUN_ID") || is_set(variable, "CROSS_RANK");
  return marked || (launch.mpi_ranks == 0 && launch.slurm_step_tasks < 2) ? processes : 0;
}

}  // namespace

Launch detect_launch(const Environment& variable) {
  Launch launch;
  const bool in_step = variable("SLURM_STEP_ID") != nullptr;
  launch.slurm_job_tasks = first_number(variable, {"SLURM_NTASKS"});
  launch.slurm_step_tasks =
      in_step ? first_number(variable, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) : 0;
  // mpirun of Open MPI; of MPICH, Intel MPI and others through Hydra.
  launch.mpi_ranks = first_number(variable, {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD", "OMPI_COMM_WORLD_RANK"}) {
    launch.manager = launch.manager || is_set(variable, name);
  }
  launch.torch_processes = torch_processes(variable, launch);
  return launch;
}

Launch detect_launch() {
  return detect_launch([](const char* name) { return std::getenv(name); });
}

int rank_of_launcher() {
  const Environment variable = [](const char* name) { return std::getenv(name); };
  if (detect_launch(variable).torch_processes > 0) {
    return number(variable, "RANK");
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (is_set(variable, name)) {
      return number(variable, name);
    }
  }
  return 0;
}

void check_launch(const Launch& launch, int ranks) {
  if (ranks > 1) {
    return;
  }
  if (launch.torch_processes > 1) {
    throw ConfigError(fmt::format(
        "torchrun, or a launcher like it, has started {} processes, and each would train the whole "
        "run alone: ranks find each other through MPI here, so start them with `mpirun -n {} "
        "fp8train ...` or srun; comm.backend: self trains alone in each process",
        launch.torch_processes, launch.torch_processes));
  }
  if (launch.slurm_step_tasks > 1) {
    throw ConfigError(fmt::format(
        "srun has started {} tasks, but each of them is alone: srun and this program's MPI do not "
        "find each other. `srun --mpi=list` shows what srun can do; try `srun --mpi=pmix ...`, or "
        "start with mpirun inside of the job; ranks on GPUs can do without (comm.bootstrap: file)",
        launch.slurm_step_tasks));
  }
  if (launch.slurm_step_tasks == 0 && launch.slurm_job_tasks > 1 && launch.mpi_ranks == 0) {
    throw ConfigError(fmt::format(
        "this job has {} tasks, but the program was started once, outside of srun. Start it with "
        "`srun --mpi=pmix ...` (or mpirun), or ask for one rank with comm.backend: self",
        launch.slurm_job_tasks));
  }
  if (launch.mpi_ranks > 1) {
    throw ConfigError(fmt::format(
        "mpirun has started {} ranks, but each of them is alone: this program was built with "
        "another MPI than mpirun belongs to, or without one. Use the mpirun of the MPI that it "
        "was built with",
        launch.mpi_ranks));
  }
}

int64_t threads_per_rank(int sharing, int64_t available_cores, const Launch& launch,
                         const Environment& variable) {
  const bool are_tasks = launch.mpi_ranks <= 1 || launch.mpi_ranks == launch.slurm_step_tasks;
  const int64_t asked = are_tasks ? number(variable, "SLURM_CPUS_PER_TASK") : 0;
  if (asked > 0) {
    return std::min(asked, available_cores);  // srun inherits it, also where it gives fewer
  }
  return std::max<int64_t>(available_cores / std::max(sharing, 1), 1);
}

}  // namespace fp8train
