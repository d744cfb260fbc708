#include "model/decoder.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>

#include "support/environment.h"
#include "support/parameters.h"
#include "support/small_model.h"

using namespace fp8train;

namespace {

ModelConfig llama_1b() {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_hidden_layers = 16;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.max_position_embeddings = 4096;
  config.tie_word_embeddings = true;
  return completed(config);
}

}  // namespace

TEST_CASE("a model on the meta device holds what its plan says, and nothing real") {
  const test::EnvironmentScope unpacked("FP8TRAIN_CPU_PACK", "0");
  const auto meta = make_device(DeviceKind::meta);
  const ModelConfig config = llama_1b();
  Decoder model(*meta, config, plan_named("te-delayed"), {});
  const auto parameters = static_cast<size_t>(parameter_count(config));
  CHECK(meta->ledger().current(MemoryCategory::gradients) == 4 * parameters);
  // FP8 codes of the blocks' linears and the bf16 copy of the tied head.
  const size_t head = 2 * 128256 * 2048;
  const size_t blocks = parameters - 128256UL * 2048 - (2 * 16 + 1) * 2048;
  CHECK(meta->ledger().current(MemoryCategory::quantized_weights) == head + blocks);
  CHECK(meta->ledger().current(MemoryCategory::master_weights) == 0);

  const auto other = make_device(DeviceKind::meta);
  Decoder bf16(*other, config, plan_named("bf16"), {});
  CHECK(other->ledger().current(MemoryCategory::master_weights) == 4 * (blocks + head / 2));
  CHECK(other->ledger().current(MemoryCategory::quantized_weights) == 0);
}

TEST_CASE("initial values are a function of the seed alone, with GPT-2's residual scaling") {
  const ModelConfig config = test::small_gpt2_model();
  const auto device = make_device(DeviceKind::cpu);
  Decoder a(*device, config, plan_named("fp32"), {});
  Decoder b(*device, config, plan_named("te-current"), {});
  Decoder c(*device, config, plan_named("fp32"), {});
  a.initialize(7);
  b.initialize(7);
  c.initialize(8);
  const auto values = [&](Decoder& model) { return test::values_of(*device, model.parameters()); };
  CHECK(values(a) == values(b));
  CHECK(values(a) != values(c));
  for (const auto& parameter : a.parameters().all()) {
    const std::vector<float> all = to_host_f32(*device, parameter->value);
    double squares = 0;
    for (const float value : all) {
      squares += static_cast<double>(value) * value;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(all.size()));
    CAPTURE(parameter->name);
    if (parameter->name == "layers.1.mlp.up.weight") {
      CHECK(deviation == Approx(0.02).epsilon(0.05));
    } else if (parameter->name == "layers.1.mlp.down.weight") {
      CHECK(deviation == Approx(0.02 / std::sqrt(4.0)).epsilon(0.05));
    } else if (parameter->name == "final_norm.weight") {
      CHECK(deviation == 1.0);
    }
  }
  // The rows that pad the vocabulary of 50 to 64 are zero.
  const View table = a.parameters().all().front()->value;
  CHECK(to_host_f32(*device, rows_of(table, 50, 14)) == std::vector<float>(14 * 32, 0.0F));
}
