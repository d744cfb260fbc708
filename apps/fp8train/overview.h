#pragma once
// Describes a run in a few lines: at its start, and for `check` and `estimate`.

#include <memory>
#include <string>
#include <vector>

#include "config/settings.h"
#include "device/device.h"
#include "device/gpu_kinds.h"
#include "engine/dry_run.h"
#include "engine/engine.h"
#include "train/preflight.h"

namespace fp8train {

/// The name of a rank's hardware in messages: "h100", "this CPU", "this GPU".
std::string device_name(const RankMemory& rank);

/// "30.5B parameters (3.34B for a token)".
std::string describe_parameters(const ModelConfig& model);

/// Returns the overview's line about the plan of the session's stage on a rank's hardware.
std::string plan_line(const Session& session, const RankMemory& rank, int64_t steps_done);

/// "0.4 M parameters of 14 layers, rank 8 and scale 2; the others are frozen, 1.02 bytes each";
/// empty: the model has no adapters, or the device of these traits does not run it.
std::string describe_adapters(const Session& session, const DeviceTraits& traits);

/// Returns the overview's lines about a device of this machine and its attention. `reason` is from
/// choose_device().
std::vector<std::string> device_lines(const Device& device, const std::string& reason,
                                      int64_t threads);

/// Returns lines about model, plan, data, sources that are blended or have several files, steps,
/// `device`, which are those of device_lines() or name hardware that is not here, and memory: with
/// `by_category` one for each category and for the copy in the host's memory, else one in all.
/// `dry_run` is from largest_stage(). `steps_done`: stages before these steps are left out.
std::vector<std::string> run_overview(const Session& session, const RankMemory& rank,
                                      const std::vector<std::string>& device,
                                      const DryRunStep& dry_run, int64_t steps_done,
                                      bool by_category);

/// Returns "in the stage of plan PLAN, which needs the most", indented, if that is not the
/// session's plan; otherwise an empty text.
std::string describe_largest(const Session& session, const DryRunStep& dry_run);

/// Returns the name of the strategy that lays the work over ranks, and the size of its buckets:
/// "ZeRO 3, buckets of 25 MiB".
std::string describe_layout(const Session& session, const Topology& ranks);

/// Returns "and in the host's memory, as a copy for checkpoints, 504 MiB", indented, for ranks
/// whose device has memory of its own.
std::string describe_state_copy(const DryRunStep& dry_run);

/// Returns an indented line, "weights 26.0 MiB" in two columns, for each category that holds
/// anything, and one for the total.
/// `nccl_bytes`: DryRunStep::nccl_bytes, which has a line of its own.
std::vector<std::string> describe_memory(const MemoryLedger& planned, size_t nccl_bytes);

struct ExplainedDevice {
  std::unique_ptr<Device> device;  ///< null: it is not here. Its library is asked by `traits`
  DeviceTraits traits;
  std::string name;    ///< in messages: "h100"
  std::string line;    ///< which one it is
  bool known = false;  ///< false: a GPU, of which nothing is known
};

/// Returns the device that the settings mean. Throws DeviceError where it cannot be opened.
ExplainedDevice explained_device(const Settings& settings);

/// Returns what a run of the engine's settings on the device would be refused for; empty: nothing.
std::string why_refused(const EngineSettings& engine, const ExplainedDevice& device);

}  // namespace fp8train
