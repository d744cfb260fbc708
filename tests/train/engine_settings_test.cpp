// Keys of the section `training` reach the engine, or are read elsewhere.

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/fields/field_table.h"
#include "config/load.h"
#include "train/session.h"

namespace fp8train::test::engine_settings {
namespace {

/// What the run reads, and no engine.
const std::vector<std::string> kOfTheRun = {
    "max_steps",     "max_tokens",    "global_batch_size",     "max_time",     "non_finite",
    "on_divergence", "max_rollbacks", "max_consecutive_skips", "spike_window", "spike_steps"};

Settings settings_with(const std::string& training) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text =
      "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 8" + training + "}\n";
  return load_settings(request);
}

/// The section with another value of the key than its default.
Settings settings_with_other(const std::string& key) {
  const Settings before = settings_with("");
  for (const char* value : {"3", "0.5", "true", "false"}) {
    try {
      const Settings after = settings_with(", " + key + ": " + value);
      if (after.training != before.training) {
        return after;
      }
    } catch (const ConfigError&) {
      continue;
    }
  }
  throw InternalError("no value of this test is one for training." + key);
}

/// Of what keys of this section say.
bool same(const EngineSettings& a, const EngineSettings& b) {
  return a.decoder.z_loss == b.decoder.z_loss &&
         a.decoder.head_chunk_rows == b.decoder.head_chunk_rows && a.seed == b.seed &&
         a.micro_batch_size == b.micro_batch_size &&
         a.gradient_accumulation_steps == b.gradient_accumulation_steps &&
         a.deterministic == b.deterministic && a.loss_history == b.loss_history;
}

TEST_CASE("every key of training reaches the engine or is the run's") {
  ModelConfig model;
  model.max_position_embeddings = 1024;
  const EngineSettings before = fp8train::engine_settings(settings_with(""), model);
  std::vector<std::string> of_the_run;
  for (const Field& field : training_fields()) {
    const std::string key = field.key.substr(field.key.find('.') + 1);
    CAPTURE(key);
    if (std::find(kOfTheRun.begin(), kOfTheRun.end(), key) != kOfTheRun.end()) {
      of_the_run.push_back(key);
      continue;
    }
    // Otherwise engine_settings() lacks it, or same(), or kOfTheRun.
    CHECK_FALSE(same(before, fp8train::engine_settings(settings_with_other(key), model)));
  }
  CHECK(of_the_run.size() == kOfTheRun.size());
}

}  // namespace
}  // namespace fp8train::test::engine_settings
