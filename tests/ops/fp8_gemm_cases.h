#pragma once
// The FP8 products that devices are compared on, and how far their sums may be apart.

#include <cstdint>
#include <utility>

#include "ops/op_test_support.h"

namespace fp8train::test {

constexpr int64_t kGemmM = 48;
constexpr int64_t kGemmN = 64;
constexpr int64_t kGemmK = 80;
constexpr float kScaleOfA = 0.37F;
constexpr float kScaleOfB = 1.9F;

/// Element types of the operands that tensor cores multiply.
constexpr std::pair<DType, DType> kFp8Operands[] = {
    {DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}};

inline Array gemm_operand(DType type, const Shape& shape, bool is_second) {
  return {type, shape, random_values(shape.count(), is_second ? 2 : 1)};
}
inline Array gemm_result(DType type) {
  return {type, {kGemmM, kGemmN}, random_values(kGemmM * kGemmN, 5)};
}
inline Array gemm_bias() {
  return {DType::f32, {kGemmN}, random_values(kGemmN, 6)};
}

/// The absolute part of the tolerance of FP8 products whose terms are of order 1.5. Tensor cores of
/// Hopper, and of Ada, align the 32 products of an instruction to the largest and cut them off at
/// 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.5.2), whether or not sums are promoted to fp32
/// afterwards: each of the K terms loses up to a unit of the largest, 2^-13, and half of it on
/// average.
constexpr double fp8_sum_tolerance(int64_t k) {
  return 1.5 * 0x1p-14 * static_cast<double>(k);
}

/// The relative part: what one rounding to the result's type may move, twice.
constexpr double gemm_rounding(DType result) {
  return result == DType::f32 ? 0x1p-20 : result == DType::bf16 ? 0x1p-7 : 0x1p-10;
}

}  // namespace fp8train::test
