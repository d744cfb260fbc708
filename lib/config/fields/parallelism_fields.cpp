// The keys of how the work is laid over ranks.

#include <fmt/format.h>

#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

using namespace fields;

Field shard_ranks() {
  const auto member = in(&Settings::parallelism, &StrategySettings::shard_ranks);
  return or_word(field("parallelism.shard_ranks", member, at_least(0),
                       "With zero_stage 1 to 3: ranks, one after another, that share one copy of "
                       "everything (HSDP); each such group has all of it, and only gradients cross "
                       "between groups. 0: all ranks; node: the ranks of a node"),
                 member, "node", kRanksOfNode);
}

void check_zero_stage(const CheckContext& at) {
  const OptimizerEntry& optimizer = optimizer_named(at.settings.optimizer.name);
  const int64_t stage = at.settings.parallelism.zero_stage;
  if (optimizer.whole_cost != nullptr && stage > 1) {
    at.complain(
        fmt::format("{} cuts matrices into parts, and optimizer.name: {} updates whole "
                    "ones; set 0 or 1, or take adamw",
                    stage, optimizer.name));
  }
}

void check_of_pipeline(const CheckContext& at) {
  if (at.settings.parallelism.layout.pipeline == 1) {
    at.without_meaning("parallelism.pipeline: 1");
  }
}

void check_schedule_kind(const CheckContext& at) {
  const ParallelLayout& layout = at.settings.parallelism.layout;
  check_of_pipeline(at);
  if (layout.schedule == ScheduleKind::interleaved && layout.virtual_stages == 1 &&
      at.usable("parallelism.virtual_stages")) {
    at.complain("interleaved needs parallelism.virtual_stages: 2 or more");
  }
}

void check_schedule_file(const CheckContext& at) {
  if (at.settings.parallelism.layout.schedule_file.empty()) {
    return;
  }
  if (at.has("parallelism.schedule")) {
    at.complain("conflicts with parallelism.schedule; remove one of them");
  }
  if (at.settings.parallelism.layout.pipeline == 1) {
    at.complain("has no meaning with parallelism.pipeline: 1; remove it");
  }
}

void check_shard_ranks(const CheckContext& at) {
  const StrategySettings& strategy = at.settings.parallelism;
  if (strategy.shard_ranks != 0 && strategy.zero_stage == 0) {
    at.complain("has no meaning with parallelism.zero_stage: 0, in which ranks share nothing");
  } else if (strategy.shard_ranks != 0 &&
             optimizer_named(at.settings.optimizer.name).whole_cost != nullptr) {
    at.complain(
        fmt::format("optimizer.name: {} divides whole parameters among all ranks; remove it",
                    at.settings.optimizer.name));
  }
}

void check_sync_each_batch(const CheckContext& at) {
  const StrategySettings& strategy = at.settings.parallelism;
  if (strategy.sync_each_batch && strategy.zero_stage < 2) {
    at.complain(fmt::format(
        "true saves memory with parallelism.zero_stage: 2 or 3 only; with {} whole gradients stay",
        strategy.zero_stage));
  }
  if (strategy.sync_each_batch && strategy.layout.pipeline > 1) {
    at.complain(
        "stages of parallelism.pipeline exchange gradients once in a step; set it to false");
  }
}

bool has_several_ranks(const Settings& settings) {
  return settings.job.nodes * settings.job.ranks_per_node > 1;
}

/// Whose layouts can be compared on paper.
bool has_several_gpus(const Settings& settings) {
  return has_several_ranks(settings) && settings.job.names_gpu() &&
         settings.device != DeviceChoice::cpu;
}

constexpr auto in_layout = under(&Settings::parallelism, &StrategySettings::layout);

template <class Member>
Field layout(const std::string& name, Member ParallelLayout::*member, const Range& range,
             const char* text) {
  return field("parallelism." + name, in_layout(member), range, text);
}

/// Not written where a file has the order.
Field schedule_field() {
  Field made =
      choice("parallelism.schedule", in_layout(&ParallelLayout::schedule), kScheduleKinds,
             "The order in which pipeline stages run micro-batches forward and backward: 1f1b "
             "alternates; zero_bubble also makes weight gradients while a stage would wait, and "
             "stores their operands until then; interleaved gives each stage several chunks of "
             "blocks (virtual_stages), and takes a multiple of `pipeline` micro-batches. All "
             "compute the same bits");
  made.write = [write = made.write](const Settings& settings) {
    return settings.parallelism.layout.schedule_file.empty() ? write(settings) : "";
  };
  return made;
}

std::vector<Field> pipeline_fields() {
  return {
      schedule_field().checked(check_schedule_kind),
      path("parallelism.schedule_file", in_layout(&ParallelLayout::schedule_file),
           "A file with the order instead, a line for each stage: `stage 1: F0 B0 F1 W0 ..`. F, B "
           "and W are the forward pass, the backward pass and the weight gradients of a "
           "micro-batch, F0.1 those of chunk 1; without W they are part of B. # begins a comment. "
           "`fp8train estimate --schedule` writes one",
           "a path")
          .checked(check_schedule_file),
      layout("virtual_stages", &ParallelLayout::virtual_stages, between(1, 8),
             "Chunks of consecutive blocks of each pipeline stage, with schedule: interleaved: "
             "stages wait so many times less, and send as many times more")
          .checked(check_of_pipeline),
      field("parallelism.stage_blocks", in_layout(&ParallelLayout::stage_blocks),
            {.range = at_least(1), .accepts = "a list of whole numbers, at least 1 each"},
            "Blocks of each pipeline stage; with virtual_stages those of the first chunk of each "
            "stage, then of the second, and so on. Empty: all stages take about as long")
          .checked(check_of_pipeline),
  };
}

}  // namespace

std::vector<Field> parallelism_fields() {
  const std::vector<Field> fields = {
      field("parallelism.zero_stage", in(&Settings::parallelism, &StrategySettings::zero_stage),
            between(0, 3),
            "0: each rank keeps all (DDP); 1: ranks share moments and master weights; 2: gradients "
            "too; 3: all weights too (FSDP)")
          .asked({.topic = Topic::parallelism,
                  .text = "What ranks share, 0 (nothing) to 3 (all)",
                  .when = has_several_ranks,
                  .changes_memory = true})
          .checked(check_zero_stage),
      layout("tensor", &ParallelLayout::tensor, between(1, 1 << 16),
             "Ranks among which each layer is cut: its rows of activations, its heads and the "
             "columns or rows of its weights")
          .asked({.topic = Topic::parallelism,
                  .text = "Ranks that share each layer",
                  .when = has_several_gpus,
                  .changes_memory = true}),
      layout("pipeline", &ParallelLayout::pipeline, between(1, 1 << 16),
             "Stages of consecutive blocks, each on ranks of its own, through which micro-batches "
             "pass one after another")
          .asked({.topic = Topic::parallelism,
                  .text = "Stages of a pipeline",
                  .when = has_several_gpus,
                  .changes_memory = true}),
      layout("context", &ParallelLayout::context, between(1, 1 << 16),
             "Ranks that share each sequence: each has some of its positions (context_kind)"),
      choice("parallelism.context_kind", in_layout(&ParallelLayout::context_kind), kContextKinds,
             "How: heads swaps rows for heads around attention, and needs a part of the heads of "
             "keys for each rank; gather gathers keys and values of whole sequences, and takes a "
             "length that twice the ranks divide"),
      layout("expert", &ParallelLayout::expert, between(1, 1 << 16),
             "Ranks that have different experts of each layer, and send each other rows"),
      layout(
          "tensor_parts", &ParallelLayout::tensor_parts, between(0, 256),
          "Partial results of each sum that parallelism.tensor divides, a power of two: with the "
          "same number 1, 2, 4, .. ranks compute the same bits on cpu, more slowly. 0: one of "
          "each rank"),
      shard_ranks().checked(check_shard_ranks),
      field("parallelism.sync_each_batch",
            in(&Settings::parallelism, &StrategySettings::sync_each_batch),
            "With zero_stage 2 or 3 and several micro-batches in a step: true exchanges the "
            "gradients of each micro-batch and adds the sums in fp32, so that no rank has whole "
            "gradients: as many times the bytes on the wire, rounded to its format once for each "
            "micro-batch; false exchanges their sum once")
          .checked(check_sync_each_batch),
      field("parallelism.bucket_mb", in(&Settings::parallelism, &StrategySettings::bucket_bytes),
            {.range = between(0, 65536), .shift = 20},
            "MiB of gradients that ranks exchange at a time. 0: a 128th of the model's, 25 to "
            "256"),
      field("parallelism.check_replicas",
            in(&Settings::parallelism, &ParallelismSettings::check_replicas), at_least(0),
            "Steps between comparisons of the ranks' weights by hash, which also precede each "
            "checkpoint; a difference is named and ends the run. 0: never"),
  };
  return concat({fields, pipeline_fields()});
}

}  // namespace fp8train
