#pragma once
// Conversions that kernels do in pairs through the GPU's cvt instructions, with the same results as
// the functions of numeric/convert.h, which take about twenty integer operations per FP8 code: a
// memory-bound kernel has no time for them. Inline PTX, always exact; older chips and the host take
// the plain functions.
//
// Why the results are the same: cvt.rn.satfinite to e4m3 and e5m2 rounds to nearest even, clamps
// what is beyond the largest finite value, infinities included, keeps the sign of zero, rounds into
// the subnormals and writes 0x7F for every NaN, whatever its sign and payload; numeric/convert.h
// was defined to agree. cvt.rn.bf16x2 and cvt.rn.f16x2 write 0x7FFF for NaN and overflow to
// infinity. That a chip keeps to this cannot be shown on the host; the tests of tests/ops/cuda run
// all 2^16 patterns of bf16 and fp16 through every encode, and all codes through the decode.

#include <cstdint>

#include "numeric/bits.h"
#include "numeric/convert.h"
#include "ops/support/launch.cuh"

#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
#define FP8TRAIN_HARDWARE_FP8 1
#endif
#define FP8TRAIN_HARDWARE_FP16 1
#endif

namespace fp8train::ops::cuda {

// A type without an instance here does not compile.

/// encode<Code>(low) in bits 0..7 and encode<Code>(high) in bits 8..15.
template <typename Code>
__device__ __forceinline__ uint32_t encode_pair(float low, float high) = delete;

template <>
__device__ __forceinline__ uint32_t encode_pair<e4m3>(float low, float high) {
#if defined(FP8TRAIN_HARDWARE_FP8)
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return encode<e4m3>(low).bits | static_cast<uint32_t>(encode<e4m3>(high).bits) << 8;
#endif
}

template <>
__device__ __forceinline__ uint32_t encode_pair<e5m2>(float low, float high) {
#if defined(FP8TRAIN_HARDWARE_FP8)
  uint16_t codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return encode<e5m2>(low).bits | static_cast<uint32_t>(encode<e5m2>(high).bits) << 8;
#endif
}

/// cvt.rni.sat.s8.f32 would give -128.
template <>
__device__ __forceinline__ uint32_t encode_pair<int8_t>(float low, float high) {
  return static_cast<uint8_t>(encode<int8_t>(low)) |
         static_cast<uint32_t>(static_cast<uint8_t>(encode<int8_t>(high))) << 8;
}

/// Values of an fp16 pair, the low half first. Exact; a NaN gives some NaN.
__device__ __forceinline__ void widen_f16_pair(uint32_t pair, float& low, float& high) {
#if defined(FP8TRAIN_HARDWARE_FP16)
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.f32.f16 %0, l;\n cvt.f32.f16 %1, h;\n}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
#else
  low = decode(f16{static_cast<uint16_t>(pair)});
  high = decode(f16{static_cast<uint16_t>(pair >> 16)});
#endif
}

/// Values of the codes in bits 0..7 and 8..15. Exact, since every code is an fp16 number; a NaN
/// gives some NaN.
template <typename Code>
__device__ __forceinline__ void decode_pair(uint32_t codes, float& low, float& high) = delete;

template <>
__device__ __forceinline__ void decode_pair<e4m3>(uint32_t codes, float& low, float& high) {
#if defined(FP8TRAIN_HARDWARE_FP8)
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  widen_f16_pair(halves, low, high);
#else
  low = decode(e4m3{static_cast<uint8_t>(codes)});
  high = decode(e4m3{static_cast<uint8_t>(codes >> 8)});
#endif
}

/// An e5m2 code is the upper byte of an fp16 number.
template <>
__device__ __forceinline__ void decode_pair<e5m2>(uint32_t codes, float& low, float& high) {
  widen_f16_pair(((codes & 0xFFU) << 8) | ((codes & 0xFF00U) << 16), low, high);
}

template <>
__device__ __forceinline__ void decode_pair<int8_t>(uint32_t codes, float& low, float& high) {
  low = decode(static_cast<int8_t>(codes & 0xFFU));
  high = decode(static_cast<int8_t>(codes >> 8 & 0xFFU));
}

/// Returns the bits of two results of store_from_float() (numeric/convert.h) in one word.
template <typename Y>
__device__ __forceinline__ uint32_t narrow_pair(float low, float high) = delete;

template <>
__device__ __forceinline__ uint32_t narrow_pair<bf16>(float low, float high) {
#if defined(FP8TRAIN_HARDWARE_FP16)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return encode<bf16>(low).bits | static_cast<uint32_t>(encode<bf16>(high).bits) << 16;
#endif
}

template <>
__device__ __forceinline__ uint32_t narrow_pair<f16>(float low, float high) {
#if defined(FP8TRAIN_HARDWARE_FP16)
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return encode_no_saturate<f16>(low).bits |
         static_cast<uint32_t>(encode_no_saturate<f16>(high).bits) << 16;
#endif
}

}  // namespace fp8train::ops::cuda
