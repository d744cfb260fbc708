#include "train/inference/generator.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "engine/dry_run.h"
#include "model/families/family.h"
#include "support/small_gpt2.h"
#include "support/small_llama.h"

using namespace fp8train;

namespace {

EngineSettings small(const ModelFamily& family) {
  EngineSettings settings =
      &family == &gpt2_family() ? test::small_gpt2("fp32") : test::small_llama("fp32");
  settings.model.max_position_embeddings = 96;
  settings.model.initializer_range = 0.3F;
  settings.step = {.seq_length = 96, .micro_batch_size = 1};
  return settings;
}

std::vector<int32_t> generate(Generator& generator, const std::vector<int32_t>& prompt,
                              const SamplingSettings& sampling) {
  std::vector<int32_t> tokens;
  generator.generate(prompt, sampling, [&](int32_t token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

}  // namespace

TEST_CASE("the KV cache gives what a full forward pass gives") {
  const ModelFamily& family = *GENERATE(&llama_family(), &gpt2_family());
  const auto device = make_device(DeviceKind::cpu);
  const EngineSettings settings = small(family);
  Engine engine(*device, settings);
  engine.reserve(plan_weights(settings, device->traits()));
  engine.model().initialize(5);
  engine.weights_changed();
  Generator generator(*device, engine.model(), 96);
  const SamplingSettings greedy = {.max_new_tokens = 12, .temperature = 0.0};
  // A prompt longer than a prefill chunk; then the same continuation, one token more of it in the
  // prompt each time.
  std::vector<int32_t> prompt;
  for (int i = 0; i < 70; ++i) {
    prompt.push_back((i * 7 + 3) % static_cast<int>(test::kSmallVocabulary));
  }
  const std::vector<int32_t> whole = generate(generator, prompt, greedy);
  REQUIRE(whole.size() == 12);
  for (size_t i = 0; i + 1 < whole.size(); ++i) {
    prompt.push_back(whole[i]);
    CHECK(generate(generator, prompt, {.max_new_tokens = 1, .temperature = 0.0}).front() ==
          whole[i + 1]);
  }
}

/// Five texts, three at a time: those of one at a time. One stops by itself, and one at the
/// capacity.
void check_together(const EngineSettings& settings) {
  const auto device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  engine.reserve(plan_weights(settings, device->traits()));
  engine.model().initialize(5);
  engine.weights_changed();
  std::vector<TextRequest> requests;
  for (const int length : {3, 70, 1, 64, 17}) {
    requests.push_back({{}, {.max_new_tokens = 12 + length, .temperature = 2, .seed = 7}});
    requests.back().sampling.seed += static_cast<uint64_t>(length);
    for (int i = 0; i < length; ++i) {
      requests.back().prompt.push_back((i * 5 + length) % static_cast<int>(test::kSmallVocabulary));
    }
  }
  constexpr size_t kMaxTokens = 40;
  std::vector<std::vector<int32_t>> together(requests.size());
  Generator several(*device, engine.model(), 96, {}, 3);
  several.generate(requests, [&](size_t text, int32_t token) {
    together[text].push_back(token);
    return together[text].size() < kMaxTokens;
  });
  Generator one(*device, engine.model(), 96);
  for (size_t text = 0; text < requests.size(); ++text) {
    CAPTURE(text);
    std::vector<int32_t> alone;
    one.generate(requests[text].prompt, requests[text].sampling, [&](int32_t token) {
      alone.push_back(token);
      return alone.size() < kMaxTokens;
    });
    CHECK(alone.size() > 1);
    CHECK(together[text] == alone);
  }
}

TEST_CASE("texts that are generated together are those of one at a time") {
  check_together(small(llama_family()));
  check_together(small(gpt2_family()));
  for (const char* plan : {"bf16", "te-current", "torchao-rowwise", "te-nvfp4"}) {
    CAPTURE(plan);
    EngineSettings settings = small(llama_family());
    settings.plan = plan_named(plan);
    check_together(settings);
  }
  // A token of each text is never dropped, whatever the capacity in training.
  EngineSettings experts = small(llama_family());
  experts.model.moe = {.experts = 4, .per_token = 2, .width = 32};
  experts.step.decoder.moe.capacity_factor = 0.25;
  check_together(experts);
}

TEST_CASE("rows are independent unless a scale follows from the values of several") {
  for (const auto& [plan, independent] : {std::pair("fp32", true),
                                          {"bf16", true},
                                          {"te-delayed", true},
                                          {"torchao-rowwise", true},
                                          {"deepseek-v3", true},
                                          {"te-current", false},
                                          {"te-nvfp4", false}}) {
    CAPTURE(plan);
    const auto device = make_device(DeviceKind::cpu);
    EngineSettings settings = small(llama_family());
    settings.plan = plan_named(plan);
    Engine engine(*device, settings);
    CHECK(has_independent_rows(engine.model()) == independent);
  }
}

TEST_CASE("generation stops at the capacity and refuses prompts that do not fit") {
  const auto device = make_device(DeviceKind::cpu);
  const EngineSettings settings = small(llama_family());
  Engine engine(*device, settings);
  engine.reserve(plan_weights(settings, device->traits()));
  engine.model().initialize(5);
  engine.weights_changed();
  Generator generator(*device, engine.model(), 16);
  const SamplingSettings greedy = {.max_new_tokens = 100, .temperature = 0.0};
  CHECK(generate(generator, {1, 2, 3, 4}, greedy).size() == 13);
  CHECK_THROWS_AS(generate(generator, std::vector<int32_t>(17, 1), greedy), ConfigError);
  CHECK_THROWS_AS(generate(generator, {}, greedy), ConfigError);
}

TEST_CASE("sampling: greedy, top-k, top-p and reproducible draws") {
  const std::vector<float> logits = {0.0F, 3.0F, 2.9F, -1.0F};
  CHECK(sample_token(logits, {.temperature = 0.0}, 0) == 1);
  CHECK(sample_token(logits, {.temperature = 5.0, .top_k = 1}, 7) == 1);
  CHECK(sample_token(logits, {.temperature = 1.0, .top_p = 0.3}, 7) == 1);
  std::vector<int> counts(4, 0);
  for (int64_t position = 0; position < 4000; ++position) {
    const int32_t token = sample_token(logits, {.temperature = 1.0, .seed = 9}, position);
    CHECK(token == sample_token(logits, {.temperature = 1.0, .seed = 9}, position));
    ++counts[static_cast<size_t>(token)];
  }
  // exp(0), exp(3), exp(2.9), exp(-1) over their sum: 0.0252, 0.507, 0.459, 0.0093.
  CHECK(counts[0] == Approx(101).margin(40));
  CHECK(counts[1] == Approx(2028).margin(160));
  CHECK(counts[2] == Approx(1835).margin(160));
  CHECK(counts[3] == Approx(37).margin(30));
}
