#pragma once
// AdamW calls on arrays of a test, for the tests on the cpu and on cuda.

#include "numeric/scale.h"
#include "ops/op_test_support.h"
#include "ops/optimizer/optimizer.h"

namespace fp8train::test {

/// What is wanted of the cast of a new weight.
struct WeightCast {
  bool codes, transposed, statistics;
  DType type = DType::e4m3;
};

inline constexpr WeightCast kWeightCasts[] = {{false, false, false},
                                              {true, false, false},
                                              {false, true, false},
                                              {true, true, false, DType::e5m2},
                                              {true, true, true}};

inline TensorFormat moment_format(DType dtype, ScaleBlock block, ScaleType type) {
  TensorFormat format = plain(dtype);
  format.policy = ScalePolicy::current;
  format.block = block;
  format.scale_type = type;
  return format;
}
inline TensorFormat by_tensor(DType dtype, ScaleType type = ScaleType::f32) {
  return moment_format(dtype, per::tensor, type);
}
inline TensorFormat by_group(DType dtype, ScaleType type = ScaleType::f32) {
  return moment_format(dtype, per::group(128), type);
}
inline TensorFormat in_groups_of(int32_t elements, TensorFormat format) {
  format.block = per::group(elements);
  return format;
}

inline TensorFormat stochastic(TensorFormat format) {
  format.rounding = Rounding::stochastic;
  return format;
}
/// Dynamic range expansion.
inline TensorFormat expanded() {
  TensorFormat format = by_group(DType::e4m3);
  format.expanded = true;
  return format;
}

/// Formats of the two moments. It holds all that there are, and what methods combine.
struct MomentFormats {
  TensorFormat first, second;
};

inline std::vector<MomentFormats> moment_formats() {
  return {{plain(DType::bf16), plain(DType::bf16)},
          {by_tensor(DType::e4m3, ScaleType::pow2), by_tensor(DType::f16, ScaleType::pow2)},
          {by_tensor(DType::e5m2), by_tensor(DType::bf16)},
          {by_group(DType::e4m3), by_group(DType::f16)},
          {by_group(DType::e4m3, ScaleType::pow2), by_group(DType::e4m3)},
          {by_group(DType::bf16), by_group(DType::e5m2)},
          {plain(DType::f32), by_tensor(DType::e4m3)},
          {by_group(DType::e5m2), plain(DType::f32)}};
}

/// Formats of all that AdamW reads and writes.
struct StoredFormats {
  TensorFormat weight, gradient;
  MomentFormats moments;
};

/// Each kind of weight, of gradient, of stochastic and of expanded moment.
inline std::vector<StoredFormats> stored_formats() {
  const TensorFormat fp32 = plain(DType::f32);
  const TensorFormat bf16 = plain(DType::bf16);
  return {
      {bf16, bf16, {bf16, bf16}},
      {stochastic(bf16), fp32, {fp32, fp32}},
      {master_halves(), bf16, {by_group(DType::e4m3), by_tensor(DType::f16)}},
      {by_tensor(DType::f16),
       by_tensor(DType::e4m3),
       {by_tensor(DType::e4m3), by_tensor(DType::f16)}},
      {stochastic(by_tensor(DType::f16, ScaleType::pow2)), by_group(DType::e5m2), {fp32, bf16}},
      {by_group(DType::f16), by_tensor(DType::f16), {expanded(), expanded()}},
      {stochastic(by_group(DType::f16)),
       by_group(DType::f16, ScaleType::pow2),
       {stochastic(by_group(DType::e4m3)), stochastic(by_tensor(DType::f16))}},
      {by_group(DType::e4m3), by_group(DType::e4m3), {by_group(DType::e4m3), by_group(DType::f16)}},
      {stochastic(by_tensor(DType::e4m3)),
       by_tensor(DType::e5m2),
       {stochastic(bf16), stochastic(bf16)}},
      {fp32, bf16, {by_group(DType::e4m3), stochastic(by_group(DType::e5m2))}},
      {fp32, fp32, {expanded(), stochastic(expanded())}}};
}

inline ops::StepControl adamw_control(bool skip, int64_t steps = 1234) {
  ops::StepControl control{};
  control.lr = 3e-4;
  control.gradient_factor = 0.37F;
  control.loss_scale = 1.0F;
  control.skip = skip ? 1 : 0;
  control.applied_steps = steps;
  return control;
}

}  // namespace fp8train::test
