#include "precision/role_request.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/exchange/wire_formats.h"

namespace fp8train {
namespace {

/// FP8 codes mean nothing without a scale, so that a bare "e4m3" has a current one for the tensor.
TensorFormat parse_role_format(const char* name, const std::string& text) {
  TensorFormat format;
  try {
    format = parse_format(text);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("precision.{}: {}", name, error.what()));
  }
  if (is_fp8(format.dtype) && !format.is_scaled()) {
    format.policy = ScalePolicy::current;
  }
  return format;
}

/// Unscaled fp16 has not the range of what is stored for the optimizer.
TensorFormat parse_stored(const char* name, const std::string& text) {
  TensorFormat format = parse_role_format(name, text);
  if (format.dtype == DType::f16 && !format.is_scaled()) {
    format.policy = ScalePolicy::current;
  }
  return format;
}

struct Operand {
  const char* name;
  std::string RoleRequest::*requested;
  GemmPlan PrecisionPlan::*gemm;
  TensorFormat GemmPlan::*format;
  size_t position;  ///< of the GEMM in override_linear_precision
};

constexpr Operand kOperands[] = {
    {"fprop_x", &RoleRequest::fprop_x, &PrecisionPlan::fprop, &GemmPlan::a, 0},
    {"fprop_w", &RoleRequest::fprop_w, &PrecisionPlan::fprop, &GemmPlan::b, 0},
    {"dgrad_dy", &RoleRequest::dgrad_dy, &PrecisionPlan::dgrad, &GemmPlan::a, 1},
    {"dgrad_w", &RoleRequest::dgrad_w, &PrecisionPlan::dgrad, &GemmPlan::b, 1},
    {"wgrad_dy", &RoleRequest::wgrad_dy, &PrecisionPlan::wgrad, &GemmPlan::a, 2},
    {"wgrad_x", &RoleRequest::wgrad_x, &PrecisionPlan::wgrad, &GemmPlan::b, 2}};

struct Stored {
  const char* name;
  std::string RoleRequest::*requested;
  TensorFormat PrecisionPlan::*format;
};

constexpr Stored kStored[] = {
    {"weight_gradient", &RoleRequest::weight_gradient, &PrecisionPlan::weight_gradient},
    {"gradient_wire", &RoleRequest::gradient_wire, &PrecisionPlan::gradient_wire},
    {"parameter_wire", &RoleRequest::parameter_wire, &PrecisionPlan::parameter_wire},
    {"moment1", &RoleRequest::moment1, &PrecisionPlan::moment1},
    {"moment2", &RoleRequest::moment2, &PrecisionPlan::moment2}};

}  // namespace

const std::vector<Role>& plan_roles() {
  static const std::vector<Role> kRoles = {
      {"weight", "The weight as it is stored", &RoleRequest::weight},
      {"master_weight", "The weight that the optimizer updates; none: the stored weight itself",
       &RoleRequest::master_weight},
      {"weight_gradient", "The gradient of a weight over the micro-batches of a step",
       &RoleRequest::weight_gradient},
      {"gradient_wire",
       "A rank's contribution to a gradient, rounded to this also where there is one rank; a "
       "gradient that is stored in it is rounded with every micro-batch. Formats: " +
           ops::gradient_wires_text(),
       &RoleRequest::gradient_wire},
      {"parameter_wire", "Weights on their way between ranks: the stored weight's format",
       &RoleRequest::parameter_wire},
      {"moment1", "AdamW's first moment", &RoleRequest::moment1},
      {"moment2",
       "AdamW's second moment, which takes more range and, with betas[1] near 1, more "
       "bits",
       &RoleRequest::moment2},
      {"saved_norm", "What is stored for backward of the input of a norm",
       &RoleRequest::saved_norm},
      {"saved_nonlinear",
       "What is stored for backward of the input of an activation function, and of a norm where "
       "saved_norm is not given",
       &RoleRequest::saved_nonlinear},
      {"fprop_x", "The input as the forward GEMM reads it", &RoleRequest::fprop_x},
      {"fprop_w", "The weight as the forward GEMM reads it", &RoleRequest::fprop_w},
      {"dgrad_dy", "The output's gradient as the GEMM of the input's gradient reads it",
       &RoleRequest::dgrad_dy},
      {"dgrad_w", "The weight as that GEMM reads it", &RoleRequest::dgrad_w},
      {"wgrad_dy", "The output's gradient as the GEMM of the weight's gradient reads it",
       &RoleRequest::wgrad_dy},
      {"wgrad_x", "The input as that GEMM reads it, which is also what is stored for backward",
       &RoleRequest::wgrad_x}};
  return kRoles;
}

void apply_gemm_roles(const PlanRequest& request, PrecisionPlan& plan) {
  for (const Operand& operand : kOperands) {
    const std::string& text = request.roles.*operand.requested;
    if (text.empty()) {
      continue;
    }
    const auto& stored = request.override_linear_precision;
    if (operand.position < stored.size() && stored[operand.position]) {
      throw ConfigError(
          fmt::format("precision.{}: fp8.override_linear_precision keeps this GEMM in high "
                      "precision; remove one of the two",
                      operand.name));
    }
    plan.*operand.gemm.*operand.format = parse_role_format(operand.name, text);
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
  for (const Stored& stored : kStored) {
    if (!(roles.*stored.requested).empty()) {
      plan.*stored.format = parse_stored(stored.name, roles.*stored.requested);
    }
  }
}

}  // namespace fp8train
