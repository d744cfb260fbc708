#include "train/inference/generator.h"

#include <catch2/catch.hpp>

#include "base/error.h"
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
  Engine engine(*device, small(family));
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

TEST_CASE("generation stops at the capacity and refuses prompts that do not fit") {
  const auto device = make_device(DeviceKind::cpu);
  Engine engine(*device, small(llama_family()));
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
