#pragma once
// Describes a run in a few lines, at its start and for `check`. Memory by category comes from
// running one step on the meta device.

#include <functional>
#include <string>
#include <vector>

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

  /// Its name in messages: "h100", "this CPU", "this GPU".
  std::string device_name() const;
  /// Whether `planned` fits, or the bytes are not known.
  bool fits(const MemoryLedger& planned) const { return bytes == 0 || planned.total() <= bytes; }
};

/// Returns the overview's line about the plan of the session's stage on a rank's hardware.
std::string plan_line(const Session& session, const RankMemory& rank, int64_t steps_done);

/// Returns the overview's lines about a device of this machine and its attention. `reason` is from
/// choose_device().
std::vector<std::string> device_lines(const Device& device, const std::string& reason,
                                      int64_t threads);

/// Returns lines about model, plan, data, sources that are blended or have several files, steps,
/// and `device`, which are those of device_lines() or name hardware that is not here.
/// `steps_done`: steps that were done before; stages before them are left out.
std::vector<std::string> run_overview(const Session& session, const RankMemory& rank,
                                      const std::vector<std::string>& device,
                                      int64_t steps_done = 0);

/// Returns the lines of the memory plan: with `by_category` one for each category and for the copy
/// in the host's memory, else one in all. `is_host`: the device's memory is the host's. `dry_run`
/// is from largest_stage().
std::vector<std::string> memory_overview(const Session& session, bool is_host,
                                         const DryRunStep& dry_run, bool by_category);

/// Returns the dry run of the stage that needs the most memory: the stages of a run do not have
/// theirs at the same time. `of_stage` makes a dry run of an engine.
DryRunStep largest_stage(const Session& session,
                         const std::function<DryRunStep(const EngineSettings&)>& of_stage);

/// Returns "in the stage of plan PLAN, which needs the most", indented, if that is not the
/// session's plan; otherwise an empty text.
std::string describe_largest(const Session& session, const DryRunStep& dry_run);

/// Logs the notes of a session: keys that were read under another name, as information, and
/// settings that have no meaning here, as warnings.
void log_notes(const Session& session, bool trains = false);

/// Sets settings.job to the ranks to plan for and returns their number. `world_size` and
/// `ranks_per_node` come from a command line; if one is 0, the job has it already. With a
/// `world_size` alone nodes have 8 ranks; without it, and where the job has one rank only, it is
/// the number of processes in another program's file. Throws ConfigError for more than 65536 ranks.
int fill_job(int64_t world_size, int64_t ranks_per_node, Settings& settings);

/// Returns the number of all ranks of a job.
int job_ranks(const JobSettings& job);

/// Returns the name of the strategy that lays the work over ranks, and the size of its buckets:
/// "ZeRO 3, buckets of 25 MiB".
std::string describe_layout(const Session& session, const Topology& ranks);

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

/// Returns "and in the host's memory, as a copy for checkpoints, 504 MiB", indented, for ranks
/// whose device has memory of its own.
std::string describe_state_copy(const DryRunStep& dry_run);

/// Returns an indented line, "weights 26.0 MiB" in two columns, for each category that holds
/// anything, and one for the total.
/// `nccl_bytes`: DryRunStep::nccl_bytes, which has a line of its own.
std::vector<std::string> describe_memory(const MemoryLedger& planned, size_t nccl_bytes);

}  // namespace fp8train
