#include "model/families/hf_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
                              fields.at("architectures").text()));
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

ConfigValue token_id(int64_t id) {
  return id < 0 ? ConfigValue() : ConfigValue(id);
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
  // This is no initializer list, because GCC 12 cleans up wrongly if copying its element throws.
  set(out, "architectures", ConfigValue::List(1, ConfigValue(architecture)));
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

}  // namespace fp8train
