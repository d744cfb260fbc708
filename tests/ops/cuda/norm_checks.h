#pragma once
// Norms on the cuda device against the cpu's: cases, tolerances and the comparison.

#include <catch2/catch.hpp>

#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test::norms {

// Two results that are off by a few roundings of fp32 each may be rounded to neighbours of their
// type, which are 2 roundings apart. What is added: sums over a row of up to 13000 values of the
// size of 1 by trees are off by about 20 roundings at magnitudes of up to 30, 2^-15 with room for
// the cancellation in dx. Sums over up to 130 rows have the tolerance of the cpu's, twice.
constexpr double kCancellation = 0x1p-15;
inline double neighbours(DType type) {
  return type == DType::bf16 ? 0x1p-7 : type == DType::f16 ? 0x1p-10 : 0x1p-20;
}

struct Case {
  int64_t rows, n;
  bool adversarial = false;
  int64_t offset = 0;  // elements by which every tensor is less aligned
};

// Odd widths, offsets and types other than bf16 take the kernels for any row; 18000 columns do so
// for their length, and 26000 have their sums over rows in memory. 40, 136: a team of a few
// threads; 1000: of a warp; 1304 of 64 threads, 4096 of 128 to 256, 5128 of a number that is no
// power of two. 48 and 32 rows have transposed codes written by the norm's own kernel.
inline const Case kCases[] = {
    {1, 1},         {5, 7},        {67, 40},          {3, 1000},     {4, 520},           {130, 64},
    {9, 136, true}, {2, 77, true}, {3, 72, false, 1}, {2, 13000},    {35, 1304},         {33, 4096},
    {3, 5128},      {2, 18000},    {2, 26000},        {5, 9, false}, {70, 24, false, 8}, {48, 40},
    {32, 1304}};

inline Array values_of(const Case& c, DType type, uint32_t seed) {
  const int64_t count = c.rows * c.n;
  return Array(type, {c.rows, c.n},
               c.adversarial ? adversarial_values(count, seed) : random_values(count, seed));
}

inline Array weight_of(const Case& c, uint32_t seed) {
  return Array(DType::f32, {c.n}, random_values(c.n, seed));
}

/// Every output of cuda is the cpu's within its tolerance: relative to its type, or a sum over
/// rows.
template <typename Run>
inline void check_near(const char* what, const Case& c, DType x, DType y, Run&& run) {
  INFO(what << " of " << c.rows << " x " << c.n << ", " << name_of(x) << " and " << name_of(y)
            << ", offset " << c.offset << (c.adversarial ? ", adversarial" : ""));
  const std::vector<Array> cuda = on_cuda(run);
  const std::vector<Array> cpu = on_cpu(run);
  REQUIRE(cuda.size() == cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    INFO("output " << i);
    CHECK(worst_difference(cuda[i], cpu[i], neighbours(cpu[i].dtype()), kCancellation) <= 1);
  }
}

}  // namespace fp8train::test::norms
