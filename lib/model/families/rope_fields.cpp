#include "model/families/rope_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "base/error.h"

namespace fp8train {
namespace {

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

ConfigObject scaling_fields(const std::optional<RopeScaling>& scaling) {
  ConfigObject rope;
  set(rope, "rope_type", scaling ? rope_type_name(scaling->type) : "default");
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
  const ConfigObject scaling = scaling_fields(config.rope_scaling);
  ConfigObject parameters = scaling;
  parameters.insert(parameters.begin() + 1, {"rope_theta", config.rope_theta});
  set(out, "rope_theta", config.rope_theta);
  set(out, "rope_parameters", parameters);
  if (config.rope_scaling) {
    set(out, "rope_scaling", scaling);
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
