#pragma once
// What releases of cuBLASLt have refused or computed wrongly on single shapes, for the fake: tests
// switch one on. The fake without faults takes every shape that the documentation allows.

#include <cublasLt.h>

#include <cstdint>

#include "cublaslt_product.h"
#include "cublaslt_scales.h"

namespace fp8train::shim {

/// Algorithms of the fake, numbered from 1 in the order in which they are suggested.
constexpr uint64_t kFastest = 3;
constexpr uint64_t kRefused = 4;     // suggested, but does not run
constexpr uint64_t kReducesInD = 5;  // with faults.reduces_in_d: suggested first
constexpr int64_t kSplitK = 4;       // parts of algorithms 3 and 5
constexpr int64_t kTileK = 64;       // elements of K that they read at once

struct CublasLtFaults {
  /// With 1x128 scales M and N are multiples of this (TransformerEngine cublaslt_gemm.cu: 8).
  int64_t vector_multiple = 4;
  /// Row scales with N up to this and a large K are refused (torchao #4582: 256 and 9216).
  int64_t few_rows = 0, large_k = 9216;
  /// The fastest algorithm leaves out what K has beyond multiples of its tile (triton #2767).
  bool drops_tail = false;
  /// The favourite adds the parts of split-K in the type of D, where the preference allows that
  /// (PyTorch #153095).
  bool reduces_in_d = false;
};

CublasLtFaults& faults();

/// Why a product is refused because of a fault; null where it is not. Sides as in why_refused().
const char* why_faulty(const ScaledSide& a, const ScaledSide& b);

/// How an algorithm computes a product of an inner extent k, alpha and beta left out.
Factors factors_of(uint64_t algorithm, int64_t k, bool scales_are_ignored);

}  // namespace fp8train::shim
