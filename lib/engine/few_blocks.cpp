#include "engine/few_blocks.h"

#include <algorithm>
#include <map>

#include "device/meta/repeated_calls.h"
#include "engine/pass_times.h"
#include "model/linear_sites.h"
#include "optim/registry.h"
#include "precision/linear_plan.h"

namespace fp8train {
namespace {

/// The blocks of the smaller run. The memory of two is there at a time where ranks gather weights
/// in each pass; the forward passes of a pipeline follow each other, and begin with blocks that the
/// one before has not left.
int64_t few_blocks(const StrategySettings& strategy) {
  return strategy.gathers_in_passes() && strategy.layout.pipeline > 1 ? 4 : 2;
}

bool are_alike(const LinearPlan& a, const LinearPlan& b) {
  return a.site.in_features == b.site.in_features && a.site.out_features == b.site.out_features &&
         a.site.token_share == b.site.token_share &&
         a.exempt_reason.empty() == b.exempt_reason.empty() && make_same_calls(a, b);
}

template <typename Number>
Number along(Number fewer, Number more, int64_t times) {
  return fewer + static_cast<Number>(times) * (more - fewer);
}

Traffic along(const Traffic& fewer, const Traffic& more, int64_t times) {
  return {along(fewer.within_node, more.within_node, times),
          along(fewer.between_nodes, more.between_nodes, times)};
}

/// Adds calls, each `times` as often; those of a step's difference can be fewer than none.
void add_calls(OpLog calls, int64_t times, OpLog& all) {
  for (OpCall& call : calls) {
    call.times *= times;
  }
  all.insert(all.end(), calls.begin(), calls.end());
}

/// The run with `times` as many further blocks as `more` has; sizes grow in whole numbers.
DryRunStep along(const DryRunStep& fewer, DryRunStep more, int64_t times) {
  DryRunStep all;
  all.plan = {.saved_bytes = along(fewer.plan.saved_bytes, more.plan.saved_bytes, times),
              .held_bytes = along(fewer.plan.held_bytes, more.plan.held_bytes, times),
              .scratch_bytes = along(fewer.plan.scratch_bytes, more.plan.scratch_bytes, times),
              .offloaded = more.plan.offloaded};
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    all.memory.add(category,
                   along(fewer.memory.current(category), more.memory.current(category), times));
  }
  all.work = fewer.work;
  add_times(all.work, fewer.work, more.work, times);
  all.sent = along(fewer.sent, more.sent, times);
  all.sent_by_layers = along(fewer.sent_by_layers, more.sent_by_layers, times);
  all.nccl_bytes = more.nccl_bytes;
  all.state_copy = along(fewer.state_copy, more.state_copy, times);
  add_calls(std::move(more.calls), times, all.calls);
  add_calls(fewer.calls, 1 - times, all.calls);
  return all;
}

}  // namespace

bool has_equal_blocks(const EngineSettings& settings) {
  const ModelConfig& model = settings.model;
  if (!model.dense_layers.empty() || model.lora.is_on() || !settings.step.decoder.frozen.empty() ||
      optimizer_named(settings.optimizer.name).whole_cost != nullptr) {
    return false;
  }
  const std::vector<LinearPlan> linears = plan_linears(settings.plan, linear_sites(model));
  const auto of_block = static_cast<size_t>(
      std::ranges::count(linears, 0, [](const LinearPlan& linear) { return linear.site.block; }));
  for (size_t i = of_block; i < linears.size(); ++i) {
    if (linears[i].site.block > 0 && !are_alike(linears[i], linears[i % of_block])) {
      return false;
    }
  }
  return true;
}

DryRunStep logged_few_blocks(const EngineSettings& settings, const DeviceTraits& traits,
                             const Topology& ranks, int rank) {
  const auto stages = static_cast<int>(settings.strategy.layout.pipeline);
  const ModelPart part = part_of_stage(settings, rank / (ranks.size() / stages));
  if (part.chunks.size() > 1) {
    return logged_step(settings, traits, ranks, rank);
  }
  const auto run = [&](int64_t blocks) {
    EngineSettings few = settings;
    few.model.num_hidden_layers = blocks;
    few.part = part;
    few.part->chunks = {{0, blocks}};
    if (stages > 1 && !few.strategy.layout.is_periodic()) {
      few.strategy.layout.given_schedule = schedule_of(settings);
    }
    return logged_step(few, traits, ranks, rank);
  };
  const int64_t blocks = part.blocks();
  const int64_t few = few_blocks(settings.strategy);
  return blocks <= few + 1 ? run(blocks) : along(run(few), run(few + 1), blocks - few);
}

}  // namespace fp8train
