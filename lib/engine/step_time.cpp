#include "engine/step_time.h"

#include <algorithm>

#include "engine/pass_times.h"
#include "engine/roofline.h"

namespace fp8train {
namespace {

/// The time of one kind of stage.
struct StageTime {
  StepTime step;               ///< without what it waits for
  ActionTimes passes;          ///< of a micro-batch, without the head
  double head = 0;             ///< of a micro-batch
  double once = 0, after = 0;  ///< in a step: outside of passes, and exposed after the last one
};

double wire_seconds(const Traffic& sent, const GpuKind& gpu, double share) {
  return (static_cast<double>(sent.within_node) / gpu.node_rate +
          static_cast<double>(sent.between_nodes) / gpu.network_rate) /
         1e9 / share;
}

/// A boundary of two stages crosses nodes where their ranks lie on different ones.
double message_seconds(const EngineSettings& settings, const Topology& ranks, const StepRates& at) {
  const int64_t stages = settings.strategy.layout.pipeline;
  if (stages == 1) {
    return 0;
  }
  const auto bytes = static_cast<uint64_t>(settings.rows_of_rank() * settings.model.hidden_size /
                                           settings.strategy.layout.tensor) *
                     size_of(settings.plan.activation);
  const bool within = ranks.node_of(0) == ranks.node_of(ranks.size() / static_cast<int>(stages));
  return wire_seconds(within ? Traffic{bytes, 0} : Traffic{0, bytes}, *at.gpu, at.shares.wire);
}

/// `sends`: the messages of a micro-batch, `message` seconds each.
StageTime time_of_stage(const EngineSettings& settings, const DryRunStep& step, double sends,
                        double message, const StepRates& rates) {
  const StepModel model = model_step(step.calls, settings, rates);
  StageTime time;
  double products = 0;  // of backward
  for (const OpTotal& total : model.operations) {
    (total.is_attention() ? time.step.attention
     : total.is_product() ? time.step.gemms
                          : time.step.others) += total.seconds;
    products += total.part == StepPart::backward && total.is_product() && !total.is_attention()
                    ? total.seconds
                    : 0.0;
  }
  const auto count = static_cast<double>(settings.step.gradient_accumulation_steps);
  const double backward = model.seconds_of(StepPart::backward);
  const double layers = wire_seconds(step.sent_by_layers, *rates.gpu, rates.shares.wire);
  const double waited = layers + count * sends * message;
  time.step.wire = wire_seconds(step.sent, *rates.gpu, rates.shares.wire);
  // Gradients cross in the backward pass of the last micro-batch or, like weights of stage 3, in
  // all.
  const bool in_all =
      settings.strategy.gathers_in_passes() || strategy_site(settings, {}).adds_shards();
  const double hidden = in_all ? backward : backward / count;
  time.after = std::max(0.0, time.step.wire - waited - hidden);
  time.step.exposed = waited + time.after;
  time.head = model.seconds_of(StepPart::head) / count;
  time.once = model.seconds_of(StepPart::start) + model.seconds_of(StepPart::update);
  const double forward = model.seconds_of(StepPart::forward) + model.seconds_of(StepPart::rest);
  const double with_layers = (1 + layers / (forward + backward)) / count;
  time.passes = {.forward = forward * with_layers,
                 .backward = backward * with_layers - products / 2 / count,
                 .weight_gradient = products / 2 / count};  // as many FLOPs as those of inputs
  return time;
}

/// The passes of all parts of the model, with what they send.
std::vector<ActionTimes> times_of_parts(const EngineSettings& settings,
                                        const std::vector<StageTime>& kinds, const StageRuns& steps,
                                        double message) {
  const size_t stages = steps.of_stage.size();
  const size_t parts = stages * static_cast<size_t>(settings.strategy.layout.virtual_stages);
  std::vector<ModelPart> of_stages;
  for (size_t stage = 0; stage < stages; ++stage) {
    of_stages.push_back(part_of_stage(settings, static_cast<int>(stage)));
  }
  std::vector<ActionTimes> times(parts);
  for (size_t part = 0; part < parts; ++part) {
    const StageTime& of = kinds[steps.of_stage[part % stages]];
    const ModelPart& blocks = of_stages[part % stages];
    const auto [first, end] = blocks.chunks[part / stages];
    const double share = static_cast<double>(end - first) / static_cast<double>(blocks.blocks());
    const bool is_last = part + 1 == parts;
    times[part] = {.forward = share * of.passes.forward + (is_last ? 0.0 : message),
                   .backward = share * of.passes.backward + (part == 0 ? 0.0 : message) +
                               (is_last ? of.head : 0.0),
                   .weight_gradient = share * of.passes.weight_gradient};
  }
  return times;
}

}  // namespace

StepTime step_time(const EngineSettings& settings, const StageRuns& steps, const Topology& ranks,
                   const GpuKind& gpu) {
  const StepRates rates(gpu);
  const double message = message_seconds(settings, ranks, rates);
  const size_t stages = steps.of_stage.size();
  const ParallelLayout& layout = settings.strategy.layout;
  const PipelineShape shape = layout.pipeline_shape(settings.step.gradient_accumulation_steps);
  std::vector<StageTime> kinds;
  for (const DryRunStep& step : steps.runs) {
    const auto stage = static_cast<size_t>(step.stage);
    const int missing = (stage == 0 ? 1 : 0) + (stage + 1 == stages ? 1 : 0);
    kinds.push_back(time_of_stage(settings, step, 2 * shape.chunks - missing, message, rates));
  }
  if (stages == 1) {
    return kinds.front().step;
  }
  const ScheduleCost cost =
      check_schedule(schedule_of(settings), shape, times_of_parts(settings, kinds, steps, message));
  double end = 0;
  double once = 0;
  size_t busiest = 0;
  std::vector<double> work(stages);
  for (size_t stage = 0; stage < stages; ++stage) {
    const StageTime& of = kinds[steps.of_stage[stage]];
    end = std::max(end, cost.ends[stage] + of.after);
    once = std::max(once, of.once);
    work[stage] = of.step.work();
    busiest = work[stage] > work[busiest] ? stage : busiest;
  }
  StepTime time = kinds[steps.of_stage[busiest]].step;
  time.stage = static_cast<int>(busiest);
  time.idle = end + once - time.work();
  for (const double of_stage : work) {
    time.idle_shares.push_back(1 - of_stage / time.total());
  }
  return time;
}

}  // namespace fp8train
