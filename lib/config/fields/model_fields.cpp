// The `model` section: a preset, a folder, or the fields of a Hugging Face config.json.

#include "base/math.h"
#include "base/text.h"
#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "config/presets.h"
#include "config/show.h"
#include "config/yaml/given_keys.h"
#include "model/families/family.h"
#include "model/families/hf_fields.h"

namespace fp8train {

std::vector<Field> rope_fields();    // rope_fields.cpp
std::vector<Field> expert_fields();  // expert_fields.cpp

namespace {

using namespace fields;

constexpr auto in_shape = under(&Settings::model, &ModelSettings::config);

constexpr std::pair<MlpKind, std::string_view> kActivations[] = {
    {MlpKind::swiglu, "silu"}, {MlpKind::gelu, "gelu_new"}, {MlpKind::gelu, "gelu_pytorch_tanh"}};

/// Sizes are asked only of models that are not described otherwise.
bool has_own_sizes(const Settings& settings) {
  return settings.model.preset.empty() && settings.model.from.empty();
}

/// Checkpoints are folders that name a family.
void check_activation(const CheckContext& at) {
  const ModelConfig& config = at.settings.model.config;
  if (at.usable("model.model_type") && config.moe.experts == 0 &&
      written_family(config) == nullptr) {
    at.complain(fmt::format(
        "no family of models has this MLP with the norm and the positions of {}, so that "
        "checkpoints could not be written; remove the key",
        config.family->name()));
  }
}

/// The first given key that describes a shape.
const GivenKey* first_shape_key(const GivenKeys& given) {
  for (const auto& [position, one] : given.all()) {
    if (describes_shape(one.field->key)) {
      return &one;
    }
  }
  return nullptr;
}

void check_preset(const CheckContext& at) {
  if (!at.is_given() && !at.has("model.from") && first_shape_key(at.given) == nullptr) {
    at.missing_section("missing; give model.preset, model.from or the model's fields",
                       Extent::estimated);
  }
}

void check_from(const CheckContext& at) {
  if (!at.is_given()) {
    return;
  }
  const GivenKey* shape = first_shape_key(at.given);
  if (at.has("model.preset")) {
    at.complain("conflicts with model.preset; remove one of them");
  } else if (shape != nullptr) {
    at.given.complain(shape->field->key,
                      "conflicts with model.from, whose config.json has the shape; remove one of "
                      "them");
  }
}

/// A size that has no default.
void check_size(const CheckContext& at) {
  if (!at.is_given() && !at.has("model.preset") && !at.has("model.from") &&
      first_shape_key(at.given) != nullptr) {
    at.missing("missing; a model without a preset needs it", Extent::estimated);
  }
}

void check_resize_vocabulary(const CheckContext& at) {
  if (at.is_given() && !at.has("model.from")) {
    at.complain(
        "adds tokens to the model of model.from; a model from scratch has model.vocab_size");
  }
}

Question size_question(const char* text) {
  return {.topic = Topic::model, .text = text, .when = has_own_sizes};
}

/// Returns the usual width of the family's models: 4 times the hidden size, or two thirds of that
/// where there is a gate.
std::string offered_intermediate_size(const Settings& settings) {
  const ModelConfig& config = settings.model.config;
  constexpr int64_t kMultiple = 128;  // of blocks of weights that share a scale
  const int64_t gated = round_up(config.hidden_size * 8 / 3, kMultiple);
  return std::to_string(is_gated(config.mlp) ? gated : 4 * config.hidden_size);
}

Field model_type_field() {
  std::vector<std::string> types;
  for (const ModelFamily* family : families()) {
    types.emplace_back(family->name());
  }
  return named(
             "model.model_type", std::move(types),
             "Family; sets norm, MLP, positions and biases as that family has them",
             [](Settings& settings, const std::string& type) {
               ModelConfig& config = settings.model.config;
               if (config.family != find_family(type)) {
                 config.family = find_family(type);
                 config.family->set_switches(config);
               }
             },
             [](const Settings& settings) { return settings.model.config.family->name(); })
      .asked(size_question("Family"));
}

Field attention_bias_field() {
  Field made = field("model.attention_bias", in_shape(&ModelConfig::qkv_bias),
                     "Short for qkv_bias and attention_output_bias together");
  made.input_only = true;
  made.read = [read = made.read](Settings& settings, const FieldValue& value) {
    read(settings, value);
    settings.model.config.attention_output_bias = settings.model.config.qkv_bias;
  };
  made.write = [](const Settings&) { return ""; };
  return made;
}

/// A small model, unless something else is said about the shape.
std::string offered_preset(const Settings& settings) {
  const bool described = !settings.model.from.empty() || settings.model.config.hidden_size > 0;
  return described && settings.model.preset.empty() ? "" : "llama-42m";
}

std::vector<Field> size_fields() {
  return {
      field("model.vocab_size", in_shape(&ModelConfig::vocab_size),
            between(0, ModelLimits::vocabulary),
            "Entries of the token embedding; 0 takes the tokenizer's"),
      field("model.hidden_size", in_shape(&ModelConfig::hidden_size),
            count_up_to(ModelLimits::hidden), "Width of the residual stream")
          .also({"model.n_embd"})
          .asked(size_question("Hidden size"))
          .checked(check_size),
      field("model.intermediate_size", in_shape(&ModelConfig::intermediate_size),
            count_up_to(ModelLimits::intermediate, true),
            "Width inside the MLP; not set: derived from hidden_size")
          .also({"model.n_inner"})
          .asked({.topic = Topic::model,
                  .text = "Intermediate size",
                  .when = has_own_sizes,
                  .suggest = offered_intermediate_size}),
      field("model.num_hidden_layers", in_shape(&ModelConfig::num_hidden_layers),
            count_up_to(ModelLimits::layers), "Transformer blocks")
          .also({"model.n_layer"})
          .asked(size_question("Layers"))
          .checked(check_size),
      field("model.num_attention_heads", in_shape(&ModelConfig::num_attention_heads),
            count_up_to(ModelLimits::heads), "Query heads")
          .also({"model.n_head"})
          .asked(size_question("Attention heads"))
          .checked(check_size),
      field("model.num_key_value_heads", in_shape(&ModelConfig::num_key_value_heads),
            count_up_to(ModelLimits::heads, true),
            "Key and value heads, a divisor of the query heads; not set: as many as these")
          .asked({.topic = Topic::model,
                  .text = "Key and value heads",
                  .when = has_own_sizes,
                  .optional = true}),
      field("model.head_dim", in_shape(&ModelConfig::head_dim),
            count_up_to(ModelLimits::head_dim, true),
            "Width of a head; not set: hidden_size / num_attention_heads"),
      field("model.max_position_embeddings", in_shape(&ModelConfig::max_position_embeddings),
            count_up_to(ModelLimits::positions), "Longest sequence the model is made for")
          .also({"model.n_positions", "model.n_ctx"})
          .asked({.topic = Topic::model,
                  .text = "Longest sequence",
                  .when = has_own_sizes,
                  .suggest = [](const Settings& s) { return std::to_string(s.step.seq_length); }})
          .checked(check_size),
  };
}

std::vector<Field> arithmetic_fields() {
  return {
      choice("model.hidden_act", in_shape(&ModelConfig::mlp), kActivations,
             "silu is SwiGLU, gelu_new (the same as gelu_pytorch_tanh) a GELU MLP")
          .also({"model.activation_function"})
          .checked(check_activation),
      field("model.norm_eps", in_shape(&ModelConfig::norm_eps), between(1e-12, 1),
            "Added to the variance in every norm")
          .also({"model.rms_norm_eps", "model.layer_norm_epsilon"}),
      field("model.rope_theta", in_shape(&ModelConfig::rope_theta), above_up_to(0, 1e12),
            "Base of the rotary position frequencies")
          .also({"model.rope_parameters.rope_theta"}),
  };
}

std::vector<Field> switch_fields() {
  return {
      field("model.tie_word_embeddings", in_shape(&ModelConfig::tie_word_embeddings),
            "The output head shares the token embedding's weight"),
      attention_bias_field(),
      field("model.qkv_bias", in_shape(&ModelConfig::qkv_bias), "Bias on the q, k, v projections"),
      field("model.attention_output_bias", in_shape(&ModelConfig::attention_output_bias),
            "Bias on the attention's output projection"),
      field("model.mlp_bias", in_shape(&ModelConfig::mlp_bias), "Bias on the MLP's projections"),
      field("model.norm_bias", in_shape(&ModelConfig::norm_bias), "LayerNorm's additive term"),
      field("model.qk_norm", in_shape(&ModelConfig::qk_norm),
            "RMSNorm of each head of q and k (Qwen3)"),
      field("model.initializer_range", in_shape(&ModelConfig::initializer_range), between(0, 10),
            "Standard deviation of the initial weights"),
      field("model.bos_token_id", in_shape(&ModelConfig::bos_token_id),
            between(-1, ModelLimits::vocabulary), "Token that begins a document; -1: none"),
      field("model.eos_token_id", in_shape(&ModelConfig::eos_token_id),
            between(-1, ModelLimits::vocabulary), "Token that ends a document; -1: none"),
  };
}

void check_lora(const CheckContext& at) {
  const Settings& settings = at.settings;
  const bool is_on = settings.model.config.lora.is_on() || at.has("model.lora.from");
  const bool is_default = at.field.write(settings) == at.field.write(Settings());
  if (at.field.key == "model.lora.targets" && at.is_given() && is_default) {
    at.complain("is empty; name layers, or leave it out for q_proj and v_proj");
  } else if (!is_default && !is_on && at.usable("model.lora.rank")) {
    at.complain("has no effect without model.lora.rank, which turns adapters on");
  }
}

std::vector<Field> lora_fields() {
  constexpr double kMaxRank = 1 << 16;
  const auto lora = under(&Settings::model, &ModelSettings::config, &ModelConfig::lora);
  std::vector<Field> fields = {
      field("model.lora.alpha", lora(&LoraSettings::alpha),
            Rule{.range = above_up_to(0, 1e9), .is_unset_at_0 = true},
            "The product of an adapter is multiplied by alpha / rank; not set: it is the rank"),
      field("model.lora.use_rslora", lora(&LoraSettings::use_rslora),
            "Multiply by alpha / sqrt(rank) instead"),
      field("model.lora.targets", lora(&LoraSettings::targets),
            "Layers that have adapters: names of modules in transformers, such as q_proj, names of "
            "layers here (* and ? match), or all-linear; not set: q_proj and v_proj, or c_attn"),
      text("model.lora.base", in(&Settings::model, &ModelSettings::lora_base),
           "How the frozen weights of linear layers are stored: fp32, bf16, 'e4m3 128x128', 'e4m3 "
           "row', 'int8 row', or as_file: codes where the folder of model.from has codes, else "
           "bf16 where the plan computes in bf16",
           "as_file, fp32, bf16 or a format of codes"),
  };
  for (Field& one : fields) {
    one = std::move(one).checked(check_lora);
  }
  fields.insert(fields.begin(),
                field("model.lora.rank", lora(&LoraSettings::rank), between(0, kMaxRank),
                      "Rank of adapters (LoRA), which are trained while all else is frozen; 0: "
                      "none"));
  fields.push_back(path("model.lora.from", in(&Settings::model, &ModelSettings::lora_from),
                        "A folder of peft with adapters to begin with, which has their rank, alpha "
                        "and targets",
                        "a folder"));
  return fields;
}

}  // namespace

std::vector<Field> model_fields() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
  }
  Field preset = choice("model.preset", in(&Settings::model, &ModelSettings::preset), names,
                        "A predefined model; the other fields of this section override it")
                     .asked({.topic = Topic::model,
                             .text = "Preset, - for a folder or sizes of your own",
                             .suggest = offered_preset,
                             .preface = presets_text,
                             .optional = true})
                     .checked(check_preset);
  std::vector<Field> result = {
      std::move(preset),
      path("model.from", in(&Settings::model, &ModelSettings::from),
           "A Hugging Face folder to start from (config.json, *.safetensors)", "a folder")
          .asked({.topic = Topic::model,
                  .text = "Hugging Face folder to start from, - for sizes",
                  .when = [](const Settings& s) { return s.model.preset.empty(); },
                  .optional = true})
          .checked(check_from),
  };
  for (Field& field : concat({std::vector{model_type_field()}, size_fields(), arithmetic_fields(),
                              rope_fields(), switch_fields(), expert_fields()})) {
    field.applies = [also = field.applies](const Settings& settings) {
      return settings.model.from.empty() && (!also || also(settings));
    };
    result.push_back(std::move(field));
  }
  Field resize =
      field("model.resize_vocabulary", in(&Settings::model, &ModelSettings::resize_vocabulary),
            between(0, ModelLimits::vocabulary),
            "New number of tokens of the model of model.from: embedding and head get rows that "
            "are the mean of the others; 0: unchanged");
  result.push_back(std::move(resize)
                       .when([](const Settings& s) { return !s.model.from.empty(); })
                       .checked(check_resize_vocabulary));
  result.push_back(
      choice("model.recompute",
             in(&Settings::step, &StepSettings::decoder, &DecoderSettings::recompute), kRecomputes,
             "Which activations the backward pass computes again instead of storing them: those "
             "of a block, of its feed-forward half (mlp), or of its attention")
          .asked({.topic = Topic::parallelism,
                  .text = "Recompute activations to save memory",
                  .changes_memory = true}));
  return concat({result, lora_fields()});
}

const std::vector<PassiveKey>& passive_keys() {
  static const std::vector<PassiveKey> kKeys = [] {
    std::vector<PassiveKey> keys;
    for (const char* name :
         {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
          "pad_token_id", "pretraining_tp", "_name_or_path", "summary_type", "summary_use_proj",
          "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
          "max_window_layers", "layer_types", "router_aux_loss_coef"}) {
      keys.push_back({std::string("model.") + name, {}, ""});
    }
    for (const char* name :
         {"attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout"}) {
      keys.push_back({std::string("model.") + name,
                      {"0", "0.0", "null"},
                      "fp8train trains without dropout: set it to 0 or remove it"});
    }
    keys.push_back({"model.output_router_logits",
                    {"false", "null"},
                    "a loss for unequal loads of experts is moe.balance_loss: set it and remove "
                    "this key"});
    keys.push_back({"model.router_jitter_noise", {"0", "0.0"}, "routers have no noise: remove it"});
    keys.push_back({"model.decoder_sparse_step", {"1"}, "give model.dense_layers"});
    keys.push_back({"model.lora.dropout",
                    {"0", "0.0", "null"},
                    "adapters are trained without dropout: set it to 0 or remove it"});
    for (const char* name : {"sliding_window", "use_sliding_window"}) {
      keys.push_back(
          {std::string("model.") + name,
           {"null", "false"},
           "sliding-window attention is not supported: remove it to use full attention"});
    }
    return keys;
  }();
  return kKeys;
}

}  // namespace fp8train
