// Products of int8 codes have the exact sum, rounded once, in every kind of units: it is compared
// with sums in 64-bit integers, bit for bit.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "numeric/convert.h"
#include "ops/gemm/gemm_support.h"
#include "ops/scaled_gemm_cases.h"
#include "support/environment.h"

namespace fp8train::test {
namespace {

struct Problem {
  int64_t m, n, k;
};
// Depths about those of one fp32 sum (1024) and of one int32 sum (65536), and extents about tiles.
constexpr Problem kProblems[] = {{1, 1, 1},      {33, 48, 80},  {70, 37, 65},  {130, 257, 129},
                                 {5, 40, 1023},  {6, 33, 1024}, {7, 3, 1025},  {130, 270, 2100},
                                 {64, 64, 4096}, {3, 3, 65536}, {3, 5, 140000}};

/// Codes of a matrix [rows, k]: rows of the largest code and of its negative, of codes near them,
/// and of codes of any size.
std::vector<float> extreme_codes(int64_t rows, int64_t k, uint32_t seed) {
  std::vector<float> codes = random_values(rows * k, seed, 60.0F);
  for (int64_t i = 0; i < rows * k; ++i) {
    float& code = codes[static_cast<size_t>(i)];
    const float any = std::clamp(std::round(code), -127.0F, 127.0F);
    const float near_largest = 127.0F - std::abs(std::round(any / 8));
    const float by_row[] = {127.0F, -127.0F, near_largest, -near_largest, any};
    code = by_row[i / k % 5];
  }
  return codes;
}

struct Operand {
  Operand(int64_t rows, int64_t k, uint32_t seed)
      : format(blockwise_format(DType::i8, per::row)),
        codes(DType::i8, {rows, k}, extreme_codes(rows, k, seed)),
        scales(DType::f32, {rows}, random_values(rows, seed + 10)) {}

  ops::GemmOperand operand(bool transposed) {
    return {with_cast_scales(codes, format, scales, nullptr, ScaleLayout::row_major), transposed};
  }

  TensorFormat format;
  Array codes, scales;
};

struct Case {
  explicit Case(const Problem& p, DType c_type = DType::f32)
      : problem(p),
        a(p.m, p.k, 1),
        b(p.n, p.k, 2),
        c(c_type, {p.m, p.n}, random_values(p.m * p.n, 3)),
        bias(DType::f32, {p.n}, random_values(p.n, 4)) {
    if (p.n > 1) {  // casts have no -128, but weights of other programs may
      std::fill_n(b.codes.as<int8_t>() + p.k, p.k, int8_t{-128});
    }
  }

  ops::Gemm call() { return {.a = a.operand(false), .b = b.operand(true), .c = c}; }

  /// The exact sum, rounded to fp32.
  float sum(int64_t i, int64_t j) const {
    const auto* x = reinterpret_cast<const int8_t*>(a.codes.bytes().data()) + i * problem.k;
    const auto* w = reinterpret_cast<const int8_t*>(b.codes.bytes().data()) + j * problem.k;
    int64_t exact = 0;
    for (int64_t l = 0; l < problem.k; ++l) {
      exact += int64_t{x[l]} * w[l];
    }
    return static_cast<float>(exact);
  }

  /// The elements that differ from that sum, times both scales, plus `before` and the bias.
  int64_t count_different(const Array* before, bool biased) const {
    int64_t different = 0;
    for (int64_t i = 0; i < problem.m; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        float want = sum(i, j) * (a.scales.get(i) * b.scales.get(j));
        want = before == nullptr ? want : want + before->get(i * problem.n + j);
        want = biased ? want + bias.get(j) : want;
        want = c.dtype() == DType::bf16 ? decode(encode<bf16>(want)) : want;
        different += want != c.get(i * problem.n + j) ? 1 : 0;
      }
    }
    return different;
  }

  Problem problem;
  Operand a, b;
  Array c, bias;
};

TEST_CASE("products of int8 codes are the exact sums, rounded once", "[scaled_gemm]") {
  for (const Problem& problem : kProblems) {
    for (const int threads : {1, 2, 3}) {
      INFO(problem.m << " x " << problem.n << " x " << problem.k << ", threads " << threads);
      set_threads(threads);
      Case plain(problem, DType::bf16);
      ops::gemm(cpu_stream(), plain.call());
      CHECK(plain.count_different(nullptr, false) == 0);
      Case o(problem);
      const Array before = o.c;
      ops::Gemm call = o.call();
      call.beta = 1.0F;
      call.bias = o.bias;
      ops::gemm(cpu_stream(), call);
      CHECK(o.count_different(&before, true) == 0);
      set_threads(default_threads());
    }
  }
}

TEST_CASE("a packed operand of int8 codes gives the same sums", "[scaled_gemm]") {
  const test::EnvironmentScope packs("FP8TRAIN_CPU_PACK", "1");
  for (const Problem& problem : kProblems) {
    INFO(problem.m << " x " << problem.n << " x " << problem.k);
    Case o(problem);
    ops::Gemm call = o.call();
    std::vector<uint8_t> packed(ops::packed_bytes(DeviceTraits{}, call.b));
    const View memory = {packed.data(), DType::u8, {static_cast<int64_t>(packed.size())}};
    if (!packed.empty()) {
      ops::pack_operand(cpu_stream(), call.b, memory);
    }
    call.b.packed = memory;
    ops::gemm(cpu_stream(), call);
    CHECK(o.count_different(nullptr, false) == 0);
  }
}

TEST_CASE("int8 units read codes as they are, within the memory that is counted", "[scaled_gemm]") {
  const bool has_units = std::string(ops::cpu_gemm_engine(DType::i8)).starts_with("int8 (");
  set_threads(1);  // each has a scratchpad
  for (const Problem& problem : {Problem{130, 257, 512}, Problem{130, 257, 4096}}) {
    Case o(problem);
    ops::Gemm call = o.call();
    const size_t bytes = ops::gemm_scratch_bytes(DeviceTraits{}, call);
    const auto [m, n, k] = problem;
    CHECK((bytes < static_cast<size_t>(m * n * 4 + (m + n) * k)) == has_units);
    std::vector<uint8_t> scratch(bytes + 256);
    const size_t to_aligned = 256 - reinterpret_cast<uintptr_t>(scratch.data()) % 256;
    call.scratch = {scratch.data() + to_aligned, DType::u8, {static_cast<int64_t>(bytes)}};
    const size_t before = ops::cpu_gemm_workspace_bytes();
    ops::gemm(cpu_stream(), call);
    CHECK(ops::cpu_gemm_workspace_bytes() == before);
    CHECK(o.count_different(nullptr, false) == 0);
  }
  set_threads(default_threads());
}

}  // namespace
}  // namespace fp8train::test
