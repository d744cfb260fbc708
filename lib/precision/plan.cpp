#include "precision/plan.h"

#include <fmt/format.h>

#include <array>
#include <functional>

#include "base/error.h"

namespace fp8train {
namespace {

std::string row_for(const PlanRequest& request) {
  if (!request.plan.empty()) {
    return request.plan;
  }
  if (request.mixed_precision == "no") {
    return "fp32";
  }
  if (request.mixed_precision == "bf16" || request.mixed_precision == "fp16") {
    return request.mixed_precision;
  }
  if (request.mixed_precision != "fp8") {
    throw ConfigError(fmt::format("mixed_precision: '{}' is not one of no, bf16, fp16, fp8",
                                  request.mixed_precision));
  }
  return plan_for_recipe(request.backend, request.recipe);
}

bool has_policy(const PrecisionPlan& plan, ScalePolicy policy) {
  return plan.fprop.a.policy == policy || plan.dgrad.a.policy == policy ||
         plan.wgrad.a.policy == policy;
}

bool has_scale_type(const PrecisionPlan& plan, ScaleType type) {
  return plan.fprop.a.scale_type == type || plan.dgrad.a.scale_type == type ||
         plan.wgrad.a.scale_type == type;
}

void for_each_gemm_format(PrecisionPlan& plan, const std::function<void(TensorFormat&)>& apply) {
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    apply(gemm->a);
    apply(gemm->b);
  }
  apply(plan.saved_activation);
}

void require(bool holds, const PrecisionPlan& plan, const char* key, const char* meaning) {
  if (!holds) {
    throw ConfigError(fmt::format("{} has no meaning for row '{}': it belongs to {}; remove it",
                                  key, plan.name, meaning));
  }
}

void apply_delayed(const PlanRequest& request, PrecisionPlan& plan) {
  const bool delayed = has_policy(plan, ScalePolicy::delayed);
  const char* meaning = "delayed scaling";
  require(delayed || !request.margin, plan, "fp8.margin", meaning);
  require(delayed || !request.interval, plan, "fp8.interval", meaning);
  require(delayed || !request.amax_history_len, plan, "fp8.amax_history_len", meaning);
  require(delayed || request.amax_compute_algo.empty(), plan, "fp8.amax_compute_algo", meaning);
  if (!request.amax_compute_algo.empty() && request.amax_compute_algo != "max" &&
      request.amax_compute_algo != "most_recent") {
    throw ConfigError(fmt::format("fp8.amax_compute_algo: '{}' is not one of max, most_recent",
                                  request.amax_compute_algo));
  }
  for_each_gemm_format(plan, [&](TensorFormat& format) {
    DelayedScaling& rule = format.delayed;
    rule.margin = static_cast<int>(request.margin.value_or(rule.margin));
    rule.interval = static_cast<int>(request.interval.value_or(rule.interval));
    rule.history_length = static_cast<int>(request.amax_history_len.value_or(rule.history_length));
    if (!request.amax_compute_algo.empty()) {
      rule.algorithm =
          request.amax_compute_algo == "max" ? AmaxAlgorithm::max : AmaxAlgorithm::most_recent;
    }
  });
}

void apply_format(const PlanRequest& request, PrecisionPlan& plan) {
  if (request.format.empty()) {
    return;
  }
  require(plan.fprop.a.is_scaled(), plan, "fp8.format", "FP8 rows");
  // E5M2 has a place in the gradients only: TransformerEngine's HYBRID.
  for (GemmPlan* gemm : {&plan.dgrad, &plan.wgrad}) {
    if (request.format == "hybrid" && gemm->a.is_scaled()) {
      gemm->a.dtype = DType::e5m2;
    }
  }
  if (request.format == "e4m3") {
    for_each_gemm_format(plan, [](TensorFormat& format) {
      format.dtype = format.dtype == DType::e5m2 ? DType::e4m3 : format.dtype;
    });
  } else if (request.format != "hybrid") {
    throw ConfigError(fmt::format("fp8.format: '{}' is not one of hybrid, e4m3", request.format));
  }
}

/// Each GEMM named true keeps both operands in the activation format; what backward reads follows
/// wgrad.
void apply_override(const PlanRequest& request, PrecisionPlan& plan) {
  const auto& flags = request.override_linear_precision;
  if (flags.empty()) {
    return;
  }
  require(plan.fprop.a.is_scaled(), plan, "fp8.override_linear_precision", "FP8 rows");
  if (flags.size() != 3) {
    throw ConfigError(
        "fp8.override_linear_precision: expected three booleans, for fprop, dgrad and wgrad");
  }
  const TensorFormat activation = plain(plan.activation);
  const std::array<GemmPlan*, 3> gemms = {&plan.fprop, &plan.dgrad, &plan.wgrad};
  for (size_t i = 0; i < gemms.size(); ++i) {
    if (flags[i]) {
      *gemms[i] = {activation, activation, false};
    }
  }
  plan.saved_activation = plan.wgrad.b;
}

struct MomentSpelling {
  const char* text;
  DType dtype;
  bool grouped;
};

constexpr MomentSpelling kMomentSpellings[] = {
    {"fp32", DType::f32, false},           {"bf16", DType::bf16, false},
    {"fp16", DType::f16, false},           {"e4m3", DType::e4m3, false},
    {"e5m2", DType::e5m2, false},          {"bf16 group(128)", DType::bf16, true},
    {"fp16 group(128)", DType::f16, true}, {"e4m3 group(128)", DType::e4m3, true},
    {"e5m2 group(128)", DType::e5m2, true}};

/// Formats of ops::Moment. Without a scale fp16 has not the range of a second moment.
TensorFormat moment_in(const MomentSpelling& spelling) {
  TensorFormat format = plain(spelling.dtype);
  if (spelling.grouped) {
    format.granularity = Granularity::group;
    format.group_size = 128;
  }
  const bool unscaled = spelling.dtype == DType::f32 || spelling.dtype == DType::bf16;
  format.policy = unscaled && !spelling.grouped ? ScalePolicy::none : ScalePolicy::current;
  return format;
}

void apply_moment(const char* key, const std::string& text, TensorFormat& moment) {
  if (text.empty()) {
    return;
  }
  std::string known;
  for (const MomentSpelling& spelling : kMomentSpellings) {
    if (text == spelling.text) {
      moment = moment_in(spelling);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(spelling.text);
  }
  throw ConfigError(fmt::format("{}: '{}' is not one of {}", key, text, known));
}

}  // namespace

std::vector<std::string> moment_spellings() {
  std::vector<std::string> texts;
  for (const MomentSpelling& spelling : kMomentSpellings) {
    texts.emplace_back(spelling.text);
  }
  return texts;
}

PrecisionPlan resolve_plan(const PlanRequest& request) {
  PrecisionPlan plan = plan_named(row_for(request));
  apply_delayed(request, plan);
  apply_format(request, plan);
  if (request.power_2_scale) {
    require(has_policy(plan, ScalePolicy::current), plan, "fp8.power_2_scale", "current scaling");
    require(!has_scale_type(plan, ScaleType::e8m0), plan, "fp8.power_2_scale", "fp32 scales");
    for_each_gemm_format(plan, [&](TensorFormat& format) {
      if (!format.is_scaled()) {
        return;
      }
      format.scale_type = *request.power_2_scale ? ScaleType::pow2 : ScaleType::f32;
    });
  }
  if (request.use_autocast_during_eval) {
    require(plan.fprop.a.is_scaled(), plan, "fp8.use_autocast_during_eval", "FP8 rows");
    plan.evaluate_scaled = *request.use_autocast_during_eval;
  }
  require(plan.fprop.a.is_scaled() || request.exemptions == ExemptionRules{}, plan,
          "an exemption (first_blocks, last_blocks, first_linears, last_linears, exempt, "
          "min_dimension)",
          "FP8 rows");
  plan.exemptions = request.exemptions;
  apply_moment("precision.moment1", request.moment1, plan.moment1);
  apply_moment("precision.moment2", request.moment2, plan.moment2);
  apply_override(request, plan);
  check_cells(plan);
  return plan;
}

}  // namespace fp8train
