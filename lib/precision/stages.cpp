// The stages of a run in which different plans scale (precision.schedule).

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/key_error.h"
#include "base/text.h"
#include "precision/plan_parts.h"

namespace fp8train {
namespace {

/// Returns the names and formats of the roles that are stored or sent.
std::map<std::string, std::string> stored_roles(const PrecisionPlan& plan) {
  std::map<std::string, std::string> stored = {
      {"weight", describe(plan.weight)},
      {"master_weight", plan.master_weight ? describe(*plan.master_weight) : "none"}};
  for (const Role& role : plan_roles()) {
    if (role.format != nullptr) {
      stored.emplace(role.name, describe(plan.*role.format));
    }
  }
  return stored;
}

/// Returns the plan of a stage, whatever it stores and sends. Throws ConfigError.
PrecisionPlan plan_of_stage(const PlanRequest& request, const PrecisionPlan& run,
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
  try {
    return resolve_plan(stage);
  } catch (const ConfigError& error) {
    throw KeyError("precision.schedule", fmt::format(": stage '{}': {}", name, error.what()));
  }
}

std::string key_of(const Role& role) {
  return fmt::format("precision.{}", role.name);
}

/// Whether the run and its stage `name` store and send alike if the request sets `keys` as `chosen`
/// has these roles.
bool are_alike_as_in(const PrecisionPlan& chosen, const std::vector<std::string>& keys,
                     PlanRequest request, const std::string& name) {
  const std::map<std::string, std::string> formats = stored_roles(chosen);
  for (const Role& role : plan_roles()) {
    if (std::ranges::count(keys, key_of(role)) > 0) {
      request.roles.*role.requested = formats.at(role.name);
    }
  }
  request.schedule.clear();
  try {
    const PrecisionPlan run = resolve_plan(request);
    return stored_roles(run) == stored_roles(plan_of_stage(request, run, name));
  } catch (const ConfigError&) {
    return false;
  }
}

void check_stored_alike(const PlanRequest& request, const PrecisionPlan& run,
                        const PrecisionPlan& stage) {
  const std::map<std::string, std::string> of_run = stored_roles(run);
  const std::map<std::string, std::string> of_stage = stored_roles(stage);
  std::vector<std::string> differ, keys;
  for (const Role& role : plan_roles()) {
    const auto own = of_run.find(role.name);
    if (own != of_run.end() && own->second != of_stage.at(role.name)) {
      differ.push_back(
          fmt::format("{} in '{}' and not '{}'", role.name, of_stage.at(role.name), own->second));
      keys.push_back(key_of(role));
    }
  }
  if (!keys.empty()) {
    std::vector<std::string> sources;
    for (const PrecisionPlan* plan : {&run, &stage}) {
      if (are_alike_as_in(*plan, keys, request, stage.name)) {
        sources.push_back(fmt::format("'{}'", plan->name));
      }
    }
    throw KeyError(
        "precision.schedule",
        fmt::format(": '{}' has {}, unlike the run's plan '{}': what is stored and sent cannot "
                    "change during a run; {}",
                    stage.name, fmt::join(differ, ", "), run.name,
                    sources.empty() ? "choose plans that store and send alike"
                                    : fmt::format("set {} as in {} for all stages",
                                                  fmt::join(keys, ", "), alternatives(sources))));
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
  PrecisionPlan plan = plan_of_stage(request, run, name);
  check_stored_alike(request, run, plan);
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
