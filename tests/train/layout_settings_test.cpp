// Settings of a step have the bits of ranks with whole models where ranks have parts of them, and
// files have the order of their stages.

#include <catch2/catch.hpp>
#include <fstream>

#include "base/error.h"
#include "config/load.h"
#include "engine/pass_times.h"
#include "support/small_gpt2.h"
#include "support/temp_dir.h"
#include "train/one_rank.h"
#include "train/session.h"

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

/// Of two stages on four ranks, with three micro-batches in a step.
Session session_with(const std::filesystem::path& file) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text =
      "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 1, micro_batch_size: 1, "
      "global_batch_size: 6}\nparallelism: {pipeline: 2, schedule_file: " +
      file.string() + "}\n";
  return open_session(load_settings(request), false, 4);
}

}  // namespace

TEST_CASE("a file has the order of stages, and says where it is wrong") {
  const test::TempDir folder;
  const std::filesystem::path file = folder / "order.txt";
  const auto refusal = [&](const std::string& text) {
    std::ofstream(file) << text;
    const std::string start = "run.yaml:4:28: parallelism.schedule_file: " + file.string() + ": ";
    try {
      session_with(file);
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      return message.starts_with(start) ? message.substr(start.size()) : message;
    }
    return std::string();
  };
  const std::string first = "# an order\nstage 0: F0 F1 B0 F2 B1 B2\n";
  std::ofstream(file) << first << "stage 1: F0 B0 F1 F2 B1 B2\n";
  EngineSettings engine = session_with(file).engine;
  CHECK(text_of(schedule_of(engine)) == "stage 0: F0 F1 B0 F2 B1 B2\nstage 1: F0 B0 F1 F2 B1 B2\n");
  CHECK(engine.strategy.layout.given_schedule != make_schedule({}, {2, 1, 3}));
  CHECK(refusal(first) == "the pipeline schedule has 1 stage, and the run has 2");
  CHECK(refusal(first + "stage 1: F0 B0 F1 F2 B1") == "line 3, stage 1: B2 is missing");
  CHECK(refusal(first + "stage 1: F0 B0 F0 F1 F2 B1 B2") ==
        "line 3, stage 1: F0 comes twice, or after a later one");
  CHECK(refusal(first + "stage 1: F0 B0 F2 F1 B1 B2") ==
        "line 3, stage 1: F1 is missing before F2");
  CHECK(refusal(first + "stage 1: F0 F1 F2 B0 B1 B2") ==
        "line 2, stage 0: B0 waits for what comes after it");
  CHECK(refusal(first + "stage 1: F0 B0 W0 F1 B1 W1 F2 B2 W2") ==
        "line 2, stage 0: W0 is missing; either all stages have actions W, or none has");
  CHECK(refusal(first + "stage 1: F0 B0 F1 F2 B1 B2 F3") ==
        "line 3, stage 1: there is no F3 among 3 micro-batches and 1 chunk");
  CHECK(refusal(first + "stage 1: F0.1 B0.1") ==
        "line 3, stage 1: there is no F0.1 among 3 micro-batches and 1 chunk");
  CHECK(refusal(first + "stage 2: F0") ==
        "line 3: \"stage 2: F0\" does not begin with \"stage 1:\"");
  CHECK(refusal(first + "stage 1: F0 b0") ==
        "line 3, stage 1: \"b0\" is no action like F3, B3, W3 or F3.1");
  CHECK_THROWS_AS(session_with(folder / "no.txt"), ConfigError);
}

TEST_CASE("the order of zero_bubble is made for the run's passes, and is the same on all ranks") {
  EngineSettings settings = test::small_llama("bf16");
  settings.model.num_hidden_layers = 5;
  settings.step.gradient_accumulation_steps = 8;
  settings.strategy.layout = {
      .pipeline = 4, .schedule = ScheduleKind::zero_bubble, .stage_blocks = {1, 2, 1, 1}};
  const std::vector<ActionTimes> times = pass_times(settings);
  REQUIRE(times.size() == 4);
  CHECK(times[1].forward == Approx(2 * times[0].forward));
  CHECK(times[1].weight_gradient == Approx(2 * times[0].weight_gradient));
  CHECK(times[3].backward > times[0].backward);  // with the head
  CHECK(times[3].forward == times[0].forward);
  CHECK(times[0].backward > times[0].forward);  // attention
  CHECK(schedule_of(settings) == make_schedule(ScheduleKind::zero_bubble, {4, 1, 8}, times));
  settings.step.decoder.recompute = Recompute::block;
  CHECK(pass_times(settings)[0].backward > times[0].backward);
  CHECK(pass_times(settings)[0].weight_gradient == times[0].weight_gradient);
  const auto again = [&](Recompute recompute) {
    settings.step.decoder.recompute = recompute;
    return pass_times(settings)[0].backward - times[0].backward;
  };
  CHECK(again(Recompute::attention) > 0);
  CHECK(again(Recompute::mlp) > 0);
  CHECK(again(Recompute::attention) != Approx(again(Recompute::mlp)));
  CHECK(again(Recompute::attention) + again(Recompute::mlp) == Approx(again(Recompute::block)));
  settings.part = part_of_stage(settings, 1);
  CHECK(pass_times(settings).empty());
}

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
