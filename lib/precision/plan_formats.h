#pragma once
// The formats and GEMMs that several plans share, by name, so that plans.cpp reads like a table.

#include <utility>

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
  plan.for_each_operand(change);
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
/// own last 16 optimizer steps, and with a current one in the first 16 and in the 16 after a value
/// that is not finite (MS-AMP, optim/optimizer.py).
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

/// Returns the format with the smallest amax from which a scale is made (EPS of
/// torchao/float8/float8_utils.py). The source's division in fp64, rounded to fp32 once, has the
/// bits of an fp32 division.
inline TensorFormat with_epsilon(TensorFormat format) {
  format.amax_epsilon = 1e-12F;
  return format;
}

/// Returns a plan with all operands in one format.
inline PrecisionPlan in_one_format(const char* name, const TensorFormat& format, bool fast_fprop) {
  PrecisionPlan plan = unscaled(name, DType::bf16);
  plan.fprop = gemm_in(format, format, fast_fprop);
  plan.dgrad = plan.wgrad = gemm_in(format, format, false);
  plan.saved_activation = format;
  return plan;
}

/// Returns a plan with E4M3 everywhere, 1x128 for x and dy (128x1 in wgrad), 128x128 for w, split
/// accumulation.
inline PrecisionPlan in_blocks_of_128(const char* name, ScaleType scale_type) {
  PrecisionPlan plan = in_one_format(name, blockwise(per::block_1x128, scale_type), false);
  plan.fprop.b = plan.dgrad.b = blockwise(per::block_128x128, scale_type);
  return plan;
}

/// Returns a plan with fine-grained scaling: blocks of 128 with fp32 scales (DeepSeek-V3, arXiv
/// 2412.19437, section 3.3). The weight's codes are the weight; fp32 master.
inline PrecisionPlan fine_grained(const char* name) {
  PrecisionPlan plan = in_blocks_of_128(name, ScaleType::f32);
  plan.master_weight = plan.weight;
  plan.weight = plan.parameter_wire = plan.fprop.b;
  return plan;
}

/// Returns a plan with E4M3 forward and E5M2 gradients, one power-of-two scale per tensor (MS-AMP's
/// linear layers, msamp/nn/functional.py, common/tensor/meta.py): of x and dy from a window, of w
/// current, once per step. Fast accumulation in fprop only.
inline PrecisionPlan gemms_by_window(const char* name) {
  PrecisionPlan plan = unscaled(name, DType::bf16);
  const TensorFormat x = windowed_by_step(DType::e4m3);
  const TensorFormat dy = windowed_by_step(DType::e5m2);
  plan.fprop = gemm_in(x, stored_by_tensor(DType::e4m3), true);
  plan.dgrad = gemm_in(dy, plan.fprop.b, false);
  plan.wgrad = gemm_in(dy, x, false);
  plan.saved_activation = x;
  return plan;
}

/// Returns the plan with FP16 weights with a scale that are their own master and E4M3 weight
/// gradients (MS-AMP O1, docs/user-tutorial/optimization-level.md); on several ranks gradients are
/// bf16 until the wire (running_gradient()).
inline PrecisionPlan with_storage_o1(PrecisionPlan plan) {
  plan.weight = stored_by_tensor(DType::f16);
  plan.weight_gradient = plan.gradient_wire = stored_by_tensor(DType::e4m3);
  return plan;
}

/// O2: and moments in E4M3 and FP16.
inline PrecisionPlan with_storage_o2(PrecisionPlan plan) {
  plan = with_storage_o1(std::move(plan));
  plan.moment1 = stored_by_tensor(DType::e4m3);
  plan.moment2 = stored_by_tensor(DType::f16);
  return plan;
}

/// O3: and E4M3 weights, which is also how they cross the wire, with an FP16 master. Gradients
/// cross as in O1 and O2 (MS-AMP has O3 in its ZeRO optimizers only, which round them with every
/// micro-batch).
inline PrecisionPlan with_storage_o3(PrecisionPlan plan) {
  plan = with_storage_o2(std::move(plan));
  plan.master_weight = plan.weight;
  plan.weight = plan.parameter_wire = plan.fprop.b;
  return plan;
}

}  // namespace fp8train
