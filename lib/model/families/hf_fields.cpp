#include "model/families/hf_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "base/error.h"
#include "model/families/family.h"

namespace fp8train {
namespace {

constexpr std::string_view kOwnPrefix = "fp8train_";

struct NamedFamily {
  const ModelFamily* family = nullptr;
  bool own = false;  ///< under a name of this program
};

NamedFamily by_architecture(std::string_view name) {
  for (const ModelFamily* family : families()) {
    if (name == family->architecture()) {
      return {family, false};
    }
    if (!family->own_architecture().empty() && name == family->own_architecture()) {
      return {family, true};
    }
  }
  return {};
}

NamedFamily by_model_type(std::string_view type) {
  const bool own = type.starts_with(kOwnPrefix);
  const ModelFamily* family = find_family(own ? type.substr(kOwnPrefix.size()) : type);
  return family != nullptr && own && family->own_architecture().empty() ? NamedFamily{}
                                                                        : NamedFamily{family, own};
}

[[noreturn]] void refuse(const ConfigFields& fields, const std::string& name) {
  std::vector<std::string> known;
  for (const ModelFamily* family : families()) {
    known.push_back(fmt::format("{} ({})", family->architecture(), family->name()));
  }
  const std::string_view attention =
      name.find("eepseek") == std::string::npos
          ? ""
          : "; multi-head latent attention is not implemented, but its models' routing is, with "
            "plain attention: Dots1ForCausalLM";
  fields.fail(
      fmt::format("{} is not implemented; known: {}{}", name, fmt::join(known, ", "), attention));
}

NamedFamily family_of(const ConfigFields& fields) {
  NamedFamily named;
  if (fields.has("architectures")) {
    const std::vector<std::string> names = fields.texts("architectures");
    if (names.size() != 1) {
      fields.fail(fmt::format("'architectures' is {}, not a list of one name",
                              fields.at("architectures").dump()));
    }
    named = by_architecture(names.front());
    if (named.family == nullptr) {
      refuse(fields, "the architecture " + names.front());
    }
  }
  if (fields.has("model_type")) {
    const std::string type = fields.text("model_type", "");
    const NamedFamily by_type = by_model_type(type);
    if (by_type.family == nullptr) {
      refuse(fields, "the model type " + type);
    }
    if (named.family != nullptr && named.family != by_type.family) {
      fields.fail(fmt::format("'architectures' and 'model_type' ({}) contradict each other", type));
    }
    named = by_type;
  }
  if (named.family == nullptr) {
    fields.fail("neither 'architectures' nor 'model_type' says what model this is");
  }
  return named;
}

void read_common(const ConfigFields& fields, HfConfig& out) {
  ModelConfig& config = out.model;
  config.initializer_range = static_cast<float>(fields.positive("initializer_range", 0.02));
  const std::vector<int64_t> bos = fields.ids("bos_token_id");
  config.bos_token_id = bos.empty() ? -1 : bos.front();
  out.eos_token_ids = fields.ids("eos_token_id");
  config.eos_token_id = out.eos_token_ids.empty() ? -1 : out.eos_token_ids.front();
  if (fields.has("auto_map")) {
    out.copying_notes.emplace_back(
        "'auto_map' names code, which is not copied: checkpoints and exports leave it out, and "
        "transformers uses its own class");
  }
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    if (fields.number(key, 0.0) != 0.0) {
      out.training_notes.push_back(fmt::format("'{}' is ignored: there is no dropout", key));
    }
  }
  if (config.head_dim % 2 != 0) {
    fields.fail(fmt::format("an odd head size ({}) is not implemented", config.head_dim));
  }
}

/// Null: none writes it.
NamedFamily writing_family(const ModelConfig& config) {
  if (const ModelFamily* family = standard_family(config)) {
    return {family, false};
  }
  for (const ModelFamily* family : families()) {
    if (family->is_own(config)) {
      return {family, true};
    }
  }
  return {};
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    default:
      return "float32";
  }
}

ConfigObject token_id(int64_t id) {
  return id < 0 ? nullptr : ConfigObject(id);
}

void read_yarn(const ConfigFields& rope, const ModelConfig& config, RopeScaling& scaling) {
  const auto optional = [&](const char* key, double unset) {
    const double value = rope.number(key, unset);
    return value == 0.0 ? unset : rope.positive(key, unset);  // upstream: 0 counts as unset
  };
  scaling.beta_fast = optional("beta_fast", scaling.beta_fast);
  scaling.beta_slow = optional("beta_slow", scaling.beta_slow);
  scaling.mscale = optional("mscale", scaling.mscale);
  scaling.mscale_all_dim = optional("mscale_all_dim", scaling.mscale_all_dim);
  scaling.attention_factor =
      rope.has("attention_factor") ? rope.positive("attention_factor") : scaling.attention_factor;
  scaling.truncate = rope.flag("truncate", scaling.truncate);
  if (!rope.has("factor")) {
    scaling.factor = static_cast<double>(config.max_position_embeddings) /
                     static_cast<double>(scaling.original_max_position_embeddings);
  }
}

/// Reads rope_scaling or rope_parameters; returns nothing for the type "default". `outside` is the
/// original context if it is given outside of the object, where it has precedence, as upstream.
std::optional<RopeScaling> read_scaling(const ConfigFields& rope, const ModelConfig& config,
                                        std::optional<int64_t> outside) {
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    if (rope.has(layers)) {
      rope.fail("rotary embeddings that differ between layers are not implemented");
    }
  }
  if (rope.number("partial_rotary_factor", 1.0) != 1.0) {
    rope.fail("partial rotary embeddings are not implemented");
  }
  const std::string name = rope.text("rope_type", rope.text("type", "default"));
  if (name == "default") {
    return std::nullopt;
  }
  const std::optional<RopeType> type = find_rope_type(name);
  if (!type) {
    rope.fail(fmt::format("the rope type '{}' is not implemented; known: default, {}", name,
                          fmt::join(rope_type_names(), ", ")));
  }
  RopeScaling scaling = default_rope_scaling(*type);
  if (*type == RopeType::yarn || *type == RopeType::llama3) {
    scaling.original_max_position_embeddings =
        outside ? *outside
                : rope.extent("original_max_position_embeddings", config.max_position_embeddings);
  }
  const bool needs_factor = *type != RopeType::yarn || rope.has("factor");
  scaling.factor = needs_factor ? rope.positive("factor") : 0.0;
  if (*type == RopeType::llama3) {
    scaling.low_freq_factor = rope.positive("low_freq_factor");
    scaling.high_freq_factor = rope.positive("high_freq_factor");
  } else if (*type == RopeType::yarn) {
    read_yarn(rope, config, scaling);
  }
  const std::string problem = rope_scaling_problem(scaling);
  if (!problem.empty()) {
    rope.fail(problem);
  }
  return scaling;
}

/// Some versions of transformers 4 take the ratio of both lengths for the factor.
void note_other_factor(const ModelConfig& config, std::vector<std::string>& notes) {
  if (!config.rope_scaling || config.rope_scaling->type != RopeType::yarn) {
    return;
  }
  const double ratio = static_cast<double>(config.max_position_embeddings) /
                       static_cast<double>(config.rope_scaling->original_max_position_embeddings);
  if (ratio != config.rope_scaling->factor) {
    notes.push_back(fmt::format(
        "YaRN's factor {} is used, though max_position_embeddings / "
        "original_max_position_embeddings is {}; some versions of transformers 4 take that instead",
        config.rope_scaling->factor, ratio));
  }
}

ConfigObject scaling_fields(const std::optional<RopeScaling>& scaling,
                            std::optional<double> theta = {}) {
  ConfigObject rope;
  set(rope, "rope_type", scaling ? rope_type_name(scaling->type) : "default");
  if (theta) {
    set(rope, "rope_theta", *theta);
  }
  if (!scaling) {
    return rope;
  }
  set(rope, "factor", scaling->factor);
  if (scaling->type == RopeType::llama3) {
    set(rope, "low_freq_factor", scaling->low_freq_factor);
    set(rope, "high_freq_factor", scaling->high_freq_factor);
  }
  if (scaling->type == RopeType::llama3 || scaling->type == RopeType::yarn) {
    set(rope, "original_max_position_embeddings", scaling->original_max_position_embeddings);
  }
  if (scaling->type != RopeType::yarn) {
    return rope;
  }
  set(rope, "beta_fast", scaling->beta_fast);
  set(rope, "beta_slow", scaling->beta_slow);
  const std::pair<const char*, double> settable[] = {
      {"attention_factor", scaling->attention_factor},
      {"mscale", scaling->mscale},
      {"mscale_all_dim", scaling->mscale_all_dim}};
  for (const auto& [name, value] : settable) {
    if (value != 0.0) {
      set(rope, name, value);
    }
  }
  if (!scaling->truncate) {
    set(rope, "truncate", false);
  }
  return rope;
}

}  // namespace

const ModelFamily* standard_family(const ModelConfig& config) {
  if (config.family->is_standard(config)) {
    return config.family;
  }
  for (const ModelFamily* family : families()) {
    if (family->is_standard(config)) {
      return family;
    }
  }
  return nullptr;
}

const ModelFamily* written_family(const ModelConfig& config) {
  return writing_family(config).family;
}

HfConfig read_hf_fields(const ConfigFields& fields) {
  const NamedFamily named = family_of(fields);
  HfConfig out;
  out.model.family = named.family;
  named.family->read(fields, out.model, out.notes);
  read_common(fields, out);
  // The folder was written before this program knew the family of its model.
  const ModelFamily* standard = named.own ? standard_family(out.model) : nullptr;
  out.model.family = standard != nullptr ? standard : named.family;
  out.fields = fields.all();
  return out;
}

ConfigObject write_hf_fields(const ModelConfig& config, DType dtype) {
  const NamedFamily named = writing_family(config);
  if (named.family == nullptr) {
    throw CheckpointError(
        "this model cannot be written as a Hugging Face folder: no family has its norm, MLP and "
        "positions together");
  }
  const ModelFamily& family = *named.family;
  ConfigObject out;
  const std::string_view architecture =
      named.own ? family.own_architecture() : family.architecture();
  out["architectures"].push_back(architecture);
  set(out, "model_type",
      fmt::format("{}{}", named.own ? kOwnPrefix : std::string_view(), family.name()));
  family.write(config, named.own, out);
  set(out, "tie_word_embeddings", config.tie_word_embeddings);
  set(out, "initializer_range", decimal_of(config.initializer_range));
  set(out, "bos_token_id", token_id(config.bos_token_id));
  set(out, "eos_token_id", token_id(config.eos_token_id));
  set(out, "use_cache", true);
  set(out, "torch_dtype", torch_name(dtype));
  set(out, "dtype", torch_name(dtype));
  return out;
}

void read_rope(const ConfigFields& fields, ModelConfig& config, std::vector<std::string>& notes) {
  config.rope_theta = fields.positive("rope_theta", config.rope_theta);
  if (fields.number("partial_rotary_factor", 1.0) != 1.0) {
    fields.fail("partial rotary embeddings are not implemented");
  }
  std::optional<int64_t> outside;
  if (fields.has("original_max_position_embeddings")) {
    outside = fields.extent("original_max_position_embeddings");
  }
  bool read_before = false;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) {
      continue;
    }
    const ConfigFields rope = fields.object(key);
    const std::optional<RopeScaling> scaling = read_scaling(rope, config, outside);
    if (read_before && scaling != config.rope_scaling) {
      rope.fail("contradicts the other spelling of the RoPE scaling in this file");
    }
    config.rope_scaling = scaling;
    read_before = true;
    if (!rope.has("rope_theta")) {
      continue;
    }
    const double theta = rope.positive("rope_theta");
    if (fields.has("rope_theta") && theta != config.rope_theta) {
      rope.fail(fmt::format("rope_theta is {} here and {} outside", theta, config.rope_theta));
    }
    config.rope_theta = theta;
  }
  if (config.rope_scaling && config.rope_scaling->type == RopeType::yarn &&
      config.rope_theta <= 1.0) {
    fields.fail(fmt::format("YaRN needs a rope_theta above 1, not {}", config.rope_theta));
  }
  note_other_factor(config, notes);
}

void write_rope(const ModelConfig& config, ConfigObject& out) {
  set(out, "rope_theta", config.rope_theta);
  set(out, "rope_parameters", scaling_fields(config.rope_scaling, config.rope_theta));
  if (config.rope_scaling) {
    set(out, "rope_scaling", scaling_fields(config.rope_scaling));
  }
}

bool has_gguf_rope_factors(const ModelConfig& config) {
  return config.rope_scaling && config.rope_scaling->type == RopeType::llama3;
}

void write_gguf_rope(const ModelConfig& config, ConfigObject& out) {
  if (!config.rope_scaling) {
    return;
  }
  const RopeScaling& scaling = *config.rope_scaling;
  if (scaling.type != RopeType::linear && scaling.type != RopeType::yarn) {
    return;
  }
  set(out, "rope.scaling.type", rope_type_name(scaling.type));
  set(out, "rope.scaling.factor", scaling.factor);
  if (scaling.type == RopeType::linear) {
    return;
  }
  const RopeScaling usual;
  const bool standard = scaling.attention_factor == 0.0 && scaling.mscale == 0.0 &&
                        scaling.mscale_all_dim == 0.0 && scaling.truncate &&
                        scaling.beta_fast == usual.beta_fast &&
                        scaling.beta_slow == usual.beta_slow;
  if (!standard) {
    throw CheckpointError(
        "a GGUF file has YaRN with its usual factors only, not with 'attention_factor', 'mscale', "
        "'beta_fast', 'beta_slow' or 'truncate' of its own; export --to hf");
  }
  set(out, "rope.scaling.original_context_length", scaling.original_max_position_embeddings);
}

}  // namespace fp8train
