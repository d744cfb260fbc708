// GEMMs through cuBLASLt (its fake in the SHIM form) against the cpu's. Tolerance: both accumulate
// in fp32 in another order, so a sum over K terms may differ by about K roundings of its magnitude.

#include "ops/gemm.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

constexpr int64_t kM = 48;
constexpr int64_t kN = 64;
constexpr int64_t kK = 80;

struct Case {
  DType a, b, c;
  bool a_transposed, b_transposed, biased;
};

Array run_case(Side& side, const Case& problem, float beta) {
  const auto matrix = [&](DType type, int64_t rows, int64_t columns, bool transposed,
                          uint32_t seed) {
    const Shape shape = transposed ? Shape{columns, rows} : Shape{rows, columns};
    return side.put(Array(type, shape, random_values(rows * columns, seed)));
  };
  const bool scaled = is_fp8(problem.a);
  const View c = side.put(Array(problem.c, {kM, kN}, random_values(kM * kN, 5)));
  const ops::Gemm call = {
      .a = {matrix(problem.a, kM, kK, problem.a_transposed, 1), problem.a_transposed,
            scaled ? side.put_value(0.37F) : nullptr},
      .b = {matrix(problem.b, kK, kN, problem.b_transposed, 2), problem.b_transposed,
            scaled ? side.put_value(1.9F) : nullptr},
      .c = c,
      .beta = beta,
      .bias = problem.biased ? ConstView(side.put(Array(DType::f32, {kN}, random_values(kN, 6))))
                             : ConstView{}};
  ops::gemm(side.stream(), call);
  return side.get(c);
}

void check_case(const Case& problem, float beta) {
  INFO(name_of(problem.a) << " x " << name_of(problem.b) << " -> " << name_of(problem.c) << ", "
                          << problem.a_transposed << problem.b_transposed << ", beta " << beta);
  const auto run = [&](Side& side) { return run_case(side, problem, beta); };
  const double rounding = problem.c == DType::f32    ? 0x1p-20
                          : problem.c == DType::bf16 ? 0x1p-7
                                                     : 0x1p-10;
  // cuBLASLt rounds before the bias is added, to the precision of a sum that may be larger (< 64).
  const double before_bias = problem.biased && problem.c != DType::f32 ? 64 * rounding : 0.0;
  CHECK(worst_difference(on_cuda(run), on_cpu(run), rounding, 2e-5 * kK + before_bias) <= 1);
}

TEST_CASE("plain GEMMs of every transposition match the cpu", "[cuda][gemm]") {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        check_case({type, type, DType::f32, a_transposed, b_transposed, false}, 1.0F);
        check_case({type, type, DType::f32, a_transposed, b_transposed, true}, 0.0F);
        check_case({type, type, type, a_transposed, b_transposed, true}, 0.0F);
      }
    }
  }
}

TEST_CASE("FP8 GEMMs along K match the cpu", "[cuda][gemm]") {
  for (const auto& [a, b] : {std::pair{DType::e4m3, DType::e4m3},
                             {DType::e5m2, DType::e4m3},
                             {DType::e4m3, DType::e5m2}}) {
    check_case({a, b, DType::f32, false, true, false}, 1.0F);
    check_case({a, b, DType::bf16, false, true, true}, 0.0F);
  }
}

TEST_CASE("FP8 operands that no tensor core takes are refused", "[cuda][gemm]") {
  const auto refused = [](const Case& problem) {
    CHECK_THROWS_AS(on_cuda([&](Side& side) { return run_case(side, problem, 0.0F); }),
                    InternalError);
  };
  refused({DType::e4m3, DType::e4m3, DType::bf16, true, true, false});
  refused({DType::e4m3, DType::e4m3, DType::bf16, false, false, false});
  refused({DType::e5m2, DType::e5m2, DType::bf16, false, true, false});
  refused({DType::e4m3, DType::bf16, DType::bf16, false, true, false});
}

}  // namespace
}  // namespace fp8train::test
