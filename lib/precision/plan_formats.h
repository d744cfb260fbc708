#pragma once
// The formats that several plans share, by name, so that plans.cpp reads like a table.

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

}  // namespace fp8train
