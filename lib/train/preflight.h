#pragma once
// The ranks, the hardware and the memory of a run before it starts. Memory by category comes from
// running one step on the meta device.

#include <functional>

#include "device/gpu_kinds.h"
#include "device/memory_ledger.h"
#include "engine/dry_run.h"
#include "train/session.h"

namespace fp8train {

/// The hardware of a rank of a run, which is in this machine or not.
struct RankMemory {
  const GpuKind* gpu = nullptr;  ///< the planned GPU; null if the device is in this machine
  DeviceTraits traits;
  size_t bytes = 0;      ///< bytes of memory; 0: not known
  bool is_host = false;  ///< it is the host's

  /// Whether `planned` fits, or the bytes are not known.
  bool fits(const MemoryLedger& planned) const { return bytes == 0 || planned.total() <= bytes; }
};

/// Returns the dry run of the stage that needs the most memory: the stages of a run do not have
/// theirs at the same time. `of_stage` makes a dry run of an engine.
DryRunStep largest_stage(const Session& session,
                         const std::function<DryRunStep(const EngineSettings&)>& of_stage);
/// Returns the dry runs of a pipeline's stages, of the stage of the run in which one of them needs
/// the most memory; `of_rank` as of dry_run_stages().
StageRuns largest_stage_runs(const Session& session, const DryRunOfRank& of_rank);
/// Returns that of the pipeline stage that needs the most memory.
DryRunStep largest_rank(const Session& session, const DryRunOfRank& of_rank);

/// Sets settings.job to the ranks to plan for and returns their number. `world_size` and
/// `ranks_per_node` come from a command line; if one is 0, the job has it already. With a
/// `world_size` alone nodes have 8 ranks; without it, it is the number of ranks that a launcher has
/// started with this process or, where the job has one rank only, the number of processes in
/// another program's file. Throws ConfigError for more than 131072 ranks.
int fill_job(int64_t world_size, int64_t ranks_per_node, Settings& settings);

/// Return the number of all ranks of a job, and of those of a node.
int job_ranks(const JobSettings& job);
inline int ranks_of_node(const JobSettings& job) {
  return static_cast<int>(job.ranks_per_node);
}

/// Whether the memory of memory_of_job() is that of the machine that the run is for: the job names
/// it, or has one node and means this machine. The nodes of others are perhaps not like this one.
bool names_its_machine(const Settings& settings);

/// Throws DeviceError, which names the settings to change, if `planned` does not fit into a rank's
/// memory.
void check_fits(const RankMemory& memory, const MemoryLedger& planned);
/// Returns the memory of a rank on this device. On a cpu, `sharing` ranks share the memory that is
/// available.
RankMemory memory_here(const Device& device, int64_t sharing);
/// Returns the memory of a rank on the hardware that the section on jobs names: a GPU, or a node's
/// memory if ranks work on cpus. If it names none, it is the memory of the device that `here`
/// returns. Throws ConfigError for a GPU that is not known.
RankMemory memory_of_job(const Settings& settings, const std::function<const Device&()>& here);

/// Returns the memory that a rank of a run needs: the memory of a step and, if the device's memory
/// is the host's, the copy of the state that is written into a checkpoint while training continues.
MemoryLedger memory_of_run(const DryRunStep& dry_run, bool is_host);

}  // namespace fp8train
