#include "precision/role_request.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/key_error.h"
#include "ops/exchange/wire_formats.h"

namespace fp8train {
namespace {

/// FP8 codes mean nothing without a scale: a bare "e4m3" has a current one for the tensor.
TensorFormat parse_role_format(const char* name, const std::string& text) {
  TensorFormat format;
  try {
    format = parse_format(text);
  } catch (const ConfigError& error) {
    const std::string key = fmt::format("precision.{}", name);
    throw KeyError(key, fmt::format(": {}", error.what()));
  }
  if (is_fp8(format.dtype) && !format.is_scaled()) {
    format.policy = ScalePolicy::current;
  }
  return format;
}

/// Unscaled fp16 lacks the range of values that are stored for the optimizer.
TensorFormat parse_stored(const char* name, const std::string& text) {
  TensorFormat format = parse_role_format(name, text);
  if (format.dtype == DType::f16 && !format.is_scaled()) {
    format.policy = ScalePolicy::current;
  }
  return format;
}

}  // namespace

const std::vector<Role>& plan_roles() {
  static const std::vector<Role> kRoles = {
      {"weight", "The weight as it is stored", &RoleRequest::weight},
      {"master_weight", "The weight that the optimizer updates; none: the stored weight itself",
       &RoleRequest::master_weight},
      {"weight_gradient", "The gradient of a weight, summed over the micro-batches of a step",
       &RoleRequest::weight_gradient, &PrecisionPlan::weight_gradient},
      {"gradient_wire",
       "A rank's contribution to a gradient, rounded to this format even with one rank; a gradient "
       "that is stored in it is rounded with every micro-batch. Formats: " +
           ops::gradient_wires_text(),
       &RoleRequest::gradient_wire, &PrecisionPlan::gradient_wire},
      {"parameter_wire", "Weights between ranks: the format of the stored weight",
       &RoleRequest::parameter_wire, &PrecisionPlan::parameter_wire},
      {"moment1", "First moment of AdamW, or the momentum of SGD and Muon", &RoleRequest::moment1,
       &PrecisionPlan::moment1},
      {"moment2",
       "AdamW's second moment, which needs more range and, with betas[1] near 1, more bits",
       &RoleRequest::moment2, &PrecisionPlan::moment2},
      {"saved_norm", "Input of a norm as it is stored for backward", &RoleRequest::saved_norm},
      {"saved_nonlinear",
       "Input of an activation function as it is stored for backward, and of a norm if saved_norm "
       "is not set",
       &RoleRequest::saved_nonlinear},
      {"expert_dispatch",
       "Rows of tokens, and their gradients, on the way to experts of other ranks "
       "(parallelism.expert); they come back as activations are",
       &RoleRequest::expert_dispatch},
      {"fprop_x", "The input as the forward GEMM reads it", &RoleRequest::fprop_x, nullptr,
       &PrecisionPlan::fprop, &GemmPlan::a},
      {"fprop_w", "The weight as the forward GEMM reads it", &RoleRequest::fprop_w, nullptr,
       &PrecisionPlan::fprop, &GemmPlan::b},
      {"dgrad_dy", "The output's gradient as dgrad reads it (the GEMM of the input's gradient)",
       &RoleRequest::dgrad_dy, nullptr, &PrecisionPlan::dgrad, &GemmPlan::a},
      {"dgrad_w", "The weight as dgrad reads it", &RoleRequest::dgrad_w, nullptr,
       &PrecisionPlan::dgrad, &GemmPlan::b},
      {"wgrad_dy", "The output's gradient as wgrad reads it (the GEMM of the weight's gradient)",
       &RoleRequest::wgrad_dy, nullptr, &PrecisionPlan::wgrad, &GemmPlan::a},
      {"wgrad_x", "The input as wgrad reads it, which is also the form stored for backward",
       &RoleRequest::wgrad_x, nullptr, &PrecisionPlan::wgrad, &GemmPlan::b}};
  return kRoles;
}

void apply_gemm_roles(const PlanRequest& request, PrecisionPlan& plan) {
  const std::vector<bool>& plain_gemms = request.override_linear_precision;
  constexpr GemmPlan PrecisionPlan::*kGemms[] = {&PrecisionPlan::fprop, &PrecisionPlan::dgrad,
                                                 &PrecisionPlan::wgrad};
  for (const Role& role : plan_roles()) {
    const std::string& text = request.roles.*role.requested;
    if (text.empty() || role.gemm == nullptr) {
      continue;
    }
    for (size_t i = 0; i < plain_gemms.size(); ++i) {
      if (plain_gemms[i] && kGemms[i] == role.gemm) {
        throw KeyError(fmt::format("precision.{}", role.name),
                       ": fp8.override_linear_precision keeps this GEMM in high precision; remove "
                       "one of the two");
      }
    }
    plan.*role.gemm.*role.operand = parse_role_format(role.name, text);
  }
}

void apply_weight_roles(const PlanRequest& request, PrecisionPlan& plan) {
  const RoleRequest& roles = request.roles;
  if (!roles.weight.empty()) {
    plan.weight = plan.activation == DType::f16 ? parse_role_format("weight", roles.weight)
                                                : parse_stored("weight", roles.weight);
  }
  if (roles.master_weight == "none") {
    plan.master_weight.reset();
  } else if (!roles.master_weight.empty()) {
    plan.master_weight = parse_stored("master_weight", roles.master_weight);
  }
}

void apply_stored_roles(const PlanRequest& request, PrecisionPlan& plan) {
  const RoleRequest& roles = request.roles;
  if (!roles.saved_nonlinear.empty()) {
    plan.saved_nonlinear = parse_role_format("saved_nonlinear", roles.saved_nonlinear);
    plan.saved_norm = plan.saved_nonlinear;
  }
  if (!roles.saved_norm.empty()) {
    plan.saved_norm = parse_role_format("saved_norm", roles.saved_norm);
  }
  if (!roles.expert_dispatch.empty()) {
    plan.expert_dispatch = parse_role_format("expert_dispatch", roles.expert_dispatch);
  }
  for (const Role& role : plan_roles()) {
    if (role.format != nullptr && !(roles.*role.requested).empty()) {
      plan.*role.format = parse_stored(role.name, roles.*role.requested);
    }
  }
}

}  // namespace fp8train
