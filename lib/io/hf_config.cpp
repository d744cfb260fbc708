#include "io/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "io/strict_json.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxNumber = int64_t{1} << 31;

/// Typed access to the fields of one JSON object; null counts as absent.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}", where_, what));
  }
  const std::string& where() const { return where_; }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const Json& at(const char* key) const { return object_[key]; }

  /// A positive whole number; `fallback` when absent, an error when there is no fallback.
  int64_t extent(const char* key, std::optional<int64_t> fallback = {}) const {
    if (!has(key)) {
      if (!fallback) fail(fmt::format("'{}' is missing", key));
      return *fallback;
    }
    const int64_t value = whole(key);
    if (value < 1 || value > kMaxNumber) {
      fail(fmt::format("'{}' is {}; it must be between 1 and {}", key, value, kMaxNumber));
    }
    return value;
  }

  double positive(const char* key, std::optional<double> fallback = {}) const {
    if (!has(key)) {
      if (!fallback) fail(fmt::format("'{}' is missing", key));
      return *fallback;
    }
    const double value = number(key);
    if (!(value > 0.0) || !std::isfinite(value)) {
      fail(fmt::format("'{}' is {}; it must be above 0", key, value));
    }
    return value;
  }

  double number(const char* key) const {
    if (!object_[key].is_number()) {
      fail(fmt::format("'{}' is {}, not a number", key, object_[key].dump()));
    }
    return object_[key].get<double>();
  }

  bool flag(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_[key].is_boolean()) {
      fail(fmt::format("'{}' is {}, not true or false", key, object_[key].dump()));
    }
    return object_[key].get<bool>();
  }

  std::string text(const char* key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!object_[key].is_string()) {
      fail(fmt::format("'{}' is {}, not a string", key, object_[key].dump()));
    }
    return object_[key].get<std::string>();
  }

  /// A token id, or a list of them.
  std::vector<int64_t> token_ids(const char* key) const {
    std::vector<int64_t> ids;
    if (!has(key)) return ids;
    const Json list = object_[key].is_array() ? object_[key] : Json::array({object_[key]});
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<double>() < 0 ||
          id.get<double>() > static_cast<double>(kMaxNumber)) {
        fail(fmt::format("'{}' is {}, not a token id or a list of them", key, object_[key].dump()));
      }
      ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

  Fields object(const char* key) const {
    if (!object_[key].is_object()) {
      fail(fmt::format("'{}' is {}, not an object", key, object_[key].dump()));
    }
    return {object_[key], where_ + ": " + key};
  }

 private:
  int64_t whole(const char* key) const {
    const Json& value = object_[key];
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kMaxNumber))) {
      fail(fmt::format("'{}' is {}, not a whole number up to {}", key, value.dump(), kMaxNumber));
    }
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string where_;
};

std::optional<ModelFamily> family_of(const Fields& fields) {
  const auto refuse = [&](const std::string& name) {
    fields.fail(
        fmt::format("{} is not implemented; known: LlamaForCausalLM (llama), "
                    "GPT2LMHeadModel (gpt2)",
                    name));
  };
  std::optional<ModelFamily> family;
  if (fields.has("architectures")) {
    const Json& list = fields.at("architectures");
    if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
      fields.fail(fmt::format("'architectures' is {}, not a list of one name", list.dump()));
    }
    const auto name = list[0].get<std::string>();
    if (name == "LlamaForCausalLM" || name == "Fp8trainLlama") {
      family = ModelFamily::llama;
    } else if (name == "GPT2LMHeadModel" || name == "Fp8trainGpt2") {
      family = ModelFamily::gpt2;
    } else {
      refuse("the architecture " + name);
    }
  }
  if (fields.has("model_type")) {
    const std::string type = fields.text("model_type", "");
    const bool is_llama = type == "llama" || type == "fp8train_llama";
    if (!is_llama && type != "gpt2" && type != "fp8train_gpt2") {
      refuse("the model type " + type);
    }
    const ModelFamily named = is_llama ? ModelFamily::llama : ModelFamily::gpt2;
    if (family && *family != named) {
      fields.fail(fmt::format("'architectures' and 'model_type' ({}) contradict each other", type));
    }
    family = named;
  }
  return family;
}

/// rope_scaling (transformers 4) or rope_parameters (5).
void read_rope_object(const Fields& rope, ModelConfig& config) {
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (rope.has("partial_rotary_factor") && rope.number("partial_rotary_factor") != 1.0) {
    rope.fail("partial rotary embeddings are not implemented");
  }
  if (type == "llama3") {
    Llama3RopeScaling scaling;
    scaling.factor = rope.positive("factor");
    scaling.low_freq_factor = rope.positive("low_freq_factor");
    scaling.high_freq_factor = rope.positive("high_freq_factor");
    scaling.original_max_position_embeddings = rope.extent("original_max_position_embeddings");
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope.fail("high_freq_factor must be above low_freq_factor");
    }
    if (config.rope_scaling && *config.rope_scaling != scaling) {
      rope.fail("contradicts the other spelling of the RoPE scaling in this file");
    }
    config.rope_scaling = scaling;
  } else if (type != "default") {
    rope.fail(fmt::format("the rope type '{}' is not implemented; known: default, llama3", type));
  }
}

void read_rope(const Fields& fields, ModelConfig& config) {
  config.rope_theta = fields.positive("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    const Fields rope = fields.object(key);
    read_rope_object(rope, config);
    if (!rope.has("rope_theta")) continue;
    const double theta = rope.positive("rope_theta");
    if (fields.has("rope_theta") && theta != config.rope_theta) {
      rope.fail(fmt::format("rope_theta is {} here and {} outside", theta, config.rope_theta));
    }
    config.rope_theta = theta;
  }
}

void refuse_sliding_window(const Fields& fields) {
  const bool used = fields.flag("use_sliding_window", true) && fields.has("sliding_window");
  bool in_layers = false;
  if (fields.has("layer_types") && fields.at("layer_types").is_array()) {
    for (const Json& type : fields.at("layer_types")) {
      in_layers = in_layers || type != "full_attention";
    }
  }
  if (used || in_layers) {
    fields.fail(
        "sliding-window attention is not implemented ('sliding_window' or 'layer_types' is in "
        "use)");
  }
}

void read_llama(const Fields& fields, HfConfig& out) {
  ModelConfig& config = out.model;
  config.family = ModelFamily::llama;
  config.vocab_size = fields.extent("vocab_size");
  config.hidden_size = fields.extent("hidden_size");
  config.intermediate_size = fields.extent("intermediate_size");
  config.num_hidden_layers = fields.extent("num_hidden_layers");
  config.num_attention_heads = fields.extent("num_attention_heads");
  config.num_key_value_heads = fields.extent("num_key_value_heads", config.num_attention_heads);
  config.max_position_embeddings = fields.extent("max_position_embeddings", 2048);
  if (!fields.has("head_dim") && config.hidden_size % config.num_attention_heads != 0) {
    fields.fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                            config.hidden_size, config.num_attention_heads));
  }
  config.head_dim = fields.extent("head_dim", config.hidden_size / config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                            config.num_attention_heads, config.num_key_value_heads));
  }
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") {
    fields.fail(
        fmt::format("hidden_act '{}' is not implemented for Llama; known: silu", activation));
  }
  config.norm_eps = static_cast<float>(fields.positive("rms_norm_eps", 1e-6));
  const bool attention_bias = fields.flag("attention_bias", false);
  config.qkv_bias = fields.flag("qkv_bias", attention_bias);
  config.attention_output_bias = fields.flag("attention_output_bias", attention_bias);
  config.qk_norm = fields.flag("qk_norm", false);
  config.mlp_bias = fields.flag("mlp_bias", false);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", false);
  read_rope(fields, config);
  refuse_sliding_window(fields);
  if (fields.has("pretraining_tp") && fields.number("pretraining_tp") != 1.0) {
    out.notes.push_back("'pretraining_tp' is ignored: it only changes the order of sums");
  }
}

void read_gpt2(const Fields& fields, HfConfig& out) {
  ModelConfig& config = out.model;
  config.family = ModelFamily::gpt2;
  config.vocab_size = fields.extent("vocab_size");
  config.hidden_size = fields.extent("n_embd");
  config.num_hidden_layers = fields.extent("n_layer");
  config.num_attention_heads = fields.extent("n_head");
  config.num_key_value_heads = fields.extent("num_key_value_heads", config.num_attention_heads);
  config.qk_norm = fields.flag("qk_norm", false);
  config.intermediate_size = fields.extent("n_inner", 4 * config.hidden_size);
  config.max_position_embeddings = fields.extent("n_positions");
  if (!fields.has("head_dim") && config.hidden_size % config.num_attention_heads != 0) {
    fields.fail(fmt::format("n_embd {} is not a multiple of n_head {}", config.hidden_size,
                            config.num_attention_heads));
  }
  config.head_dim = fields.extent("head_dim", config.hidden_size / config.num_attention_heads);
  const std::string activation = fields.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.fail(fmt::format(
        "activation_function '{}' is not implemented for GPT-2; known: gelu_new", activation));
  }
  if (!fields.flag("scale_attn_weights", true) ||
      fields.flag("scale_attn_by_inverse_layer_idx", false)) {
    fields.fail("attention scales other than 1/sqrt(head_dim) are not implemented");
  }
  if (fields.flag("add_cross_attention", false)) {
    fields.fail("cross-attention is not implemented");
  }
  config.norm = NormKind::layer_norm;
  config.mlp = MlpKind::gelu;
  config.positions = PositionKind::learned;
  config.norm_eps = static_cast<float>(fields.positive("layer_norm_epsilon", 1e-5));
  config.qkv_bias = fields.flag("qkv_bias", true);
  config.attention_output_bias = fields.flag("attention_output_bias", true);
  config.mlp_bias = fields.flag("mlp_bias", true);
  config.norm_bias = fields.flag("norm_bias", true);
  config.tie_word_embeddings = fields.flag("tie_word_embeddings", true);
}

void read_common(const Fields& fields, HfConfig& out) {
  ModelConfig& config = out.model;
  config.initializer_range = static_cast<float>(fields.positive("initializer_range", 0.02));
  const std::vector<int64_t> bos = fields.token_ids("bos_token_id");
  config.bos_token_id = bos.empty() ? -1 : bos.front();
  out.eos_token_ids = fields.token_ids("eos_token_id");
  config.eos_token_id = out.eos_token_ids.empty() ? -1 : out.eos_token_ids.front();
  if (out.eos_token_ids.size() > 1) {
    out.notes.push_back("'eos_token_id' is a list; training data is separated by its first entry");
  }
  if (fields.has("quantization_config")) {
    fields.fail("quantized weights ('quantization_config') are not read; export them as bf16");
  }
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (fields.has(key) && fields.number(key) != 0.0) {
      out.notes.push_back(fmt::format("'{}' is ignored: there is no dropout", key));
    }
  }
}

HfConfig parse(std::string_view json, const std::string& where, bool needs_name) {
  const Json document = detail::parse_strict_json(json, where);
  if (!document.is_object()) {
    throw CheckpointError(where + ": not a JSON object");
  }
  const Fields fields(document, where);
  std::optional<ModelFamily> family = family_of(fields);
  if (!family && needs_name) {
    fields.fail("neither 'architectures' nor 'model_type' says what model this is");
  }
  if (!family) {
    family = fields.has("n_embd") ? ModelFamily::gpt2 : ModelFamily::llama;
  }
  HfConfig out;
  if (*family == ModelFamily::gpt2) {
    read_gpt2(fields, out);
  } else {
    read_llama(fields, out);
  }
  read_common(fields, out);
  if (out.model.head_dim % 2 != 0) {
    fields.fail(fmt::format("an odd head size ({}) is not implemented", out.model.head_dim));
  }
  return out;
}

}  // namespace

HfConfig parse_hf_config(std::string_view json, const std::string& where) {
  return parse(json, where, true);
}

HfConfig read_hf_config(const std::filesystem::path& folder) {
  const std::string path = (folder / "config.json").string();
  return parse_hf_config(detail::read_strict_json(path).dump(), path);
}

ModelConfig parse_model_fields(std::string_view json, const std::string& where) {
  return parse(json, where, false).model;
}

}  // namespace fp8train
