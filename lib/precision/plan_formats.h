#pragma once
// The formats and GEMMs that several plans share, by name, so that plans.cpp reads like a table.

#include "precision/plan.h"

namespace fp8train {

/// Returns a GEMM of operands in the formats a and b.
inline GemmPlan gemm_in(const TensorFormat& a, const TensorFormat& b, bool fast_accumulate) {
  return {a, b, fast_accumulate};
}

/// Returns a scaled format with one scale per tensor.
inline TensorFormat scaled(DType dtype, ScalePolicy policy) {
  TensorFormat format = plain(dtype);
  format.policy = policy;
  return format;
}

/// Returns E4M3 with current scaling and a scale for each block.
inline TensorFormat blockwise(ScaleBlock block, ScaleType scale_type) {
  TensorFormat format = scaled(DType::e4m3, ScalePolicy::current);
  format.block = block;
  format.scale_type = scale_type;
  return format;
}

/// Returns the format of a stored tensor with an fp32 scale for each 128 elements.
inline TensorFormat stored_by_group(DType dtype) {
  return {.dtype = dtype, .block = per::group(128), .policy = ScalePolicy::current, .delayed = {}};
}

/// Returns the format with stochastic rounding.
inline TensorFormat stochastic(TensorFormat format) {
  format.rounding = Rounding::stochastic;
  return format;
}

/// Applies `change` to the operands of all GEMMs, and so to what backward reads of x.
template <typename Change>
void change_operands(PrecisionPlan& plan, const Change& change) {
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    change(gemm->a);
    change(gemm->b);
  }
  plan.saved_activation = plan.wgrad.b;
}

/// Returns a plan with everything in `compute`, and fp32 weights and states.
inline PrecisionPlan unscaled(const char* name, DType compute) {
  PrecisionPlan plan;
  plan.name = name;
  plan.activation = compute;
  plan.fprop = plan.dgrad = plan.wgrad = gemm_in(plain(compute), plain(compute), false);
  plan.saved_activation = plan.saved_norm = plan.saved_nonlinear = plain(compute);
  plan.expert_dispatch = plain(compute);
  plan.weight = plan.weight_gradient = plan.gradient_wire = plan.parameter_wire = plain(DType::f32);
  plan.moment1 = plan.moment2 = plain(DType::f32);
  return plan;
}

/// Returns a plan with one scale per tensor, E4M3 forward and E5M2 gradients, fast accumulation in
/// fprop only (TransformerEngine, common/recipe/__init__.py, pytorch/module/base.py); all else in
/// bf16.
inline PrecisionPlan hybrid_by_tensor(const char* name, ScalePolicy policy) {
  PrecisionPlan plan = unscaled(name, DType::bf16);
  const TensorFormat forward = scaled(DType::e4m3, policy);
  const TensorFormat gradient = scaled(DType::e5m2, policy);
  plan.fprop = gemm_in(forward, forward, true);
  plan.dgrad = gemm_in(gradient, forward, false);
  plan.wgrad = gemm_in(gradient, forward, false);
  plan.saved_activation = forward;
  return plan;
}

/// Returns the format of a tensor with one scale, a power of two, from the maximum of the rank's
/// own last 16 optimizer steps, and with a current one in the first 16 (MS-AMP,
/// optim/optimizer.py).
inline TensorFormat windowed_by_step(DType dtype) {
  TensorFormat format = scaled(dtype, ScalePolicy::delayed);
  format.scale_type = ScaleType::pow2;
  format.delayed.history_length = 16;
  format.delayed.current_at_first = true;
  format.delayed.unit = WindowUnit::step;
  format.delayed.reduction = AmaxReduction::none;
  return format;
}

/// Returns the format of a stored tensor with one current scale, a power of two (MS-AMP,
/// msamp/common/tensor/tensor.py).
inline TensorFormat stored_by_tensor(DType dtype) {
  TensorFormat format = scaled(dtype, ScalePolicy::current);
  format.scale_type = ScaleType::pow2;
  return format;
}

/// Returns a plan with fine-grained scaling: E4M3 everywhere, 1x128 for x and dy (128x1 in wgrad),
/// 128x128 for w, fp32 scales, split accumulation (DeepSeek-V3, arXiv 2412.19437, section 3.3). The
/// weight's codes are the weight; fp32 master.
inline PrecisionPlan fine_grained(const char* name) {
  PrecisionPlan plan = unscaled(name, DType::bf16);
  const TensorFormat vector = blockwise(per::block_1x128, ScaleType::f32);
  const TensorFormat square = blockwise(per::block_128x128, ScaleType::f32);
  plan.fprop = plan.dgrad = gemm_in(vector, square, false);
  plan.wgrad = gemm_in(vector, vector, false);
  plan.saved_activation = vector;
  plan.master_weight = plan.weight;
  plan.weight = plan.parameter_wire = square;
  return plan;
}

}  // namespace fp8train
