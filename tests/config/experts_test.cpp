// Keys of models with experts.

#include <catch2/catch.hpp>

#include "config/load_support.h"
#include "model/families/family.h"
#include "model/families/hf_fields.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::error_of;
using test::error_with;
using test::load_text;

TEST_CASE("a model with experts, in the words of three families") {
  const std::string sizes =
      "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 2, "
      "max_position_embeddings: 32, ";
  const std::string rest = "}\ndata: {train: a.txt, seq_length: 32}\ntraining: {max_steps: 100}\n";
  const auto model_of = [&](const std::string& keys) {
    return completed(load_text(sizes + keys + rest).model.config);
  };
  const ModelConfig mixtral = model_of(
      "model_type: mixtral, intermediate_size: 48, num_local_experts: 4, num_experts_per_tok: 2");
  CHECK(mixtral.moe == MoeShape{.experts = 4, .per_token = 2, .width = 48});
  CHECK(standard_family(mixtral) == &mixtral_family());
  const ModelConfig qwen3 = model_of(
      "model_type: qwen3_moe, intermediate_size: 96, num_experts: 8, num_experts_per_tok: 2, "
      "moe_intermediate_size: 16, norm_topk_prob: false, mlp_only_layers: [1]");
  CHECK(qwen3.moe == MoeShape{.experts = 8, .per_token = 2, .width = 16, .normalizes = false});
  CHECK(qwen3.intermediate_size == 96);
  CHECK(qwen3.has_experts(0));
  CHECK_FALSE(qwen3.has_experts(1));
  const ModelConfig dots = model_of(
      "model_type: dots1, intermediate_size: 96, n_routed_experts: 8, num_experts_per_tok: 3, "
      "moe_intermediate_size: 16, n_shared_experts: 2, n_group: 4, topk_group: 2, "
      "routed_scaling_factor: 2.5, first_k_dense_replace: 1");
  CHECK(dots.moe == MoeShape{.experts = 8,
                             .per_token = 3,
                             .width = 16,
                             .shared_width = 32,
                             .groups = 4,
                             .groups_per_token = 2,
                             .score = RouterScore::sigmoid,
                             .has_bias = true,
                             .scale = 2.5F});
  CHECK(dots.dense_layers == std::vector<int64_t>{0});
  CHECK(standard_family(dots) == &dots1_family());
  // The family is that whose names the files have.
  const std::string experts = "intermediate_size: 48, num_experts: 4, num_experts_per_tok: 2";
  CHECK(model_of(experts).family == &mixtral_family());
  CHECK(model_of(experts + ", qk_norm: true").family == &qwen3_moe_family());
  CHECK(model_of("model_type: mixtral, " + experts + ", dense_layers: [1]").family ==
        &dots1_family());
  CHECK_THAT(error_of(sizes + "intermediate_size: 8, norm_topk_prob: true" + rest),
             Contains("has a meaning only with model.num_experts"));
  CHECK_THAT(error_with("moe: {balance_loss: 0.01}"),
             Contains("has a meaning only with model.num_experts"));
  CHECK_THAT(error_of(sizes + "model_type: gpt2, num_experts: 4, num_experts_per_tok: 2" + rest),
             Contains("no family of models has such experts"));
  CHECK(model_of("model_type: dots1, num_experts: 4, num_experts_per_tok: 2, "
                 "intermediate_size: 48, shared_expert_intermediate_size: 48")
            .moe.width == 48);
  CHECK_THAT(error_of(sizes + "num_expert: 4" + rest), Contains("did you mean \"num_experts\"?"));
  const Settings toy = load_text(
      "model: {preset: toy-moe}\ndata: {train: a.txt}\n"
      "training: {max_steps: 1}\nmoe: {capacity_factor: 2}\n");
  CHECK(toy.step.decoder.moe.capacity_factor == 2.0);
  CHECK(toy.step.decoder.moe.balance_loss == 0.01);  // the preset's
  CHECK(toy.model.config.moe.experts == 8);
}

TEST_CASE("keys of experts that are unknown, or that say something twice, are refused") {
  const std::string data = "data: {train: a.txt}\ntraining: {max_steps: 1}\n";
  const auto error = [&](const std::string& model, const std::string& moe) {
    return error_of("model: {preset: toy-moe" + model + "}\nmoe: {" + moe + "}\n" + data);
  };
  CHECK_THAT(
      error("", "foo: 1"),
      Contains("moe.foo: unknown key; there are: capacity_factor, capacity_warmup, "
               "warmup_capacity_factor, dropless, balance_loss, z_loss, bias_rate, max_dropped"));
  CHECK_THAT(error("", "capacity_warmup: 10, warmup_capacity_factor: 1"),
             Contains("moe.warmup_capacity_factor: 1 is less than moe.capacity_factor 1.25"));
  CHECK_THAT(error("", "warmup_capacity_factor: 3"),
             Contains("moe.warmup_capacity_factor: has no meaning with moe.capacity_warmup: 0"));
  CHECK_THAT(error("", "dropless: true, capacity_factor: 2"),
             Contains("moe.capacity_factor: has no meaning with moe.dropless: true"));
  CHECK(error("", "capacity_warmup: 10") == "loaded");
  CHECK(error("", "dropless: true") == "loaded");
  CHECK_THAT(error(", n_shared_experts: 1, shared_expert_intermediate_size: 48", ""),
             Contains("model.n_shared_experts: model.shared_expert_intermediate_size describes the "
                      "same; remove one of them"));
  CHECK_THAT(error(", first_k_dense_replace: 1, mlp_only_layers: [1]", ""),
             Contains("model.first_k_dense_replace: model.dense_layers describes the same"));
  CHECK_THAT(error(", lora: {rank: 4, targets: []}", ""),
             Contains("model.lora.targets: is empty; name layers"));
}

TEST_CASE("every model that a configuration may describe can be written as a folder") {
  size_t refused = 0;
  for (const ModelFamily* family : families()) {
    const std::string type(family->name());
    for (const char* switches : {"", ", hidden_act: silu", ", hidden_act: gelu_new",
                                 ", mlp_bias: true", ", attention_bias: true", ", qk_norm: true",
                                 ", tie_word_embeddings: true", ", tie_word_embeddings: false"}) {
      CAPTURE(type, switches);
      const std::string text =
          "model: {vocab_size: 64, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, "
          "intermediate_size: 48, max_position_embeddings: 32, model_type: " +
          type + switches + "}\ndata: {train: a.txt, seq_length: 32}\ntraining: {max_steps: 100}\n";
      const std::string error = error_of(text);
      if (error == "loaded") {
        CHECK_NOTHROW(write_hf_fields(completed(load_text(text).model.config), DType::f32));
      } else {
        CHECK_THAT(error, Contains("model.hidden_act") && Contains("no family of models has"));
        ++refused;
      }
    }
  }
  CHECK(refused > 0);
}

}  // namespace
}  // namespace fp8train
