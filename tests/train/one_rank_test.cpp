// The comparison of a layout of ranks with one rank: it finds the same in every plan that ranks can
// share, and names what a left-out sum changes first.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "comm/backends/rank_threads.h"
#include "model/linear_sites.h"
#include "support/leaves_out.h"
#include "support/small_gpt2.h"
#include "train/one_rank.h"

using namespace fp8train;

namespace {

EngineSettings llama(const std::string& plan) {
  EngineSettings settings = test::small_llama(plan, 3);
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 8;
  settings.model.head_dim = 32;
  settings.model.hidden_size = 128;
  settings.model.intermediate_size = 256;
  settings.model.num_hidden_layers = 4;
  return settings;
}

/// Empty: as expected.
std::string found(const SmallRun& one, const TrainedModel& of_one, const SmallRun& other,
                  const TrainedModel& of_other) {
  const auto difference = first_difference(of_one, of_other, expected_nearness(one, other));
  return difference ? difference->tensor + (" of " + difference->parameter + ": ") +
                          std::to_string(difference->relative) + " in step " +
                          std::to_string(difference->step)
                    : "";
}

}  // namespace

TEST_CASE("layouts compute what one rank does, in every plan that they can run") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  const int64_t parts = GENERATE(0, 2);
  CAPTURE(plan, parts);
  EngineSettings settings = llama(plan);
  settings.masks_documents = settings.counts_targets = parts > 0;
  settings.strategy.zero_stage = parts > 0 ? 0 : 2;
  settings.strategy.layout = {.tensor = 2, .pipeline = 2, .tensor_parts = parts};
  const Topology ranks = Topology::blocks(8, 8);
  try {
    const SmallRun run = small_run(settings, ranks);
    const SmallRun whole = with_whole_models(run);
    const SmallRun one = with_one_rank(run);
    CHECK(run.ranks.size() == 8);
    const bool in_groups = run.engine.plan.gradient_wire.block.is_group();
    CHECK((expected_nearness(whole, run).gradient == 0) == (parts > 0 && !in_groups));
    CHECK(expected_nearness(one, whole).gradient > 0);
    const TrainedModel of_whole = train_in_threads(whole);
    CHECK(found(whole, of_whole, run, train_in_threads(run)) == "");
    if (parts == 0) {
      CHECK(found(one, train_in_threads(one), whole, of_whole) == "");
    }
  } catch (const ConfigError& error) {
    CHECK_THAT(error.what(), Catch::Contains("parallelism.tensor"));
  }
}

TEST_CASE("ranks that share sequences, layers and stages compute what whole models do") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed", "deepseek-v3", "msamp-o2");
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  CAPTURE(plan, kind);
  EngineSettings settings = llama(plan);
  settings.masks_documents = settings.counts_targets = true;
  settings.strategy.zero_stage = 1;
  settings.strategy.layout = {.tensor = 2, .context = 2, .context_kind = kind, .pipeline = 2};
  const SmallRun run = small_run(settings, Topology::blocks(8, 8));
  const SmallRun whole = with_whole_models(run);
  CHECK(run.ranks.size() == 8);
  CHECK(expected_nearness(whole, run).gradient > 0);
  CHECK(found(whole, train_in_threads(whole), run, train_in_threads(run)) == "");
}

TEST_CASE("the first parameter that a missing sum changes is named") {
  EngineSettings settings = test::small_gpt2("te-delayed");
  settings.model.num_hidden_layers = 1;
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.strategy.layout = {.tensor = 2, .tensor_parts = 2};
  const SmallRun run = small_run(settings, Topology::blocks(2, 2));
  const TrainedModel expected = train_in_threads(with_one_rank(run));
  std::map<std::string, std::string> named;  // the last parameter that differs
  std::set<std::string> replicas;            // that differ
  int not_needed = 0;
  for (int64_t left_out = 0;; ++left_out) {
    TrainedModel model;
    std::mutex mutex;
    std::string words;
    run_rank_threads(
        run.ranks,
        [&](Communicator& comm) {
          test::LeavesOut ranks(comm, left_out);
          ranks.begin();
          train_part(run.engine, &ranks, mutex, model);
          words = ranks.left_out();
        },
        60);
    if (words.empty()) {
      break;
    }
    const auto difference = first_difference(expected, model, {});
    if (difference) {
      named[difference->parameter + " " + difference->tensor] = difference->last;
      if (std::isnan(difference->relative)) {
        replicas.insert(difference->parameter);
      }
    } else {
      ++not_needed;
    }
  }
  CHECK(not_needed <= 3);  // amax of the step after the last one
  CHECK(named.at("embedding.weight gradient") == "embedding.weight");
  for (const char* name : {"layers.0.mlp.up.weight", "layers.0.attention.qkv.weight"}) {
    CHECK(named.at(name + std::string(" gradient")) == name);  // gathered for it alone
  }
  CHECK(named.contains("embedding.weight value"));  // by the norm, which clips
  CHECK(replicas == std::set<std::string>{"final_norm.weight", "layers.0.attention.output.bias",
                                          "layers.0.attention_norm.weight",
                                          "layers.0.mlp.down.bias", "layers.0.mlp_norm.weight",
                                          "positions.weight"});
}

TEST_CASE("replicas of experts remain in a smaller run") {
  EngineSettings settings = llama("bf16");
  settings.model.moe = {.experts = 8, .per_token = 2, .width = 64};
  const auto expert_replicas = [&](int ranks, const ParallelLayout& layout) {
    settings.strategy.layout = layout;
    const SmallRun run = small_run(settings, Topology::blocks(ranks, 8));
    const MeshShape shape = mesh_shape(run.engine.strategy.layout, run.ranks);
    CHECK(shape.expert == 2);
    return shape.data * shape.context * shape.tensor / shape.expert;
  };
  CHECK(expert_replicas(8, {.expert = 4}) == 2);
  CHECK(expert_replicas(8, {.tensor = 2, .expert = 4}) == 2);
  CHECK(expert_replicas(8, {.expert = 8}) == 1);
  settings.strategy.layout = {.expert = 4};
  const SmallRun run = small_run(settings, Topology::blocks(8, 8));
  const SmallRun one = with_one_rank(run);
  CHECK(found(one, train_in_threads(one), run, train_in_threads(run)) == "");
}

TEST_CASE("a run on many ranks is cut down to one machine") {
  EngineSettings settings = test::small_llama("deepseek-v3");
  ModelConfig& model = settings.model;
  model.vocab_size = 128256 + 7;
  model.hidden_size = 16384;
  model.intermediate_size = 53248;
  model.num_hidden_layers = 126;
  model.num_attention_heads = 128;
  model.num_key_value_heads = 8;
  model.head_dim = 128;
  model.max_position_embeddings = 8192;
  settings.step.seq_length = 8192;
  settings.step.gradient_accumulation_steps = 32;
  settings.step.decoder.frozen = {"layers.125.*", "layers.0.attention_norm.weight"};
  settings.plan.exemptions.patterns = {"layers.1?5.*", "*.mlp.down"};
  settings.strategy.layout = {.tensor = 8, .tensor_parts = 8};
  const auto check_small = [&](int ranks, int expected_ranks) {
    const SmallRun run = small_run(settings, Topology::blocks(ranks, 8));
    CHECK(run.ranks.size() == expected_ranks);
    CHECK(parameter_count(run.engine.model) < 48'000'000);
    CHECK(run.engine.step.tokens() <= 2048);
    CHECK(run.divided > 1);
    return run;
  };
  const SmallRun run = check_small(1024, 16);
  CHECK(run.engine.strategy.layout.tensor == 8);
  CHECK(run.engine.model.vocab_size % 128 == model.vocab_size % 128);
  CHECK(run.engine.step.decoder.frozen ==
        std::vector<std::string>{"layers.0.attention_norm.weight"});
  CHECK(run.engine.plan.exemptions.patterns == std::vector<std::string>{"*.mlp.down"});
  settings.step.decoder.frozen.clear();
  settings.strategy.layout.pipeline = 16;
  settings.strategy.zero_stage = 3;
  CHECK(check_small(4096, 16).engine.model.num_hidden_layers == 3);
  settings.strategy.layout.tensor = 3;
  CHECK_THROWS_AS(small_run(settings, Topology::blocks(48, 8)), ConfigError);
}
