#include "precision/plan_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/key_error.h"

namespace fp8train {
namespace {

/// Checks whether layers may have the GEMMs of `other` in a run of `plan`, whose storage all layers
/// share.
void check_layer_plan(const PrecisionPlan& plan, const PrecisionPlan& other,
                      const LayerPlan& layer) {
  const auto refuse = [&](const std::string& why) {
    throw KeyError(layer.key(), fmt::format(": '{}': {} {}", layer.pattern, other.name, why));
  };
  if (other.activation != plan.activation) {
    refuse(fmt::format("has activations in {}, the run's plan '{}' in {}: all layers have one type",
                       name_of(other.activation), plan.name, name_of(plan.activation)));
  }
  const bool codes = plan.master_weight && plan.weight.is_scaled();
  if (codes && has_scaled_gemms(other) && other.fprop.b != plan.weight) {
    refuse(fmt::format(
        "reads w as '{}', but the run's plan '{}' stores weights as '{}', which the "
        "forward GEMM reads: choose precision.weight: {}, or another plan",
        describe(other.fprop.b), plan.name, describe(plan.weight), name_of(plan.activation)));
  }
}

/// Returns the GEMMs of the plan that the request names, or those of the run's plan if the request
/// does not hold.
LayerPlan layer_plan(const LayerRequest& request, const PrecisionPlan& run) {
  LayerPlan layer = {request.pattern, request.plan, run.fprop,     run.dgrad,
                     run.wgrad,       {},           request.naming};
  if (!(has_scaled_gemms(run) ? request.in_scaled_run : request.in_plain_run)) {
    layer.plan = run.name;
    return layer;
  }
  if (needs_roles(request.plan)) {
    throw KeyError(
        layer.key(),
        fmt::format(": '{}': plan '{}' is what its formats say, which single layers cannot have; "
                    "name another plan",
                    layer.pattern, layer.plan));
  }
  PrecisionPlan other = plan_named(request.plan, layer.key());
  if (request.format) {
    set_fp8_format(*request.format, other);
  }
  check_layer_plan(run, other, layer);
  layer.fprop = other.fprop;
  layer.dgrad = other.dgrad;
  layer.wgrad = other.wgrad;
  layer.evaluate_scaled = request.evaluate_scaled;
  return layer;
}

/// Refuses a plan for layers that the run keeps out of scaled formats.
void check_exempt(const PlanRequest& request, const LayerRequest& layer,
                  const PrecisionPlan& plan) {
  const ExemptionRules& rules = request.exemptions;
  const bool from_file = !layer.naming.names.empty();
  if (from_file && layer.in_plain_run && has_scaled_gemms(plan) &&
      (rules.first_blocks > 0 || rules.last_blocks > 0)) {
    throw KeyError(
        "precision.file",
        fmt::format(
            ": '{}': override_nonquantized_autocast: true would scale layers of blocks that "
            "fp8.first_blocks and fp8.last_blocks keep in high precision: remove one of the two",
            layer.pattern));
  }
}

}  // namespace

int first_window(const GemmPlan& fprop, const GemmPlan& dgrad, const GemmPlan& wgrad) {
  for (const GemmPlan* gemm : {&fprop, &dgrad, &wgrad}) {
    for (const TensorFormat* format : {&gemm->a, &gemm->b}) {
      if (format->is_current_at_first()) {
        return format->delayed.history_length;
      }
    }
  }
  return 0;
}

void apply_layers(const PlanRequest& request, PrecisionPlan& plan) {
  if (!request.layers.empty() && !request.file_layers.empty()) {
    throw KeyError("precision.layers",
                   " and precision.file both name plans of layers: give one of them");
  }
  const std::vector<LayerRequest>& layers =
      request.layers.empty() ? request.file_layers : request.layers;
  int window = first_window(plan.fprop, plan.dgrad, plan.wgrad);
  for (const LayerRequest& asked : layers) {
    check_exempt(request, asked, plan);
    const LayerPlan layer = layer_plan(asked, plan);
    const int own = first_window(layer.fprop, layer.dgrad, layer.wgrad);
    if (own != 0 && window != 0 && own != window) {
      throw KeyError(
          layer.key(),
          fmt::format(": '{}': {} scales by the step itself for {} steps, other layers for {}: "
                      "give both one history length",
                      layer.pattern, layer.plan, own, window));
    }
    window = own != 0 ? own : window;
    plan.layers.push_back(layer);
  }
}

void apply_schedule(const PlanRequest& request, PrecisionPlan& plan) {
  const auto refuse = [](const std::string& why) {
    throw KeyError("precision.schedule", ": " + why);
  };
  double before = 0;
  for (size_t i = 0; i < request.schedule.size(); ++i) {
    const StageRequest& stage = request.schedule[i];
    const bool last = i + 1 == request.schedule.size();
    const PrecisionPlan other = plan_named(stage.plan, "precision.schedule");
    const bool own = stage.plan == plan.name;
    if (!own && other.activation != plan.activation) {
      refuse(fmt::format(
          "'{}' has activations in {}, the run's plan '{}' in {}: all stages have one type",
          stage.plan, name_of(other.activation), plan.name, name_of(plan.activation)));
    }
    const PrecisionPlan& begun = own ? plan : other;
    const bool scaled = has_scaled_gemms(begun);
    if (scaled && i > 0 && std::ranges::none_of(plan.schedule, &Stage::scaled) &&
        first_window(begun.fprop, begun.dgrad, begun.wgrad) != 0) {
      refuse(
          fmt::format("plan '{}' scales by the step itself in the first steps of a run, which "
                      "would be over when its stage begins; begin with it",
                      begun.name));
    }
    if (!own && scaled) {
      stage_plan(request, plan, stage.plan);
    }
    if (!last && i > 0 && stage.until > 0 && (stage.until < 1) != (before < 1)) {
      refuse("give every `until` as a fraction below 1, or every one as a number of steps");
    }
    if (last ? stage.until != 0 : stage.until <= before) {
      refuse(last ? "the last stage goes to the end of the run: leave out its `until`"
                  : fmt::format("stage {} needs an `until` later than the one before it", i + 1));
    }
    before = stage.until;
    plan.schedule.push_back({stage.until, scaled, scaled && !own ? stage.plan : ""});
  }
  if (!plan.schedule.empty() && std::ranges::none_of(plan.schedule, &Stage::scaled)) {
    refuse(
        fmt::format("no stage has scaled formats with the run's plan '{}'; name the FP8 plan in "
                    "precision.plan and in a stage",
                    plan.name));
  }
}

}  // namespace fp8train
