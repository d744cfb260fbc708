#pragma once
// A step that does not take place: the real code on a meta device, which counts memory, operations
// and bytes on wires, for the plan of memory, `check` and `estimate`.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/meta/op_log.h"
#include "engine/engine.h"

namespace fp8train {

/// Returns the bytes that Engine::weights_changed() needs, for an engine that runs no step.
StepPlan plan_weights(const EngineSettings& settings, const DeviceTraits& traits);

/// The memory and the work of a step of one rank.
struct DryRunStep {
  StepPlan plan;
  MemoryLedger memory;     ///< the memory that the rank holds, by category
  OpCounters work;         ///< FLOPs and bytes of one optimizer step
  Traffic sent;            ///< to other ranks, in one optimizer step
  Traffic sent_by_layers;  ///< of it, by ranks that share layers, which wait for it
  OpLog calls;             ///< of one optimizer step, in order; only in that of logged_step()
  size_t nccl_bytes = 0;   ///< part of `memory`: assumed buffers of NCCL, on GPUs of several ranks
  bool is_bound = false;   ///< it ended at a limit: `memory` is the least, and there is no time
  size_t state_copy = 0;   ///< bytes of host memory that hold the rank's state while it is saved
  std::string plan_name = {};  ///< the plan of the stage; largest_stage() sets it
  int stage = 0;               ///< of a pipeline; dry_run_stages() sets it
};

/// The dry runs of a pipeline's stages, one of each kind.
struct StageRuns {
  std::vector<DryRunStep> runs;
  std::vector<size_t> of_stage;  ///< the index of each stage's run
  size_t largest = 0;            ///< the index of the run that needs the most memory

  DryRunStep& largest_run() { return runs[largest]; }
};

/// Makes the dry run of a rank, with the settings that have the order of the stages.
using DryRunOfRank = std::function<DryRunStep(const EngineSettings& settings, int rank)>;

/// Makes a dry run of each kind of stage: of stages with equally many blocks in the middle the
/// first one, which stores the most micro-batches. `ranks`: of all stages together; of_rank() is
/// asked for the first one of a stage.
StageRuns dry_run_stages(const EngineSettings& settings, int ranks, const DryRunOfRank& of_rank);
/// Returns the dry runs of these ranks on such a device: logged_step() if `logged`, else
/// dry_run_step(). The arguments outlive the result.
DryRunOfRank dry_runs_on(const DeviceTraits& traits, const Topology& ranks, bool logged);

/// Runs training steps, if the engine trains, of which the largest decide the memory, and one after
/// a warm-up of experts' capacities the work, and evaluation batches of one of `ranks` on a meta
/// device with the traits of the device that the run will use.
DryRunStep dry_run_step(const EngineSettings& settings, const DeviceTraits& traits,
                        const Topology& ranks = {}, int rank = 0);
/// Does the same and returns the calls of a step too. The step has no statistics and comes long
/// after the first windows of delayed scales. Tracing (base/trace.h) must be off, and is off
/// afterwards. The run ends where it is known that it needs more bytes than `limit`.
DryRunStep logged_step(const EngineSettings& settings, const DeviceTraits& traits,
                       const Topology& ranks = {}, int rank = 0, size_t limit = SIZE_MAX);
/// Does the same as the first function for a device that is in this machine. It makes the plans of
/// libraries, and so includes the memory that they need.
DryRunStep dry_run_step(const EngineSettings& settings, const Device& device,
                        const Topology& ranks = {}, int rank = 0);

}  // namespace fp8train
