// Settings of a step have the bits of ranks with whole models where ranks have parts of them.

#include <catch2/catch.hpp>

#include "support/small_gpt2.h"
#include "train/one_rank.h"

using namespace fp8train;

namespace {

EngineSettings with_heads(EngineSettings settings) {
  ModelConfig& model = settings.model;
  model.num_attention_heads = model.num_key_value_heads = 8;
  model.head_dim = 32;
  model.hidden_size = model.family == &gpt2_family() ? 256 : 128;
  model.intermediate_size = 256;
  settings.step.gradient_accumulation_steps = 2;
  settings.strategy.bucket_bytes = 65536;
  return settings;
}

void check_parts(EngineSettings settings, const ParallelLayout& layout, int data_ranks = 1) {
  settings.strategy.layout = layout;
  settings.strategy.layout.tensor_parts = 2;
  const auto ranks = data_ranks * static_cast<int>(layout.tensor * layout.pipeline);
  const SmallRun parts = {.engine = settings, .ranks = Topology::blocks(ranks, ranks)};
  const auto difference =
      first_difference(train_in_threads(with_whole_models(parts)), train_in_threads(parts), {});
  CAPTURE(layout.tensor, layout.pipeline, data_ranks);
  CHECK((difference ? difference->parameter + ", " + difference->tensor : "") == "");
}

}  // namespace

TEST_CASE("ranks that share layers train a part of the parameters") {
  const std::string plan = GENERATE("fp32", "te-delayed");
  const bool gpt2 = GENERATE(false, true);
  const std::vector<std::string> frozen = GENERATE(
      std::vector<std::string>{"embedding.weight"},
      std::vector<std::string>{"embedding.weight", "layers.0.*"},
      std::vector<std::string>{"*norm*", "*attention.qkv*"}, std::vector<std::string>{"*.weight"},
      std::vector<std::string>{"*.bias", "positions.weight", "*.down.weight"});
  CAPTURE(plan, gpt2, frozen);
  EngineSettings settings = with_heads(gpt2 ? test::small_gpt2(plan) : test::small_llama(plan));
  settings.step.decoder.frozen = frozen;
  try {
    Decoder(*make_device(DeviceKind::meta), settings.model, settings.plan,
            {.settings = settings.step.decoder});
  } catch (const ConfigError&) {
    return;  // patterns of the other model, or of all parameters
  }
  settings.strategy.zero_stage = gpt2 ? 0 : 2;
  check_parts(settings, {.tensor = 2}, gpt2 ? 1 : 2);
}

TEST_CASE("ranks that share layers share within groups, and add gradients in shards") {
  const std::string plan = GENERATE("bf16", "te-delayed");
  const int64_t stage = GENERATE(1, 2, 3);
  CAPTURE(plan, stage);
  EngineSettings settings = with_heads(test::small_llama(plan));
  settings.strategy.zero_stage = stage;
  settings.strategy.shard_ranks = 2;
  check_parts(settings, {.tensor = 2}, 4);
  settings.strategy.shard_ranks = 0;
  settings.strategy.sync_each_batch = stage > 1;
  check_parts(settings, {.tensor = 2}, 2);
}

TEST_CASE("ranks that have parts of a model count targets and add the z-loss") {
  const std::string plan = GENERATE("fp32", "te-delayed");
  const bool gpt2 = GENERATE(false, true);
  CAPTURE(plan, gpt2);
  EngineSettings settings = with_heads(gpt2 ? test::small_gpt2(plan) : test::small_llama(plan));
  settings.model.tie_word_embeddings = false;
  settings.step.decoder.z_loss = 0.01;
  settings.step.decoder.head_chunk_rows = 16;
  settings.masks_documents = settings.counts_targets = true;
  check_parts(settings, {.tensor = 2});
  check_parts(settings, {.pipeline = 2});
  check_parts(settings, {.tensor = 2, .pipeline = 2}, 2);
}
