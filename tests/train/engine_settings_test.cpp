// The engine's settings that follow from those of a run.

#include <catch2/catch.hpp>

#include "config/presets.h"
#include "train/session.h"

namespace fp8train {
namespace {

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

}  // namespace
}  // namespace fp8train
