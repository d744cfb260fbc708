#include "precision/plan_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
  LayerPlan layer = {
      static_cast<const LayerGemms&>(run), request.pattern, request.plan, {}, request.naming};
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
  static_cast<LayerGemms&>(layer) = static_cast<const LayerGemms&>(other);
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

/// Returns the names and formats of the roles that are stored or sent.
std::vector<std::pair<const char*, std::string>> stored_roles(const PrecisionPlan& plan) {
  std::vector<std::pair<const char*, std::string>> stored;
  for (const Role& role : plan_roles()) {
    if (role.kind != RoleKind::passing && role.kind != RoleKind::operand) {
      stored.emplace_back(role.name, describe_role(role, plan));
    }
  }
  return stored;
}

void check_stored_alike(const PrecisionPlan& run, const PrecisionPlan& stage) {
  const auto of_run = stored_roles(run);
  const auto of_stage = stored_roles(stage);
  std::vector<std::string> differ, keys;
  for (size_t i = 0; i < of_run.size(); ++i) {
    const auto& [role, text] = of_run[i];
    if (text != of_stage[i].second) {
      differ.push_back(fmt::format("{} in '{}' and not '{}'", role, of_stage[i].second, text));
      keys.push_back(fmt::format("precision.{}", role));
    }
  }
  if (!keys.empty()) {
    throw KeyError(
        "precision.schedule",
        fmt::format(": '{}' has {}, unlike the run's plan '{}': what is stored and sent cannot "
                    "change during a run; choose plans that store and send alike, or set {} for "
                    "all stages to what both plans take",
                    stage.name, fmt::join(differ, ", "), run.name, fmt::join(keys, ", ")));
  }
  if (run.dynamic_loss_scaling != stage.dynamic_loss_scaling) {
    throw KeyError("precision.schedule",
                   fmt::format(": only one of '{}' and '{}' scales the loss dynamically, which "
                               "cannot change during a run",
                               run.name, stage.name));
  }
}

/// Returns the end of a stage of the schedule, in steps.
int64_t end_of(const Stage& stage, int64_t begin, int64_t steps) {
  const double end = stage.until == 0  ? static_cast<double>(steps)
                     : stage.until < 1 ? std::floor(stage.until * static_cast<double>(steps))
                                       : stage.until;
  if (end <= static_cast<double>(begin) || end > static_cast<double>(steps)) {
    throw KeyError("precision.schedule",
                   fmt::format(": the stage after step {} would end at step {} of a run of {}: "
                               "give each stage at least one step",
                               begin, end, steps));
  }
  return static_cast<int64_t>(end);
}

}  // namespace

int LayerGemms::first_window() const {
  int length = 0;
  any_operand([&](const TensorFormat& format) {
    length = format.is_current_at_first() ? format.delayed.history_length : 0;
    return length != 0;
  });
  return length;
}

void apply_layers(const PlanRequest& request, PrecisionPlan& plan) {
  if (!request.layers.empty() && !request.file_layers.empty()) {
    throw KeyError("precision.layers",
                   " and precision.file both name plans of layers: give one of them");
  }
  const std::vector<LayerRequest>& layers =
      request.layers.empty() ? request.file_layers : request.layers;
  int window = plan.first_window();
  for (const LayerRequest& asked : layers) {
    check_exempt(request, asked, plan);
    const LayerPlan layer = layer_plan(asked, plan);
    const int own = layer.first_window();
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
        begun.first_window() != 0) {
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

PrecisionPlan stage_plan(const PlanRequest& request, const PrecisionPlan& run,
                         const std::string& name) {
  PlanRequest stage;
  stage.plan = name;
  for (const Role& role : plan_roles()) {
    if (role.kind != RoleKind::operand) {
      stage.roles.*role.requested = request.roles.*role.requested;
    }
  }
  stage.use_autocast_during_eval = request.use_autocast_during_eval;
  stage.swiglu = request.swiglu;
  stage.attention = request.attention;
  stage.self_exact = request.self_exact;
  stage.forward_reads_saved = request.forward_reads_saved;
  stage.recompute_swiglu = request.recompute_swiglu;
  stage.exemptions = run.exemptions;
  if (has_scaled_gemms(run)) {
    stage.exemptions.head = run.exemptions.head.value_or(true);
  }
  stage.layers = request.layers;
  stage.file_layers = request.file_layers;
  PrecisionPlan plan;
  try {
    plan = resolve_plan(stage);
  } catch (const ConfigError& error) {
    throw KeyError("precision.schedule", fmt::format(": stage '{}': {}", name, error.what()));
  }
  check_stored_alike(run, plan);
  return plan;
}

std::vector<RunStage> run_stages(const PlanRequest& request, int64_t steps) {
  const PrecisionPlan run = resolve_plan(request);
  std::vector<RunStage> stages;
  std::string current;  // of the last stage that is scaled
  int64_t begin = 0;
  for (const Stage& stage : run.schedule) {
    const int64_t end = end_of(stage, begin, steps);
    const std::string name = stage.plan.empty() ? run.name : stage.plan;
    const bool first_scaled = stage.scaled && current.empty() && !stages.empty();
    if (stages.empty() || (stage.scaled && name != current && !first_scaled)) {
      stages.push_back({.begin = begin, .end = begin, .plan = {}, .plain_steps = {}});
    }
    RunStage& last = stages.back();
    last.end = end;
    if (stage.scaled) {
      last.plan = stage.plan.empty() ? run : stage_plan(request, run, name);
      current = name;
    } else {
      last.plain_steps.emplace_back(begin, end);
    }
    begin = end;
  }
  if (stages.empty()) {
    return {{.begin = 0, .end = steps, .plan = run, .plain_steps = {}}};
  }
  for (RunStage& stage : stages) {
    stage.plan.schedule.clear();
    for (const auto& [from, to] : stage.plain_steps) {
      stage.plan.schedule.push_back({static_cast<double>(to), false, {}});
    }
  }
  if (stages.size() == 1) {
    stages.front().plan.schedule = run.schedule;
  }
  return stages;
}

std::vector<std::pair<int64_t, int64_t>> plain_steps(const PrecisionPlan& plan, int64_t steps) {
  std::vector<std::pair<int64_t, int64_t>> result;
  int64_t begin = 0;
  for (const Stage& stage : plan.schedule) {
    const int64_t end = end_of(stage, begin, steps);
    if (!stage.scaled) {
      result.emplace_back(begin, end);
    }
    begin = end;
  }
  return result;
}

}  // namespace fp8train
