// A layout as keys of a configuration.

#include <fmt/format.h>

#include <algorithm>

#include "base/names.h"
#include "base/screen.h"
#include "engine/pass_times.h"
#include "layouts.h"
#include "output_path.h"

namespace fp8train {

std::string keys_of(const Layout& layout, const Settings& file) {
  const Settings& settings = layout.settings;
  const StrategySettings& strategy = settings.parallelism;
  std::string others;
  const ParallelLayout& of_file = file.parallelism.layout;
  if (strategy.layout.context != of_file.context) {
    others += fmt::format(" parallelism.context={}", strategy.layout.context);
  }
  if (strategy.layout.context > 1 && strategy.layout.context_kind != of_file.context_kind) {
    others += fmt::format(" parallelism.context_kind={}",
                          name_in(kContextKinds, strategy.layout.context_kind));
  }
  if (strategy.layout.expert != of_file.expert) {
    others += fmt::format(" parallelism.expert={}", strategy.layout.expert);
  }
  if (strategy.layout.schedule != of_file.schedule || !of_file.schedule_file.empty()) {
    others +=
        fmt::format(" parallelism.schedule={}", name_in(kScheduleKinds, strategy.layout.schedule));
  }
  if (strategy.layout.stage_blocks != of_file.stage_blocks) {
    others += " parallelism.stage_blocks=[]";
  }
  if (strategy.layout.virtual_stages != of_file.virtual_stages) {
    others += fmt::format(" parallelism.virtual_stages={}", strategy.layout.virtual_stages);
  }
  if (strategy.sync_each_batch != file.parallelism.sync_each_batch) {
    others += fmt::format(" parallelism.sync_each_batch={}", strategy.sync_each_batch);
  }
  if (strategy.shard_ranks != file.parallelism.shard_ranks) {
    others += " parallelism.shard_ranks=0";
  }
  if (settings.optimizer.offloads != file.optimizer.offloads) {
    others += fmt::format(" offload.optimizer={}", settings.optimizer.offloads);
  }
  if (settings.step.decoder.offloads_saved != file.step.decoder.offloads_saved) {
    others += fmt::format(" offload.activations={}", settings.step.decoder.offloads_saved);
  }
  const int64_t global = settings.training.global_batch_size;
  return fmt::format(
      "parallelism.tensor={} parallelism.pipeline={} parallelism.zero_stage={}{} "
      "model.recompute={} training.micro_batch_size={} training.{}={}",
      strategy.layout.tensor, strategy.layout.pipeline, strategy.zero_stage, others,
      name_of(settings.step.decoder.recompute), settings.step.micro_batch_size,
      global > 0 ? "global_batch_size" : "gradient_accumulation_steps",
      global > 0 ? global : layout.micro_batches);
}

void write_schedule(const std::string& file, const EngineSettings& settings) {
  if (settings.strategy.layout.pipeline == 1) {
    print_fitted("not written: {}, since one stage has no schedule\n", file);
    return;
  }
  write_output_file(file, text_of(schedule_of(settings)));
  print_fitted("wrote {}; parallelism.schedule_file={} runs it\n", file, file);
}

std::string fit_global_batch(int ranks, int64_t micro_batch_size, Settings& settings) {
  int64_t& sequences = settings.training.global_batch_size;
  const int64_t multiple = ranks * micro_batch_size;
  if (sequences % multiple == 0) {
    return {};
  }
  const int64_t given = sequences;
  sequences = std::max<int64_t>(1, (2 * sequences + multiple) / (2 * multiple)) * multiple;
  settings.step.gradient_accumulation_steps = sequences / settings.step.micro_batch_size;
  return fmt::format(
      "batch   {} sequences instead of training.global_batch_size {}: the nearest multiple of "
      "{} ranks{}\n",
      sequences, given, ranks,
      micro_batch_size > 1 ? fmt::format(" x training.micro_batch_size {}", micro_batch_size) : "");
}

}  // namespace fp8train
