// Ranks that have parts of a model evaluate and generate as one rank does, bit for bit.

#include <catch2/catch.hpp>

#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_gpt2.h"
#include "support/small_moe.h"
#include "train/inference/generator.h"

using namespace fp8train;

namespace {

constexpr int64_t kPositions = 96;

struct Results {
  LossReport evaluation;
  std::vector<float> logits;
  std::vector<std::vector<int32_t>> tokens;  ///< of four texts that are generated together
  std::vector<std::vector<int32_t>> alone;   ///< of the same texts, one after the other
};

EngineSettings with_heads(EngineSettings settings) {
  ModelConfig& model = settings.model;
  model.num_attention_heads = model.num_key_value_heads = 8;
  model.head_dim = 32;
  model.hidden_size = 256;
  model.intermediate_size = 512;
  model.max_position_embeddings = kPositions;
  model.initializer_range = 0.1F;
  settings.step.gradient_accumulation_steps = 2;
  settings.strategy.layout.tensor_parts = 2;
  return settings;
}

/// Continues prompts of one and two chunks, three at a time and alone.
void generate(Generator& generator, Results& results) {
  std::vector<TextRequest> requests;
  for (const int length : {70, 3, 33, 12}) {
    requests.push_back({{}, {.max_new_tokens = 8 - length % 5, .seed = 3}});
    for (int i = 0; i < length; ++i) {
      requests.back().prompt.push_back((i * 7 + 3) % static_cast<int>(test::kSmallVocabulary));
    }
  }
  results.tokens.resize(requests.size());
  generator.generate(requests, [&](size_t text, int32_t token) {
    results.tokens[text].push_back(token);
    return true;
  });
  for (const TextRequest& request : requests) {
    std::vector<int32_t>& tokens = results.alone.emplace_back();
    generator.generate(request.prompt, request.sampling, [&](int32_t token) {
      tokens.push_back(token);
      return true;
    });
  }
  results.logits = generator.logits_after(requests.front().prompt);
}

/// A step, an evaluation of three batches, and texts.
Results run_rank(const EngineSettings& settings, Communicator* comm) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings, comm);
  engine.reserve(dry_run_step(settings, *device, comm == nullptr ? Topology() : comm->topology(),
                              comm == nullptr ? 0 : comm->rank())
                     .plan);
  engine.model().initialize(5);
  engine.weights_changed();
  uint64_t pass = 0;
  const auto batches = static_cast<uint64_t>(engine.mesh().size(Axis::data));
  engine.step(
      [&] {
        return test::random_batch(pass++ * batches +
                                  static_cast<uint64_t>(engine.mesh().index(Axis::data)));
      },
      0, 1e-3, false);
  Results results;
  Generator generator(*device, engine.model(), kPositions, model_ranks(engine), 3);
  engine.begin_evaluation();
  for (uint64_t batch = 0; batch < 3; ++batch) {
    engine.evaluate(test::random_batch(90 + batch));
  }
  results.evaluation = engine.evaluation_loss();
  generate(generator, results);
  return results;
}

/// The results of the first and the last rank are equal.
Results run(EngineSettings settings, const ParallelLayout& layout, int ranks) {
  settings.strategy.layout = layout;
  settings.strategy.layout.tensor_parts = 2;
  if (ranks == 1) {
    Results one = run_rank(settings, nullptr);
    CHECK(one.tokens == one.alone);
    return one;
  }
  std::vector<Results> of_ranks(static_cast<size_t>(ranks));
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        of_ranks[static_cast<size_t>(comm.rank())] = run_rank(settings, &comm);
      });
  CHECK(errors == std::vector<std::string>(errors.size()));
  CHECK(of_ranks.front().tokens == of_ranks.back().tokens);
  CHECK(of_ranks.front().tokens == of_ranks.front().alone);
  return of_ranks.front();
}

}  // namespace

TEST_CASE("parts of a model evaluate and generate as the whole does") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current", "te-blockwise");
  const bool gpt2 = GENERATE(false, true);
  CAPTURE(plan, gpt2);
  EngineSettings settings = with_heads(gpt2 ? test::small_gpt2(plan) : test::small_llama(plan));
  settings.model.qk_norm = !gpt2;
  settings.model.tie_word_embeddings = false;
  settings.model.num_hidden_layers = 4;
  const Results one = run(settings, {}, 1);
  CHECK(one.tokens.front().size() == 8);
  const std::vector<std::pair<ParallelLayout, int>> layouts = {
      {{.tensor = 2}, 2},
      {{.pipeline = 2}, 2},
      {{.tensor = 2, .pipeline = 2}, 4},
      {{.pipeline = 2, .schedule = ScheduleKind::interleaved, .virtual_stages = 2}, 2}};
  for (const auto& [layout, ranks] : layouts) {
    CAPTURE(layout.tensor, layout.pipeline, layout.virtual_stages);
    const Results parts = run(settings, layout, ranks);
    CHECK(parts.evaluation.mean == one.evaluation.mean);
    CHECK(parts.evaluation.targets == one.evaluation.targets);
    CHECK(test::same_bits(parts.logits, one.logits));
    CHECK(parts.tokens == one.tokens);
  }
}

TEST_CASE("parts of a model generate where ranks share all else too") {
  EngineSettings settings = with_heads(test::small_llama("te-delayed"));
  settings.strategy.zero_stage = 3;
  const Results data = run(settings, {}, 2);
  const Results parts = run(settings, {.tensor = 2, .pipeline = 2}, 8);
  CHECK(test::same_bits(parts.logits, data.logits));
  CHECK(parts.tokens == data.tokens);
}

TEST_CASE("ranks with different experts evaluate and generate as ranks with all do") {
  EngineSettings settings = with_heads(test::small_moe("fp32"));
  settings.model.intermediate_size = settings.model.moe.width = 64;
  const Results all = run(settings, {}, 2);
  const Results parts = run(settings, {.expert = 2}, 2);
  CHECK(parts.evaluation.mean == Approx(all.evaluation.mean).epsilon(1e-6));
  CHECK(parts.tokens == all.tokens);
  for (size_t i = 0; i < all.logits.size(); ++i) {
    CHECK(parts.logits[i] == Approx(all.logits[i]).epsilon(1e-3).margin(1e-4));
  }
  settings.strategy.zero_stage = 3;
  CHECK(test::same_bits(run(settings, {.expert = 2}, 2).logits, parts.logits));
  CHECK(run(settings, {.tensor = 2, .pipeline = 2, .expert = 2}, 4).tokens.front().size() == 8);
}
