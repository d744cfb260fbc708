#include "ops/gemm/gemm.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "numeric/with_type.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm_problem.h"
#include "support/environment.h"

namespace fp8train::test {
namespace {

/// Largest |got - want| over rounding * |want| + 2^-20 * (scale * sum |a b| + |old c| + |bias|): an
/// fp32 sum of up to 1000 products in any order stays within that (blocked kernels keep many
/// partial sums, so errors do not add up one after the other).
double worst_gemm_error(const Operands& o, const Array& before, double scale, bool add,
                        bool biased) {
  const Problem& p = o.problem;
  const double rounding = p.c_type == DType::bf16 ? 0x1p-8 : p.c_type == DType::f16 ? 0x1p-11 : 0;
  double worst = 0;
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        const double term = o.a_at(i, l) * o.b_at(l, j) * scale;
        sum += term;
        magnitude += std::abs(term);
      }
      const double old = add ? before.get(i * p.n + j) : 0;
      const double offset = biased ? o.bias.get(j) : 0;
      const double want = sum + old + offset;
      const double bound = rounding * std::abs(want) +
                           0x1p-20 * (magnitude + std::abs(old) + std::abs(offset)) + 1e-30;
      const double error = std::abs(o.c.get(i * p.n + j) - want) / bound;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

TEST_CASE("gemm of every type and transposition matches double precision", "[gemm]") {
  float scale_a = 0.37F;
  float scale_b = 1.9F;
  for (const auto& [a_type, b_type] : operand_types()) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        for (const DType c_type : FloatTypes::kTypes) {
          for (const int variant : {0, 1, 2, 3}) {
            const bool scaled = (variant & 1) != 0 && c_type != DType::f16;
            const bool biased = (variant & 2) != 0;
            Problem p = {33, 48, 80, a_type, b_type, c_type, a_transposed, b_transposed};
            if (variant == 3) {
              p.m = 70;
              p.n = 37;
              p.k = 65;
            }
            // fp16 results must not overflow: their operands are taken in fp16 alone.
            if (c_type == DType::f16 && is_fp8(a_type) && is_fp8(b_type)) {
              continue;
            }
            INFO(name_of(a_type) << " x " << name_of(b_type) << " -> " << name_of(c_type) << " ta "
                                 << a_transposed << " tb " << b_transposed << " variant "
                                 << variant);
            Operands o(p);
            ops::Gemm call = o.call();
            if (scaled) {
              call.a = {with_tensor_scale(o.a, &scale_a), a_transposed};
              call.b = {with_tensor_scale(o.b, &scale_b), b_transposed};
            }
            if (biased) {
              call.bias = o.bias;
            }
            const Array before = o.c;
            const double scale = scaled ? double(scale_a) * double(scale_b) : 1.0;
            ops::gemm(cpu_stream(), call);
            CHECK(worst_gemm_error(o, before, scale, false, biased) <= 1);
            if (c_type == DType::f32) {
              const Array again = o.c;
              call.beta = 1.0F;
              ops::gemm(cpu_stream(), call);
              CHECK(worst_gemm_error(o, again, scale, true, biased) <= 1);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("gemm of odd and narrow shapes", "[gemm]") {
  const std::array<int64_t, 3> shapes[] = {{1, 1, 1},      {1, 300, 64}, {5, 1, 700},
                                           {64, 64, 1000}, {257, 3, 17}, {130, 520, 40}};
  for (const auto& [m, n, k] : shapes) {
    for (const DType type : {DType::f32, DType::e4m3}) {
      for (const bool transposed : {false, true}) {
        INFO(m << " x " << n << " x " << k << " " << name_of(type));
        Operands o({m, n, k, type, type, DType::f32, transposed, !transposed});
        ops::gemm(cpu_stream(), o.call());
        CHECK(worst_gemm_error(o, o.c, 1.0, false, false) <= 1);
      }
    }
  }
}

TEST_CASE("gemm of small integers is exact", "[gemm]") {
  for (const auto& [a_type, b_type] : operand_types()) {
    for (const bool transposed : {false, true}) {
      Operands o({40, 70, 600, a_type, b_type, DType::f32, transposed, transposed});
      for (int64_t i = 0; i < o.a.count(); ++i) {
        o.a.set(i, static_cast<float>(i * 7 % 9 - 4));
      }
      for (int64_t i = 0; i < o.b.count(); ++i) {
        o.b.set(i, static_cast<float>(i * 5 % 9 - 4));
      }
      ops::gemm(cpu_stream(), o.call());
      bool exact = true;
      for (int64_t i = 0; i < 40; ++i) {
        for (int64_t j = 0; j < 70; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < 600; ++l) {
            sum += o.a_at(i, l) * o.b_at(l, j);
          }
          exact &= sum == static_cast<double>(o.c.get(i * 70 + j));
        }
      }
      CHECK(exact);
    }
  }
}

TEST_CASE("a NaN stays in its row of the product", "[gemm]") {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    Operands o({20, 40, 50, type, type, DType::f32, false, true});
    o.a.set(7 * 50 + 11, std::nanf(""));
    ops::gemm(cpu_stream(), o.call());
    bool right = true;
    for (int64_t i = 0; i < o.c.count(); ++i) {
      right &= std::isnan(o.c.get(i)) == (i / 40 == 7);
    }
    CHECK(right);
  }
}

TEST_CASE("gemm has the same bits for any number of threads", "[gemm]") {
  // Few outputs and long sums are where a library likes to split the sum over threads.
  const std::array<int64_t, 3> shapes[] = {{16, 16, 8000},  {64, 64, 4096},  {128, 96, 2048},
                                           {300, 100, 700}, {384, 128, 768}, {1, 512, 512}};
  for (const auto& [m, n, k] : shapes) {
    for (const DType type : {DType::f32, DType::e4m3}) {
      for (const int transposed : {0, 1, 2, 3}) {
        std::vector<Bits> runs;
        for (const int threads : {1, 2, 3, 8}) {
          set_threads(threads);
          Operands o(
              {m, n, k, type, type, DType::f32, (transposed & 1) != 0, (transposed & 2) != 0});
          ops::Gemm call = o.call();
          call.beta = 1.0F;
          ops::gemm(cpu_stream(), call);
          runs.emplace_back();
          runs.back().add(o.c);
        }
        set_threads(default_threads());
        INFO(m << " x " << n << " x " << k << " " << name_of(type) << " " << transposed);
        CHECK(runs[0] == runs[1]);
        CHECK(runs[0] == runs[2]);
        CHECK(runs[0] == runs[3]);
      }
    }
  }
}

TEST_CASE("the workspace of gemm stops growing", "[gemm]") {
  Operands o({128, 96, 64, DType::e4m3, DType::e5m2, DType::bf16, true, false});
  ops::gemm(cpu_stream(), o.call());
  const size_t bytes = ops::cpu_gemm_workspace_bytes();
  CHECK(bytes > 0);
  ops::gemm(cpu_stream(), o.call());
  CHECK(ops::cpu_gemm_workspace_bytes() == bytes);
}

TEST_CASE("gemm refuses what does not fit", "[gemm]") {
  const auto refused = [](const ops::Gemm& call, const char* why) {
    CHECK_THROWS_WITH(ops::gemm(cpu_stream(), call), Catch::Contains(why));
    CHECK_THROWS_AS(ops::gemm(cpu_stream(), call), InternalError);
  };
  Operands o({4, 5, 6, DType::f32, DType::f32, DType::f32, false, false});
  ops::Gemm call = o.call();
  call.a.transposed = true;
  refused(call, "shapes do not fit");
  call = o.call();
  call.c.shape = {4, 6};
  refused(call, "shapes do not fit");
  Array deeper(DType::f32, {7, 5});  // K of the operands differs, and nothing else
  call = o.call();
  call.b = deeper.view();
  refused(call, "shapes do not fit");
  call = o.call();
  call.b = {};
  refused(call, "matrices expected");
  Operands codes({4, 5, 6, DType::e4m3, DType::e4m3, DType::f32, false, false});
  call = codes.call();
  call.b.tensor = with_tensor_scale(codes.b, nullptr);
  call.b.tensor.format.dtype = DType::e5m2;
  refused(call, "codes have the type of their format");
  call = o.call();
  call.c.data = nullptr;
  refused(call, "empty matrix");
  call = o.call();
  call.a.tensor.codes.shape = {0, 6};
  call.c.shape = {0, 5};
  refused(call, "empty matrix");
  Array c_codes(DType::e4m3, {4, 5});
  call = o.call();
  call.c = c_codes;
  refused(call, "c must be fp32, bf16 or fp16");
  call = o.call();
  call.beta = 0.5F;
  refused(call, "beta must be 0");
  Operands mixed({4, 5, 6, DType::f32, DType::e4m3, DType::f32, false, false});
  refused(mixed.call(), "operands must be fp32");
  Operands halves({4, 5, 6, DType::f16, DType::bf16, DType::f32, false, false});
  refused(halves.call(), "operands must be fp32");
  Operands narrow({4, 5, 6, DType::bf16, DType::bf16, DType::bf16, false, false});
  call = narrow.call();
  call.beta = 1.0F;
  refused(call, "beta must be 0");
}

TEST_CASE("gemm names its engine", "[gemm]") {
  CHECK(std::string(ops::cpu_gemm_engine(DType::f32)).starts_with("fp32 ("));
  CHECK(std::string(ops::cpu_gemm_engine(DType::e4m3)) == ops::cpu_gemm_engine(DType::bf16));
  if (ops::cpu::gemm_units_of_environment()) {
    CHECK(std::string(ops::cpu_gemm_engine(DType::i8)) == ops::cpu_gemm_engine(DType::e4m3));
  }
  if (ops::cpu::gemm_units_of_environment() == DType::f32) {
    CHECK(std::string(ops::cpu_gemm_engine(DType::e4m3)) == ops::cpu_gemm_engine(DType::f32));
  }
}

TEST_CASE("an unknown FP8TRAIN_CPU_GEMM is an error", "[gemm]") {
  const char* before = std::getenv("FP8TRAIN_CPU_GEMM");
  const std::string stored = before == nullptr ? "" : before;
  REQUIRE(setenv("FP8TRAIN_CPU_GEMM", "fp64", 1) == 0);
  CHECK_THROWS_AS(ops::cpu::gemm_units_of_environment(), ConfigError);
  REQUIRE(setenv("FP8TRAIN_CPU_GEMM", "bf16", 1) == 0);
  CHECK(ops::cpu::gemm_units_of_environment() == DType::bf16);
  REQUIRE(unsetenv("FP8TRAIN_CPU_GEMM") == 0);
  CHECK(!ops::cpu::gemm_units_of_environment());
  if (before != nullptr) {
    REQUIRE(setenv("FP8TRAIN_CPU_GEMM", stored.c_str(), 1) == 0);
  }
}

}  // namespace
}  // namespace fp8train::test
