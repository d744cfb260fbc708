#include "model/families/llama_like.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/families/hf_fields.h"

namespace fp8train {
namespace {

std::vector<HfPiece> llama_outer_pieces(const ModelConfig& config, const ParameterName& parameter) {
  if (parameter.module == "embedding") {
    return {{"model.embed_tokens.weight", 0, config.vocab_size, false, "token_embd.weight"}};
  }
  if (parameter.module == "head") {
    return {{"lm_head.weight", 0, config.vocab_size, false, "output.weight"}};
  }
  return {{"model.norm.weight", 0, config.hidden_size, false, "output_norm.weight"}};
}

/// "mlp.experts.7.up": its rest "up" and "experts.7" before it.
std::pair<std::string_view, std::string_view> parts_of_moe(std::string_view module) {
  module.remove_prefix(std::string_view("mlp.").size());
  const size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::pair(module, std::string_view())
                                       : std::pair(module.substr(dot + 1), module.substr(0, dot));
}

/// Whether norm, MLP and positions are those of Llama.
bool is_llama_like(const ModelSwitches& model) {
  return model.norm == NormKind::rms_norm && model.mlp == MlpKind::swiglu &&
         model.positions == PositionKind::rope;
}

}  // namespace

void LlamaLike::set_switches(ModelConfig& config) const {
  if (!is_llama_like(config)) {
    config.tie_word_embeddings = false;
  }
  ModelFamily::set_switches(config);
}

void LlamaLike::read(const ConfigFields& fields, ModelConfig& config,
                     std::vector<std::string>& notes) const {
  const Defaults absent = defaults();
  set_switches(config);
  config.vocab_size = fields.extent("vocab_size");
  config.hidden_size = fields.extent("hidden_size");
  config.intermediate_size = fields.extent("intermediate_size");
  config.num_hidden_layers = fields.extent("num_hidden_layers");
  config.num_attention_heads = fields.extent("num_attention_heads");
  const bool says_groups = fields.mentions("num_key_value_heads") || absent.key_value_heads == 0;
  config.num_key_value_heads = fields.extent(
      "num_key_value_heads", says_groups ? config.num_attention_heads : absent.key_value_heads);
  config.max_position_embeddings =
      fields.extent("max_position_embeddings", absent.max_position_embeddings);
  const bool says_width = fields.has("head_dim") || absent.head_dim != 0;
  if (!says_width && config.hidden_size % config.num_attention_heads != 0) {
    fields.fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                            config.hidden_size, config.num_attention_heads));
  }
  config.head_dim = fields.extent(
      "head_dim",
      absent.head_dim != 0 ? absent.head_dim : config.hidden_size / config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                            config.num_attention_heads, config.num_key_value_heads));
  }
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") {
    fields.fail(fmt::format("hidden_act '{}' is not implemented for {}; known: silu", activation,
                            architecture()));
  }
  config.norm_eps = static_cast<float>(fields.positive("rms_norm_eps", absent.norm_eps));
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", false);
  config.rope_theta = absent.rope_theta;
  read_rope(fields, config, notes);
  read_own(fields, config, notes);
}

void LlamaLike::write(const ModelConfig& config, bool own, ConfigObject& out) const {
  set(out, "vocab_size", config.vocab_size);
  set(out, "hidden_size", config.hidden_size);
  set(out, "intermediate_size", config.intermediate_size);
  set(out, "num_hidden_layers", config.num_hidden_layers);
  set(out, "num_attention_heads", config.num_attention_heads);
  set(out, "num_key_value_heads", config.num_key_value_heads);
  set(out, "head_dim", config.head_dim);
  set(out, "max_position_embeddings", config.max_position_embeddings);
  set(out, "hidden_act", "silu");
  set(out, "rms_norm_eps", decimal_of(config.norm_eps));
  set(out, "attention_dropout", 0.0);
  write_own(config, own, out);
  write_rope(config, out);
}

std::vector<HfPiece> LlamaLike::pieces(const ModelConfig& config,
                                       const ParameterName& parameter) const {
  if (parameter.block.empty()) {
    return llama_outer_pieces(config, parameter);
  }
  if (parameter.module == "mlp.router" || std::ranges::count(parameter.module, '.') > 1) {
    return moe_pieces(config, parameter);
  }
  const int64_t width = config.hidden_size;
  const int64_t queries = config.num_attention_heads * config.head_dim;
  const int64_t keys = config.num_key_value_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  const int64_t heads = config.num_attention_heads;
  const int64_t key_heads = config.num_key_value_heads;
  return block_pieces({{"attention_norm", "input_layernorm", "attn_norm", width},
                       {"mlp_norm", "post_attention_layernorm", "ffn_norm", width},
                       {"attention.qkv", "self_attn.q_proj", "attn_q", queries, 0, heads},
                       {"attention.qkv", "self_attn.k_proj", "attn_k", keys, queries, key_heads},
                       {"attention.qkv", "self_attn.v_proj", "attn_v", keys, queries + keys},
                       {"attention.output", "self_attn.o_proj", "attn_output", width},
                       {"attention.q_norm", "self_attn.q_norm", "attn_q_norm", config.head_dim},
                       {"attention.k_norm", "self_attn.k_norm", "attn_k_norm", config.head_dim},
                       {"mlp.up", "mlp.gate_proj", "ffn_gate", inner},
                       {"mlp.up", "mlp.up_proj", "ffn_up", inner, inner},
                       {"mlp.down", "mlp.down_proj", "ffn_down", width}},
                      "model.layers", parameter);
}

/// Parameters of the router ("mlp.router"), of an expert ("mlp.experts.7.up") or of that which
/// processes all tokens ("mlp.shared.up").
std::vector<HfPiece> LlamaLike::moe_pieces(const ModelConfig& config,
                                           const ParameterName& parameter) const {
  const ExpertNames names = expert_names();
  const auto [matrix, expert] = parts_of_moe(parameter.module);
  const bool shared = expert == "shared";
  const std::string prefix = fmt::format("model.layers.{}.{}.", parameter.block, names.module) +
                             (expert.empty() ? "gate"
                              : shared       ? "shared_experts"
                                             : std::string(expert)) +
                             ".";
  const auto piece = [&](std::string_view name, int64_t begin, int64_t rows) {
    return HfPiece{.name = prefix + std::string(name), .begin = begin, .rows = rows};
  };
  if (expert.empty()) {
    const bool is_bias = parameter.leaf == "bias";
    return {piece(is_bias ? "e_score_correction_bias" : "weight", 0, config.moe.experts)};
  }
  const auto leaf = [&](std::string_view name) {
    return fmt::format("{}.{}", name, parameter.leaf);
  };
  if (matrix == "down") {
    return {piece(leaf(names.down), 0, config.hidden_size)};
  }
  const int64_t inner = shared ? config.moe.shared_width : config.moe.width;
  return {piece(leaf(names.gate), 0, inner), piece(leaf(names.up), inner, inner)};
}

void LlamaLike::write_gguf(const ModelConfig& config, ConfigObject& out) const {
  set(out, "vocab_size", config.vocab_size);
  set(out, "context_length", longest_sequence(config));
  set(out, "embedding_length", config.hidden_size);
  set(out, "block_count", config.num_hidden_layers);
  set(out, "feed_forward_length", config.intermediate_size);
  set(out, "attention.head_count", config.num_attention_heads);
  set(out, "attention.head_count_kv", config.num_key_value_heads);
  set(out, "attention.key_length", config.head_dim);
  set(out, "attention.value_length", config.head_dim);
  set(out, "attention.layer_norm_rms_epsilon", decimal_of(config.norm_eps));
  set(out, "rope.dimension_count", config.head_dim);
  set(out, "rope.freq_base", config.rope_theta);
  write_gguf_rope(config, out);
}

MoeShape with_sizes_of(const MoeShape& shape, MoeShape routing) {
  routing.experts = shape.experts;
  routing.per_token = shape.per_token;
  routing.width = shape.width;
  routing.shared_width = shape.shared_width;
  return routing;
}

ConfigObject window_of(const ModelConfig& config) {
  return config.sliding_window > 0 ? ConfigObject(config.sliding_window) : nullptr;
}

std::vector<std::string> layer_types(const ConfigFields& fields, const ModelConfig& config) {
  std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.num_hidden_layers) {
    fields.fail(fmt::format("'layer_types' has {} entries for {} layers", types.size(),
                            config.num_hidden_layers));
  }
  return types;
}

void read_layer_windows(const ConfigFields& fields, ModelConfig& config, bool used, int64_t first) {
  constexpr int64_t kUpstreamWindow = 4096;
  int64_t window = 0;
  if (fields.flag("use_sliding_window", used) &&
      (fields.has("sliding_window") || !fields.mentions("sliding_window"))) {
    window = fields.extent("sliding_window", kUpstreamWindow);
    first = fields.count("max_window_layers", first);
  }
  const std::vector<std::string> types = layer_types(fields, config);
  if (!types.empty()) {
    const auto found = std::find(types.begin(), types.end(), "sliding_attention");
    first = found - types.begin();
    const bool are_last =
        std::all_of(types.begin(), found,
                    [](const std::string& type) { return type == "full_attention"; }) &&
        std::all_of(found, types.end(),
                    [](const std::string& type) { return type == "sliding_attention"; });
    if (!are_last || (window == 0 && found != types.end())) {
      fields.fail(fmt::format(
          "'layer_types' is {}; implemented are full attention, and with 'sliding_window' windows "
          "in the last layers",
          fields.at("layer_types").dump()));
    }
  }
  if (window > 0 && first < config.num_hidden_layers) {
    config.sliding_window = window;
    config.first_window_layer = first;
  }
}

void write_layer_windows(const ModelConfig& config, ConfigObject& out) {
  const bool used = config.sliding_window > 0;
  set(out, "use_sliding_window", used);
  set(out, "sliding_window", window_of(config));
  set(out, "max_window_layers", used ? config.first_window_layer : config.num_hidden_layers);
}

}  // namespace fp8train
