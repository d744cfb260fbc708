// Scaled GEMMs on the cpu against double precision sums of what codes and scales stand for.

#include "ops/gemm/gemm_support.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/scaled_gemm_cases.h"

namespace fp8train::test {
namespace {

struct Problem {
  int64_t m, n, k;
};
// Whole blocks; pieces left over of all kinds, also where tiles of 128 x 256 x 128 end.
constexpr Problem kProblems[] = {{128, 256, 256}, {1, 1, 1},       {5, 3, 33},
                                 {130, 257, 129}, {136, 300, 272}, {260, 16, 520}};

struct Case {
  Case(const FormatPair& formats, const Problem& p, ScaleLayout layout = ScaleLayout::row_major,
       DType c_type = DType::f32)
      : problem(p),
        a(formats.a, layout, p.m, p.k, uneven_values(p.m, p.k, 1)),
        b(formats.b, layout, p.n, p.k, uneven_values(p.n, p.k, 2)),
        c(c_type, {p.m, p.n}, random_values(p.m * p.n, 3)),
        bias(DType::f32, {p.n}, random_values(p.n, 4)) {}

  ops::Gemm call() {
    return {.a = a.operand(), .b = b.operand(true), .c = c, .fast_accumulate = false};
  }
  std::string name() const {
    return describe(a.format) + " x " + describe(b.format) + ", " + std::to_string(problem.m) +
           " x " + std::to_string(problem.n) + " x " + std::to_string(problem.k);
  }

  Problem problem;
  ScaledMatrix a, b;
  Array c, bias;
};

/// Largest |got - want| over rounding * |want| + 2^-20 * (sum |a b| + |old c| + |bias|): an fp32
/// sum of up to 1000 products in any order stays within that, and so do a product of two scales and
/// its product with a sum, 2^-24 each.
double worst_error(const Case& o, const Array& before, bool add, bool biased) {
  const auto [m, n, k] = o.problem;
  const double rounding = o.c.dtype() == DType::bf16  ? 0x1p-8
                          : o.c.dtype() == DType::f16 ? 0x1p-11
                                                      : 0;
  const std::vector<double> a = o.a.values();
  const std::vector<double> b = o.b.values();
  double worst = 0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double want = (add ? before.get(i * n + j) : 0.0) + (biased ? o.bias.get(j) : 0.0);
      double magnitude = std::abs(want);
      for (int64_t l = 0; l < k; ++l) {
        const double term = a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(j * k + l)];
        want += term;
        magnitude += std::abs(term);
      }
      const double bound = rounding * std::abs(want) + 0x1p-20 * magnitude + 1e-30;
      const double error = std::abs(o.c.get(i * n + j) - want) / bound;
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

TEST_CASE("scaled_gemm of every block matches double precision", "[scaled_gemm]") {
  for (const FormatPair& formats : format_pairs()) {
    size_t index = 0;
    for (const Problem& problem : kProblems) {
      const DType c_type = kFloatTypes[index++ % 3].dtype;
      for (const bool biased : {false, true}) {
        Case o(formats, problem, ScaleLayout::row_major, biased ? DType::f32 : c_type);
        INFO(o.name() << ", to " << name_of(o.c.dtype()));
        const Array before = o.c;
        ops::Gemm call = o.call();
        call.beta = biased ? 1.0F : 0.0F;
        call.bias = biased ? ConstView(o.bias) : ConstView{};
        ops::gemm(cpu_stream(), call);
        CHECK(worst_error(o, before, biased, biased) <= 1);
      }
    }
  }
}

/// Small integers as codes and halves as scales; the product is exact in fp32 in any order.
void make_exact(ScaledMatrix& matrix, uint32_t seed) {
  for (int64_t i = 0; i < matrix.codes.count(); ++i) {
    matrix.codes.set(i, static_cast<float>((i * 7 + i / 11 + seed) % 5) - 2.0F);
  }
  for (int64_t i = 0; i < matrix.scale_inv.count(); ++i) {
    const int64_t kind = (i * 3 + seed) % 4;
    if (matrix.format.scale_type == ScaleType::f32) {
      matrix.scale_inv.set(i, 0.5F + 0.5F * static_cast<float>(kind));
    } else if (matrix.format.scale_type == ScaleType::pow2) {
      matrix.scale_inv.set(i, std::ldexp(1.0F, static_cast<int>(kind) - 1));
    } else {
      matrix.scale_inv.as<uint8_t>()[i] = static_cast<uint8_t>(126 + kind);
    }
  }
}

TEST_CASE("scaled_gemm is exact where every sum is", "[scaled_gemm]") {
  for (const FormatPair& formats : format_pairs()) {
    Case o(formats, {131, 259, 272});
    make_exact(o.a, 1);
    make_exact(o.b, 2);
    ops::gemm(cpu_stream(), o.call());
    const auto [m, n, k] = o.problem;
    const std::vector<double> a = o.a.values();
    const std::vector<double> b = o.b.values();
    int64_t different = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double want = 0;
        for (int64_t l = 0; l < k; ++l) {
          want += a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(j * k + l)];
        }
        different += want != static_cast<double>(o.c.get(i * n + j)) ? 1 : 0;
      }
    }
    INFO(o.name());
    CHECK(different == 0);
  }
}

TEST_CASE("scaled_gemm has the same bits for both layouts of scales and any number of threads",
          "[scaled_gemm]") {
  for (const FormatPair& formats : format_pairs()) {
    for (const Problem& problem : {Problem{130, 300, 400}, Problem{16, 16, 3000}}) {
      std::vector<Bits> runs;
      for (const ScaleLayout layout : kScaleLayouts) {
        for (const int threads : {1, 2, 3, 8}) {
          set_threads(threads);
          Case o(formats, problem, layout);
          ops::Gemm call = o.call();
          call.beta = 1.0F;
          ops::gemm(cpu_stream(), call);
          runs.emplace_back();
          runs.back().add(o.c);
        }
      }
      set_threads(default_threads());
      INFO(describe(formats.a) << " x " << describe(formats.b));
      CHECK(std::all_of(runs.begin(), runs.end(), [&](const Bits& run) { return run == runs[0]; }));
    }
  }
}

/// Which elements of c are NaN.
template <typename Expected>
bool nan_exactly_where(const Case& o, Expected expected) {
  bool right = true;
  for (int64_t i = 0; i < o.c.count(); ++i) {
    right &= std::isnan(o.c.get(i)) == expected(i / o.problem.n, i % o.problem.n);
  }
  return right;
}

TEST_CASE("a NaN scale reaches the rows or columns of its block and no others", "[scaled_gemm]") {
  for (const FormatPair& formats : format_pairs()) {
    const auto spoil = [](ScaledMatrix& matrix, int64_t row, int64_t block) {
      const int64_t at = matrix.grid.offset(row, block);
      if (dtype_of(matrix.format.scale_type) == DType::e8m0) {
        matrix.scale_inv.as<uint8_t>()[at] = 0xFF;
      } else {
        matrix.scale_inv.set(at, std::nanf(""));
      }
    };
    INFO(describe(formats.a) << " x " << describe(formats.b));
    Case first(formats, {140, 270, 300});
    const int64_t block = first.a.grid.columns - 1;
    spoil(first.a, 1, block);
    ops::gemm(cpu_stream(), first.call());
    CHECK(
        nan_exactly_where(first, [&](int64_t i, int64_t) { return i / first.a.grid.height == 1; }));
    Case second(formats, {140, 270, 300});
    spoil(second.b, 2, 0);
    ops::gemm(cpu_stream(), second.call());
    CHECK(nan_exactly_where(second,
                            [&](int64_t, int64_t j) { return j / second.b.grid.height == 2; }));
  }
}

TEST_CASE("scaled_gemm of zeros is zero, and the bias alone", "[scaled_gemm]") {
  for (const FormatPair& formats : format_pairs()) {
    Case o(formats, {20, 30, 140});
    o.a = ScaledMatrix(formats.a, ScaleLayout::row_major, 20, 140, std::vector<float>(20 * 140));
    ops::Gemm call = o.call();
    call.bias = o.bias;
    ops::gemm(cpu_stream(), call);
    bool right = true;
    for (int64_t i = 0; i < o.c.count(); ++i) {
      right &= o.c.get(i) == o.bias.get(i % 30);
    }
    CHECK(right);
  }
}

TEST_CASE("scaled_gemm refuses what does not fit", "[scaled_gemm]") {
  using namespace per;
  const auto refused = [](const ops::Gemm& call) {
    CHECK_THROWS_AS(ops::gemm(cpu_stream(), call), InternalError);
  };
  const auto pair = [](ScaleBlock a, ScaleBlock b) {
    return FormatPair{blockwise_format(DType::e4m3, a), blockwise_format(DType::e4m3, b)};
  };
  for (const auto& [a, b] : {std::pair{block_128x128, block_128x128},
                             {row, block_1x128},
                             {block_1x32, block_1x128},
                             {row, block_1x32}}) {
    Case o(pair(a, b), {16, 16, 32});
    refused(o.call());
  }
  for (const auto& [a, b] :
       {std::pair{blockwise_format(DType::i8, row), blockwise_format(DType::e4m3, row)},
        {blockwise_format(DType::e4m3, row), blockwise_format(DType::i8, row)},
        {blockwise_format(DType::i8, block_1x128), blockwise_format(DType::i8, block_128x128)}}) {
    Case o({a, b}, {16, 16, 256});
    refused(o.call());
  }
  Case o(pair(block_1x128, block_128x128), {16, 16, 256});
  ops::Gemm call = o.call();
  call.beta = 0.5F;
  refused(call);
  call = o.call();
  call.c.shape = {16, 17};
  refused(call);
  call = o.call();
  call.a.tensor.scales.shape = {31};
  refused(call);
  call = o.call();
  call.b.tensor.format.block = tensor;
  refused(call);
  call = o.call();
  call.bias = {o.bias.view().data, DType::f32, {15}};
  refused(call);
  const auto refused_for = [](const ops::Gemm& wrong, const char* why) {
    CHECK_THROWS_WITH(ops::gemm(cpu_stream(), wrong), Catch::Contains(why));
  };
  Array bf16(DType::bf16, {16, 256});
  for (const bool first : {true, false}) {
    call = o.call();
    ops::GemmOperand& operand = first ? call.a : call.b;
    operand.tensor = bf16.view();
    refused_for(call, "both operands have blocks or neither");
  }
  call = o.call();
  call.b.transposed = false;
  refused_for(call, "codes of blocks are stored along K");
  call = o.call();
  call.a.transposed = true;
  refused_for(call, "codes of blocks are stored along K");
  Case square(pair(block_1x128, block_1x128), {16, 16, 256});
  call = square.call();
  Array wide_scales(DType::f64, {call.a.tensor.scales.count()});
  call.a.tensor.scales = wide_scales;
  refused_for(call, "scales must be of the type");
}

TEST_CASE("one function says which formats have a product", "[scaled_gemm]") {
  using namespace per;
  const DeviceTraits cpu;
  const auto scaled = [](const ScaleBlock& block, DType type = DType::e4m3) {
    return blockwise_format(type, block);
  };
  const ScaleBlock blocks[] = {tensor, row, block_1x128, block_128x128, block_1x32};
  // Row by row: what each block has a product with.
  const bool products[5][5] = {{true, true, false, false, false},
                               {true, true, false, false, false},
                               {false, false, true, true, false},
                               {false, false, true, false, false},
                               {false, false, false, false, true}};
  for (size_t a = 0; a < 5; ++a) {
    for (size_t b = 0; b < 5; ++b) {
      const ops::GemmSupport found = ops::gemm_support(cpu, {scaled(blocks[a]), scaled(blocks[b])});
      CAPTURE(name_of(blocks[a]), name_of(blocks[b]));
      CHECK(found.native == products[a][b]);
      CHECK(found.reason.empty() == products[a][b]);
      CHECK_FALSE(found.dequantized);
    }
  }
  CHECK_FALSE(ops::gemm_support(cpu, {scaled({1, 16}), scaled({1, 16})}).native);
  CHECK(ops::gemm_support(cpu, {scaled(row, DType::i8), scaled(row, DType::i8)}).native);
  CHECK_FALSE(ops::gemm_support(cpu, {scaled(row, DType::i8), scaled(row)}).native);
  CHECK_FALSE(
      ops::gemm_support(cpu, {scaled(tensor, DType::i8), scaled(tensor, DType::i8)}).native);
  const TensorFormat bf16 = plain(DType::bf16);
  CHECK(ops::gemm_support(cpu, {bf16, bf16}).native);
  CHECK(ops::gemm_support(cpu, {bf16, scaled(row)}).dequantized);
  CHECK(ops::gemm_support(cpu, {scaled(row), scaled(row)}).k_multiple == 16);
  CHECK(ops::gemm_support(cpu, {scaled(block_1x32), scaled(block_1x32)}).k_multiple == 32);
  // One scale for each tensor is never dequantized: such a product is there or it is not.
  const auto on = [&](int capability, DType a, DType b) {
    return ops::gemm_support(cuda_traits(capability), {scaled(tensor, a), scaled(tensor, b)});
  };
  CHECK(on(89, DType::e4m3, DType::e5m2).native);
  CHECK_FALSE(on(80, DType::e4m3, DType::e4m3).native);
  CHECK_FALSE(on(90, DType::e5m2, DType::e5m2).native);
  CHECK_FALSE(on(90, DType::e5m2, DType::e5m2).dequantized);
  // Sums over blocks of 128 are promoted in any case.
  CHECK(ops::gemm_support(cpu, {scaled(row), scaled(row), DType::bf16, true}).fast_accumulate);
  CHECK_FALSE(ops::gemm_support(cpu, {scaled(block_1x128), scaled(block_1x128), DType::bf16, true})
                  .fast_accumulate);
}

TEST_CASE("scaled products by chip, shape, type and layout", "[scaled_gemm]") {
  using namespace per;
  const auto reason = [](int capability, Case& o) {
    const ops::Gemm call = o.call();
    const DeviceTraits traits = cuda_traits(capability);
    const ops::GemmSupport support = ops::gemm_support(traits, call);
    CHECK(support.native == support.reason.empty());
    const size_t bytes = ops::gemm_scratch_bytes(traits, call);
    const auto [m, n, k] = o.problem;
    const int64_t row_bytes = support.native ? support.padded_k : 2 * k;
    const int64_t a_bytes = (row_bytes * m + 255) / 256 * 256;
    CHECK(bytes == static_cast<size_t>(a_bytes + row_bytes * n));
    CHECK(ops::gemm_support(DeviceTraits{}, call).native);
    CHECK(ops::gemm_scratch_bytes(DeviceTraits{}, call) > 0);  // the cpu decodes operands
    return std::string(support.reason);
  };
  const auto make = [](ScaleBlock block, const Problem& problem, DType c_type = DType::bf16,
                       DType a_type = DType::e4m3, DType b_type = DType::e4m3,
                       ScaleLayout layout = ScaleLayout::cublaslt) {
    return Case({blockwise_format(a_type, block), blockwise_format(b_type, block)}, problem, layout,
                c_type);
  };
  const Problem fits = {32, 48, 64};
  for (const ScaleBlock block : {row, block_1x128}) {
    Case o = make(block, fits);
    CHECK(reason(90, o).empty());
    CHECK_THAT(reason(89, o), Catch::Contains("this GPU has no products with"));
    CHECK_THAT(reason(100, o), Catch::Contains("this GPU has no products with"));
  }
  Case mx = make(block_1x32, fits);
  CHECK(reason(100, mx).empty());
  CHECK(reason(90, mx) == "this GPU has no products with 1x32 scales");
  Case narrow = make(row, {32, 48, 40});  // padded
  CHECK(reason(90, narrow).empty());
  Case half_block = make(block_1x32, {32, 48, 48});
  CHECK(reason(100, half_block).empty());
  Case result = make(row, {32, 12, 64});
  CHECK(reason(90, result) == "a row of the result is not a multiple of 16 bytes");
  Case wide_result = make(row, {32, 12, 64}, DType::f32);
  CHECK(reason(90, wide_result).empty());
  Case odd_rows = make(block_1x128, {30, 48, 64});
  CHECK(reason(90, odd_rows) == "M and N are not multiples of 4");
  // 2 * 30 * 80 bytes of dequantized values are not a multiple of 256.
  Case unaligned_values = make(block_1x128, {30, 48, 80});
  CHECK(reason(90, unaligned_values) == "M and N are not multiples of 4");
  Case rows_of_any_count = make(row, {30, 48, 64});
  CHECK(reason(90, rows_of_any_count).empty());
  Case two_e5m2 = make(row, fits, DType::bf16, DType::e5m2, DType::e5m2);
  CHECK(reason(90, two_e5m2) == "tensor cores do not multiply e5m2 by e5m2");
  Case integers = make(row, fits, DType::bf16, DType::i8, DType::i8);
  CHECK(reason(90, integers) == "int8 codes are multiplied as the values that they stand for");
  Case row_major =
      make(block_1x128, fits, DType::bf16, DType::e4m3, DType::e4m3, ScaleLayout::row_major);
  CHECK(reason(90, row_major) == "the scales are not laid out for cuBLASLt");
  Case second_row_major = make(block_1x128, fits);
  ops::Gemm call = second_row_major.call();
  call.b.tensor.layout = ScaleLayout::row_major;
  CHECK(ops::gemm_support(cuda_traits(90), call).reason ==
        "the scales are not laid out for cuBLASLt");
}

TEST_CASE("scaled_gemm is counted on meta", "[scaled_gemm]") {
  Case o({blockwise_format(DType::e4m3, per::block_1x128),
          blockwise_format(DType::e4m3, per::block_128x128)},
         {256, 128, 384});
  const auto meta = make_meta_device(DeviceTraits{});
  ops::Gemm call = o.call();
  call.beta = 1.0F;
  ops::gemm(meta->stream(), call);
  CHECK(meta->counters().gemm_flops == 2.0 * 256 * 128 * 384);
  const double scales = 4.0 * (256 * 3 + 1 * 3);
  CHECK(meta->counters().bytes == 256.0 * 384 + 128.0 * 384 + scales + 2 * 4.0 * 256 * 128);
  ops::probe_gemms(*meta);
  CHECK(meta->traits() == DeviceTraits{});
}

}  // namespace
}  // namespace fp8train::test
