// Products whose second operand is packed, before the call or in it.

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "base/error.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm_problem.h"
#include "support/environment.h"

namespace fp8train::test {
namespace {

/// b as pack_operand() writes it; no bytes where products read it as it is.
std::vector<uint8_t> packed_of(const ops::GemmOperand& b) {
  std::vector<uint8_t> bytes(ops::packed_bytes(DeviceTraits{}, b));
  if (!bytes.empty()) {
    ops::pack_operand(cpu_stream(), b,
                      {bytes.data(), DType::u8, {static_cast<int64_t>(bytes.size())}});
  }
  return bytes;
}

bool has_packed_products() {
  return std::string(ops::cpu_gemm_engine(DType::f32)) == "fp32 (avx512)";
}

TEST_CASE("a product has the same bits with a packed operand", "[gemm]") {
  float scale = 0.37F;
  const test::EnvironmentScope packs("FP8TRAIN_CPU_PACK", "1");
  const std::array<int64_t, 3> shapes[] = {{1, 512, 512}, {3, 100, 300},    {33, 48, 80},
                                           {70, 37, 65},  {300, 1000, 192}, {257, 40, 130},
                                           {5, 64, 1500}, {17, 96, 4096}};
  for (const auto& [m, n, k] : shapes) {
    for (const auto& [a_type, b_type] : operand_types()) {
      for (const bool transposed : {false, true}) {
        for (const DType c_type : {DType::f32, DType::bf16}) {
          INFO(m << " x " << n << " x " << k << " " << name_of(a_type) << " " << name_of(b_type)
                 << " -> " << name_of(c_type) << " " << transposed);
          Operands as_stored({m, n, k, a_type, b_type, c_type, false, transposed});
          Operands o = as_stored;
          ops::Gemm call = as_stored.call();
          call.bias = as_stored.bias;
          call.b = {with_tensor_scale(as_stored.b, &scale), transposed};
          ops::gemm(cpu_stream(), call);
          call.c = o.c;
          std::vector<uint8_t> packed = packed_of(call.b);
          CHECK(packed.empty() != has_packed_products());
          call.b.packed = {packed.data(), DType::u8, {static_cast<int64_t>(packed.size())}};
          for (const int threads : {1, 2, 3}) {
            set_threads(threads);
            ops::gemm(cpu_stream(), call);
            CHECK(o.c.bytes() == as_stored.c.bytes());
          }
          set_threads(default_threads());
        }
      }
    }
  }
}

TEST_CASE("a product that packs b has the bits of products of a few rows", "[gemm]") {
  for (const auto& [n, k] : {std::pair{40, 3000}, {1000, 130}, {3072, 64}}) {
    for (const auto& [a_type, b_type] : operand_types()) {
      Operands all({256, n, k, a_type, b_type, DType::f32, false, n == 1000});
      Operands few = all;
      ops::gemm(cpu_stream(), all.call());
      for (int64_t row = 0; row < 256; row += 64) {
        ops::Gemm call = few.call();
        call.a = rows_of(call.a.matrix(), row, 64);
        call.c = rows_of(call.c, row, 64);
        ops::gemm(cpu_stream(), call);
      }
      CHECK((!has_packed_products() || all.c.bytes() == few.c.bytes()));
    }
  }
}

TEST_CASE("a product that threads make by rows has the bits of products of a few rows", "[gemm]") {
  float scale = 0.37F;
  const auto [n, k] = GENERATE(std::pair{96, 130}, std::pair{512, 128}, std::pair{40, 700});
  const DType c_type = GENERATE(DType::f32, DType::bf16);
  const bool transposed = GENERATE(false, true);
  for (const auto& [a_type, b_type] : operand_types()) {
    INFO(n << " x " << k << " " << name_of(a_type) << " " << name_of(b_type) << " -> "
           << name_of(c_type) << " " << transposed);
    Operands few({192, n, k, a_type, b_type, c_type, false, n == 512});
    Operands all = few;
    if (transposed) {
      all.a = Array(a_type, {k, 192});
      for (int64_t i = 0; i < all.a.count(); ++i) {
        all.a.set(i, few.a.get(i % 192 * k + i / 192));
      }
    }
    const auto call_of = [&](Operands& operands) {
      ops::Gemm call = operands.call();
      call.b = {with_tensor_scale(operands.b, &scale), operands.problem.b_transposed};
      call.bias = operands.bias;
      call.beta = c_type == DType::f32 ? 1.0F : 0.0F;
      return call;
    };
    ops::Gemm whole = call_of(all);
    whole.a.transposed = transposed;
    const size_t bytes = ops::cpu::gemm_workspace_bytes(whole);
    std::vector<uint8_t> scratch(bytes + 256);
    void* at = scratch.data();
    size_t left = scratch.size();
    std::align(256, bytes, at, left);
    whole.scratch = {at, DType::u8, {static_cast<int64_t>(bytes)}};
    ops::gemm(cpu_stream(), whole);
    for (int64_t row = 0; row < 192; row += 64) {
      ops::Gemm call = call_of(few);
      call.a = rows_of(call.a.matrix(), row, 64);
      call.c = rows_of(call.c, row, 64);
      ops::gemm(cpu_stream(), call);
    }
    CHECK((!has_packed_products() || all.c.bytes() == few.c.bytes()));
  }
}

TEST_CASE("a packed operand is read in place of what is stored", "[gemm]") {
  const test::EnvironmentScope packs("FP8TRAIN_CPU_PACK", "1");
  Operands o({16, 64, 48, DType::e4m3, DType::e4m3, DType::f32, false, true});
  ops::Gemm call = o.call();
  std::vector<uint8_t> packed = packed_of(call.b);
  ops::gemm(cpu_stream(), call);
  const Array product = o.c;
  for (int64_t i = 0; i < o.b.count(); ++i) {
    o.b.set(i, 0.0F);
  }
  call.b.packed = {packed.data(), DType::u8, {static_cast<int64_t>(packed.size())}};
  ops::gemm(cpu_stream(), call);
  CHECK((o.c.bytes() == product.bytes()) == has_packed_products());
  CHECK_THROWS_AS(ops::pack_operand(cpu_stream(), call.b, {packed.data(), DType::u8, {7}}),
                  InternalError);
}

}  // namespace
}  // namespace fp8train::test
