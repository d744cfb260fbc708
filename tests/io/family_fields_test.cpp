// Each family's fields of a config.json: what it writes it reads under the same names.

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"
#include "model/families/family.h"
#include "model/families/hf_fields.h"

namespace fp8train {
namespace {

/// Written for other programs, or twice: architectures or model_type is enough, and attention_bias
/// says what qkv_bias does.
const std::set<std::string> kOthers = {
    "architectures", "model_type", "hidden_act",       "activation_function", "attention_dropout",
    "resid_pdrop",   "embd_pdrop", "attn_pdrop",       "use_cache",           "torch_dtype",
    "dtype",         "n_ctx",      "qkv_bias of llama"};

/// All that the model's family says of experts, with `own` also what only this program's form of it
/// does.
void give_experts(ModelConfig& config, bool own) {
  const bool is_dots = config.family == &dots1_family();
  config.moe.experts = 12;
  config.moe.per_token = 3;
  config.moe.width = config.family == &mixtral_family() ? config.intermediate_size : 20;
  if (config.family != &mixtral_family()) {
    config.dense_layers = is_dots && !own ? std::vector<int64_t>{0} : std::vector<int64_t>{1};
  }
  if (is_dots) {
    config.moe.groups = 4;
    config.moe.groups_per_token = 2;
    config.moe.scale = 2.5F;
    config.moe.shared_width = own ? 30 : 40;
    config.moe.has_bias = !own;
    config.moe.score = own ? RouterScore::softmax : RouterScore::sigmoid;
  }
}

/// A model with no value that is a default, but for heads, windows and RoPE.
ModelConfig unusual(const ModelFamily& family, bool own, bool flips_output_bias) {
  ModelConfig config;
  config.family = &family;
  family.set_switches(config);
  ModelSwitches others = family.switches();
  // All members, so that one more does not compile here: if it is a flag, it is flipped too.
  auto& [norm, mlp, positions, qkv_bias, output_bias, mlp_bias, norm_bias, qk_norm] = others;
  for (bool* one : {&qkv_bias, &output_bias, &mlp_bias, &norm_bias, &qk_norm}) {
    *one = !*one;
  }
  if (!flips_output_bias) {
    others.attention_output_bias = family.switches().attention_output_bias;
  }
  family.copy_fields(others, own, config);
  config.vocab_size = 101;
  config.hidden_size = 96;
  config.intermediate_size = 224;
  config.num_hidden_layers = 3;
  config.max_position_embeddings = 320;
  config.norm_eps = 3e-4F;
  config.tie_word_embeddings = config.positions == PositionKind::rope;
  config.initializer_range = 0.04F;
  config.bos_token_id = 3;
  config.eos_token_id = 4;
  if (family.has_experts()) {
    give_experts(config, own);
  }
  return config;
}

std::vector<std::optional<RopeScaling>> scalings(const ModelConfig& config) {
  std::vector<std::optional<RopeScaling>> all = {std::nullopt};
  if (config.positions != PositionKind::rope) {
    return all;
  }
  for (const RopeType type :
       {RopeType::linear, RopeType::dynamic, RopeType::llama3, RopeType::yarn}) {
    RopeScaling scaling = default_rope_scaling(type);
    scaling.factor = 3.5;
    if (type == RopeType::llama3) {
      scaling.low_freq_factor = 1.5;
      scaling.high_freq_factor = 6.0;
    }
    if (type == RopeType::llama3 || type == RopeType::yarn) {
      scaling.original_max_position_embeddings = 128;
    }
    all.emplace_back(scaling);
  }
  RopeScaling& yarn = *all.back();
  yarn.beta_fast = 48.0;
  yarn.beta_slow = 2.0;
  yarn.attention_factor = 1.25;
  yarn.mscale = 0.75;
  yarn.mscale_all_dim = 0.5;
  yarn.truncate = false;
  return all;
}

/// The models of a family in all forms that its fields can say.
std::vector<ModelConfig> models_of(const ModelFamily& family) {
  std::vector<ModelConfig> models;
  for (const auto& [own, flips] : {std::pair{false, true}, {true, true}, {true, false}}) {
    ModelConfig config = unusual(family, own, flips);
    config.rope_theta = config.positions == PositionKind::rope ? 7777.0 : config.rope_theta;
    for (const auto& [keys, width] : {std::pair<int64_t, int64_t>{2, 20}, {6, 16}}) {
      config.num_attention_heads = 6;
      config.num_key_value_heads = keys;
      config.head_dim = width;
      for (const auto& [window, first] : {std::pair<int64_t, int64_t>{0, 0}, {64, 0}, {64, 1}}) {
        config.sliding_window = window;
        config.first_window_layer = first;
        const bool writes = own ? standard_family(config) == nullptr && family.is_own(config)
                                : standard_family(config) == &family;
        for (const auto& scaling : scalings(config)) {
          config.rope_scaling = scaling;
          if (writes) models.push_back(config);
        }
      }
    }
  }
  return models;
}

ConfigObject without(ConfigObject fields, const std::set<std::string>& keys) {
  for (const std::string& key : keys) {
    fields.erase(key);
  }
  return fields;
}

/// Whether reading gives another model, or nothing.
bool is_noticed(const ConfigObject& fields, const ModelConfig& expected) {
  try {
    return read_hf_fields(ConfigFields(fields, "written")).model != expected;
  } catch (const CheckpointError&) {
    return true;
  }
}

struct FieldNames {
  std::set<std::string> written, noticed;  ///< "rope_scaling.factor" of an object
};

/// The object with one key under another name.
ConfigObject renamed(const ConfigObject& object, const std::string& name) {
  ConfigObject changed;
  for (const auto& [key, value] : object.items()) {
    changed[key == name ? key + "_" : key] = value;
  }
  return changed;
}

/// Reads the fields with one after the other under another name, also in objects.
void rename_each(const ConfigObject& fields, FieldNames& names) {
  const ModelConfig model = read_hf_fields(ConfigFields(fields, "written")).model;
  const auto note = [&](const std::string& name, const ConfigObject& changed) {
    names.written.insert(name);
    if (is_noticed(changed, model)) names.noticed.insert(name);
  };
  for (const auto& [key, value] : fields.items()) {
    note(key, renamed(fields, key));
    if (!value.is_object()) continue;
    for (const auto& [inner, ignored] : value.items()) {
      ConfigObject changed = fields;
      changed[key] = renamed(value, inner);
      note(fmt::format("{}.{}", key, inner), changed);
    }
  }
}

TEST_CASE("every family reads each field that it writes, under the same name") {
  for (const ModelFamily* family : families()) {
    CAPTURE(family->name());
    const std::vector<ModelConfig> models = models_of(*family);
    CHECK(models.size() >= 2);
    FieldNames names;
    for (const ModelConfig& model : models) {
      const ConfigObject fields = write_hf_fields(model, DType::f32);
      CHECK(read_hf_fields(ConfigFields(fields, "written")).model == model);
      rename_each(without(fields, {"rope_parameters"}), names);
      rename_each(without(fields, {"rope_theta", "rope_scaling"}), names);
    }
    for (const std::string& name : names.written) {
      CAPTURE(name);
      const bool is_other =
          kOthers.contains(name) || kOthers.contains(fmt::format("{} of {}", name, family->name()));
      CHECK(names.noticed.contains(name) != is_other);
    }
  }
}

}  // namespace
}  // namespace fp8train
