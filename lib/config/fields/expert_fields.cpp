// Keys of models with experts: their shape in `model`, in the words of Hugging Face, and how they
// are trained in `moe`.

#include <fmt/format.h>

#include <numeric>

#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "model/families/hf_fields.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr std::pair<RouterScore, std::string_view> kScores[] = {{RouterScore::softmax, "softmax"},
                                                                {RouterScore::sigmoid, "sigmoid"}};

constexpr auto in_experts = under(&Settings::model, &ModelSettings::config, &ModelConfig::moe);

bool has_experts(const Settings& settings) {
  return settings.model.config.moe.experts > 0;
}

/// Pairs of keys that mean the same.
constexpr std::pair<std::string_view, std::string_view> kSameMeaning[] = {
    {"model.n_shared_experts", "model.shared_expert_intermediate_size"},
    {"model.first_k_dense_replace", "model.dense_layers"}};

void check_needs_experts(const CheckContext& at) {
  for (const auto& [key, other] : kSameMeaning) {
    if (at.field.key == key && at.is_given() && at.has(other)) {
      at.complain(fmt::format("{} describes the same; remove one of them", other));
    }
  }
  const bool is_rate = at.field.key == "moe.bias_rate";
  if (at.is_given() && is_rate && has_experts(at.settings) &&
      !at.settings.model.config.moe.has_bias) {
    at.without_meaning("model.e_score_correction_bias: false");
  }
  // Files of other programs switch it off in models without experts too.
  const bool is_off =
      at.field.key == "moe.balance_loss" && at.settings.step.decoder.moe.balance_loss == 0;
  if (at.is_given() && !is_off && !has_experts(at.settings) && at.settings.model.from.empty()) {
    at.complain("has a meaning only with model.num_experts; remove it or give that");
  }
}

/// Keys of capacities.
void check_capacity(const CheckContext& at) {
  const MoeSettings& moe = at.settings.step.decoder.moe;
  if (moe.dropless) {
    at.without_meaning("moe.dropless: true");
  }
  if (at.field.key != "moe.warmup_capacity_factor" || moe.dropless) {
    return;
  }
  if (moe.capacity_warmup == 0) {
    at.without_meaning("moe.capacity_warmup: 0");
  } else if (moe.warmup_capacity_factor < moe.capacity_factor) {
    at.complain(fmt::format("{} is less than moe.capacity_factor {}; take at least that",
                            moe.warmup_capacity_factor, moe.capacity_factor));
  }
}

/// Checkpoints are folders that name a family.
void check_experts(const CheckContext& at) {
  const ModelConfig& config = at.settings.model.config;
  if (has_experts(at.settings) && written_family(config) == nullptr) {
    at.complain("model.mlp_bias",
                "no family of models has such experts: model.model_type mixtral, qwen3_moe and "
                "dots1 have RMSNorm, SwiGLU, RoPE, no biases of an MLP, and a router of their own");
  }
}

/// A key of other programs that is written under another name.
Field input_only(Field made, const std::function<void(ModelConfig&, int64_t)>& set,
                 const Range& range) {
  made.input_only = true;
  made.read = [set, range, what = made.accepts](Settings& settings, const FieldValue& value) {
    if (const auto number = read_integer(value, range, what)) {
      set(settings.model.config, *number);
    }
  };
  made.write = [](const Settings&) { return ""; };
  return made;
}

std::vector<Field> counted_fields() {
  const auto dense = in(&Settings::model, &ModelSettings::config, &ModelConfig::dense_layers);
  const Range layers = between(0, ModelLimits::layers);
  const auto set_shared = [](ModelConfig& config, int64_t count) {
    config.moe.shared_width =
        count * (config.moe.width > 0 ? config.moe.width : config.intermediate_size);
  };
  const auto set_first = [](ModelConfig& config, int64_t count) {
    config.dense_layers.resize(static_cast<size_t>(count));
    std::iota(config.dense_layers.begin(), config.dense_layers.end(), 0);
  };
  return {
      field("model.num_experts_per_tok", in_experts(&MoeShape::per_token),
            count_up_to(ModelLimits::experts), "Experts that process a token"),
      field("model.moe_intermediate_size", in_experts(&MoeShape::width),
            count_up_to(ModelLimits::intermediate, true),
            "Width inside an expert; not set: intermediate_size"),
      field("model.shared_expert_intermediate_size", in_experts(&MoeShape::shared_width),
            between(0, ModelLimits::intermediate),
            "Width inside an expert that processes every token; 0: there is none"),
      input_only(field("model.n_shared_experts", in_experts(&MoeShape::shared_width), layers,
                       "shared_expert_intermediate_size as a multiple of moe_intermediate_size"),
                 set_shared, layers),
      field(
          "model.dense_layers", dense,
          Rule{.range = between(0, ModelLimits::layers - 1), .accepts = "a list of whole numbers"},
          "Blocks, from 0 and ascending, that have an MLP of intermediate_size and no experts")
          .also({"model.mlp_only_layers"}),
      input_only(field("model.first_k_dense_replace", in_experts(&MoeShape::experts), layers,
                       "dense_layers as the number of the first ones"),
                 set_first, layers),
  };
}

std::vector<Field> router_fields() {
  return {
      choice("model.scoring_func", in_experts(&MoeShape::score), kScores,
             "How the router's logits become scores"),
      field("model.norm_topk_prob", in_experts(&MoeShape::normalizes),
            "The scores of a token's experts are divided by their sum"),
      field("model.routed_scaling_factor", in_experts(&MoeShape::scale), above_up_to(0, 1e6),
            "Factor of the scores of a token's experts"),
      field("model.n_group", in_experts(&MoeShape::groups), between(1, ModelLimits::experts),
            "Groups of experts, compared by the sum of their two best scores"),
      field("model.topk_group", in_experts(&MoeShape::groups_per_token),
            between(1, ModelLimits::experts), "Groups among which a token's experts are chosen"),
      field("model.e_score_correction_bias", in_experts(&MoeShape::has_bias),
            "The choice adds a bias to each expert's score that balances their loads"),
  };
}

}  // namespace

std::vector<Field> expert_fields() {
  std::vector<Field> fields = {
      field("model.num_experts", in_experts(&MoeShape::experts), between(0, ModelLimits::experts),
            "Experts of a block, of which each token uses some; 0: a block has one MLP")
          .also({"model.num_local_experts", "model.n_routed_experts"})
          .checked(check_experts)};
  for (Field& one : concat({counted_fields(), router_fields()})) {
    fields.push_back(std::move(one).when(has_experts).checked(check_needs_experts));
  }
  return fields;
}

std::vector<Field> moe_fields() {
  const auto training = under(&Settings::step, &StepSettings::decoder, &DecoderSettings::moe);
  std::vector<Field> fields = {
      field("moe.capacity_factor", training(&MoeSettings::capacity_factor), above_up_to(0, 1024),
            "Tokens that an expert has memory for in a micro-batch, as a multiple of the mean; "
            "others are dropped"),
      field("moe.capacity_warmup", training(&MoeSettings::capacity_warmup), at_least(0),
            "First steps with moe.warmup_capacity_factor instead, since untrained routers drop "
            "much"),
      field("moe.warmup_capacity_factor", training(&MoeSettings::warmup_capacity_factor),
            above_up_to(0, 1024), "The capacity factor of these steps; memory is planned for it"),
      field(
          "moe.dropless", training(&MoeSettings::dropless),
          "Experts have as many rows as tokens, and drop none; memory is planned for all choices"),
      field("moe.balance_loss", training(&MoeSettings::balance_loss), between(0, 1000),
            "Weight of each layer's loss for unequal loads of its experts"),
      field("moe.z_loss", training(&MoeSettings::z_loss), between(0, 1000),
            "Weight of the squared log-normalizer of the router's scores"),
      field("moe.bias_rate", training(&MoeSettings::bias_rate), between(0, 1),
            "What a step adds to or takes from the biases of e_score_correction_bias"),
      field("moe.max_dropped", training(&MoeSettings::max_dropped), between(0, 1),
            "Part of the choices of experts that a logged step may drop before the run ends; 1: it "
            "never does"),
  };
  for (Field& one : fields) {
    const bool is_capacity = one.key.find("capacity") != std::string::npos;
    one = std::move(one)
              .when([](const Settings& s) { return has_experts(s) || !s.model.from.empty(); })
              .checked([is_capacity](const CheckContext& at) {
                check_needs_experts(at);
                if (is_capacity && (has_experts(at.settings) || !at.settings.model.from.empty())) {
                  check_capacity(at);
                }
              });
  }
  return fields;
}

}  // namespace fp8train
