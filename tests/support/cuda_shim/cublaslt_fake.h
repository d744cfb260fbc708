#pragma once
// What tests ask of the fake cuBLASLt of the host shim. The fake refuses what the library refuses
// (research notes on its FP8 rules: TN layout, K and pointers in multiples of 16, no two E5M2,
// result types, scale modes by chip), remembers why, and computes the product in fp32.

#include <cstdint>
#include <string>

namespace fp8train::shim {

struct MatmulRecord {
  int64_t m = 0, n = 0, k = 0;  ///< cuBLASLt's: the result is n columns of m
  int a_type = 0, b_type = 0, d_type = 0;
  bool a_transposed = false, b_transposed = false, fast_accumulate = false;
  float beta = 0.0F;
};

/// Products computed so far, and the last one.
uint64_t matmuls();
const MatmulRecord& last_matmul();

/// Heuristic questions asked so far: each is a plan that was made.
uint64_t heuristics_asked();

/// Why the last call was refused.
const std::string& last_refusal();

}  // namespace fp8train::shim
