#pragma once
// Describes a run in a few lines, at its start and for `check`. Memory by category comes from
// running one step on the meta device.

#include <functional>
#include <string>
#include <vector>

#include "device/gpu_kinds.h"
#include "device/memory_ledger.h"
#include "train/session.h"
#include "train/step/dry_run.h"

namespace fp8train {

/// Model, plan, data, steps and device, one line each. `steps_done`: before the run begins; stages
/// before are left out.
std::vector<std::string> run_overview(const Session& session, const Device& device,
                                      const std::string& device_reason, int64_t threads,
                                      int64_t steps_done = 0);

/// Returns the lines of the memory plan: one for each category, or one in all. `dry_run`
/// is from largest_stage().
std::vector<std::string> memory_overview(const Session& session, const Device& device,
                                         const DryRunStep& dry_run, bool by_category);

/// A dry run of the stage of the run that needs the most memory: the stages do not have theirs at
/// the same time. `of_stage`: a dry run of an engine.
DryRunStep largest_stage(const Session& session,
                         const std::function<DryRunStep(const EngineSettings&)>& of_stage);

/// "  in the stage of plan PLAN, which needs the most" if that is not the session's plan; otherwise
/// empty.
std::string describe_largest(const Session& session, const DryRunStep& dry_run);

/// Logs what a session has to tell: which keys were read as which (info), and what was read and
/// has no meaning here (warnings).
void log_notes(const Session& session);

/// Ranks to plan for: `world_size` on nodes of `ranks_per_node`, as a command line says, or (0) as
/// the configuration's section on jobs does, which becomes that. Throws ConfigError for more ranks
/// than a run can have.
int fill_job(int64_t world_size, int64_t ranks_per_node, JobSettings& job);

/// All ranks of a job.
int job_ranks(const JobSettings& job);

/// Describes how the work is laid over ranks: "DDP", "ZeRO 3".
std::string describe_layout(const Session& session, const Topology& ranks);

/// The GPU and the memory that a rank of a run would have.
struct RankMemory {
  const GpuKind* gpu = nullptr;  ///< the planned GPU; null if the device is in this machine
  DeviceTraits traits;
  size_t bytes = 0;      ///< bytes of memory; 0: not known
  bool is_host = false;  ///< it is the host's

  bool fits(const MemoryLedger& planned) const { return bytes == 0 || planned.total() <= bytes; }
};
/// Throws DeviceError, with what to change, where a rank's memory does not fit.
void check_fits(const RankMemory& memory, const MemoryLedger& planned);
/// Returns the memory of a rank on this device. On a cpu, `sharing` ranks share the memory.
RankMemory memory_here(const Device& device, int64_t sharing);
/// On the hardware that the section on jobs names: a GPU, a node's memory where ranks work on cpus,
/// or else the device that `here` gives. Throws ConfigError for a GPU that nobody knows.
RankMemory memory_of_job(const Settings& settings, const std::function<const Device&()>& here);

/// Returns the memory that a rank of a run needs: that of a step and, if it is the host's, the copy
/// of the state that is written into a checkpoint while training continues.
MemoryLedger memory_of_run(const DryRunStep& dry_run, bool is_host);

/// "  host  504 MiB ..." for ranks whose device has memory of its own.
std::string describe_state_copy(const DryRunStep& dry_run);

/// "  weights  26.0 MiB" per category that holds anything, and the total.
std::vector<std::string> describe_memory(const MemoryLedger& planned);

}  // namespace fp8train
