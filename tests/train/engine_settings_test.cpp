// The engine's settings that follow from those of a run, and the keys that they come from.

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/fields/field_table.h"
#include "config/load.h"
#include "config/presets.h"
#include "train/session.h"

namespace fp8train::test::engine_settings_test {
namespace {

/// Keys of `training` that the run reads, and the engine does not.
const std::vector<std::string> kOfTheRun = {
    "max_steps",  "max_tokens",    "max_epochs",    "global_batch_size",     "max_time",
    "non_finite", "on_divergence", "max_rollbacks", "max_consecutive_skips", "spike_window",
    "spike_steps"};

Settings settings_with(const std::string& training) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text =
      "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 8" + training + "}\n";
  return load_settings(request);
}

/// The engine's settings where the key has another value than its default.
EngineSettings engine_with_other(const std::string& key, const EngineSettings& before,
                                 const ModelConfig& model) {
  for (const char* value : {"3", "0.5", "true", "false"}) {
    try {
      const EngineSettings after = engine_settings(settings_with(", " + key + ": " + value), model);
      if (after.step != before.step || after.loss_history != before.loss_history) {
        return after;
      }
    } catch (const ConfigError&) {
      continue;  // not a value of this key
    }
  }
  return before;
}

TEST_CASE("every key of training reaches the engine or is the run's") {
  const ModelConfig model = completed(find_preset("toy")->config);
  const EngineSettings before = engine_settings(settings_with(""), model);
  size_t of_the_run = 0;
  for (const Field& field : training_fields()) {
    const std::string key = field.key.substr(field.key.find('.') + 1);
    CAPTURE(key);
    const bool is_the_runs = std::ranges::find(kOfTheRun, key) != kOfTheRun.end();
    const EngineSettings after = engine_with_other(key, before, model);
    const bool reaches_engine =
        after.step != before.step || after.loss_history != before.loss_history;
    CHECK(reaches_engine != is_the_runs);
    of_the_run += is_the_runs ? 1 : 0;
  }
  CHECK(of_the_run == kOfTheRun.size());
}

TEST_CASE("the engine has the settings of a step, and stores losses where spikes are looked for") {
  Settings settings;
  settings.step = {.seq_length = 48,
                   .micro_batch_size = 3,
                   .gradient_accumulation_steps = 5,
                   .seed = 7,
                   .decoder = {.recompute = Recompute::block, .z_loss = 0.5, .head_chunk_rows = 16},
                   .deterministic = true,
                   .cuda_graphs = false};
  const ModelConfig model = completed(find_preset("toy")->config);
  CHECK(engine_settings(settings, model).step == settings.step);
  CHECK(engine_settings(settings, model).loss_history == 0);
  settings.training.spike_threshold = 4;
  CHECK(engine_settings(settings, model).loss_history > 0);
}

TEST_CASE("buckets have a 128th of the gradients, within bounds, unless the user says how many") {
  const auto mebibytes = [](const char* preset, const char* gradient, int64_t set) {
    Settings settings;
    settings.precision.plan = "bf16";
    settings.precision.roles.weight_gradient = gradient;
    settings.parallelism.bucket_bytes = set << 20;
    settings.step.seq_length = 32;
    const ModelConfig model = completed(find_preset(preset)->config);
    return engine_settings(settings, model).strategy.bucket_bytes >> 20;
  };
  CHECK(mebibytes("toy", "fp32", 0) == 25);
  CHECK(mebibytes("llama-8b", "fp32", 0) == 239);  // 8.03e9 x 4 bytes
  CHECK(mebibytes("llama-8b", "bf16", 0) == 119);
  CHECK(mebibytes("llama-8b", "fp32", 25) == 25);
  CHECK(default_bucket_bytes(1e15) == int64_t{256} << 20);
}

}  // namespace
}  // namespace fp8train::test::engine_settings_test
