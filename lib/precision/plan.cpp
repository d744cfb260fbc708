#include "precision/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/text.h"
#include "ops/gemm/gemm_support.h"
#include "precision/plan_entries.h"
#include "precision/plan_parts.h"
#include "precision/role_request.h"

namespace fp8train {
namespace {

std::string name_for(const PlanRequest& request) {
  if (!request.plan.empty()) {
    return request.plan;
  }
  for (const PlanEntry& entry : plan_entries()) {
    if (entry.mixed_precision == request.mixed_precision) {
      return entry.name;
    }
  }
  return plan_for_method(request);
}

bool has_policy(const PrecisionPlan& plan, ScalePolicy policy) {
  return plan.any_operand([&](const TensorFormat& format) { return format.policy == policy; });
}

/// `option` is a key, followed by a colon and its value if only that value has no meaning.
void require(bool holds, const PrecisionPlan& plan, const std::string& option,
             const char* meaning) {
  if (!holds) {
    const std::string key = option.substr(0, option.find(':'));
    throw MeaninglessOption(
        key, fmt::format("{} has no meaning for plan '{}': it belongs to {}; remove it",
                         option.substr(key.size()), plan.name, meaning));
  }
}

void apply_delayed(const PlanRequest& request, PrecisionPlan& plan) {
  const bool delayed = has_policy(plan, ScalePolicy::delayed);
  const char* meaning = "delayed scaling";
  require(delayed || !request.margin, plan, "fp8.margin", meaning);
  require(delayed || !request.interval, plan, "fp8.interval", meaning);
  require(delayed || !request.amax_history_len, plan, "fp8.amax_history_len", meaning);
  require(delayed || !request.amax_compute_algo, plan, "fp8.amax_compute_algo", meaning);
  require(delayed || !request.reduce_amax, plan, "fp8.reduce_amax", meaning);
  plan.for_each_operand([&](TensorFormat& format) {
    if (format.policy != ScalePolicy::delayed) {
      return;
    }
    DelayedScaling& rule = format.delayed;
    rule.margin = static_cast<int>(request.margin.value_or(rule.margin));
    rule.interval = static_cast<int>(request.interval.value_or(rule.interval));
    rule.history_length = static_cast<int>(request.amax_history_len.value_or(rule.history_length));
    rule.algorithm = request.amax_compute_algo.value_or(rule.algorithm);
  });
  // A weight is the same on all ranks, also if each has a part of it.
  for (TensorFormat* format : {&plan.fprop.a, &plan.dgrad.a, &plan.wgrad.a, &plan.wgrad.b}) {
    if (request.reduce_amax && format->policy == ScalePolicy::delayed) {
      format->delayed.reduction = *request.reduce_amax ? AmaxReduction::ranks : AmaxReduction::none;
    }
  }
}

void apply_format(const PlanRequest& request, PrecisionPlan& plan) {
  if (!request.format) {
    return;
  }
  require(plan.any_operand([](const TensorFormat& format) { return is_fp8(format.dtype); }), plan,
          "fp8.format", "FP8 plans");
  set_fp8_format(*request.format, plan);
}

/// Calls apply(gemm, flag) for fprop, dgrad and wgrad with the flags of `key`, if it is given.
void apply_gemm_flags(const std::vector<bool>& flags, const char* key, PrecisionPlan& plan,
                      const std::function<void(GemmPlan&, bool)>& apply) {
  if (flags.empty()) {
    return;
  }
  require(has_scaled_gemms(plan), plan, key, "FP8 plans");
  if (flags.size() != 3) {
    throw KeyError(key, ": expected three booleans, for fprop, dgrad and wgrad");
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

/// Sets which FP8 products may use the short accumulator. GEMMs of plain operands have none.
void apply_fast_accumulation(const PlanRequest& request, PrecisionPlan& plan) {
  const char* const key = "fp8.fast_accumulation";
  apply_gemm_flags(request.fast_accumulation, key, plan, [&](GemmPlan& gemm, bool fast) {
    const ops::GemmSupport support =
        ops::gemm_support(DeviceTraits{}, {gemm.a, gemm.b, DType::bf16, true});
    require(!fast || !support.native || support.fast_accumulate, plan, key,
            "scales for tensors, rows and 1x32, because sums over blocks of 128 are always "
            "promoted to fp32");
    gemm.fast_accumulate = fast && gemm.a.is_scaled() && gemm.b.is_scaled();
  });
}

/// Turns on the error of the short accumulator on the cpu, for the GEMMs that may use it.
void apply_accumulation(const PlanRequest& request, PrecisionPlan& plan) {
  if (request.accumulation != Accumulation::emulated) {
    return;
  }
  bool any = false;
  for (GemmPlan* gemm : plan.gemms()) {
    const bool simple = gemm->a.block == per::tensor || gemm->a.block == per::row;
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
  const bool fixed = plan.any_operand([](const TensorFormat& format) {
    return format.scale_type != ScaleType::f32 && format.scale_type != ScaleType::pow2;
  });
  require(has_policy(plan, ScalePolicy::current), plan, "fp8.power_2_scale", "current scaling");
  require(!fixed, plan, "fp8.power_2_scale", "fp32 scales");
  plan.for_each_operand([&](TensorFormat& format) {
    if (format.is_scaled()) {
      format.scale_type = *request.power_2_scale ? ScaleType::pow2 : ScaleType::f32;
    }
  });
}

/// Applies the setting of SwiGLU's product; plan_linears() finds the layers that read it.
void apply_swiglu(const PlanRequest& request, PrecisionPlan& plan) {
  const SwigluInput swiglu = request.swiglu.value_or(SwigluInput::as_planned);
  if (swiglu == SwigluInput::as_planned) {
    return;
  }
  const TensorFormat& x = plan.fprop.a;
  if (swiglu == SwigluInput::high_precision) {
    require(x.is_scaled() || plan.wgrad.b.is_scaled(), plan, "fp8.swiglu: bf16_down_input",
            "plans whose GEMMs read x in FP8");
    plan.swiglu = SwigluInput::high_precision;
    return;
  }
  require(x.is_scaled() && is_fp8(x.dtype) && is_fp8(plan.fprop.b.dtype), plan,
          "fp8.swiglu: smooth", "plans whose forward GEMM reads x and w in FP8");
  for (const GemmPlan* gemm : {&plan.dgrad, &plan.wgrad}) {
    if (gemm->a.is_scaled() != gemm->b.is_scaled()) {
      throw KeyError(
          "fp8.swiglu",
          fmt::format(
              ": smooth does not go together with plan '{}', whose backward GEMMs read the codes "
              "of the forward one next to operands that are not scaled: there w has no smoothed "
              "codes; use bf16_down_input, or give both operands of dgrad and wgrad a scale",
              plan.name));
    }
  }
  plan.swiglu = SwigluInput::smoothed;
}

/// Whether attention has formats in the plan: those of x and dy.
bool scales_attention(const PrecisionPlan& plan) {
  const auto by_tensor = [](const TensorFormat& format) {
    return format.is_scaled() && is_fp8(format.dtype) && format.block == per::tensor &&
           !format.is_current_at_first();
  };
  return plan.activation == DType::bf16 && by_tensor(plan.fprop.a) && by_tensor(plan.dgrad.a);
}

/// Sets the formats of attention from those of x and dy (TransformerEngine, d0067d0,
/// pytorch/attention/dot_product_attention: init_fp8_metadata of dot_product_attention.py,
/// FusedAttnFunc of backends.py). Probabilities and the gradients of scores are never in memory, so
/// their scale follows from the amax before: next to current scaling from the last one. `out` and
/// `dqkv` then stay as they are.
void apply_attention(const PlanRequest& request, PrecisionPlan& plan) {
  const Fp8Attention gemms = request.attention.value_or(Fp8Attention::none);
  if (gemms == Fp8Attention::none) {
    return;
  }
  std::vector<std::string> names = plan_names();
  std::erase_if(names, [](const std::string& name) { return !scales_attention(plan_named(name)); });
  require(scales_attention(plan), plan, "fp8.attention",
          ("plans whose GEMMs read x and dy in FP8 with one scale for the tensor: " +
           alternatives(names))
              .c_str());
  const TensorFormat activation = plain(plan.activation);
  const auto in_kernel = [](TensorFormat format) {
    if (format.policy == ScalePolicy::current) {
      format.policy = ScalePolicy::delayed;
      format.delayed.history_length = 1;
      format.delayed.algorithm = AmaxAlgorithm::most_recent;
    }
    return format;
  };
  const auto result = [&](const TensorFormat& format) {
    return format.policy == ScalePolicy::delayed ? format : activation;
  };
  const TensorFormat& x = plan.fprop.a;
  plan.attention = {.qkv = x, .probabilities = in_kernel(x), .out = result(x)};
  if (gemms == Fp8Attention::both) {
    const TensorFormat& dy = plan.dgrad.a;
    plan.attention.dout = dy;
    plan.attention.dscores = in_kernel(dy);
    plan.attention.dqkv = result(dy);
  }
}

/// A format that a plan takes over from another role changes with that role.
class Followers {
 public:
  explicit Followers(const PrecisionPlan& plan)
      : weight_(plan.weight.is_scaled() && plan.weight == plan.fprop.b),
        wire_(plan.weight.is_scaled() && plan.parameter_wire == plan.weight) {}

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

int64_t GemmPlan::k_multiple() const {
  static const DeviceTraits cpu;  // its table of products takes long to make
  thread_local std::vector<std::pair<GemmPlan, int64_t>> known;  // thousands of layers ask
  const auto found = std::ranges::find(known, *this, &std::pair<GemmPlan, int64_t>::first);
  return found != known.end()
             ? found->second
             : known.emplace_back(*this, ops::gemm_support(cpu, {a, b}).k_multiple).second;
}

void set_fp8_format(Fp8Format format, PrecisionPlan& plan) {
  // E5M2 is for gradients only.
  for (GemmPlan* gemm : {&plan.dgrad, &plan.wgrad}) {
    if (format == Fp8Format::hybrid && gemm->a.is_scaled() && is_fp8(gemm->a.dtype)) {
      gemm->a.dtype = DType::e5m2;
    }
  }
  if (format == Fp8Format::e4m3) {
    plan.for_each_operand([](TensorFormat& operand) {
      operand.dtype = is_fp8(operand.dtype) ? DType::e4m3 : operand.dtype;
    });
  }
}

bool has_scaled_gemms(const PrecisionPlan& plan) {
  return plan.any_operand([](const TensorFormat& format) { return format.is_scaled(); });
}

PrecisionPlan resolve_plan(const PlanRequest& request) {
  PrecisionPlan plan = plan_named(name_for(request));
  if (needs_roles(plan.name) && request.roles == RoleRequest{}) {
    throw KeyError(
        "precision.plan",
        fmt::format(
            ": plan '{}' is what its roles say; give at least one, such as precision.moment1",
            plan.name));
  }
  const Followers followers(plan);
  apply_delayed(request, plan);
  apply_format(request, plan);
  apply_power_2_scale(request, plan);
  apply_attention(request, plan);
  apply_override(request, plan);
  apply_roles(request, {RoleKind::operand}, plan);
  apply_fast_accumulation(request, plan);
  apply_accumulation(request, plan);
  followers.follow_gemms(plan);
  apply_roles(request, {RoleKind::weight, RoleKind::master}, plan);
  followers.follow_weight(plan);
  apply_roles(request, {RoleKind::stored, RoleKind::passing}, plan);
  plan.forward_reads_saved = request.forward_reads_saved.value_or(plan.forward_reads_saved);
  plan.recompute_swiglu = request.recompute_swiglu.value_or(plan.recompute_swiglu);
  if (request.use_autocast_during_eval) {
    require(has_scaled_gemms(plan) || plan.forward_reads_saved, plan,
            "fp8.use_autocast_during_eval", "FP8 plans");
    plan.evaluate_scaled = *request.use_autocast_during_eval;
  }
  const bool layers = !request.layers.empty() || !request.file_layers.empty();
  ExemptionRules exemptions = request.exemptions;
  if (exemptions.head == true) {
    exemptions.head.reset();  // as without scales
  }
  const bool stages = !request.schedule.empty();
  require(has_scaled_gemms(plan) || layers || stages || exemptions == ExemptionRules{}, plan,
          "an exemption (first_blocks, last_blocks, first_linears, last_linears, exempt, "
          "exempt_head, min_dimension)",
          "FP8 plans");
  apply_swiglu(request, plan);
  const std::optional<bool> head = plan.exemptions.head;
  plan.exemptions = request.exemptions;
  plan.exemptions.head = request.exemptions.head ? request.exemptions.head : head;
  apply_layers(request, plan);
  apply_schedule(request, plan);
  plan.self_exact = request.self_exact.value_or(plan.self_exact);
  check_roles(plan);
  return plan;
}

}  // namespace fp8train
