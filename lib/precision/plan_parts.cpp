#include "precision/plan_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace fp8train {
namespace {

/// The history length of operands that have current scaling at first; 0: none has it.
int first_window(const GemmPlan& fprop, const GemmPlan& dgrad, const GemmPlan& wgrad) {
  for (const GemmPlan* gemm : {&fprop, &dgrad, &wgrad}) {
    for (const TensorFormat* format : {&gemm->a, &gemm->b}) {
      if (format->policy == ScalePolicy::delayed && format->delayed.current_at_first) {
        return format->delayed.history_length;
      }
    }
  }
  return 0;
}

/// Whether layers may have the GEMMs of `other` in a run of `plan`, whose storage is for all.
void check_layer_plan(const PrecisionPlan& plan, const PrecisionPlan& other,
                      const std::string& pattern) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("precision.layers: '{}': {} {}", pattern, other.name, why));
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

}  // namespace

void apply_layers(const PlanRequest& request, PrecisionPlan& plan) {
  int window = first_window(plan.fprop, plan.dgrad, plan.wgrad);
  for (const LayerRequest& layer : request.layers) {
    if (needs_roles(layer.plan)) {
      throw ConfigError(
          fmt::format("precision.layers: '{}': plan '{}' is what its formats say, "
                      "which single layers cannot have; name another plan",
                      layer.pattern, layer.plan));
    }
    const PrecisionPlan other = plan_named(layer.plan, "precision.layers");
    check_layer_plan(plan, other, layer.pattern);
    const int own = first_window(other.fprop, other.dgrad, other.wgrad);
    if (own != 0 && window != 0 && own != window) {
      throw ConfigError(fmt::format(
          "precision.layers: '{}': {} scales by the step itself for {} steps, other layers for {}: "
          "give both one history length",
          layer.pattern, layer.plan, own, window));
    }
    window = own != 0 ? own : window;
    plan.layers.push_back({layer.pattern, layer.plan, other.fprop, other.dgrad, other.wgrad});
  }
}

void apply_schedule(const PlanRequest& request, PrecisionPlan& plan) {
  const auto refuse = [](const std::string& why) {
    throw ConfigError("precision.schedule: " + why);
  };
  double before = 0;
  for (size_t i = 0; i < request.schedule.size(); ++i) {
    const StageRequest& stage = request.schedule[i];
    const bool last = i + 1 == request.schedule.size();
    const PrecisionPlan other = plan_named(stage.plan, "precision.schedule");
    const bool own = stage.plan == plan.name;
    if (!own && (has_scaled_gemms(other) || other.activation != plan.activation)) {
      refuse(fmt::format(
          "a stage has the run's plan '{}' or GEMMs in its activations' type, {}; '{}' is neither. "
          "Operands and scales of two scaled plans are not made in one run: set precision.plan: {},"
          " or train on from a checkpoint's weights with model.from",
          plan.name, name_of(plan.activation), stage.plan, stage.plan));
    }
    if (last ? stage.until != 0 : stage.until <= before) {
      refuse(last ? "the last stage goes to the end of the run: leave out its `until`"
                  : fmt::format("stage {} needs an `until` later than the one before it", i + 1));
    }
    if (!last && i > 0 && (stage.until < 1) != (before < 1)) {
      refuse("give every `until` as a fraction below 1, or every one as a number of steps");
    }
    before = stage.until;
    plan.schedule.push_back({stage.until, own && has_scaled_gemms(plan)});
  }
  const bool scaled = std::any_of(plan.schedule.begin(), plan.schedule.end(),
                                  [](const Stage& stage) { return stage.scaled; });
  if (!plan.schedule.empty() && !scaled) {
    refuse(
        fmt::format("no stage has scaled formats with the run's plan '{}'; name the FP8 plan in "
                    "precision.plan and in a stage",
                    plan.name));
  }
  if (!plan.schedule.empty() && !plan.schedule.front().scaled &&
      first_window(plan.fprop, plan.dgrad, plan.wgrad) != 0) {
    refuse(
        fmt::format("plan '{}' scales by the step itself in the first steps of a run, which "
                    "would be over when its stage begins; begin with it",
                    plan.name));
  }
}

std::vector<std::pair<int64_t, int64_t>> plain_steps(const PrecisionPlan& plan, int64_t steps) {
  std::vector<std::pair<int64_t, int64_t>> result;
  int64_t begin = 0;
  for (const Stage& stage : plan.schedule) {
    const double end = stage.until == 0  ? static_cast<double>(steps)
                       : stage.until < 1 ? std::floor(stage.until * static_cast<double>(steps))
                                         : stage.until;
    if (end <= static_cast<double>(begin) || end > static_cast<double>(steps)) {
      throw ConfigError(fmt::format(
          "precision.schedule: the stage after step {} would end at step {} of a run of {}: give "
          "each stage at least one step",
          begin, end, steps));
    }
    const auto last = static_cast<int64_t>(end);
    if (!stage.scaled) {
      result.emplace_back(begin, last);
    }
    begin = last;
  }
  return result;
}

}  // namespace fp8train
