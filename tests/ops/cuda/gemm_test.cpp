// GEMMs through cuBLASLt (its fake in the SHIM form) against the cpu's. Plain operands: both
// accumulate in fp32 in another order, so a sum over K terms may differ by about K roundings of its
// magnitude. FP8 operands: fp8_sum_tolerance().

#include "ops/gemm/gemm.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/fp8_gemm_cases.h"

#if defined(FP8TRAIN_CUDA_SHIM)
#include "cublaslt_fake.h"
#endif

namespace fp8train::test {
namespace {

struct Case {
  DType a, b, c;
  bool a_transposed, b_transposed, biased;
};

Array run_case(Side& side, const Case& problem, float beta) {
  const bool scaled = is_fp8(problem.a);
  const auto operand = [&](bool is_second) {
    const bool transposed = is_second ? problem.b_transposed : problem.a_transposed;
    const Shape shape = is_second == transposed ? Shape{is_second ? kGemmN : kGemmM, kGemmK}
                                                : Shape{kGemmK, is_second ? kGemmN : kGemmM};
    const View matrix = side.put(gemm_operand(is_second ? problem.b : problem.a, shape, is_second));
    float* const scale_inv = side.put_value(is_second ? kScaleOfB : kScaleOfA);
    return scaled ? ops::GemmOperand{with_tensor_scale(matrix, scale_inv), transposed}
                  : ops::GemmOperand{matrix, transposed};
  };
  const View c = side.put(gemm_result(problem.c));
  const ops::Gemm call = {.a = operand(false),
                          .b = operand(true),
                          .c = c,
                          .beta = beta,
                          .bias = problem.biased ? ConstView(side.put(gemm_bias())) : ConstView{}};
  ops::gemm(side.stream(), call);
  return side.get(c);
}

void check_case(const Case& problem, float beta) {
  INFO(name_of(problem.a) << " x " << name_of(problem.b) << " -> " << name_of(problem.c) << ", "
                          << problem.a_transposed << problem.b_transposed << ", beta " << beta);
  const auto run = [&](Side& side) { return run_case(side, problem, beta); };
  const double rounding = gemm_rounding(problem.c);
  const double of_sum = is_fp8(problem.a) ? fp8_sum_tolerance(kGemmK) : 2e-5 * kGemmK;
  // cuBLASLt takes the bias (of order 1, < 4) rounded to the type of c.
  const double of_bias = problem.biased && problem.c != DType::f32 ? 4 * rounding : 0.0;
  CHECK(worst_difference(on_cuda(run), on_cpu(run), rounding, of_sum + of_bias) <= 1);
}

TEST_CASE("plain GEMMs of every transposition match the cpu", "[cuda][gemm]") {
  for (const DType type : FloatTypes::kTypes) {
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
  for (const auto& [a, b] : kFp8Operands) {
    check_case({a, b, DType::f32, false, true, false}, 1.0F);
    check_case({a, b, DType::bf16, false, true, true}, 0.0F);
  }
}

TEST_CASE("FP8 operands that no tensor core takes are refused", "[cuda][gemm]") {
  const auto refused = [](const Case& problem) {
    CHECK_THROWS_AS(on_cuda([&](Side& side) { return run_case(side, problem, 0.0F); }), Error);
  };
  refused({DType::e4m3, DType::e4m3, DType::bf16, true, true, false});
  refused({DType::e4m3, DType::e4m3, DType::bf16, false, false, false});
  refused({DType::e5m2, DType::e5m2, DType::bf16, false, true, false});
  refused({DType::e4m3, DType::bf16, DType::bf16, false, true, false});
}

#if defined(FP8TRAIN_CUDA_SHIM)

TEST_CASE("a bias is added by the library where it can", "[cuda][gemm]") {
  struct Kind {
    Case problem;
    bool by_library;
  };
  const Kind kinds[] = {{{DType::f32, DType::f32, DType::f32, false, true, true}, true},
                        {{DType::bf16, DType::bf16, DType::f32, false, true, true}, true},
                        {{DType::bf16, DType::bf16, DType::bf16, false, true, true}, true},
                        {{DType::e4m3, DType::e4m3, DType::f16, false, true, true}, true},
                        {{DType::e4m3, DType::e4m3, DType::f32, false, true, true}, false}};
  for (const Kind& kind : kinds) {
    const uint64_t before = shim::biased_matmuls();
    check_case(kind.problem, 0.0F);
    CHECK(shim::biased_matmuls() == before + (kind.by_library ? 1 : 0));
  }
}

TEST_CASE("a bias that the library refuses is added by our kernel", "[cuda][gemm]") {
  shim::refuse_biases(true);
  const uint64_t before = shim::biased_matmuls();
  const Case problem = {DType::f16, DType::f16, DType::f32, false, true, true};
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  Side side(*device);
  const Array want = on_cpu([&](Side& cpu) { return run_case(cpu, problem, 0.0F); });
  CHECK(worst_difference(run_case(side, problem, 0.0F), want, 0x1p-20, 2e-5 * kGemmK) <= 1);
  const uint64_t asked = shim::heuristics_asked();
  CHECK(worst_difference(run_case(side, problem, 0.0F), want, 0x1p-20, 2e-5 * kGemmK) <= 1);
  shim::refuse_biases(false);
  CHECK(shim::heuristics_asked() == asked);
  CHECK(shim::biased_matmuls() == before);
}

#endif

}  // namespace
}  // namespace fp8train::test
