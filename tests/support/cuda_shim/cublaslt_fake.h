#pragma once
// What tests ask of the fake cuBLASLt of the host shim. The fake refuses what the library refuses
// (research notes on its FP8 rules: TN layout, K and pointers in multiples of 16, no two E5M2,
// result types, bias types, scale modes by chip), says why in its status text, and computes the
// product in fp32.

#include <cublasLt.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace fp8train::shim {

/// Products computed so far.
uint64_t matmuls();

/// Those of them that added a bias.
uint64_t biased_matmuls();

/// Whether no algorithm is suggested for products with a bias.
void refuse_biases(bool refused);

/// Heuristic questions asked so far: each is a plan that was made.
uint64_t heuristics_asked();

/// The numbers of the algorithms of the products submitted since it was last asked; 1 is the
/// library's favourite, 3 the fastest, 4 is suggested but does not run.
std::vector<int> take_algorithms();

/// A product c = a b as its caller sees it: cuBLASLt's B is a, and its A is b.
struct AskedProduct {
  int64_t m, n, k;
  cudaDataType_t a, b, c;
  int32_t a_scales, b_scales;  ///< cublasLtMatmulMatrixScale_t
  bool fast_accumulate;
};
/// Products end with the status that `answer` gives; null: they do as the library does. Its status
/// text is then "refused by the test".
void answer_products(std::function<cublasStatus_t(const AskedProduct&)> answer);

/// Whether products leave out their scales, as a defective release of the library might.
void ignore_scales(bool ignored);

}  // namespace fp8train::shim
