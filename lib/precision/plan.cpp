#include "precision/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "precision/cell_request.h"

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
  return plan_for_method(request);
}

bool any_operand(const PrecisionPlan& plan, const std::function<bool(const TensorFormat&)>& holds) {
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    if (holds(gemm->a) || holds(gemm->b)) {
      return true;
    }
  }
  return false;
}

bool is_scaled(const PrecisionPlan& plan) {
  return any_operand(plan, [](const TensorFormat& format) { return format.is_scaled(); });
}

bool has_policy(const PrecisionPlan& plan, ScalePolicy policy) {
  return any_operand(plan, [&](const TensorFormat& format) { return format.policy == policy; });
}

void for_each_gemm_format(PrecisionPlan& plan, const std::function<void(TensorFormat&)>& apply) {
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    apply(gemm->a);
    apply(gemm->b);
  }
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
  require(delayed || !request.reduce_amax, plan, "fp8.reduce_amax", meaning);
  if (!request.amax_compute_algo.empty() && request.amax_compute_algo != "max" &&
      request.amax_compute_algo != "most_recent") {
    throw ConfigError(fmt::format("fp8.amax_compute_algo: '{}' is not one of max, most_recent",
                                  request.amax_compute_algo));
  }
  for_each_gemm_format(plan, [&](TensorFormat& format) {
    if (format.policy != ScalePolicy::delayed) {
      return;
    }
    DelayedScaling& rule = format.delayed;
    rule.margin = static_cast<int>(request.margin.value_or(rule.margin));
    rule.interval = static_cast<int>(request.interval.value_or(rule.interval));
    rule.history_length = static_cast<int>(request.amax_history_len.value_or(rule.history_length));
    if (!request.amax_compute_algo.empty()) {
      rule.algorithm =
          request.amax_compute_algo == "max" ? AmaxAlgorithm::max : AmaxAlgorithm::most_recent;
    }
  });
  // A weight is the same on all ranks, also where each has a part of it.
  for (TensorFormat* format : {&plan.fprop.a, &plan.dgrad.a, &plan.wgrad.a, &plan.wgrad.b}) {
    if (request.reduce_amax && format->policy == ScalePolicy::delayed) {
      format->delayed.reduction = *request.reduce_amax ? AmaxReduction::ranks : AmaxReduction::none;
    }
  }
}

void apply_format(const PlanRequest& request, PrecisionPlan& plan) {
  if (request.format.empty()) {
    return;
  }
  bool fp8 = false;
  for_each_gemm_format(plan, [&](TensorFormat& format) { fp8 = fp8 || is_fp8(format.dtype); });
  require(fp8, plan, "fp8.format", "FP8 rows");
  // E5M2 has a place in the gradients only.
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

/// Calls apply(gemm, flag) for fprop, dgrad and wgrad with the flags of `key`, where it is given.
void apply_gemm_flags(const std::vector<bool>& flags, const char* key, PrecisionPlan& plan,
                      const std::function<void(GemmPlan&, bool)>& apply) {
  if (flags.empty()) {
    return;
  }
  require(is_scaled(plan), plan, key, "FP8 plans");
  if (flags.size() != 3) {
    throw ConfigError(fmt::format("{}: expected three booleans, for fprop, dgrad and wgrad", key));
  }
  apply(plan.fprop, flags[0]);
  apply(plan.dgrad, flags[1]);
  apply(plan.wgrad, flags[2]);
}

/// Each GEMM named true keeps both operands in the activation format.
void apply_override(const PlanRequest& request, PrecisionPlan& plan) {
  const TensorFormat activation = plain(plan.activation);
  apply_gemm_flags(request.override_linear_precision, "fp8.override_linear_precision", plan,
                   [&](GemmPlan& gemm, bool plain_operands) {
                     if (plain_operands) {
                       gemm = {activation, activation, false, false};
                     }
                   });
}

/// Which FP8 products may use the short accumulator. GEMMs of plain operands have none.
void apply_fast_accumulation(const PlanRequest& request, PrecisionPlan& plan) {
  const char* const key = "fp8.fast_accumulation";
  apply_gemm_flags(request.fast_accumulation, key, plan, [&](GemmPlan& gemm, bool fast) {
    const bool blocks_of_128 = gemm.a.granularity == Granularity::block_1x128 ||
                               gemm.a.granularity == Granularity::block_128x128;
    require(!fast || !blocks_of_128, plan, key,
            "scales for tensors, rows and 1x32, because sums over blocks of 128 are always "
            "promoted to fp32");
    gemm.fast_accumulate = fast && gemm.a.is_scaled() && gemm.b.is_scaled();
  });
}

/// The error of the short accumulator on the cpu, for the GEMMs that may use it.
void apply_accumulation(const PlanRequest& request, PrecisionPlan& plan) {
  if (request.accumulation != "emulated") {
    return;
  }
  bool any = false;
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    const bool simple =
        gemm->a.granularity == Granularity::tensor || gemm->a.granularity == Granularity::row;
    gemm->emulate_accumulator = gemm->fast_accumulate && simple && is_fp8(gemm->a.dtype);
    any = any || gemm->emulate_accumulator;
  }
  require(any, plan, "fp8.accumulation: emulated",
          "FP8 GEMMs with scales for tensors or rows and fast accumulation");
}

void apply_power_2_scale(const PlanRequest& request, PrecisionPlan& plan) {
  if (!request.power_2_scale) {
    return;
  }
  const bool e8m0 = any_operand(
      plan, [](const TensorFormat& format) { return format.scale_type == ScaleType::e8m0; });
  require(has_policy(plan, ScalePolicy::current), plan, "fp8.power_2_scale", "current scaling");
  require(!e8m0, plan, "fp8.power_2_scale", "fp32 scales");
  for_each_gemm_format(plan, [&](TensorFormat& format) {
    if (format.is_scaled()) {
      format.scale_type = *request.power_2_scale ? ScaleType::pow2 : ScaleType::f32;
    }
  });
}

/// The setting of SwiGLU's product. Which layers it is for is plan_linears' matter.
void apply_swiglu(const PlanRequest& request, PrecisionPlan& plan) {
  if (request.swiglu.empty() || request.swiglu == "plain") {
    return;
  }
  const TensorFormat& x = plan.fprop.a;
  if (request.swiglu == "bf16_down_input") {
    require(x.is_scaled() || plan.wgrad.b.is_scaled(), plan, "fp8.swiglu: bf16_down_input",
            "rows whose GEMMs read x in FP8");
    plan.swiglu = SwigluInput::high_precision;
    return;
  }
  if (request.swiglu != "smooth") {
    throw ConfigError(fmt::format("fp8.swiglu: '{}' is not one of plain, smooth, bf16_down_input",
                                  request.swiglu));
  }
  require(x.is_scaled() && is_fp8(x.dtype) && is_fp8(plan.fprop.b.dtype), plan,
          "fp8.swiglu: smooth", "rows whose forward GEMM reads x and w in FP8");
  for (const GemmPlan* gemm : {&plan.dgrad, &plan.wgrad}) {
    if (gemm->a.is_scaled() != gemm->b.is_scaled()) {
      throw ConfigError(fmt::format(
          "fp8.swiglu: smooth does not go together with row '{}', whose backward GEMMs read the "
          "codes of the forward one beside operands that are not scaled: there w has no smoothed "
          "codes; use bf16_down_input, or give both operands of dgrad and wgrad a scale",
          plan.name));
    }
  }
  plan.swiglu = SwigluInput::smoothed;
}

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
  if (codes && is_scaled(other) && other.fprop.b != plan.weight) {
    refuse(fmt::format(
        "reads w as '{}', but the run's plan '{}' stores weights as '{}', which the "
        "forward GEMM reads: choose precision.weight: {}, or another plan",
        describe(other.fprop.b), plan.name, describe(plan.weight), name_of(plan.activation)));
  }
}

/// The plans of single layers, as the table has them: the options that tune a plan are for the
/// run's.
void apply_layers(const PlanRequest& request, PrecisionPlan& plan) {
  int window = first_window(plan.fprop, plan.dgrad, plan.wgrad);
  for (const LayerRequest& layer : request.layers) {
    if (needs_cells(layer.plan)) {
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

/// Stages of the run's plan and of plain GEMMs: what is stored and what crosses a wire is the run's
/// plan's in all of them.
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
    if (!own && (is_scaled(other) || other.activation != plan.activation)) {
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
    plan.schedule.push_back({stage.until, own && is_scaled(plan)});
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

/// What a row takes over from another cell follows that cell when it is changed.
class Followers {
 public:
  explicit Followers(const PrecisionPlan& row)
      : weight_(row.weight.is_scaled() && row.weight == row.fprop.b),
        wire_(row.weight.is_scaled() && row.parameter_wire == row.weight) {}

  void follow_gemms(PrecisionPlan& plan) const {
    plan.saved_activation = plan.wgrad.b;
    plan.weight = weight_ ? plan.fprop.b : plan.weight;
  }
  void follow_weight(PrecisionPlan& plan) const {
    plan.parameter_wire = wire_ ? plan.weight : plan.parameter_wire;
  }

 private:
  bool weight_, wire_;
};

}  // namespace

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

PrecisionPlan resolve_plan(const PlanRequest& request) {
  PrecisionPlan plan = plan_named(row_for(request));
  if (needs_cells(plan.name) && request.cells == CellRequest{}) {
    throw ConfigError(
        fmt::format("precision.plan: row '{}' is what its cells say; give at least one, such as "
                    "precision.moment1",
                    plan.name));
  }
  const Followers followers(plan);
  apply_delayed(request, plan);
  apply_format(request, plan);
  apply_power_2_scale(request, plan);
  apply_override(request, plan);
  apply_gemm_cells(request, plan);
  apply_fast_accumulation(request, plan);
  apply_accumulation(request, plan);
  followers.follow_gemms(plan);
  apply_weight_cells(request, plan);
  followers.follow_weight(plan);
  apply_kept_cells(request, plan);
  plan.forward_reads_saved = request.forward_reads_saved.value_or(plan.forward_reads_saved);
  plan.recompute_swiglu = request.recompute_swiglu.value_or(plan.recompute_swiglu);
  if (request.use_autocast_during_eval) {
    require(is_scaled(plan) || plan.forward_reads_saved, plan, "fp8.use_autocast_during_eval",
            "FP8 plans");
    plan.evaluate_scaled = *request.use_autocast_during_eval;
  }
  const bool layers = !request.layers.empty();
  require(is_scaled(plan) || layers || request.exemptions == ExemptionRules{}, plan,
          "an exemption (first_blocks, last_blocks, first_linears, last_linears, exempt, "
          "exempt_head, min_dimension)",
          "FP8 rows");
  apply_swiglu(request, plan);
  plan.exemptions = request.exemptions;
  apply_layers(request, plan);
  apply_schedule(request, plan);
  plan.self_exact = request.self_exact.value_or(plan.self_exact);
  check_cells(plan);
  return plan;
}

}  // namespace fp8train
