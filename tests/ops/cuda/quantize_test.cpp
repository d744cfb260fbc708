// Casts with one scale per tensor: exact. Codes come from the same
// arithmetic as the cpu's (on a GPU through its cvt instruction, which these tests compare with the
// definition), maxima and counts are integers.

#include "ops/cast/quantize.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "numeric/bits.h"
#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

constexpr auto kTypes = FloatTypes::kTypes;
constexpr auto kCodes = ByteCodes::kTypes;

enum class Wanted { codes, transposed, both };

/// Everything that a cast writes.
struct Cast {
  Array codes, transposed;
  float scale_inv = 0.0F, amax = 0.0F;
  ops::QuantizeStatistics statistics = {};
};

struct Layout {
  int64_t rows, columns;
  int64_t offset = 0;  ///< elements that every array starts beyond an aligned address
};

Cast run_cast(Side& side, const Array& x, DType code_type, const Layout& layout, float scale,
              Wanted wanted, bool records = true) {
  const Shape shape = {layout.rows, layout.columns};
  const Shape transposed = {layout.columns, layout.rows};
  QuantizedTensor out;
  if (wanted != Wanted::transposed) {
    out.rowwise.codes = side.space(code_type, shape, layout.offset);
  }
  if (wanted != Wanted::codes) {
    out.columnwise.codes = side.space(code_type, transposed, layout.offset);
  }
  TensorFormat format = plain(code_type);
  format.policy = ScalePolicy::current;
  set_tensor_cast(out, format, side.put_value(scale), side.put_value(0.0F));
  float* amax = records ? side.put_value(0.25F) : nullptr;
  auto* statistics = records ? side.put_value(ops::QuantizeStatistics{9, 9, 9}) : nullptr;
  ops::quantize(side.stream(), side.put(x, layout.offset), out, amax, statistics);
  Cast result;
  if (!out.rowwise.codes.empty()) {
    result.codes = side.get(out.rowwise.codes);
  }
  if (!out.columnwise.codes.empty()) {
    result.transposed = side.get(out.columnwise.codes);
  }
  result.scale_inv = side.get_value(out.either().tensor_scale);
  if (records) {
    result.amax = side.get_value(amax);
    result.statistics = side.get_value(statistics);
  }
  return result;
}

void check_same(const Cast& cuda, const Cast& cpu) {
  CHECK(cuda.codes.bytes() == cpu.codes.bytes());
  CHECK(cuda.transposed.bytes() == cpu.transposed.bytes());
  CHECK(bits_of(cuda.scale_inv) == bits_of(cpu.scale_inv));
  CHECK(bits_of(cuda.amax) == bits_of(cpu.amax));
  CHECK(cuda.statistics.count == cpu.statistics.count);
  CHECK(cuda.statistics.saturated == cpu.statistics.saturated);
  CHECK(cuda.statistics.underflow == cpu.statistics.underflow);
}

void check_cast(const Array& x, DType code_type, const Layout& layout, float scale,
                bool records = true) {
  for (const Wanted wanted : {Wanted::codes, Wanted::transposed, Wanted::both}) {
    if (code_type == DType::i8 && wanted != Wanted::codes) {
      continue;
    }
    INFO(name_of(x.dtype()) << " to " << name_of(code_type) << ", " << layout.rows << " x "
                            << layout.columns << " from " << layout.offset << ", scale " << scale
                            << ", wanted " << static_cast<int>(wanted));
    const auto run = [&](Side& side) {
      return run_cast(side, x, code_type, layout, scale, wanted, records);
    };
    check_same(on_cuda(run), on_cpu(run));
  }
}

/// A cast whose scale follows from an amax, and what it writes of the scale.
struct CurrentCast {
  Cast cast;
  float scale = 0.0F, scale_inv = 0.0F;
};

CurrentCast run_current(Side& side, const Array& x, DType code_type, const Layout& layout,
                        float amax, bool pow2, Wanted wanted, bool counts) {
  QuantizedTensor out;
  if (wanted != Wanted::transposed) {
    out.rowwise.codes = side.space(code_type, {layout.rows, layout.columns}, layout.offset);
  }
  if (wanted != Wanted::codes) {
    out.columnwise.codes = side.space(code_type, {layout.columns, layout.rows}, layout.offset);
  }
  TensorFormat format = plain(code_type);
  format.policy = ScalePolicy::current;
  format.scale_type = pow2 ? ScaleType::pow2 : ScaleType::f32;
  format.amax_epsilon = 1e-3F;
  set_tensor_cast(out, format, side.put_value(-1.0F), side.put_value(-1.0F));
  float* const scale_inv = side.put_value(-1.0F);
  auto* statistics = counts ? side.put_value(ops::QuantizeStatistics{9, 9, 9}) : nullptr;
  ops::quantize_current(side.stream(), side.put(x, layout.offset), side.put_value(amax), scale_inv,
                        out, statistics);
  CurrentCast result;
  if (!out.rowwise.codes.empty()) {
    result.cast.codes = side.get(out.rowwise.codes);
  }
  if (!out.columnwise.codes.empty()) {
    result.cast.transposed = side.get(out.columnwise.codes);
  }
  result.cast.scale_inv = side.get_value(out.either().tensor_scale);
  result.scale = side.get_value(out.either().cast_scales);
  result.scale_inv = side.get_value(scale_inv);
  if (counts) {
    result.cast.statistics = side.get_value(statistics);
  }
  return result;
}

TEST_CASE("a cast that finds its scale from an amax is exact", "[cuda][quantize]") {
  constexpr Layout kLayouts[] = {{3, 5}, {128, 136}, {300, 264}, {1, 4099}, {48, 136, 4}};
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const DType code_type : Fp8Types::kTypes) {
      for (const Layout& layout : kLayouts) {
        const Array x(type, {layout.rows, layout.columns},
                      random_values(layout.rows * layout.columns, 5, 40.0F));
        for (const float amax : {39.7F, 0.0F, 1e-7F, INFINITY, NAN}) {
          for (const Wanted wanted : {Wanted::codes, Wanted::transposed, Wanted::both}) {
            for (const bool pow2 : {false, true}) {
              const auto run = [&](Side& side) {
                return run_current(side, x, code_type, layout, amax, pow2, wanted, pow2);
              };
              INFO(name_of(type) << " to " << name_of(code_type) << ", " << layout.rows << " x "
                                 << layout.columns << ", amax " << amax << ", pow2 " << pow2);
              const CurrentCast cuda = on_cuda(run);
              const CurrentCast cpu = on_cpu(run);
              check_same(cuda.cast, cpu.cast);
              CHECK(bits_of(cuda.scale) == bits_of(cpu.scale));
              CHECK(bits_of(cuda.scale_inv) == bits_of(cpu.scale_inv));
              CHECK(bits_of(cuda.scale_inv) == bits_of(cuda.cast.scale_inv));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("quantize is exact for any shape and alignment", "[cuda][quantize]") {
  constexpr Layout kLayouts[] = {{1, 1},       {3, 5},       {16, 128},   {128, 128}, {130, 136},
                                 {144, 264},   {256, 40},    {33, 257},   {1, 4099},  {300, 1},
                                 {64, 128, 1}, {48, 136, 8}, {48, 136, 4}};
  for (const DType type : kTypes) {
    for (const DType code_type : kCodes) {
      for (const Layout& layout : kLayouts) {
        const int64_t count = layout.rows * layout.columns;
        const Array x(type, {layout.rows, layout.columns}, random_values(count, 5, 40.0F));
        check_cast(x, code_type, layout, 3.7F);
        check_cast(x, code_type, layout, 3.7F, false);
      }
    }
  }
}

TEST_CASE("a cast of no elements writes its scalars", "[cuda][quantize][small]") {
  for (const Wanted wanted : {Wanted::codes, Wanted::both}) {
    for (const int64_t offset : {int64_t{0}, int64_t{1}}) {  // memory there is, or none
      const auto run = [&](Side& side) {
        const Array none(DType::bf16, {0, 40});
        return run_cast(side, none, DType::e4m3, {0, 40, offset}, 3.5F, wanted);
      };
      const Cast cuda = on_cuda(run);
      check_same(cuda, on_cpu(run));
      CHECK(cuda.scale_inv == 1.0F / 3.5F);
      CHECK(cuda.statistics.count == 0);
    }
  }
}

TEST_CASE("quantize is exact for adversarial values", "[cuda][quantize][small]") {
  for (const DType type : kTypes) {
    for (const DType code_type : kCodes) {
      for (const bool finite : {true, false}) {
        for (const float scale : {1.0F, 0.013F, 1e38F, 1e-41F, 0.0F, INFINITY, NAN}) {
          const Layout layout = {136, 144};
          const Array x(type, {136, 144}, adversarial_values(136 * 144, 4, finite));
          check_cast(x, code_type, layout, scale);
        }
      }
    }
  }
}

TEST_CASE("every 16-bit pattern is cast as the cpu does", "[cuda][quantize][exhaustive]") {
  for (const DType type : {DType::bf16, DType::f16}) {
    Array x(type, {256, 256});
    for (int i = 0; i < 65536; ++i) {
      x.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    }
    for (const DType code_type : kCodes) {
      check_cast(x, code_type, {256, 256}, 1.0F);
    }
  }
}

TEST_CASE("every fp32 value next to a rounding boundary is cast as the cpu does",
          "[cuda][quantize][exhaustive]") {
  for (const DType code_type : kCodes) {
    Array codes(code_type, {256});
    std::vector<float> values;
    for (int code = 0; code < 255; ++code) {
      codes.as<uint8_t>()[0] = static_cast<uint8_t>(code);
      codes.as<uint8_t>()[1] = static_cast<uint8_t>(code + 1);
      const float middle = (codes.get(0) + codes.get(1)) / 2;
      for (const float value : {codes.get(0), middle}) {
        values.push_back(value);
        values.push_back(std::nextafter(value, INFINITY));
        values.push_back(std::nextafter(value, -INFINITY));
      }
    }
    for (const uint32_t bits : {0x7F800001U, 0xFF800001U, 0x7FFFFFFFU, 0xFFC00000U, 0x00000001U}) {
      values.push_back(float_of(bits));
    }
    const auto count = static_cast<int64_t>(values.size());
    Array x(DType::f32, {1, count}, values);
    check_cast(x, code_type, {1, count}, 1.0F);
  }
}

TEST_CASE("amax is exact and lets NaN win", "[cuda][quantize]") {
  for (const DType type : kTypes) {
    for (const int64_t count :
         {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{4099}, int64_t{70001}}) {
      for (const int64_t offset : {0, 1}) {
        for (const float special : {0.0F, 77.0F, -INFINITY, NAN}) {
          std::vector<float> values = random_values(count, 6);
          values.back() = special;
          const Array x(type, {count}, values);
          const auto run = [&](Side& side) {
            float* result = side.put_value(1e9F);
            ops::amax(side.stream(), side.put(x, offset), result);
            return side.get_value(result);
          };
          INFO(name_of(type) << " " << count << " " << special);
          CHECK(bits_of(on_cuda(run)) == bits_of(on_cpu(run)));
          const auto combine = [&](Side& side) {
            float* result = side.put_value(50.0F);
            ops::amax(side.stream(), side.put(x, offset), result, true);
            return side.get_value(result);
          };
          CHECK(bits_of(on_cuda(combine)) == bits_of(on_cpu(combine)));
          CHECK((std::isnan(special) || on_cpu(combine) == std::max(50.0F, std::abs(special))));
        }
      }
    }
  }
}

TEST_CASE("an amax is combined with what is there", "[cuda][quantize]") {
  const Array x(DType::bf16, {4, 64}, random_values(256, 7));
  for (const float before : {0.0F, 1e9F, INFINITY, NAN}) {
    const auto run = [&](Side& side) {
      Encoded out = side.space(DType::e4m3, {4, 64});
      out.cast_scales = side.put_value(1.0F);
      float* amax = side.put_value(before);
      ops::quantize(side.stream(), side.put(x), {out}, amax, nullptr);
      return side.get_value(amax);
    };
    CHECK(bits_of(on_cuda(run)) == bits_of(on_cpu(run)));
  }
}

TEST_CASE("dequantize is exact for every code", "[cuda][quantize][exhaustive]") {
  for (const DType code_type : kCodes) {
    for (const DType type : kTypes) {
      for (const int64_t offset : {0, 3}) {
        for (const float scale_inv : {1.0F, 0.37F, 1e35F, 1e-40F}) {
          Array codes(code_type, {1021});
          for (int64_t i = 0; i < codes.count(); ++i) {
            codes.as<uint8_t>()[i] = static_cast<uint8_t>(i);
          }
          const auto run = [&](Side& side) {
            const Encoded q = with_tensor_scale(side.put(codes, offset), side.put_value(scale_inv));
            const View y = side.space(type, {1021}, offset);
            ops::dequantize(side.stream(), q, y);
            return side.get(y);
          };
          INFO(name_of(code_type) << " to " << name_of(type) << ", " << scale_inv);
          CHECK(same_values(on_cuda(run), on_cpu(run)));
        }
      }
    }
  }
}

TEST_CASE("codes are transposed as on the cpu", "[cuda][quantize]") {
  const Layout layouts[] = {{128, 128}, {130, 264}, {1, 65}, {129, 3}, {64, 72, 3}};
  for (const Layout& layout : layouts) {
    INFO(layout.rows << " x " << layout.columns << ", offset " << layout.offset);
    const int64_t count = layout.rows * layout.columns;
    Array x(DType::e4m3, {layout.rows, layout.columns});
    for (int64_t i = 0; i < count; ++i) {
      x.as<uint8_t>()[i] = static_cast<uint8_t>(i * 31 + i / 251);
    }
    const auto run = [&](Side& side) {
      const View y = side.space(DType::e4m3, {layout.columns, layout.rows}, layout.offset);
      ops::transpose_codes(side.stream(), side.put(x, layout.offset), y);
      Bits bits;
      bits.add(side.get(y));
      return bits;
    };
    CHECK(on_cuda(run) == on_cpu(run));
  }
}

}  // namespace
}  // namespace fp8train::test
