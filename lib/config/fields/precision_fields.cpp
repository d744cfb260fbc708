// mixed_precision, fp8 and precision, with its roles. The keys of `fp8` that tune a plan may also
// be written in `precision`, next to `plan`.

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "base/key_error.h"
#include "base/text.h"
#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "precision/plan_entries.h"
#include "precision/plan_table.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr auto in_request = under(&Settings::precision);

bool selects_by_method(const Settings& settings) {
  return settings.precision.mixed_precision == MixedPrecision::fp8 &&
         settings.precision.plan.empty();
}

/// Why the field, a key of `fp8`, has no meaning next to the keys that select a plan; empty: it
/// has.
std::string conflict_of(const Field& field, const CheckContext& at) {
  const MixedPrecision method = at.settings.precision.mixed_precision;
  if (at.has("precision.plan")) {
    const bool selects = std::find(std::begin(kPlanSelectors), std::end(kPlanSelectors),
                                   field.key) != std::end(kPlanSelectors);
    return selects ? "conflicts with precision.plan, which names the plan directly; remove one of "
                     "them"
                   : "";
  }
  if (!at.usable("mixed_precision") || method == MixedPrecision::fp8) {
    return "";
  }
  return fmt::format(
      "has no meaning with mixed_precision: {}; set mixed_precision: fp8 or remove the key",
      name_in(kMixedPrecisions, method));
}

/// Adds the precision module's objection at the first of its keys that is given, else at what
/// selects the plan. Keys that do not go with the plan are reported first.
void check_plan(const CheckContext& at) {
  bool conflict = !at.has("precision.plan") && !at.usable("mixed_precision");
  for (const auto& [position, given] : at.given.all()) {
    if (given.field->key.starts_with("fp8.")) {
      if (const std::string why = conflict_of(*given.field, at); !why.empty()) {
        at.given.complain(given.field->key, why);
        conflict = true;
      }
    }
  }
  if (conflict) {
    return;
  }
  try {
    resolve_plan(at.settings.precision);
  } catch (const KeyError& error) {
    std::vector<std::string> keys = error.keys();
    keys.insert(keys.end(), std::begin(kPlanSelectors), std::end(kPlanSelectors));
    const auto found =
        std::ranges::find_if(keys, [&](const std::string& key) { return at.has(key); });
    if (found == keys.begin()) {
      at.given.complain(keys.front(), error.what());
    } else {
      const GivenKey* other = at.given.find(found == keys.end() ? "precision.plan" : *found);
      at.given.complain_at(other == nullptr ? SourceMark{} : other->mark, "", error.what());
    }
  }
}

/// A map of layer names to plans, in its order.
std::optional<std::vector<LayerRequest>> read_layers(const FieldValue& value,
                                                     const std::string& what) {
  std::vector<LayerRequest> layers;
  bool good = true;
  const bool is_map =
      for_each_key(value, what, [&](const std::string& pattern, const FieldValue& plan) {
        layers.push_back({pattern, ""});
        good = assign(layers.back().plan, read_text(plan, "the name of a plan")) && good;
      });
  return is_map && good ? std::optional(layers) : std::nullopt;
}

std::string layers_text(const std::vector<LayerRequest>& layers) {
  std::vector<std::string> parts;
  for (const LayerRequest& layer : layers) {
    parts.push_back(fmt::format("{}: {}", yaml_text(layer.pattern), yaml_text(layer.plan)));
  }
  return parts.empty() ? "" : fmt::format("{{{}}}", joined(parts));
}

/// A list of {until, plan}.
std::optional<StageRequest> read_stage(const FieldValue& value) {
  StageRequest stage;
  if (!read_keys(value, "a stage such as {until: 0.9, plan: NAME}",
                 {key_for("until", stage.until, {.range = above_up_to(0, kMaxWhole)}),
                  key_for("plan", stage.plan, {.accepts = "the name of a plan"})})) {
    return std::nullopt;
  }
  if (stage.until >= 1 && stage.until != std::floor(stage.until)) {
    value.fail("until is a fraction below 1 or a whole number of steps");
    return std::nullopt;
  }
  if (stage.plan.empty()) {
    value.fail("a stage needs a plan");
    return std::nullopt;
  }
  return stage;
}

std::string schedule_text(const std::vector<StageRequest>& stages) {
  std::vector<std::string> parts;
  for (const StageRequest& stage : stages) {
    const std::string until =
        stage.until == 0 ? "" : fmt::format("until: {}, ", number_text(stage.until));
    parts.push_back(fmt::format("{{{}plan: {}}}", until, yaml_text(stage.plan)));
  }
  return parts.empty() ? "" : fmt::format("[{}]", joined(parts));
}

std::vector<Field> tuning_fields() {
  const auto exemption = under(&Settings::precision, &PlanRequest::exemptions);
  const Rule of_gemms = {.accepts = "a list of 3 of true or false", .count = 3};
  return {
      choice("fp8.format", in_request(&PlanRequest::format), kFp8Formats,
             "hybrid: gradients in E5M2, everything else in E4M3; e4m3: all in E4M3"),
      field("fp8.margin", in_request(&PlanRequest::margin), between(0, 64),
            "Delayed scaling: the scale leaves 2^margin of headroom"),
      field("fp8.interval", in_request(&PlanRequest::interval), between(1, 1e6),
            "Delayed scaling: steps between new scales"),
      field("fp8.amax_history_len", in_request(&PlanRequest::amax_history_len), between(1, 1e6),
            "Delayed scaling: number of steps in the history of amax"),
      choice("fp8.amax_compute_algo", in_request(&PlanRequest::amax_compute_algo), kAmaxAlgorithms,
             "Delayed scaling: the amax of the history that sets the scale"),
      field(
          "fp8.reduce_amax", in_request(&PlanRequest::reduce_amax),
          "Delayed scaling: true takes the largest amax of all ranks for inputs and gradients, so "
          "that all have the same scales; false takes each rank's own"),
      field("fp8.override_linear_precision", in_request(&PlanRequest::override_linear_precision),
            of_gemms, "For fprop, dgrad and wgrad: true keeps that GEMM in high precision"),
      field("fp8.fast_accumulation", in_request(&PlanRequest::fast_accumulation), of_gemms,
            "For fprop, dgrad and wgrad: true lets a GPU's tensor cores keep partial sums of "
            "FP8 products in their short accumulator, which is faster and less exact"),
      choice("fp8.accumulation", in_request(&PlanRequest::accumulation), kAccumulations,
             "Emulation of the short accumulator on the cpu. exact: none, sums are fp32; emulated: "
             "GEMMs that may use it add 14 bits of each product, as Hopper's tensor cores do; "
             "slow, to study the error"),
      field("fp8.power_2_scale", in_request(&PlanRequest::power_2_scale),
            "Current scaling: round scales down to powers of two"),
      field("fp8.use_autocast_during_eval", in_request(&PlanRequest::use_autocast_during_eval),
            "Evaluate in FP8 too"),
      choice("fp8.attention", in_request(&PlanRequest::attention), kFp8Attentions,
             "Attention's own products in FP8, for plans with one scale for each tensor. forward: "
             "q, k, v and the probabilities; true: in the backward pass too; false: in the type "
             "of activations"),
      choice("fp8.swiglu", in_request(&PlanRequest::swiglu), kSwigluInputs,
             "Treatment of the input of a SwiGLU's down projection, whose outliers grow in long "
             "runs. smooth: a power of two scales each channel before the cast, and the weight is "
             "divided by it; bf16_down_input: it stays in high precision"),
      field("fp8.first_blocks", exemption(&ExemptionRules::first_blocks), at_least(0),
            "Keep all linear layers of the first n blocks in high precision"),
      field("fp8.last_blocks", exemption(&ExemptionRules::last_blocks), at_least(0),
            "The same for the last n blocks"),
      field("fp8.first_linears", exemption(&ExemptionRules::first_linears), at_least(0),
            "Keep the first n linear layers in high precision"),
      field("fp8.last_linears", exemption(&ExemptionRules::last_linears), at_least(0),
            "The same for the last n linear layers, not counting the head"),
      field("fp8.exempt", exemption(&ExemptionRules::patterns),
            "Layer names (* and ? match) that stay in high precision"),
      field("fp8.exempt_head", exemption(&ExemptionRules::head),
            "Keep the output head in high precision; false: its GEMMs run in FP8 like those of "
            "other linear layers, while its weight, gradient and moments stay in fp32"),
      field("fp8.min_dimension", exemption(&ExemptionRules::min_dimension), at_least(0),
            "Keep linear layers with a smaller in or out dimension in high precision"),
  };
}

/// The recipe whose GEMMs use_te takes is the first one of the first backend.
std::string use_te_text() {
  for (const PlanEntry& entry : plan_entries()) {
    if (!std::string_view(entry.backend).empty()) {
      return fmt::format("With opt_level: compute the GEMMs as backend: {} with recipe: {} does",
                         entry.backend, entry.recipe);
    }
  }
  return "";
}

/// The keys that select a plan.
std::vector<Field> selecting_fields() {
  return {
      choice("mixed_precision", in_request(&PlanRequest::mixed_precision), kMixedPrecisions,
             "Precision of the matrix multiplications"),
      text("precision.plan", in_request(&PlanRequest::plan),
           "A plan by name; overrides mixed_precision", "the name of a plan")
          .asked({.topic = Topic::precision,
                  .text = "Plan",
                  .unless = {"mixed_precision"},
                  .suggest =
                      [](const Settings&) {
                        return plan_for_method({.mixed_precision = MixedPrecision::fp8});
                      },
                  .preface = plan_table_text,
                  .changes_memory = true})
          .checked(check_plan),
      text("fp8.backend", in_request(&PlanRequest::backend),
           "Source of the FP8 method: " + backends_text(), "the name of a backend")
          .when(selects_by_method),
      text("fp8.recipe", in_request(&PlanRequest::recipe),
           "The backend's scaling. " + recipes_text(), "the name of a recipe")
          .when(selects_by_method),
      text("fp8.opt_level", in_request(&PlanRequest::opt_level),
           "For a backend with levels: " + opt_levels_text(), "the name of a level")
          .when(selects_by_method),
      field("fp8.use_te", in_request(&PlanRequest::use_te), use_te_text()).when(selects_by_method),
  };
}

/// Plans of layers and stages, and what changes a plan.
std::vector<Field> changing_fields() {
  return {
      make("precision.layers", "names of layers (* and ? match), each with the name of a plan",
           "Plans for the GEMMs of single layers; if several names match, the last one counts. "
           "Stored tensors and wires keep the formats of the run's plan",
           in_request(&PlanRequest::layers), read_layers, layers_text),
      path("precision.file", in_request(&PlanRequest::layers_file),
           "A file with plans of layers in another program's keys (te_precision_config_file), "
           "instead of precision.layers",
           "a file"),
      make(
          "precision.schedule", "a list of {until, plan}",
          "Stages of the run: scaled plans with the same storage formats, and bf16 for steps in "
          "which no GEMM is scaled. until is a fraction of the steps below 1, or a number of "
          "steps; the last stage has none",
          in_request(&PlanRequest::schedule),
          [](const FieldValue& value, const std::string& what) {
            return read_list<StageRequest>(value, 0, what, read_stage);
          },
          schedule_text),
      field("precision.self_exact", in_request(&PlanRequest::self_exact),
            "A rank's own contribution to a gradient is not rounded to the wire's format"),
      field("precision.forward_reads_saved", in_request(&PlanRequest::forward_reads_saved),
            "Norms and activation functions read the codes of saved_norm and saved_nonlinear "
            "in the forward pass too"),
      field("precision.recompute_swiglu", in_request(&PlanRequest::recompute_swiglu),
            "The product of a SwiGLU is computed again in the backward pass from the stored "
            "saved_nonlinear"),
  };
}

}  // namespace

std::vector<Field> precision_fields() {
  std::vector<Field> result = concat({selecting_fields(), changing_fields()});
  for (Field& field : tuning_fields()) {
    field.aliases = {"precision." + field.key.substr(field.key.find('.') + 1)};
    field.applies = [](const Settings& settings) {
      return settings.precision.mixed_precision == MixedPrecision::fp8 ||
             !settings.precision.plan.empty();
    };
    result.push_back(std::move(field));
  }
  for (const Role& role : plan_roles()) {
    const bool removable = role.requested == &RoleRequest::master_weight;
    result.push_back(text(std::string("precision.") + role.name,
                          in(&Settings::precision, &PlanRequest::roles, role.requested), role.doc,
                          removable ? "a format, or none" : "a format"));
  }
  return result;
}

}  // namespace fp8train
