#include "precision/cell_request.h"

#include <fmt/format.h>

#include "base/error.h"

namespace fp8train {
namespace {

/// FP8 codes mean nothing without a scale, so that a bare "e4m3" has a current one for the tensor.
TensorFormat parse_cell(const char* name, const std::string& text) {
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

/// Unscaled fp16 has not the range of what is kept for the optimizer.
TensorFormat parse_kept(const char* name, const std::string& text) {
  TensorFormat format = parse_cell(name, text);
  if (format.dtype == DType::f16 && !format.is_scaled()) {
    format.policy = ScalePolicy::current;
  }
  return format;
}

struct Operand {
  const char* name;
  std::string CellRequest::*requested;
  GemmPlan PrecisionPlan::*gemm;
  TensorFormat GemmPlan::*format;
  size_t position;  ///< of the GEMM in override_linear_precision
};

constexpr Operand kOperands[] = {
    {"fprop_x", &CellRequest::fprop_x, &PrecisionPlan::fprop, &GemmPlan::a, 0},
    {"fprop_w", &CellRequest::fprop_w, &PrecisionPlan::fprop, &GemmPlan::b, 0},
    {"dgrad_dy", &CellRequest::dgrad_dy, &PrecisionPlan::dgrad, &GemmPlan::a, 1},
    {"dgrad_w", &CellRequest::dgrad_w, &PrecisionPlan::dgrad, &GemmPlan::b, 1},
    {"wgrad_dy", &CellRequest::wgrad_dy, &PrecisionPlan::wgrad, &GemmPlan::a, 2},
    {"wgrad_x", &CellRequest::wgrad_x, &PrecisionPlan::wgrad, &GemmPlan::b, 2}};

struct Kept {
  const char* name;
  std::string CellRequest::*requested;
  TensorFormat PrecisionPlan::*format;
};

constexpr Kept kKept[] = {
    {"weight_gradient", &CellRequest::weight_gradient, &PrecisionPlan::weight_gradient},
    {"gradient_wire", &CellRequest::gradient_wire, &PrecisionPlan::gradient_wire},
    {"parameter_wire", &CellRequest::parameter_wire, &PrecisionPlan::parameter_wire},
    {"moment1", &CellRequest::moment1, &PrecisionPlan::moment1},
    {"moment2", &CellRequest::moment2, &PrecisionPlan::moment2}};

}  // namespace

const std::vector<Cell>& plan_cells() {
  static const std::vector<Cell> kCells = {
      {"weight", "The weight as it is stored", &CellRequest::weight},
      {"master_weight", "The weight that the optimizer updates; none: the stored weight itself",
       &CellRequest::master_weight},
      {"weight_gradient", "The gradient of a weight over the micro-batches of a step",
       &CellRequest::weight_gradient},
      {"gradient_wire",
       "A rank's contribution to a gradient, rounded to this also where there is one rank; a "
       "gradient that is kept in it is rounded with every micro-batch",
       &CellRequest::gradient_wire},
      {"parameter_wire", "Weights on their way between ranks: the stored weight's format",
       &CellRequest::parameter_wire},
      {"moment1", "AdamW's first moment", &CellRequest::moment1},
      {"moment2",
       "AdamW's second moment, which takes more range and, with betas[1] near 1, more "
       "bits",
       &CellRequest::moment2},
      {"saved_norm", "What is stored for backward of the input of a norm",
       &CellRequest::saved_norm},
      {"saved_nonlinear",
       "What is stored for backward of the input of an activation function, and of a norm where "
       "saved_norm is not given",
       &CellRequest::saved_nonlinear},
      {"fprop_x", "The input as the forward GEMM reads it", &CellRequest::fprop_x},
      {"fprop_w", "The weight as the forward GEMM reads it", &CellRequest::fprop_w},
      {"dgrad_dy", "The output's gradient as the GEMM of the input's gradient reads it",
       &CellRequest::dgrad_dy},
      {"dgrad_w", "The weight as that GEMM reads it", &CellRequest::dgrad_w},
      {"wgrad_dy", "The output's gradient as the GEMM of the weight's gradient reads it",
       &CellRequest::wgrad_dy},
      {"wgrad_x", "The input as that GEMM reads it, which is also what is kept for backward",
       &CellRequest::wgrad_x}};
  return kCells;
}

void apply_gemm_cells(const PlanRequest& request, PrecisionPlan& plan) {
  for (const Operand& operand : kOperands) {
    const std::string& text = request.cells.*operand.requested;
    if (text.empty()) {
      continue;
    }
    const auto& kept = request.override_linear_precision;
    if (operand.position < kept.size() && kept[operand.position]) {
      throw ConfigError(
          fmt::format("precision.{}: fp8.override_linear_precision keeps this GEMM in high "
                      "precision; remove one of the two",
                      operand.name));
    }
    plan.*operand.gemm.*operand.format = parse_cell(operand.name, text);
  }
}

void apply_weight_cells(const PlanRequest& request, PrecisionPlan& plan) {
  const CellRequest& cells = request.cells;
  if (!cells.weight.empty()) {
    plan.weight = plan.activation == DType::f16 ? parse_cell("weight", cells.weight)
                                                : parse_kept("weight", cells.weight);
  }
  if (cells.master_weight == "none") {
    plan.master_weight.reset();
  } else if (!cells.master_weight.empty()) {
    plan.master_weight = parse_kept("master_weight", cells.master_weight);
  }
}

void apply_kept_cells(const PlanRequest& request, PrecisionPlan& plan) {
  const CellRequest& cells = request.cells;
  if (!cells.saved_nonlinear.empty()) {
    plan.saved_nonlinear = parse_cell("saved_nonlinear", cells.saved_nonlinear);
    plan.saved_norm = plan.saved_nonlinear;
  }
  if (!cells.saved_norm.empty()) {
    plan.saved_norm = parse_cell("saved_norm", cells.saved_norm);
  }
  for (const Kept& kept : kKept) {
    if (!(cells.*kept.requested).empty()) {
      plan.*kept.format = parse_kept(kept.name, cells.*kept.requested);
    }
  }
}

}  // namespace fp8train
