#pragma once
// Which FP8 products the library of a device has: a table by the scales of both operands, their
// element types, the type of the result and where partial sums are held. It starts with the known
// products of a chip (cuda_traits), and ops::probe_gemms removes those that fail in a trial.

#include <array>
#include <cstddef>
#include <cstdint>

#include "numeric/dtype.h"

namespace fp8train {

/// What shares a scale in the operands a x b.
enum class ScalePair : uint8_t {
  tensor,
  row,
  block_1x128_1x128,
  block_1x128_128x128,
  block_128x128_1x128,
  block_1x32,  ///< 32x32 on either side is the same to a library
  block_1x16,  ///< of e2m1; 16x16 on either side is the same to a library
};
constexpr size_t kScalePairs = 7;

/// "1x128 x 128x128" and the like.
const char* name_of(ScalePair pair);

/// Whether the tensor cores may sum up a product with these scales in their short accumulator:
/// partial sums of blocks of 128 are promoted to fp32 anyway.
constexpr bool has_fast_accumulation(ScalePair pair) {
  return pair == ScalePair::tensor || pair == ScalePair::row || pair == ScalePair::block_1x32;
}

struct Fp8Product {
  ScalePair scales = ScalePair::tensor;
  DType a = DType::e4m3, b = DType::e4m3;  ///< e4m3 or e5m2; e2m1 with block_1x16
  DType c = DType::bf16;                   ///< fp32, bf16 or fp16
  bool fast_accumulate = false;            ///< has no effect without has_fast_accumulation()
};

enum class Fp8Support : uint8_t {
  none,
  aligned,  ///< where M, N and K are multiples of kAlignedExtent
  any,      ///< every shape that keeps the rules of ops/gemm/gemm_support.h
};
constexpr int64_t kAlignedExtent = 128;

class Fp8Products {
 public:
  constexpr explicit Fp8Products(Fp8Support support) { all_.fill(support); }

  constexpr Fp8Support support(const Fp8Product& product) const { return all_[index_of(product)]; }
  constexpr void set(const Fp8Product& product, Fp8Support support) {
    all_[index_of(product)] = support;
  }
  /// Every product with these scales that there is: tensor cores do not multiply E5M2 by E5M2, and
  /// 1x16 is of E2M1 alone.
  constexpr void set(ScalePair pair, Fp8Support support) {
    for (size_t i = 0; i < kPerPair; ++i) {
      const bool two_e5m2 = i >= kPerPair / 4 * 3;
      const bool fast = i % 2 != 0;
      const bool of_type = pair == ScalePair::block_1x16 ? i < kPerPair / 4 : !two_e5m2;
      const bool exists = of_type && (!fast || has_fast_accumulation(pair));
      all_[static_cast<size_t>(pair) * kPerPair + i] = exists ? support : Fp8Support::none;
    }
  }
  /// Whether there is any product with these scales.
  constexpr bool has(ScalePair pair) const {
    bool found = false;
    for (size_t i = 0; i < kPerPair; ++i) {
      found = found || all_[static_cast<size_t>(pair) * kPerPair + i] != Fp8Support::none;
    }
    return found;
  }

  bool operator==(const Fp8Products&) const = default;

 private:
  static constexpr size_t kResults = 3;
  static constexpr size_t kPerPair = 2 * 2 * kResults * 2;

  static constexpr size_t index_of(const Fp8Product& product) {
    const size_t a = product.a == DType::e5m2 ? 1 : 0;
    const size_t b = product.b == DType::e5m2 ? 1 : 0;
    const size_t c = product.c == DType::f32 ? 0 : product.c == DType::bf16 ? 1 : 2;
    const size_t fast = product.fast_accumulate && has_fast_accumulation(product.scales) ? 1 : 0;
    return (((static_cast<size_t>(product.scales) * 2 + a) * 2 + b) * kResults + c) * 2 + fast;
  }

  std::array<Fp8Support, kScalePairs* kPerPair> all_ = {};
};

}  // namespace fp8train
