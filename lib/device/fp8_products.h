#pragma once
// Which FP8 products the library of a device has: a table by the scales of both operands, their
// element types, the type of the result and where partial sums are held. It starts with the known
// products of a chip (cuda_traits), and ops::probe_gemms lowers the support of those that fail in a
// trial. The library itself says which shapes of a product in the table it refuses.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "numeric/with_type.h"

namespace fp8train {

/// The elements of the operands a x b that share a scale.
enum class ScalePair : uint8_t {
  tensor,
  row,
  block_1x128_1x128,
  block_1x128_128x128,
  block_128x128_1x128,
  block_1x32,  ///< 32x32 on either side is the same to a library
  block_1x16,  ///< blocks of e2m1; 16x16 on either side is the same to a library
  count
};
constexpr auto kScalePairs = static_cast<size_t>(ScalePair::count);

/// Returns a text such as "1x128 x 128x128".
const char* name_of(ScalePair pair);

/// Whether the tensor cores may sum up a product with these scales in their short accumulator:
/// partial sums of blocks of 128 are promoted to fp32 anyway.
constexpr bool has_fast_accumulation(ScalePair pair) {
  return pair == ScalePair::tensor || pair == ScalePair::row || pair == ScalePair::block_1x32;
}

/// Codes that tensor cores multiply, and the types of results.
using ProductCodes = TypeList<e4m3, e5m2, e2m1>;
using ProductResults = FloatTypes;

/// Returns why no GPU's tensor cores multiply these codes with these scales, or nothing if some do.
constexpr std::string_view why_no_fp8_product(ScalePair scales, DType a, DType b) {
  const auto is_known = [scales](DType type) {
    return scales == ScalePair::block_1x16 ? type == DType::e2m1
                                           : type == DType::e4m3 || type == DType::e5m2;
  };
  if (scales == ScalePair::block_1x32 && (a == DType::e2m1 || b == DType::e2m1)) {
    return "cuBLASLt multiplies e2m1 with 1x16 scales only";
  }
  if (!is_known(a) || !is_known(b)) {
    return "tensor cores do not multiply these element types with these scales";
  }
  return a == DType::e5m2 && b == DType::e5m2 ? "tensor cores do not multiply e5m2 by e5m2" : "";
}

/// Whether there is such a product on some GPU.
constexpr bool have_product(ScalePair scales, DType a, DType b) {
  return why_no_fp8_product(scales, a, b).empty();
}

/// A product of FP8 codes: the types of operands and result, and the blocks of the scales.
struct Fp8Product {
  ScalePair scales = ScalePair::tensor;
  DType a = DType::e4m3, b = DType::e4m3;  ///< one of ProductCodes
  DType c = DType::bf16;                   ///< one of ProductResults
  bool fast_accumulate = false;            ///< has no effect without has_fast_accumulation()
};

/// The shapes of a product that a library multiplies, in rising order.
enum class Fp8Support : uint8_t {
  none,
  by_128,  ///< if M, N and K are multiples of 128
  by_16,   ///< if they are multiples of 16
  by_8,    ///< if they are multiples of 8
  any,     ///< every shape that keeps the rules of ops/gemm/gemm_support.h
};

/// Returns the number of which M, N and K must be multiples, or 0 for `none`.
constexpr int64_t extent_multiple(Fp8Support support) {
  constexpr int64_t kMultiples[] = {0, 128, 16, 8, 1};
  return kMultiples[static_cast<size_t>(support)];
}

/// The library that multiplies the products of a table, of a device in this machine.
class Fp8Library {
 public:
  virtual ~Fp8Library() = default;
  /// Whether it takes a product in the table for c[m, n] and an inner extent k. An answer is found
  /// once, without work on the device; the first refusal of a kind of product is a warning.
  /// Throws DeviceError if the library fails in another way.
  virtual bool takes(const Fp8Product& product, int64_t m, int64_t n, int64_t k) = 0;
};

/// The products that the tensor cores of a device have.
class Fp8Products {
 public:
  /// Gives every product that there is this support.
  constexpr explicit Fp8Products(Fp8Support support) {
    for (size_t pair = 0; pair < kScalePairs; ++pair) {
      set(static_cast<ScalePair>(pair), support);
    }
  }

  /// Returns `none` if there is no such product.
  constexpr Fp8Support support(const Fp8Product& product) const {
    return have_product(product.scales, product.a, product.b) ? all_[index_of(product)]
                                                              : Fp8Support::none;
  }
  /// Sets the support of a product that the table has.
  constexpr void set(const Fp8Product& product, Fp8Support support) {
    all_[index_of(product)] = support;
  }
  /// Sets the support of every product with these scales that there is.
  constexpr void set(ScalePair pair, Fp8Support support) {
    for (const DType a : ProductCodes::kTypes) {
      for (const DType b : ProductCodes::kTypes) {
        for (const DType c : ProductResults::kTypes) {
          for (const bool fast : {false, true}) {
            if (have_product(pair, a, b)) {
              set({pair, a, b, c, fast}, support);
            }
          }
        }
      }
    }
  }
  /// Whether there is any product with these scales.
  constexpr bool has(ScalePair pair) const {
    const auto* const first = all_.data() + static_cast<size_t>(pair) * kPerPair;
    return std::any_of(first, first + kPerPair,
                       [](Fp8Support support) { return support != Fp8Support::none; });
  }

  bool operator==(const Fp8Products&) const = default;

 private:
  static constexpr size_t kCodes = ProductCodes::count;
  static constexpr size_t kResults = ProductResults::count;
  static constexpr size_t kPerPair = kCodes * kCodes * kResults * 2;

  template <size_t Count>
  static constexpr size_t position(const std::array<DType, Count>& types, DType type) {
    return static_cast<size_t>(std::find(types.begin(), types.end(), type) - types.begin());
  }
  static constexpr size_t index_of(const Fp8Product& product) {
    const size_t a = position(ProductCodes::kTypes, product.a);
    const size_t b = position(ProductCodes::kTypes, product.b);
    const size_t c = position(ProductResults::kTypes, product.c);
    const size_t fast = product.fast_accumulate && has_fast_accumulation(product.scales) ? 1 : 0;
    return (((static_cast<size_t>(product.scales) * kCodes + a) * kCodes + b) * kResults + c) * 2 +
           fast;
  }

  std::array<Fp8Support, kScalePairs* kPerPair> all_ = {};
};

}  // namespace fp8train
