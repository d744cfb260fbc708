#include "io/hf_config.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "model/families/family.h"
#include "support/files.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::string golden(const std::string& name) {
  return test::read_file(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "io" / name);
}

/// A Llama config.json with more fields appended.
std::string llama(const std::string& more = "") {
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":100,"hidden_size":64,
    "intermediate_size":172,"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":null,
    "max_position_embeddings":512,"rms_norm_eps":1e-5,"hidden_act":"silu")" +
         more + "}";
}

std::string refusal(const std::string& json) {
  return message_of<CheckpointError>([&] { parse_hf_config(json, "config.json"); });
}

TEST_CASE("Llama 3 as transformers 5 writes it") {
  const HfConfig read = parse_hf_config(golden("llama3_config.json"), "llama3");
  const ModelConfig& config = read.model;
  CHECK(config.family == &llama_family());
  CHECK(config.vocab_size == 128256);
  CHECK(config.hidden_size == 2048);
  CHECK(config.intermediate_size == 8192);
  CHECK(config.num_hidden_layers == 16);
  CHECK(config.num_attention_heads == 32);
  CHECK(config.num_key_value_heads == 8);
  CHECK(config.head_dim == 64);
  CHECK(config.max_position_embeddings == 131072);
  CHECK(config.norm_eps == 1e-5F);
  CHECK(config.tie_word_embeddings);
  CHECK(config.rope_theta == 500000.0);
  REQUIRE(config.rope_scaling.has_value());
  CHECK(*config.rope_scaling == llama3_rope_scaling(32.0));
  CHECK(config.bos_token_id == 128000);
  CHECK(config.eos_token_id == 128001);
  CHECK(read.eos_token_ids == std::vector<int64_t>{128001, 128009});
  CHECK(read.notes.empty());
}

TEST_CASE("GPT-2 as transformers writes it") {
  const HfConfig read = parse_hf_config(golden("gpt2_config.json"), "gpt2");
  const ModelConfig& config = read.model;
  CHECK(config.family == &gpt2_family());
  CHECK(config.vocab_size == 50257);
  CHECK(config.hidden_size == 768);
  CHECK(config.intermediate_size == 3072);
  CHECK(config.num_hidden_layers == 12);
  CHECK(config.num_key_value_heads == 12);
  CHECK(config.head_dim == 64);
  CHECK(config.max_position_embeddings == 1024);
  CHECK(config.norm == NormKind::layer_norm);
  CHECK(config.mlp == MlpKind::gelu);
  CHECK(config.positions == PositionKind::learned);
  CHECK(config.qkv_bias);
  CHECK(config.attention_output_bias);
  CHECK(config.mlp_bias);
  CHECK(config.tie_word_embeddings);
  CHECK(config.eos_token_id == 50256);
  CHECK(read.training_notes.size() == 3);  // three dropouts
}

TEST_CASE("both spellings of RoPE give the same model") {
  const std::string scaling =
      R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
  const auto old_form = parse_hf_config(
      llama(R"(,"rope_theta":500000.0,"rope_scaling":{"type":"llama3",)" + scaling + "}"), "old");
  const auto new_form = parse_hf_config(
      llama(R"(,"rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,)" + scaling + "}"),
      "new");
  CHECK(old_form.model == new_form.model);
  CHECK(old_form.model.rope_scaling.has_value());
  CHECK(parse_hf_config(llama(), "none").model.rope_theta == 10000.0);
  CHECK(parse_hf_config(llama(R"(,"rope_scaling":null)"), "null").model ==
        parse_hf_config(llama(R"(,"rope_parameters":{"rope_type":"default"})"), "d").model);
  CHECK_THAT(refusal(llama(R"(,"rope_theta":10000.0,"rope_parameters":{"rope_theta":5.0})")),
             Contains("rope_theta is 5 here and 10000 outside"));
  CHECK_THAT(refusal(llama(R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0})")),
             Contains("'low_freq_factor' is missing"));
}

TEST_CASE("what is not implemented is refused by name") {
  CHECK_THAT(refusal(llama(R"(,"rope_scaling":{"type":"longrope","factor":4.0})")),
             Contains("'longrope' is not implemented; known: default, linear, dynamic, llama3, "));
  CHECK_THAT(refusal(llama(R"(,"rope_parameters":{"full_attention":{"rope_type":"default"}})")),
             Contains("differ between layers"));
  CHECK_THAT(refusal(llama(R"(,"rope_parameters":{"partial_rotary_factor":0.5})")),
             Contains("partial rotary"));
  CHECK_THAT(refusal(llama(R"(,"sliding_window":4096)")), Contains("sliding-window"));
  CHECK_THAT(refusal(llama(R"(,"layer_types":["full_attention","sliding_attention"])")),
             Contains("sliding-window"));
  CHECK_NOTHROW(
      parse_hf_config(llama(R"(,"sliding_window":4096,"use_sliding_window":false)"), "off"));
  CHECK_THAT(refusal(llama(R"(,"quantization_config":{"quant_method":"gptq"})")),
             Contains("quantization_config"));
  std::string other = llama();
  other.replace(other.find("LlamaForCausalLM"), 16, "Gemma2ForCausal");
  CHECK_THAT(refusal(other), Contains("Gemma2ForCausal is not implemented; known: Llama"));
  CHECK_THAT(refusal(R"({"model_type":"deepseek_v3"})"),
             Contains("deepseek_v3 is not implemented") &&
                 Contains("with plain attention: Dots1ForCausalLM"));
  CHECK_THAT(refusal(R"({"model_type":"qwen2_moe"})"),
             Contains("model type qwen2_moe is not implemented; known: LlamaForCausalLM (llama), "
                      "MistralForCausalLM (mistral)"));
  CHECK_THAT(refusal(R"({"model_type":"fp8train_qwen3"})"), Contains("is not implemented"));
  CHECK_THAT(refusal(R"({"vocab_size":3})"), Contains("neither 'architectures' nor 'model_type'"));
  std::string gelu = llama();
  gelu.replace(gelu.find("silu"), 4, "gelu");
  CHECK_THAT(refusal(gelu), Contains("hidden_act 'gelu'"));
  CHECK_THAT(refusal(R"({"model_type":"gpt2","vocab_size":10,"n_embd":8,"n_layer":1,"n_head":2,
                         "n_positions":4,"activation_function":"relu"})"),
             Contains("activation_function 'relu'"));
}

TEST_CASE("malformed fields are named") {
  CHECK_THAT(refusal("{"), Contains("config.json:1:1: not JSON"));
  CHECK_THAT(refusal("[]"), Contains("not a JSON object"));
  CHECK_THAT(refusal(llama(R"(,"vocab_size":100)")), Contains("'vocab_size' appears twice"));
  const auto with = [](const std::string& from, const std::string& to) {
    std::string json = llama();
    json.replace(json.find(from), from.size(), to);
    return refusal(json);
  };
  CHECK_THAT(with("\"vocab_size\":100,", ""), Contains("'vocab_size' is missing"));
  CHECK_THAT(with("100", "-1"), Contains("'vocab_size' is -1"));
  CHECK_THAT(with("100", "1.5"), Contains("'vocab_size' is 1.5"));
  CHECK_THAT(with("100", "\"100\""), Contains("'vocab_size' is \"100\""));
  CHECK_THAT(with("100", "9999999999999999999"), Contains("'vocab_size'"));
  CHECK_THAT(with("null", "3"), Contains("not a multiple of num_key_value_heads 3"));
  CHECK_THAT(with("\"num_attention_heads\":8", "\"num_attention_heads\":7"),
             Contains("hidden_size 64 is not a multiple"));
  CHECK_THAT(with("1e-5", "0"), Contains("'rms_norm_eps' is 0"));
  CHECK_THAT(refusal(llama(R"(,"head_dim":5)")), Contains("odd head size (5)"));
  CHECK_THAT(refusal(llama(R"(,"tie_word_embeddings":1)")), Contains("not true or false"));
  CHECK_THAT(refusal(llama(R"(,"eos_token_id":"a")")), Contains("eos_token_id"));
  CHECK_THAT(with("\"model_type\":\"llama\"", "\"model_type\":\"gpt2\""), Contains("contradict"));
}

TEST_CASE("written configs read back the same") {
  for (const char* name : {"llama3_config.json", "gpt2_config.json"}) {
    const ModelConfig config = parse_hf_config(golden(name), name).model;
    const std::string text = write_hf_config(config, DType::bf16);
    CHECK(parse_hf_config(text, "written").model == config);
    CHECK_THAT(text, Contains("\"torch_dtype\": \"bfloat16\"") && Contains("1e-05"));
  }
  const std::string text =
      write_hf_config(parse_hf_config(golden("llama3_config.json"), "x").model, DType::f32);
  CHECK_THAT(text, Contains("\"rope_theta\": 500000.0") && Contains("\"rope_parameters\"") &&
                       Contains("\"rope_scaling\""));
}

std::string written(const ModelConfig& model) {
  return write_hf_config(model, DType::f32);
}

ModelConfig read_back(const ModelConfig& model) {
  return parse_hf_config(written(model), "written").model;
}

TEST_CASE("models get the name under which transformers computes them") {
  const ModelConfig plain = parse_hf_config(llama(), "x").model;
  CHECK_THAT(written(plain), Contains("LlamaForCausalLM"));
  ModelConfig config = plain;
  config.qk_norm = true;
  CHECK_THAT(written(config), Contains("Qwen3ForCausalLM") && Contains("\"qwen3\""));
  CHECK(same_computation(read_back(config), config));
  CHECK(read_back(config).family == &qwen3_family());
  config.qkv_bias = config.attention_output_bias = true;
  CHECK_THAT(written(config), Contains("Qwen3ForCausalLM"));
  CHECK(same_computation(read_back(config), config));
  config = plain;
  config.qkv_bias = true;
  CHECK_THAT(written(config), Contains("Qwen2ForCausalLM"));
  CHECK(same_computation(read_back(config), config));
  config.family = &mistral_family();
  CHECK(read_back(config).family == &qwen2_family());
  config = plain;
  config.family = &mistral_family();
  CHECK_THAT(written(config), Contains("MistralForCausalLM"));
  CHECK(read_back(config) == config);
  config.sliding_window = 96;
  CHECK(read_back(config) == config);
  config.family = &qwen2_family();
  config.qkv_bias = true;
  config.first_window_layer = 1;
  CHECK(read_back(config) == config);
}

TEST_CASE("models that no class of transformers computes get a name of our own") {
  ModelConfig config = parse_hf_config(llama(), "x").model;
  config.qk_norm = true;
  config.qkv_bias = true;  // without an output bias
  CHECK_THAT(written(config), Contains("Fp8trainLlama") && Contains("fp8train_llama"));
  CHECK(read_back(config) == config);
  config.mlp = MlpKind::gelu;
  CHECK_THAT(message_of<CheckpointError>([&] { written(config); }), Contains("no family has"));
  ModelConfig gpt2 = parse_hf_config(golden("gpt2_config.json"), "x").model;
  gpt2.norm_bias = false;  // the same mathematics as a bias of zero
  gpt2.mlp_bias = false;
  CHECK_THAT(written(gpt2), Contains("GPT2LMHeadModel"));
  CHECK(read_back(gpt2) == gpt2);
  gpt2.num_key_value_heads = 1;
  CHECK_THAT(written(gpt2), Contains("Fp8trainGpt2"));
  CHECK(read_back(gpt2) == gpt2);
}

TEST_CASE("what was written before Qwen was known reads as Qwen") {
  std::string json = llama(R"(,"qk_norm":false,"qkv_bias":true,"attention_output_bias":false)");
  json.replace(json.find("LlamaForCausalLM"), 16, "Fp8trainLlama");
  json.replace(json.find("\"llama\""), 7, "\"fp8train_llama\"");
  const ModelConfig config = parse_hf_config(json, "old").model;
  CHECK(config.family == &qwen2_family());
  CHECK(config.qkv_bias);
  json.replace(json.find("\"qk_norm\":false,\"qkv_bias\":true"), 31,
               "\"qk_norm\":true,\"qkv_bias\":false");
  CHECK(parse_hf_config(json, "old").model.family == &qwen3_family());
}

/// A config.json of another family with the sizes of llama().
std::string relative(const std::string& architecture, const std::string& type,
                     const std::string& more) {
  std::string json = llama(more);
  json.replace(json.find("LlamaForCausalLM"), 16, architecture);
  json.replace(json.find("\"llama\""), 7, "\"" + type + "\"");
  return json;
}

TEST_CASE("sliding windows limit the sequences that are taken") {
  const auto mistral = [](const std::string& more) {
    return parse_hf_config(relative("MistralForCausalLM", "mistral", more), "m").model;
  };
  CHECK(longest_sequence(mistral(R"(,"sliding_window":null)")) == 512);
  CHECK(longest_sequence(mistral(R"(,"sliding_window":4096)")) == 512);
  CHECK(mistral("").sliding_window == 4096);  // MistralConfig's default
  const ModelConfig windowed = mistral(R"(,"sliding_window":128)");
  CHECK(longest_sequence(windowed) == 128);
  CHECK_THAT(longest_sequence_reason(windowed), Contains("sliding window 128"));
  const auto qwen = [](const std::string& more) {
    return parse_hf_config(relative("Qwen2ForCausalLM", "qwen2", more), "q").model;
  };
  CHECK(longest_sequence(qwen(R"(,"use_sliding_window":false,"sliding_window":128)")) == 512);
  CHECK(longest_sequence(qwen(R"(,"sliding_window":128)")) == 512);
  const ModelConfig last =
      qwen(R"(,"use_sliding_window":true,"sliding_window":128,"max_window_layers":1)");
  CHECK(longest_sequence(last) == 128);
  CHECK(last.first_window_layer == 1);
  CHECK(qwen(R"(,"use_sliding_window":true,"sliding_window":128,"max_window_layers":2)")
            .sliding_window == 0);
  CHECK(qwen(R"(,"use_sliding_window":true,"sliding_window":128,"max_window_layers":2,)"
             R"("layer_types":["full_attention","sliding_attention"])")
            .first_window_layer == 1);
  CHECK_THAT(
      message_of<CheckpointError>([&] {
        qwen(R"(,"use_sliding_window":true,"sliding_window":128,"layer_types":["full_attention"])");
      }),
      Contains("'layer_types' has 1 entries for 2 layers"));
  for (const char* more :
       {R"(,"use_sliding_window":true,"layer_types":["sliding_attention","full_attention"])",
        R"(,"layer_types":["full_attention","sliding_attention"])",
        R"(,"layer_types":["full_attention","linear_attention"])"}) {
    CHECK_THAT(refusal(relative("Qwen2ForCausalLM", "qwen2", more)), Contains("'layer_types' is"));
  }
}

TEST_CASE("fields that are absent are what the family's class makes of them") {
  const auto without = [](std::string json, const std::string& field) {
    json.erase(json.find(field), field.size());
    return parse_hf_config(json, "x").model;
  };
  const ModelConfig qwen3 = parse_hf_config(relative("Qwen3ForCausalLM", "qwen3", ""), "x").model;
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.num_key_value_heads == 8);  // null: as many as query heads
  const std::string mistral = relative("MistralForCausalLM", "mistral", "");
  CHECK(without(mistral, R"("max_position_embeddings":512,)").max_position_embeddings == 131072);
  CHECK(without(llama(), R"("max_position_embeddings":512,)").max_position_embeddings == 2048);
  std::string wide = mistral;
  wide.replace(wide.find(R"("num_attention_heads":8,"num_key_value_heads":null)"), 50,
               R"("num_attention_heads":16)");
  CHECK(parse_hf_config(wide, "x").model.num_key_value_heads == 8);
}

TEST_CASE("RoPE scalings as transformers reads them") {
  const auto scaling = [](const std::string& fields) {
    return parse_hf_config(llama(R"(,"rope_scaling":{)" + fields + "}"), "x");
  };
  const HfConfig yarn =
      scaling(R"("type":"yarn","factor":4,"original_max_position_embeddings":128,"beta_fast":0)");
  CHECK(yarn.model.rope_scaling->type == RopeType::yarn);
  CHECK(yarn.model.rope_scaling->original_max_position_embeddings == 128);
  CHECK(yarn.model.rope_scaling->beta_fast == 32);  // 0 counts as unset
  CHECK(yarn.notes.empty());
  const HfConfig other = scaling(R"("rope_type":"yarn","factor":2.0)");
  CHECK(other.model.rope_scaling->original_max_position_embeddings == 512);
  CHECK(scaling(R"("type":"yarn","original_max_position_embeddings":64)")
            .model.rope_scaling->factor == 8);
  const HfConfig noted =
      scaling(R"("type":"yarn","factor":3.0,"original_max_position_embeddings":128)");
  REQUIRE(noted.notes.size() == 1);
  CHECK_THAT(noted.notes[0], Contains("YaRN's factor 3 is used"));
  CHECK(scaling(R"("type":"linear","factor":2.0)").model.rope_scaling->factor == 2);
  CHECK(scaling(R"("type":"dynamic","factor":2.0)").model.rope_scaling->type == RopeType::dynamic);
  for (const HfConfig& config : {yarn, other, noted}) {
    CHECK(read_back(config.model) == config.model);
  }
  const auto refused = [](const std::string& fields) {
    return refusal(llama(R"(,"rope_scaling":{)" + fields + "}"));
  };
  CHECK_THAT(refused(R"("type":"linear")"), Contains("'factor' is missing"));
  CHECK_THAT(refused(R"("type":"yarn","factor":2.0,"beta_fast":1,"beta_slow":2)"),
             Contains("beta_fast must be at least beta_slow"));
  CHECK_THAT(refused(R"("type":"yarn","factor":2.0,"attention_factor":0)"),
             Contains("'attention_factor' is 0"));
  CHECK_THAT(refusal(llama(R"(,"rope_scaling":{"type":"linear","factor":2.0},)"
                           R"("rope_parameters":{"rope_type":"default"})")),
             Contains("contradicts the other spelling"));
}

}  // namespace
}  // namespace fp8train
