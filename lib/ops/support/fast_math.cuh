#pragma once
// Exponentials, reciprocals and the activations made of them for results that no code depends on
// to the last bit: SwiGLU, GELU and the exponentials of soft-max. They take the special function
// unit of the GPU and fused multiply-adds; the host branch computes the same formulas with
// correctly rounded operations, and flushes where the GPU does. The same input gives the same bits
// on one architecture. Only for .cu files.
//
// Bounds of the instructions (PTX ISA, "Floating Point Instructions"): ex2.approx.ftz.f32 2 ulp
// over its whole range, 2^-22 relative; rcp.approx.ftz.f32 1 ulp. Both flush subnormal numbers,
// going in and coming out, to zero. Bounds of the functions, which
// tests/ops/cuda/fast_math_test.cpp holds, relative (r) and absolute (a) added:
//
//   exp_fast         r = 2^-21 + |x| 2^-23, a = 2^-126
//   silu             r = 2^-20 + |x| 2^-23, a = 2^-119
//   silu_derivative  r = 0, a = 2^-18
//   gelu_tanh        r = 2^-15, a = 2^-122; 2^-20 relative from -1 on
//   gelu_derivative  r = 0, a = 2^-18
//
// So a value rounded to bf16 or fp16 is the nearest or its neighbour, derivatives within 2^-18.

#include <cmath>
#include <cstdint>

#include "ops/support/launch.cuh"

namespace fp8train::ops::cuda {

/// 2^x: 0 for results below 2^-126, infinity from 128 on, NaN stays.
__device__ __forceinline__ float exp2_fast(float x) {
#if defined(FP8TRAIN_CUDA_SHIM)
  const float result = std::exp2(x);
  return result < 0x1p-126F ? 0.0F : result;
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/// 1 / x: 0 where |x| is above 2^126, infinity for subnormal x, NaN stays.
__device__ __forceinline__ float reciprocal_fast(float x) {
#if defined(FP8TRAIN_CUDA_SHIM)
  const float magnitude = std::fabs(x);
  return std::copysign(
      magnitude > 0x1p126F ? 0.0F : (magnitude < 0x1p-126F ? INFINITY : 1.0F / magnitude), x);
#else
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

/// The larger of x and low; NaN stays.
__device__ __forceinline__ float at_least(float x, float low) {
#if defined(FP8TRAIN_CUDA_SHIM)
  return x < low ? low : x;
#else
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(low));
  return result;
#endif
}

/// The smaller of x and high; NaN stays.
__device__ __forceinline__ float at_most(float x, float high) {
#if defined(FP8TRAIN_CUDA_SHIM)
  return x > high ? high : x;
#else
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(high));
  return result;
#endif
}

constexpr float kLog2E = 1.44269504F;

/// e^x for x <= 0: the numerators of a soft-max.
__device__ __forceinline__ float exp_fast(float x) {
  return exp2_fast(x * kLog2E);
}

struct SiluFast {
  float sigmoid, value;
};
/// sigmoid(x) and x * sigmoid(x); -0 at -infinity, infinity at infinity.
__device__ __forceinline__ SiluFast silu_parts(float x) {
  // -128 makes the exponential infinite and sigmoid 0, where -infinity would give infinity * 0.
  const float limited = at_least(x, -128.0F);
  const float sigmoid = reciprocal_fast(1.0F + exp2_fast(limited * -kLog2E));
  return {sigmoid, limited * sigmoid};
}

__device__ __forceinline__ float silu_fast(float x) {
  return silu_parts(x).value;
}

/// d silu / dx = s + silu * (1 - s). Above 32, 1 - s is 0 or one rounding of s: silu is limited so
/// that this rounding stays small.
__device__ __forceinline__ float silu_derivative_fast(const SiluFast& of) {
  return fmaf(at_most(of.value, 32.0F), 1.0F - of.sigmoid, of.sigmoid);
}

/// -u(x) / ln 2 = x * (kGeluLinear + kGeluCubed * x^2), u(x) = 2 sqrt(2 / pi) (x + 0.044715 x^3):
/// GELU in its tanh form is x * sigmoid(u).
constexpr double kGeluU = 1.5957691216057308;
constexpr double kGeluCube = 0.044715;
constexpr auto kGeluLinear = static_cast<float>(-kGeluU * 1.4426950408889634);
constexpr auto kGeluCubed = static_cast<float>(-kGeluU * kGeluCube * 1.4426950408889634);

/// GELU in its tanh form; -0 at -infinity, infinity at infinity.
__device__ __forceinline__ float gelu_tanh_fast(float x) {
  const float limited = at_least(x, -32.0F);
  const float z = exp2_fast(limited * fmaf(limited * limited, kGeluCubed, kGeluLinear));
  return limited * reciprocal_fast(1.0F + z);
}

/// d gelu_tanh / dx = s + x * s * (1 - s) * u'. Beyond +-10, where it is 0 or 1, x is limited so
/// that z stays finite: then 1 - s is z * s, without cancellation.
__device__ __forceinline__ float gelu_tanh_derivative_fast(float x) {
  const float limited = at_most(at_least(x, -10.0F), 10.0F);
  const float square = limited * limited;
  const float z = exp2_fast(limited * fmaf(square, kGeluCubed, kGeluLinear));
  const float s = reciprocal_fast(1.0F + z);
  const float slope =
      fmaf(square, static_cast<float>(3 * kGeluU * kGeluCube), static_cast<float>(kGeluU));
  return fmaf(limited * s * (z * s), slope, s);
}

}  // namespace fp8train::ops::cuda
