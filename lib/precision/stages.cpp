// The stages of a run in which different plans scale (precision.schedule).

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"
#include "base/key_error.h"
#include "precision/plan_parts.h"

namespace fp8train {
namespace {

/// Returns the names and formats of the roles that are stored or sent.
std::vector<std::pair<const char*, std::string>> stored_roles(const PrecisionPlan& plan) {
  std::vector<std::pair<const char*, std::string>> stored = {
      {"weight", describe(plan.weight)},
      {"master_weight", plan.master_weight ? describe(*plan.master_weight) : "none"}};
  for (const Role& role : plan_roles()) {
    if (role.format != nullptr) {
      stored.emplace_back(role.name, describe(plan.*role.format));
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

PrecisionPlan stage_plan(const PlanRequest& request, const PrecisionPlan& run,
                         const std::string& name) {
  PlanRequest stage;
  stage.plan = name;
  for (const Role& role : plan_roles()) {
    if (role.gemm == nullptr) {
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
