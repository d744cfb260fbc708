#include "precision/role_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/key_error.h"
#include "ops/exchange/wire_formats.h"

namespace fp8train {
namespace {

/// FP8 codes mean nothing without a scale, and unscaled fp16 lacks the range of values that are
/// stored for the optimizer: a bare "e4m3" or "fp16" has a current scale for the tensor.
TensorFormat parse_role(const Role& role, const std::string& text, DType activation) {
  TensorFormat format;
  try {
    format = parse_format(text);
  } catch (const ConfigError& error) {
    throw KeyError(fmt::format("precision.{}", role.name), fmt::format(": {}", error.what()));
  }
  const bool of_optimizer = role.kind == RoleKind::stored || role.kind == RoleKind::master ||
                            (role.kind == RoleKind::weight && activation != DType::f16);
  if (!format.is_scaled() &&
      (is_fp8(format.dtype) || (of_optimizer && format.dtype == DType::f16))) {
    format.policy = ScalePolicy::current;
  }
  return format;
}

void check_override(const PlanRequest& request, const Role& role) {
  const std::vector<bool>& plain_gemms = request.override_linear_precision;
  constexpr GemmPlan PrecisionPlan::*kGemms[] = {&PrecisionPlan::fprop, &PrecisionPlan::dgrad,
                                                 &PrecisionPlan::wgrad};
  for (size_t i = 0; i < plain_gemms.size(); ++i) {
    if (plain_gemms[i] && kGemms[i] == role.gemm) {
      throw KeyError(fmt::format("precision.{}", role.name),
                     ": fp8.override_linear_precision keeps this GEMM in high precision; remove "
                     "one of the two");
    }
  }
}

}  // namespace

const std::vector<Role>& plan_roles() {
  static const std::vector<Role> kRoles = {
      {"weight", RoleKind::weight, "The weight as it is stored", &RoleRequest::weight,
       &PrecisionPlan::weight},
      {"master_weight", RoleKind::master,
       "The weight that the optimizer updates; none: the stored weight itself",
       &RoleRequest::master_weight},
      {"weight_gradient", RoleKind::stored,
       "The gradient of a weight, summed over the micro-batches of a step",
       &RoleRequest::weight_gradient, &PrecisionPlan::weight_gradient},
      {"gradient_wire", RoleKind::stored,
       "A rank's contribution to a gradient, rounded to this format even with one rank; a gradient "
       "that is stored in it is rounded with every micro-batch. Formats: " +
           ops::gradient_wires_text(),
       &RoleRequest::gradient_wire, &PrecisionPlan::gradient_wire},
      {"parameter_wire", RoleKind::stored, "Weights between ranks: the format of the stored weight",
       &RoleRequest::parameter_wire, &PrecisionPlan::parameter_wire},
      {"moment1", RoleKind::stored, "First moment of AdamW, or the momentum of SGD and Muon",
       &RoleRequest::moment1, &PrecisionPlan::moment1},
      {"moment2", RoleKind::stored,
       "AdamW's second moment, which needs more range and, with betas[1] near 1, more bits",
       &RoleRequest::moment2, &PrecisionPlan::moment2},
      {"saved_norm", RoleKind::passing, "Input of a norm as it is stored for backward",
       &RoleRequest::saved_norm, &PrecisionPlan::saved_norm},
      {"saved_nonlinear", RoleKind::passing,
       "Input of an activation function as it is stored for backward, and of a norm if saved_norm "
       "is not set",
       &RoleRequest::saved_nonlinear, &PrecisionPlan::saved_nonlinear},
      {"expert_dispatch", RoleKind::passing,
       "Rows of tokens, and their gradients, on the way to experts of other ranks "
       "(parallelism.expert); they come back as activations are",
       &RoleRequest::expert_dispatch, &PrecisionPlan::expert_dispatch},
      {"fprop_x", RoleKind::operand, "The input as the forward GEMM reads it",
       &RoleRequest::fprop_x, nullptr, &PrecisionPlan::fprop, &GemmPlan::a},
      {"fprop_w", RoleKind::operand, "The weight as the forward GEMM reads it",
       &RoleRequest::fprop_w, nullptr, &PrecisionPlan::fprop, &GemmPlan::b},
      {"dgrad_dy", RoleKind::operand,
       "The output's gradient as dgrad reads it (the GEMM of the input's gradient)",
       &RoleRequest::dgrad_dy, nullptr, &PrecisionPlan::dgrad, &GemmPlan::a},
      {"dgrad_w", RoleKind::operand, "The weight as dgrad reads it", &RoleRequest::dgrad_w, nullptr,
       &PrecisionPlan::dgrad, &GemmPlan::b},
      {"wgrad_dy", RoleKind::operand,
       "The output's gradient as wgrad reads it (the GEMM of the weight's gradient)",
       &RoleRequest::wgrad_dy, nullptr, &PrecisionPlan::wgrad, &GemmPlan::a},
      {"wgrad_x", RoleKind::operand,
       "The input as wgrad reads it, which is also the form stored for backward",
       &RoleRequest::wgrad_x, nullptr, &PrecisionPlan::wgrad, &GemmPlan::b}};
  return kRoles;
}

std::string describe_role(const Role& role, const PrecisionPlan& plan) {
  if (role.kind == RoleKind::master) {
    return plan.master_weight ? describe(*plan.master_weight) : "none";
  }
  return describe(role.gemm != nullptr ? plan.*role.gemm.*role.operand : plan.*role.format);
}

void apply_roles(const PlanRequest& request, std::initializer_list<RoleKind> kinds,
                 PrecisionPlan& plan) {
  for (const Role& role : plan_roles()) {
    const std::string& text = request.roles.*role.requested;
    if (text.empty() || std::ranges::find(kinds, role.kind) == kinds.end()) {
      continue;
    }
    if (role.kind == RoleKind::master && text == "none") {
      plan.master_weight.reset();
      continue;
    }
    if (role.kind == RoleKind::operand) {
      check_override(request, role);
    }
    const TensorFormat format = parse_role(role, text, plan.activation);
    if (role.kind == RoleKind::master) {
      plan.master_weight = format;
    } else {
      (role.gemm != nullptr ? plan.*role.gemm.*role.operand : plan.*role.format) = format;
    }
    if (role.format == &PrecisionPlan::saved_nonlinear && request.roles.saved_norm.empty()) {
      plan.saved_norm = format;
    }
  }
}

}  // namespace fp8train
