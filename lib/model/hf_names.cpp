#include "model/hf_names.h"

#include "base/error.h"

namespace fp8train {
namespace {

/// "layers.3.mlp.up.weight" -> block "3", rest "mlp.up.weight"; block empty outside the layers.
struct ParsedName {
  std::string block;
  std::string rest;
};

ParsedName parse(const std::string& parameter) {
  const std::string prefix = "layers.";
  if (!parameter.starts_with(prefix)) {
    return {"", parameter};
  }
  const size_t dot = parameter.find('.', prefix.size());
  return {parameter.substr(prefix.size(), dot - prefix.size()), parameter.substr(dot + 1)};
}

/// Splits "attention.qkv.weight" into "attention.qkv" and "weight".
std::pair<std::string, std::string> split_leaf(const std::string& name) {
  const size_t dot = name.rfind('.');
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::vector<HfPiece> llama_pieces(const ModelConfig& config, const ParsedName& name) {
  const int64_t width = config.hidden_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  if (name.block.empty()) {
    if (name.rest == "embedding.weight") {
      return {{"model.embed_tokens.weight", 0, config.vocab_size}};
    }
    if (name.rest == "head.weight") {
      return {{"lm_head.weight", 0, config.vocab_size}};
    }
    return {{"model.norm.weight", 0, width}};
  }
  const std::string layer = "model.layers." + name.block + ".";
  const auto parts = split_leaf(name.rest);
  const std::string& module = parts.first;  // no structured binding: clang 14 cannot capture one
  const std::string& leaf = parts.second;
  const auto piece = [&](const char* hf, int64_t begin, int64_t rows) -> HfPiece {
    return {layer + hf + "." + leaf, begin, rows};
  };
  if (module == "attention_norm") {
    return {piece("input_layernorm", 0, width)};
  }
  if (module == "mlp_norm") {
    return {piece("post_attention_layernorm", 0, width)};
  }
  if (module == "attention.qkv") {
    return {piece("self_attn.q_proj", 0, queries), piece("self_attn.k_proj", queries, keys),
            piece("self_attn.v_proj", queries + keys, keys)};
  }
  if (module == "attention.output") {
    return {piece("self_attn.o_proj", 0, width)};
  }
  if (module == "attention.q_norm" || module == "attention.k_norm") {
    return {piece(module == "attention.q_norm" ? "self_attn.q_norm" : "self_attn.k_norm", 0,
                  config.head_dim)};
  }
  if (module == "mlp.up") {
    return {piece("mlp.gate_proj", 0, inner), piece("mlp.up_proj", inner, inner)};
  }
  check(module == "mlp.down", "unknown parameter name");
  return {piece("mlp.down_proj", 0, width)};
}

std::vector<HfPiece> gpt2_pieces(const ModelConfig& config, const ParsedName& name) {
  const int64_t width = config.hidden_size;
  const auto parts = split_leaf(name.rest);
  const std::string& module = parts.first;  // no structured binding: clang 14 cannot capture one
  const std::string& leaf = parts.second;
  if (name.block.empty()) {
    if (module == "embedding") {
      return {{"transformer.wte.weight", 0, config.vocab_size}};
    }
    if (module == "positions") {
      return {{"transformer.wpe.weight", 0, config.max_position_embeddings}};
    }
    if (module == "head") {
      return {{"lm_head.weight", 0, config.vocab_size}};
    }
    return {{"transformer.ln_f." + leaf, 0, width}};
  }
  const std::string layer = "transformer.h." + name.block + ".";
  const bool is_weight = leaf == "weight";
  const auto linear = [&](const char* hf, int64_t rows) -> std::vector<HfPiece> {
    return {{layer + hf + "." + leaf, 0, rows, is_weight}};
  };
  if (module == "attention_norm") {
    return {{layer + "ln_1." + leaf, 0, width}};
  }
  if (module == "mlp_norm") {
    return {{layer + "ln_2." + leaf, 0, width}};
  }
  if (module == "attention.q_norm" || module == "attention.k_norm") {
    return {{layer + (module == "attention.q_norm" ? "attn.q_norm." : "attn.k_norm.") + leaf, 0,
             config.head_dim}};
  }
  if (module == "attention.qkv") {
    return linear("attn.c_attn", config.qkv_width());
  }
  if (module == "attention.output") {
    return linear("attn.c_proj", width);
  }
  if (module == "mlp.up") {
    return linear("mlp.c_fc", config.intermediate_size);
  }
  check(module == "mlp.down", "unknown parameter name");
  return linear("mlp.c_proj", width);
}

}  // namespace

std::vector<HfPiece> hf_pieces(const ModelConfig& config, const std::string& parameter) {
  const ParsedName name = parse(parameter);
  return config.family == ModelFamily::gpt2 ? gpt2_pieces(config, name)
                                            : llama_pieces(config, name);
}

}  // namespace fp8train
