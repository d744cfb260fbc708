#include "comm/launch.h"

#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"
#include "comm/backends/backends.h"

namespace fp8train::test {
namespace {

Environment environment(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::string refusal(const Environment& variables, int ranks) {
  try {
    check_launch(detect_launch(variables), ranks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a launch is read from the environment", "[launch]") {
  const Launch alone = detect_launch(environment({}));
  CHECK_FALSE(alone.wants_mpi());
  const Launch srun = detect_launch(environment({{"SLURM_STEP_ID", "0"},
                                                 {"SLURM_STEP_NUM_TASKS", "4"},
                                                 {"SLURM_NTASKS", "8"},
                                                 {"PMIX_RANK", "2"}}));
  CHECK(srun.slurm_step_tasks == 4);
  CHECK(srun.wants_mpi());
  const Launch mpirun = detect_launch(environment(
      {{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"SLURM_NTASKS", "3"}}));
  CHECK(mpirun.mpi_ranks == 3);
  CHECK(mpirun.wants_mpi());
  // A batch script is no step, and has no manager.
  CHECK_FALSE(detect_launch(environment({{"SLURM_NTASKS", "4"}})).wants_mpi());
}

TEST_CASE("what is no number in the environment says nothing", "[launch]") {
  for (const char* text : {"4294967298", "99999999999999999999", "-3", "", "4x", " 4"}) {
    CAPTURE(text);
    const Environment variables = environment({{"SLURM_STEP_ID", "0"},
                                               {"SLURM_NTASKS", text},
                                               {"OMPI_COMM_WORLD_SIZE", text},
                                               {"SLURM_CPUS_PER_TASK", text}});
    const Launch launch = detect_launch(variables);
    CHECK(launch.slurm_step_tasks == 0);
    CHECK(launch.slurm_job_tasks == 0);
    CHECK(launch.mpi_ranks == 0);
    CHECK(threads_per_rank(2, 8, launch, variables) == 4);
  }
}

TEST_CASE("tasks that do not find each other are refused with the fix", "[launch]") {
  const auto step =
      environment({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}});
  CHECK_THAT(refusal(step, 1), Catch::Contains("srun --mpi=list") &&
                                   Catch::Contains("srun --mpi=pmix") &&
                                   Catch::Contains("4 tasks"));
  CHECK(refusal(step, 4).empty());
  CHECK_THAT(refusal(environment({{"SLURM_NTASKS", "4"}}), 1), Catch::Contains("outside of srun"));
  CHECK_THAT(refusal(environment({{"OMPI_COMM_WORLD_SIZE", "2"}}), 1),
             Catch::Contains("another MPI"));
  CHECK(refusal(environment({}), 1).empty());
  // mpirun -n 1 in a job of several tasks is meant.
  CHECK(refusal(environment({{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_NTASKS", "4"}}), 1).empty());
  CHECK(refusal(environment({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), 1).empty());
}

TEST_CASE("launchers of PyTorch are refused with the fix", "[launch]") {
  using Variables = std::map<std::string, std::string>;
  const auto with = [](Variables variables, const Variables& more) {
    variables.insert(more.begin(), more.end());
    return environment(variables);
  };
  const Variables plain = {{"WORLD_SIZE", "8"}, {"RANK", "3"}, {"LOCAL_RANK", "3"}};
  CHECK_THAT(refusal(environment(plain), 1),
             Catch::StartsWith("torchrun, or a launcher like it, has started 8 processes") &&
                 Catch::Contains("mpirun -n 8 fp8train") && Catch::Contains("comm.backend: self"));
  // Accelerate and DeepSpeed.
  CHECK_FALSE(refusal(with(plain, {{"ACCELERATE_MIXED_PRECISION", "fp8"}}), 1).empty());
  CHECK_FALSE(refusal(with(plain, {{"CROSS_RANK", "0"}, {"PMIX_RANK", "0"}}), 1).empty());
  // torchrun below srun or mpirun leaves their marks to its processes.
  const Variables step = {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}, {"PMIX_RANK", "1"}};
  CHECK_THAT(refusal(with(plain, {{"SLURM_NTASKS", "4"}}), 1), Catch::StartsWith("torchrun"));
  CHECK(detect_launch(with(plain, step)).torch_processes == 0);
  Variables marked = step;
  marked["TORCHELASTIC_RUN_ID"] = "x";
  CHECK(detect_launch(with(plain, marked)).torch_processes == 8);
  CHECK(detect_launch(with(plain, {{"OMPI_COMM_WORLD_SIZE", "8"}})).torch_processes == 0);
  // One process, or a script that sets less, is meant.
  CHECK(refusal(environment({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}), 1).empty());
  CHECK(refusal(environment({{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "n01"}}), 1).empty());
}

TEST_CASE("cores are shared among the ranks of a node", "[launch]") {
  const Launch srun = {.slurm_step_tasks = 4, .mpi_ranks = 4};
  const Launch mpirun = {.slurm_step_tasks = 1, .mpi_ranks = 4};
  CHECK(threads_per_rank(4, 16, {}, environment({})) == 4);
  CHECK(threads_per_rank(4, 2, {}, environment({})) == 1);
  CHECK(threads_per_rank(1, 4, {}, environment({})) == 4);  // bound by the launcher
  CHECK(threads_per_rank(4, 16, {}, environment({{"SLURM_CPUS_PER_TASK", "6"}})) == 6);
  CHECK(threads_per_rank(4, 16, srun, environment({{"SLURM_CPUS_PER_TASK", "6"}})) == 6);
  CHECK(threads_per_rank(4, 2, srun, environment({{"SLURM_CPUS_PER_TASK", "6"}})) == 2);
  CHECK(threads_per_rank(4, 16, mpirun, environment({{"SLURM_CPUS_PER_TASK", "6"}})) == 4);
  CHECK(threads_per_rank(4, 16, {}, environment({{"SLURM_CPUS_PER_TASK", ""}})) == 4);
}

TEST_CASE("a communicator is made by name", "[launch]") {
  const auto self = make_communicator({.backend = CommBackend::self, .timeout_seconds = 5});
  CHECK(self->size() == 1);
  CHECK(self->timeout() == 5);
  CHECK(self->description() == "self: rank 0 of 1, node 0 of 1");
}

}  // namespace
}  // namespace fp8train::test
