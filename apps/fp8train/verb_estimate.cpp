// fp8train estimate: what a run would need on many ranks, on GPUs that need not be here.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "train/estimate.h"
#include "train/preflight.h"
#include "train/progress.h"
#include "verbs.h"

namespace fp8train {
namespace {

struct EstimateOptions {
  CommonOptions common;
  int64_t world_size = 0;
  int64_t ranks_per_node = 0;
  std::string gpu;
};

/// What is planned for: a GPU by name, or the device that is here.
struct Target {
  const GpuKind* gpu = nullptr;
  DeviceTraits traits;
  int64_t bytes = 0;  ///< 0: not known
  std::string name;
};

Target target_of(const Settings& settings) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  if (settings.job.gpu != "auto") {
    const GpuKind* kind = find_gpu_kind(settings.job.gpu);
    if (kind == nullptr) {
      std::string names;
      for (const GpuKind& known : gpu_kinds()) {
        names += names.empty() ? known.name : std::string(", ") + known.name;
      }
      throw ConfigError(fmt::format("--gpu: '{}' is not one of {}", settings.job.gpu, names));
    }
    return {kind, cuda_traits(kind->capability), static_cast<int64_t>(kind->memory_gib * kGib),
            kind->name};
  }
  std::string reason;
  const std::unique_ptr<Device> device = choose_device(settings.device, false, reason);
  const size_t held = device->traits().library_workspace;
  const auto bytes = static_cast<int64_t>(device->available_memory() + held);
  const bool shared = device->kind() == DeviceKind::cpu;  // by the ranks of a node
  return {nullptr, device->traits(), shared ? bytes / settings.job.ranks_per_node : bytes,
          device->description()};
}

void print_model(const Session& session, const RehearsedStep& step) {
  const double tokens = static_cast<double>(session.tokens_per_step()) / session.ranks;
  fmt::print(
      "model   {} parameters; {:.3g} GFLOP per token in GEMMs ({:.0f} % of them in 8 bits), "
      "{:.3g} in attention\n",
      describe_count(static_cast<double>(parameter_count(session.engine.model))),
      step.work.gemm_flops / tokens / 1e9,
      100 * step.work.gemm_flops_8bit / std::max(step.work.gemm_flops, 1.0),
      step.work.attention_flops / tokens / 1e9);
}

void print_ranks(const Session& session, const Topology& ranks) {
  fmt::print("ranks   {} on {} node{}, {}; {} tokens per step\n", ranks.size(), ranks.nodes(),
             ranks.nodes() == 1 ? "" : "s", describe_layout(session), session.tokens_per_step());
}

void print_memory(const RehearsedStep& step, const Target& target) {
  fmt::print("memory  of a rank\n");
  for (const std::string& line : describe_memory(step.memory)) {
    fmt::print("{}\n", line);
  }
  if (target.bytes > 0) {
    const auto needed = static_cast<double>(step.memory.total());
    fmt::print("        {}: {} of {}\n",
               needed <= static_cast<double>(target.bytes) ? "fits" : "DOES NOT FIT",
               describe_bytes(needed), describe_bytes(static_cast<double>(target.bytes)));
  }
}

void print_time(const Session& session, const RehearsedStep& step, const GpuKind& gpu) {
  const AssumedRates rates;
  const StepTime time = step_time(step, gpu, rates);
  fmt::print(
      "time    {:.3g} s per step, {} tokens/s: GEMMs {:.3g}, attention {:.3g}, memory {:.3g}, "
      "wire {:.3g} of which {:.3g} is not hidden\n",
      time.total(), describe_count(static_cast<double>(session.tokens_per_step()) / time.total()),
      time.gemms, time.attention, time.memory, time.wire, time.exposed);
  fmt::print(
      "        from stated rates, of which {:.0f} % (GEMMs), {:.0f} % (attention), {:.0f} % "
      "(memory) and {:.0f} % (wire) are assumed to be reached\n",
      100 * rates.gemm, 100 * rates.attention, 100 * rates.memory, 100 * rates.wire);
}

int estimate(const EstimateOptions& options) {
  Settings settings = load(options.common);
  settings.job.gpu = options.gpu.empty() ? settings.job.gpu : options.gpu;
  const int world_size = fill_job(options.world_size, options.ranks_per_node, settings.job);
  const Session session = open_session(settings, false, world_size);
  log_notes(session);
  const Target target = target_of(settings);
  const auto ranks = Topology::blocks(world_size, static_cast<int>(settings.job.ranks_per_node));
  const RehearsedStep step = rehearse_step(session.engine, target.traits, ranks, 0);
  print_model(session, step);
  print_ranks(session, ranks);
  fmt::print("device  {}\n", target.name);
  print_memory(step, target);
  if (ranks.size() > 1) {
    fmt::print("wire    {} per rank and step within the node, {} between nodes\n",
               describe_bytes(static_cast<double>(step.sent.within_node)),
               describe_bytes(static_cast<double>(step.sent.between_nodes)));
  }
  if (target.gpu != nullptr) {
    print_time(session, step, *target.gpu);
    fmt::print("        cuDNN's workspace for attention is not counted\n");
  }
  if (target.bytes > 0) {
    const int64_t most = largest_micro_batch(session.engine, target.traits, ranks, 0, target.bytes);
    fmt::print("largest training.micro_batch_size that fits, with {} of them per step: {}\n",
               session.engine.gradient_accumulation_steps,
               most == 0 ? "none" : fmt::format("{}", most));
  }
  return 0;
}

}  // namespace

void add_estimate(Arguments verb, Action& action) {
  auto options = std::make_shared<EstimateOptions>();
  add_common(verb, options->common);
  verb.option("--world-size", options->world_size, 1,
              "Ranks of the run; else job.nodes x job.ranks_per_node");
  verb.option("--ranks-per-node", options->ranks_per_node, 1, "Ranks on a node; else 8");
  verb.option("--gpu", options->gpu,
              "l4, rtx4090, l40s, rtx6000ada, h100, h200, b200, rtx5090; else job.gpu");
  verb.run(action, [options] { return estimate(*options); });
}

}  // namespace fp8train
