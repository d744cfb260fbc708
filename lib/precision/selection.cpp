// The selection of a plan of the table by a request.

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/key_error.h"
#include "base/names.h"
#include "base/nearest.h"
#include "base/text.h"
#include "precision/plan_entries.h"
#include "precision/role_request.h"

namespace fp8train {
namespace {

bool has_method(const PlanEntry& entry) {
  return *entry.backend != '\0';
}

std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const PlanEntry& entry : plan_entries()) {
    if (has_method(entry) && (names.empty() || names.back() != entry.backend)) {
      names.emplace_back(entry.backend);
    }
  }
  return names;
}

std::vector<std::string> recipes_of(const std::string& backend) {
  std::vector<std::string> names;
  for (const PlanEntry& entry : plan_entries()) {
    if (backend == entry.backend && !entry.use_te) {
      names.emplace_back(entry.recipe);
    }
  }
  return names;
}

/// Refuses keys that belong to the other kind of backend.
void check_method(const PlanRequest& request, bool by_level) {
  const auto refuse = [&](bool given, const char* key, const std::string& advice) {
    if (given) {
      throw KeyError(
          key, fmt::format(" has no meaning with fp8.backend: {}; {}",
                           request.backend.empty() ? backends().front() : request.backend, advice));
    }
  };
  if (by_level) {
    refuse(!request.recipe.empty(), "fp8.recipe",
           "say fp8.opt_level: " + opt_levels_text() + ", and fp8.use_te");
    return;
  }
  const std::string advice =
      fmt::format("it belongs to fp8.backend: {}; fp8.recipe says it here", level_backend().name);
  refuse(!request.opt_level.empty(), "fp8.opt_level", advice);
  refuse(request.use_te.has_value(), "fp8.use_te", advice);
}

const PlanEntry& entry_named(const std::string& name, const char* key = "precision.plan") {
  for (const PlanEntry& entry : plan_entries()) {
    if (name == entry.name) {
      return entry;
    }
  }
  const std::vector<std::string> names = plan_names();
  const std::vector<std::string> near = nearest_names(name, names);
  throw KeyError(
      key,
      fmt::format(": no plan '{}'; {} plans are: {}", name,
                  near.empty() ? "the" : fmt::format("did you mean {}? The", alternatives(near)),
                  fmt::join(names, ", ")));
}

}  // namespace

std::vector<std::string> plan_names() {
  std::vector<std::string> names;
  for (const PlanEntry& entry : plan_entries()) {
    if (!entry.needs_roles) {
      names.emplace_back(entry.name);
    }
  }
  return names;
}

std::string plan_for_method(const PlanRequest& request) {
  const std::string backend = lower(request.backend);
  const bool by_level = backend == level_backend().name;
  check_method(request, by_level);
  std::string recipe = lower(by_level ? request.opt_level : request.recipe);
  if (by_level && recipe.empty()) {
    recipe = lower(level_backend().usual);
  }
  for (const PlanEntry& entry : plan_entries()) {
    const bool same_backend = has_method(entry) && (backend.empty() || backend == entry.backend);
    // The first plan of a backend is its default recipe.
    const bool same_recipe = recipe.empty() || recipe == lower(entry.recipe);
    if (same_backend && same_recipe && entry.use_te == request.use_te.value_or(false)) {
      return entry.name;
    }
  }
  const char* key = recipe.empty() ? "fp8.backend" : by_level ? "fp8.opt_level" : "fp8.recipe";
  throw KeyError(
      key,
      fmt::format(": no plan for backend '{}' and recipe '{}'; there are {}: {}; {}",
                  request.backend, by_level ? request.opt_level : request.recipe, backends_text(),
                  recipes_text(), fmt::format("{}: {}", level_backend().name, opt_levels_text())));
}

void check_names(const PlanRequest& request) {
  if (!request.plan.empty()) {
    plan_named(request.plan);
  }
  for (const LayerRequest& layer : request.layers) {
    plan_named(layer.plan, "precision.layers");
  }
  for (const StageRequest& stage : request.schedule) {
    plan_named(stage.plan, "precision.schedule");
  }
  PlanRequest method = request;
  if (method.backend.empty() && !method.opt_level.empty()) {
    method.backend = level_backend().name;
  }
  if (!(method.backend + method.recipe).empty()) {
    plan_for_method(method);
  }
  PrecisionPlan any;
  apply_roles(
      {.roles = request.roles},
      {RoleKind::operand, RoleKind::weight, RoleKind::master, RoleKind::stored, RoleKind::passing},
      any);
}

std::string backends_text() {
  return alternatives(backends());
}

std::string recipes_text() {
  std::string text;
  for (const std::string& backend : backends()) {
    if (backend != level_backend().name) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", backend,
                          alternatives(recipes_of(backend)));
    }
  }
  return text;
}

std::string opt_levels_text() {
  return alternatives(recipes_of(level_backend().name));
}

PlanOrigin plan_origin(const std::string& name) {
  const PlanEntry& entry = entry_named(name);
  if (!has_method(entry)) {
    return {entry.mixed_precision ? fmt::format("mixed_precision: {}",
                                                name_in(kMixedPrecisions, *entry.mixed_precision))
                                  : "precision.plan: " + name,
            entry.source};
  }
  const bool by_level = entry.backend == std::string(level_backend().name);
  const char* key = by_level ? "opt_level" : "recipe";
  return {fmt::format("fp8: {{backend: {}, {}: {}{}}}", entry.backend, key, entry.recipe,
                      entry.use_te ? ", use_te: true" : ""),
          entry.source};
}

PrecisionPlan plan_named(const std::string& name, const char* key) {
  return entry_named(name, key).make();
}

bool needs_roles(const std::string& name) {
  return std::ranges::any_of(plan_entries(), [&](const PlanEntry& entry) {
    return entry.needs_roles && name == entry.name;
  });
}

}  // namespace fp8train
