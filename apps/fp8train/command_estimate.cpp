// fp8train estimate: what a run would need on many ranks, on GPUs that need not be here.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/quantities.h"
#include "base/screen.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "device/gpu_kinds.h"
#include "engine/dry_run.h"
#include "engine/pass_times.h"
#include "engine/step_time.h"
#include "layouts.h"
#include "output_path.h"
#include "overview.h"
#include "parallel/pipeline_schedule.h"
#include "session_words.h"
#include "train/preflight.h"
#include "train/rank_device.h"
#include "wizard_memory.h"

namespace fp8train {
namespace {

struct EstimateOptions {
  RankOptions ranks;
  std::string gpu, schedule;
  bool overwrite = false;
};

/// Nothing larger is tried.
constexpr int64_t kMaxMicroBatch = int64_t{1} << 16;

/// The largest micro_batch_size up to kMaxMicroBatch with which a rank needs at most `bytes`; 0:
/// not even the smallest. With experts ranks that share layers have whole sequences.
int64_t largest_micro_batch(EngineSettings settings, const DeviceTraits& traits,
                            const Topology& ranks, size_t bytes) {
  const int64_t unit = settings.model.moe.experts > 0 ? settings.strategy.layout.tensor : 1;
  const auto fits = [&](int64_t units) {
    settings.step.micro_batch_size = units * unit;
    StageRuns runs = dry_run_stages(settings, ranks.size(), dry_runs_on(traits, ranks, false));
    return runs.largest_run().memory.total() <= bytes;
  };
  if (!fits(1)) {
    return 0;
  }
  int64_t fitting = 1;
  int64_t beyond = 2;
  while (fitting * unit < kMaxMicroBatch && fits(beyond)) {
    fitting = beyond;
    beyond *= 2;
  }
  if (fitting * unit >= kMaxMicroBatch) {
    return fitting * unit;
  }
  while (beyond - fitting > 1) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting * unit;
}

void print_model(const Session& session, const DryRunStep& step, const RankMemory& rank) {
  const double tokens = static_cast<double>(session.engine.step.tokens());
  print_fitted(
      "model   {}; {:.3g} GFLOP per token in GEMMs ({:.0f} % of them in 8 bits), "
      "{:.3g} in attention\n",
      describe_parameters(session.engine.model), step.work.gemm_flops / tokens / 1e9,
      100 * step.work.gemm_flops_8bit / std::max(step.work.gemm_flops, 1.0),
      step.work.attention_flops / tokens / 1e9);
  if (const std::string adapters = describe_adapters(session, rank.traits); !adapters.empty()) {
    print_fitted("adapter {}\n", adapters);
  }
  print_fitted("{}\n", without_controls(plan_line(session, rank, 0)));
}

void print_ranks(const Session& session, const Topology& ranks) {
  print_fitted("ranks   {} on {} node{}, {}; {} tokens per step\n", ranks.size(), ranks.nodes(),
               ranks.nodes() == 1 ? "" : "s", describe_layout(session, ranks),
               session.tokens_per_step());
}

void print_stages(const Session& session, const DryRunStep& largest) {
  const ParallelLayout& layout = session.engine.strategy.layout;
  if (layout.pipeline == 1) {
    return;
  }
  const PipelineShape shape =
      layout.pipeline_shape(session.engine.step.gradient_accumulation_steps);
  const std::vector<ActionTimes> times = pass_times(session.engine);
  const ScheduleCost cost = check_schedule(schedule_of(session.engine), shape, times);
  std::vector<int64_t> blocks;
  for (int stage = 0; stage < shape.stages; ++stage) {
    blocks.push_back(part_of_stage(session.engine, stage).blocks());
  }
  const ActionTimes& first = times.front();
  const auto [least, most] = std::ranges::minmax(blocks);
  print_fitted(
      "stages  {}, of {}{}, in the order {}, up to {} micro-batches{} in the first one "
      "at a time; idle for {:.1f} % of the time of their work, with {} micro-batches per step and "
      "passes that last as 1 : {:.2f} : {:.2f} (forward, backward, weight gradients of the first "
      "one, as modelled for an H100); FLOP and memory are those of stage {}, which needs the most "
      "memory\n",
      shape.stages, least == most ? "" : fmt::format("{} to ", least), counted(most, "block"),
      layout.schedule_file.empty() ? std::string(name_in(kScheduleKinds, layout.schedule))
                                   : "of " + layout.schedule_file,
      cost.held.front(), shape.chunks > 1 ? " of a chunk" : "", 100 * cost.bubble,
      shape.micro_batches, first.backward / first.forward, first.weight_gradient / first.forward,
      largest.stage);
}

void print_memory(const Settings& settings, const Session& session, const DryRunStep& step,
                  const RankMemory& memory) {
  print_fitted("memory  of a rank{}\n", describe_largest(session, step));
  const MemoryLedger planned = memory_of_run(step, memory.is_host);
  for (const std::string& line : describe_memory(planned, step.nccl_bytes)) {
    print_fitted("{}\n", line);
  }
  if (!memory.is_host) {
    print_fitted("{}\n", describe_state_copy(step));
  }
  if (memory.bytes > 0) {
    const bool fits = memory.fits(planned);
    const auto [needs, has] = describe_both(planned.total(), memory.bytes);
    print_fitted("        {} {} of {}{}\n", fits ? "fits:" : "DOES NOT FIT: needs", needs, has,
                 fits ? "" : "; " + JobMemory().remedy(settings, memory));
  }
}

/// "; idle 0.5 s (all of stage 3, which works longest; stages are idle for 20.1 to 31.0 % ..)".
std::string describe_idle(const StepTime& time) {
  if (time.idle_shares.empty()) {
    return "";
  }
  const auto [least, most] = std::ranges::minmax(time.idle_shares);
  return fmt::format(
      ", idle {:.3g} s: all of stage {}, which works longest; stages are idle for {:.1f} to {:.1f} "
      "% of the step",
      time.idle, time.stage, 100 * least, 100 * most);
}

void print_time(const Session& session, const StepTime& time, const GpuKind& gpu) {
  const EngineSettings& engine = session.engine;  // MFU as in the log of a run
  const double flops = static_cast<double>(session.tokens_per_step()) / session.ranks *
                       flops_per_token(engine.model, engine.step.seq_length);
  print_fitted(
      "time    {:.4g} s per step, {} tokens/s, MFU {:.0f} %: GEMMs {:.3g} s, attention {:.3g} s, "
      "other operations {:.3g} s, wire {:.3g} s ({}){}\n",
      time.total(), describe_count(static_cast<double>(session.tokens_per_step()) / time.total()),
      100 * flops / time.total() / (gpu.tera_flops_16bit * 1e12), time.gemms, time.attention,
      time.others, time.wire,
      time.exposed > 0 ? fmt::format("{:.3g} s of it not overlapped", time.exposed)
                       : "all of it overlapped",
      describe_idle(time));
  const AchievedShares shares = achieved_shares(gpu);
  const Fp8Attention in_codes = session.engine.plan.attention.gemms();
  const double forward =
      in_codes == Fp8Attention::none ? shares.attention_forward : shares.attention_forward_fp8;
  const double backward =
      in_codes == Fp8Attention::both ? shares.attention_backward_fp8 : shares.attention_backward;
  print_fitted(
      "        from stated rates, of which {:.0f} % (GEMMs of 16 bits), {:.0f} and {:.0f} % (FP8, "
      "exact and fast sums), {:.0f} and {:.0f} % (attention, its gradient), {:.0f} % (memory) and "
      "{:.0f} % (wire) are assumed to be reached\n",
      100 * shares.bits16, 100 * shares.fp8, 100 * shares.fp8_fast, 100 * forward, 100 * backward,
      100 * shares.memory, 100 * shares.wire);
}

int estimate_settings(const Settings& settings, int world_size, const std::string& schedule) {
  const Session session = open_session(settings, false, world_size);
  log_notes(session);
  plan_threads(settings.threads, ranks_of_node(settings.job));
  std::unique_ptr<Device> device;
  const RankMemory memory = memory_of_job(settings, [&]() -> const Device& {
    std::string reason;
    device = choose_device(settings.device, false, reason);
    return *device;
  });
  const auto ranks = Topology::blocks(world_size, ranks_of_node(settings.job));
  StageRuns runs = largest_stage_runs(session, dry_runs_on(memory.traits, ranks, true));
  const DryRunStep& step = runs.largest_run();
  print_model(session, step, memory);
  print_ranks(session, ranks);
  print_stages(session, step);
  print_fitted("device  {}\n", memory.gpu != nullptr ? memory.gpu->name : device->description());
  print_memory(settings, session, step, memory);
  if (ranks.size() > 1) {
    print_fitted("wire    {} per rank and step within the node, {} between nodes\n",
                 describe_bytes(step.sent.within_node), describe_bytes(step.sent.between_nodes));
  }
  if (memory.gpu != nullptr) {
    print_time(session, step_time(session.engine, runs, ranks, *memory.gpu), *memory.gpu);
    print_fitted("        cuDNN's workspace for attention is not counted\n");
  }
  if (memory.bytes > 0) {
    const size_t copy = memory.is_host ? step.state_copy : 0;
    const int64_t count = session.engine.step.gradient_accumulation_steps;
    const int64_t most = largest_micro_batch(session.engine, memory.traits, ranks,
                                             memory.bytes - std::min(copy, memory.bytes));
    print_fitted(
        "largest training.micro_batch_size that fits, with {} micro-batch{} per step: {}\n", count,
        count == 1 ? "" : "es",
        most == 0                ? "none"
        : most >= kMaxMicroBatch ? fmt::format("{} or more", most)
                                 : fmt::format("{}", most));
  }
  if (!schedule.empty()) {
    write_schedule(schedule, session.engine);
  }
  return 0;
}

int estimate(const EstimateOptions& options) {
  if (!options.schedule.empty()) {
    check_output_file(options.schedule, options.overwrite, "--schedule");
  }
  Settings settings = load(options.ranks.common, true);
  if (!options.gpu.empty()) {
    settings.job.gpu = options.gpu;
    settings.device = DeviceChoice::cuda;
  }
  const int world_size = fill_job(options.ranks.world_size, options.ranks.ranks_per_node, settings);
  const ParallelLayout& layout = settings.parallelism.layout;
  const int64_t data = world_size / (layout.tensor * layout.pipeline * layout.context);
  print_fitted("{}", fit_global_batch(static_cast<int>(std::max<int64_t>(data, 1)),
                                      settings.step.micro_batch_size, settings));
  return with_locations(settings,
                        [&] { return estimate_settings(settings, world_size, options.schedule); });
}

}  // namespace

void add_estimate(Arguments command, Action& action) {
  auto options = std::make_shared<EstimateOptions>();
  add_ranks(command, options->ranks);
  add_gpu(command, options->gpu);
  command.path("--schedule", options->schedule,
               "A new file for the order in which pipeline stages run (parallelism.schedule_file)",
               PathUse::output);
  command.flag("--overwrite", options->overwrite, "With --schedule: replace a file that is there");
  command.run_in_first(action, [options] { return estimate(*options); });
}

}  // namespace fp8train
