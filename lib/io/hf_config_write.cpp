#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/hf_config.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

/// The double nearest to the float's shortest decimal, so that 1e-5F is written as 1e-05.
double decimal(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

Json token_id(int64_t id) {
  return id < 0 ? Json() : Json(id);
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      return "float32";
  }
}

void require(bool holds, const char* what) {
  if (!holds) {
    throw CheckpointError(
        fmt::format("this model cannot be written as a Hugging Face folder: {}", what));
  }
}

Json rope_parameters(const ModelConfig& config) {
  Json rope;
  rope["rope_type"] = config.rope_scaling ? "llama3" : "default";
  rope["rope_theta"] = config.rope_theta;
  if (config.rope_scaling) {
    rope["factor"] = config.rope_scaling->factor;
    rope["low_freq_factor"] = config.rope_scaling->low_freq_factor;
    rope["high_freq_factor"] = config.rope_scaling->high_freq_factor;
    rope["original_max_position_embeddings"] =
        config.rope_scaling->original_max_position_embeddings;
  }
  return rope;
}

void write_llama(const ModelConfig& config, Json& out) {
  require(config.norm == NormKind::rms_norm && config.mlp == MlpKind::swiglu &&
              config.positions == PositionKind::rope,
          "LlamaForCausalLM has RMSNorm, SwiGLU and RoPE");
  // What transformers would misread gets a name of our own, which it refuses.
  const bool standard = !config.qk_norm && config.qkv_bias == config.attention_output_bias;
  out["architectures"] = {standard ? "LlamaForCausalLM" : "Fp8trainLlama"};
  out["model_type"] = standard ? "llama" : "fp8train_llama";
  if (!standard) {
    out["qk_norm"] = config.qk_norm;
    out["qkv_bias"] = config.qkv_bias;
    out["attention_output_bias"] = config.attention_output_bias;
  }
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.num_hidden_layers;
  out["num_attention_heads"] = config.num_attention_heads;
  out["num_key_value_heads"] = config.num_key_value_heads;
  out["head_dim"] = config.head_dim;
  out["max_position_embeddings"] = config.max_position_embeddings;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = decimal(config.norm_eps);
  out["attention_bias"] = config.qkv_bias;
  out["attention_dropout"] = 0.0;
  out["mlp_bias"] = config.mlp_bias;
  out["rope_theta"] = config.rope_theta;
  out["rope_parameters"] = rope_parameters(config);
  if (config.rope_scaling) {
    out["rope_scaling"] = rope_parameters(config);
    out["rope_scaling"].erase("rope_theta");
  }
}

void write_gpt2(const ModelConfig& config, Json& out) {
  require(config.norm == NormKind::layer_norm && config.mlp == MlpKind::gelu &&
              config.positions == PositionKind::learned,
          "GPT2LMHeadModel has LayerNorm, GELU and learned positions");
  const bool standard = config.num_key_value_heads == config.num_attention_heads &&
                        !config.qk_norm &&
                        config.head_dim * config.num_attention_heads == config.hidden_size;
  out["architectures"] = {standard ? "GPT2LMHeadModel" : "Fp8trainGpt2"};
  out["model_type"] = standard ? "gpt2" : "fp8train_gpt2";
  if (!standard) {
    out["num_key_value_heads"] = config.num_key_value_heads;
    out["head_dim"] = config.head_dim;
    out["qk_norm"] = config.qk_norm;
  }
  out["vocab_size"] = config.vocab_size;
  out["n_embd"] = config.hidden_size;
  out["n_inner"] = config.intermediate_size;
  out["n_layer"] = config.num_hidden_layers;
  out["n_head"] = config.num_attention_heads;
  out["n_positions"] = config.max_position_embeddings;
  out["n_ctx"] = config.max_position_embeddings;
  out["activation_function"] = "gelu_new";
  out["layer_norm_epsilon"] = decimal(config.norm_eps);
  // Fields of our own, written only where a bias is missing: without one the model is GPT-2 with
  // that bias at zero, which is what other programs make of the missing tensor.
  const std::pair<const char*, bool> biases[] = {
      {"qkv_bias", config.qkv_bias},
      {"attention_output_bias", config.attention_output_bias},
      {"mlp_bias", config.mlp_bias},
      {"norm_bias", config.norm_bias}};
  for (const auto& [name, present] : biases) {
    if (!present) {
      out[name] = false;
    }
  }
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    out[dropout] = 0.0;
  }
}

}  // namespace

std::string write_hf_config(const ModelConfig& config, DType dtype) {
  Json out;
  if (config.family == ModelFamily::gpt2) {
    write_gpt2(config, out);
  } else {
    write_llama(config, out);
  }
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  out["initializer_range"] = decimal(config.initializer_range);
  out["bos_token_id"] = token_id(config.bos_token_id);
  out["eos_token_id"] = token_id(config.eos_token_id);
  out["use_cache"] = true;
  out["torch_dtype"] = torch_name(dtype);
  out["dtype"] = torch_name(dtype);
  return out.dump(2) + "\n";
}

}  // namespace fp8train
