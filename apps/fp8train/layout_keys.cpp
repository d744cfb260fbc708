// A layout as keys of a configuration.

#include <fmt/format.h>

#include <algorithm>

#include "base/screen.h"
#include "config/fields/field_table.h"
#include "engine/pass_times.h"
#include "layouts.h"
#include "output_path.h"

namespace fp8train {

std::string keys_of(const Layout& layout, const Settings& file) {
  const Settings& settings = layout.settings;
  std::string keys;
  const auto add = [&](const std::string& key, const std::string& value) {
    keys += fmt::format("{}{}={}", keys.empty() ? "" : " ", key, value);
  };
  for (const char* key : {"parallelism.tensor", "parallelism.pipeline", "parallelism.zero_stage"}) {
    add(key, value_of(key, settings));
  }
  for (const std::string_view key :
       {"parallelism.context", "parallelism.context_kind", "parallelism.expert",
        "parallelism.schedule", "parallelism.stage_blocks", "parallelism.virtual_stages",
        "parallelism.sync_each_batch", "parallelism.shard_ranks", "offload.optimizer",
        "offload.activations"}) {
    const std::string value = value_of(key, settings);
    const bool counts =
        key != "parallelism.context_kind" || settings.parallelism.layout.context > 1;
    if (counts && value != value_of(key, file)) {
      add(std::string(key), value.empty() ? "[]" : value);
    }
  }
  add("model.recompute", value_of("model.recompute", settings));
  add("training.micro_batch_size", value_of("training.micro_batch_size", settings));
  if (const int64_t global = settings.training.global_batch_size; global > 0) {
    add("training.global_batch_size", std::to_string(global));
  } else {
    add("training.gradient_accumulation_steps", std::to_string(layout.micro_batches));
  }
  return keys;
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
