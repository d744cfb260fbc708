#pragma once
// The scale modes of the fake cuBLASLt: which it refuses, and where the scale of an element lies.
// Written after cuBLAS's documentation ("Narrow precision data types usage": scaling factor
// layouts), not after the library that is tested.

#include <cublasLt.h>

#include <cstdint>

namespace fp8train::shim {

/// One operand as the call describes it. `rows`: M of cuBLASLt's A, N of its B.
struct ScaledSide {
  int32_t mode;
  const void* scales;
  int64_t rows, k;
};

/// Why the library refuses the modes on a chip of that capability (89, 90, 100, ...); null where it
/// takes them.
const char* why_refused(const ScaledSide& a, const ScaledSide& b, int capability);

/// Consecutive elements along K that have one scale.
int64_t scaled_length(const ScaledSide& side);

/// The factor of the element at (row, k).
float scale_at(const ScaledSide& side, int64_t row, int64_t k);

}  // namespace fp8train::shim
