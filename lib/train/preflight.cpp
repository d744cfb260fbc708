#include "train/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/math.h"
#include "base/nearest.h"
#include "base/quantities.h"
#include "comm/launch.h"
#include "device/cuda/cuda_device.h"
#include "device/device_questions.h"

namespace fp8train {
namespace {

const GpuKind& gpu_kind(const std::string& name) {
  if (const GpuKind* kind = find_gpu_kind(name)) {
    return *kind;
  }
  std::vector<std::string> names;
  for (const GpuKind& known : gpu_kinds()) {
    names.emplace_back(known.name);
  }
  const std::string near = nearest_name(name, names);
  throw ConfigError(fmt::format("--gpu: '{}' is not one of {}{}", name, fmt::join(names, ", "),
                                near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

}  // namespace

DryRunStep largest_stage(const Session& session,
                         const std::function<DryRunStep(const EngineSettings&)>& of_stage) {
  DryRunStep largest = of_stage(session.engine_of(0));
  largest.plan_name = session.stages.front().plan.name;
  for (size_t i = 1; i < session.stages.size(); ++i) {
    DryRunStep step = of_stage(session.engine_of(i));
    step.plan_name = session.stages[i].plan.name;
    if (step.memory.total() > largest.memory.total()) {
      largest = std::move(step);
    }
  }
  return largest;
}

StageRuns largest_stage_runs(const Session& session, const DryRunOfRank& of_rank) {
  StageRuns largest;
  for (size_t i = 0; i < session.stages.size(); ++i) {
    const EngineSettings engine = session.engine_of(i);
    StageRuns runs = dry_run_stages(engine, session.ranks, of_rank);
    if (i == 0 || runs.largest_run().memory.total() > largest.largest_run().memory.total()) {
      largest = std::move(runs);
      largest.largest_run().plan_name = session.stages[i].plan.name;
    }
  }
  return largest;
}

DryRunStep largest_rank(const Session& session, const DryRunOfRank& of_rank) {
  return std::move(largest_stage_runs(session, of_rank).largest_run());
}

int job_ranks(const JobSettings& job) {
  return static_cast<int>(job.nodes * job.ranks_per_node);
}

int fill_job(int64_t world_size, int64_t ranks_per_node, Settings& settings) {
  constexpr int64_t kMaxRanks = 131072;
  JobSettings& job = settings.job;
  const char* name_of_ranks = "--world-size";
  const int started = settings.comm.backend == CommBackend::self ? 1 : detect_launch().processes();
  if (world_size == 0 && started > 1 && started != job_ranks(job)) {
    world_size = started;
    name_of_ranks = "the processes that were started";
  } else if (world_size == 0 && job_ranks(job) == 1) {
    world_size = settings.notes.processes;
    name_of_ranks = "the configuration's processes";
  }
  const int64_t ranks = world_size > 0 ? world_size : job_ranks(job);
  for (const auto& [name, count] :
       {std::pair(world_size > 0 ? name_of_ranks : "job.nodes and job.ranks_per_node", ranks),
        std::pair("--ranks-per-node", ranks_per_node)}) {
    if (count > kMaxRanks) {
      throw ConfigError(fmt::format("{}: {} ranks are more than {}", name, count, kMaxRanks));
    }
  }
  constexpr int64_t kDefaultRanks = 8;
  const int64_t by_default = world_size > 0 ? kDefaultRanks : job.ranks_per_node;
  job.ranks_per_node = std::min(ranks_per_node > 0 ? ranks_per_node : by_default, ranks);
  job.nodes = ceil_div(ranks, job.ranks_per_node);
  return static_cast<int>(ranks);
}

void check_fits(const RankMemory& memory, const MemoryLedger& planned) {
  if (!memory.fits(planned)) {
    const auto [needs, has] = describe_both(planned.total(), memory.bytes);
    throw DeviceError(fmt::format(
        "a rank needs {} of memory and has {}: lower training.micro_batch_size, set "
        "model.recompute: block, take a plan with fewer bytes per parameter, or more ranks with "
        "parallelism.zero_stage",
        needs, has));
  }
}

bool names_its_machine(const Settings& settings) {
  const JobSettings& job = settings.job;
  const bool has_memory =
      settings.device == DeviceChoice::cpu ? job.memory_gib > 0 : job.names_gpu();
  return has_memory || job.nodes == 1;
}

RankMemory memory_here(const Device& device, int64_t sharing) {
  const size_t available = device.available_memory();
  const size_t held = device.traits().library_workspace;  // part of the plan, no longer available
  const size_t ranks = is_host(device) ? static_cast<size_t>(sharing) : 1;
  return {nullptr, device.traits(), available == 0 ? 0 : (available + held) / ranks,
          is_host(device)};
}

namespace {

/// `here()`, whose error for a GPU that this machine lacks says how to plan for one.
const Device& device_of_job(const Settings& settings, const std::function<const Device&()>& here) {
  try {
    return here();
  } catch (const DeviceError& error) {
    if (settings.device != DeviceChoice::cuda) {
      throw;
    }
    throw DeviceError(
        fmt::format("{}; to plan for a GPU that is not here, name it in job.gpu", error.what()));
  }
}

}  // namespace

RankMemory memory_of_job(const Settings& settings, const std::function<const Device&()>& here) {
  constexpr double kGib = 1 << 30;
  const JobSettings& job = settings.job;
  const bool on_cpu = settings.device == DeviceChoice::cpu;
  if (job.names_gpu() && !on_cpu) {
    const GpuKind& kind = gpu_kind(job.gpu);
    const auto bytes = static_cast<size_t>(kind.memory_gib * kGib);
    return {&kind, cuda_traits(kind.capability, bytes), bytes};
  }
  RankMemory memory = memory_here(device_of_job(settings, here), job.ranks_per_node);
  if (on_cpu && job.memory_gib > 0) {
    const double node = static_cast<double>(job.memory_gib) * kGib;
    memory.bytes = static_cast<size_t>(node / static_cast<double>(job.ranks_per_node));
  }
  return memory;
}

MemoryLedger memory_of_run(const DryRunStep& dry_run, bool is_host) {
  MemoryLedger memory = dry_run.memory;
  if (is_host) {
    for (const auto& [from, to] :
         {std::pair(MemoryCategory::offloaded, MemoryCategory::optimizer_state),
          std::pair(MemoryCategory::offloaded_activations, MemoryCategory::saved_activations)}) {
      const size_t bytes = memory.current(from);
      memory.remove(from, bytes);
      memory.add(to, bytes);
    }
    memory.add(MemoryCategory::state_copy, dry_run.state_copy);
  }
  return memory;
}

}  // namespace fp8train
