// AdamW and its cast of the new weight: exact, since the arithmetic is the cpu's, and maxima and
// counts have no order.

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/adamw_cases.h"
#include "ops/cast/quantize.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/storage/storage.h"
#include "support/sanitized.h"

namespace fp8train::test {
namespace {

struct Case {
  int64_t rows, width;
  WeightCast wanted;
  bool skip = false;
  int64_t offset = 0;
  MomentFormats moments = {plain(DType::f32), plain(DType::f32)};
  TensorFormat weight = plain(DType::f32), gradient = plain(DType::f32);
  bool amax_first = false;     ///< in a call of its own, as where ranks have parts
  DType read_as = DType::f32;  ///< of an fp32 gradient
  bool stores_first = false;   ///< in a pass of its own, and read as fp32
};

struct Result {
  Array weight, moment1, moment2, scales, scales1, scales2, copy, codes, transposed;
  float amax = 0, scale_inv = 0;
  ops::QuantizeStatistics statistics = {};
};

Array values(const Case& c, uint32_t seed, bool non_negative = false) {
  std::vector<float> numbers = adversarial_values(c.rows * c.width, seed, true);
  for (float& number : numbers) {
    number = non_negative ? std::abs(number) : number;
  }
  return Array(DType::f32, {c.rows, c.width}, numbers);
}

/// A tensor on the device, from codes of a first step's size.
Encoded put_stored(Side& side, const Case& c, const TensorFormat& format, const Array& start) {
  const View codes = side.put(Array(format.dtype, {c.rows, c.width}, start.values()), c.offset);
  const int64_t scales = stored_scales(format, c.rows * c.width);
  if (scales == 0) {
    return codes;
  }
  std::vector<float> values(static_cast<size_t>(scales), 1.5F);
  values[1 % values.size()] = format.block == per::tensor ? 0.0F : 1.5F;
  return {codes, format, side.put(Array(DType::f32, {scales}, values))};
}

Result update(Side& side, const Case& c) {
  const Encoded weight = put_stored(side, c, c.weight, values(c, 1));
  const Encoded moment1 = put_stored(side, c, c.moments.first, values(c, 2));
  const Encoded moment2 = put_stored(side, c, c.moments.second, values(c, 3, true));
  const View copy = side.put(Array(DType::f16, {c.rows, c.width}), c.offset);
  const View codes = side.put(Array(c.wanted.type, {c.rows, c.width}), c.offset);
  const View transposed = side.put(Array(c.wanted.type, {c.width, c.rows}), c.offset);
  float* amax = side.put_value(0.25F);
  float* scale_inv = side.put_value(0.0F);
  auto* statistics = side.put_value(ops::QuantizeStatistics{9, 9, 9});
  ops::QuantizeSink cast = {.out = {}, .amax = amax};
  if (c.wanted.codes || c.wanted.transposed) {
    cast.out.rowwise.codes = c.wanted.codes ? codes : View{};
    cast.out.columnwise.codes = c.wanted.transposed ? transposed : View{};
    set_tensor_cast(cast.out, plain(c.wanted.type), side.put_value(3.5F), scale_inv);
    cast.statistics = c.wanted.statistics ? statistics : nullptr;
  }
  const Encoded gradient = put_stored(side, c, c.gradient, values(c, 4));
  if (c.stores_first) {
    const View stored = side.space(c.read_as, {c.rows, c.width});
    ops::store(side.stream(), {.x = gradient.codes, .to = stored});
    ops::read_stored(side.stream(), stored, gradient.codes);
  }
  ops::AdamW call = {.weight = weight,
                     .gradient = gradient,
                     .moment1 = moment1,
                     .moment2 = moment2,
                     .copy = copy,
                     .beta1 = 0.9,
                     .beta2 = 0.95,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .cast = c.weight.dtype == DType::f32 ? cast : ops::QuantizeSink{},
                     .rounding = {99, 5},
                     .gradient_read_as = c.stores_first ? DType::f32 : c.read_as};
  const auto* control = side.put_value(adamw_control(c.skip));
  if (c.amax_first) {
    ops::adamw_amax(side.stream(), call, control);
    call.amax_known = true;
  }
  ops::adamw(side.stream(), call, control);
  const auto scales = [&](const Encoded& tensor) {
    return tensor.scales.empty() ? Array() : side.get(tensor.scales);
  };
  return {side.get(weight.codes), side.get(moment1.codes),   side.get(moment2.codes),
          scales(weight),         scales(moment1),           scales(moment2),
          side.get(copy),         side.get(codes),           side.get(transposed),
          side.get_value(amax),   side.get_value(scale_inv), side.get_value(statistics)};
}

void check_same(const Result& cuda, const Result& cpu) {
  CHECK(same_values(cuda.weight, cpu.weight));
  CHECK(same_values(cuda.moment1, cpu.moment1));
  CHECK(same_values(cuda.moment2, cpu.moment2));
  CHECK(same_values(cuda.scales, cpu.scales));
  CHECK(same_values(cuda.scales1, cpu.scales1));
  CHECK(same_values(cuda.scales2, cpu.scales2));
  CHECK(same_values(cuda.copy, cpu.copy));
  CHECK(same_values(cuda.codes, cpu.codes));
  CHECK(same_values(cuda.transposed, cpu.transposed));
  CHECK(cuda.amax == cpu.amax);
  CHECK(cuda.scale_inv == cpu.scale_inv);
  CHECK(std::memcmp(&cuda.statistics, &cpu.statistics, sizeof(cpu.statistics)) == 0);
}

void check_case(const Case& c) {
  INFO(c.rows << " x " << c.width << " from " << c.offset << ", codes " << c.wanted.codes
              << c.wanted.transposed << ", statistics " << c.wanted.statistics << ", skip "
              << c.skip);
  const auto run = [&](Side& side) { return update(side, c); };
  const Result cuda = on_cuda(run);
  const Result cpu = on_cpu(run);
  check_same(cuda, cpu);
}

TEST_CASE("adamw casts the new weight as the cpu does", "[cuda][optimizer][small]") {
  // By tiles: whole ones, parts of ones; the last two and an offset do without them.
  for (const auto& [rows, width] : {std::pair{128, 128}, {130, 136}, {5, 264}, {7, 12}, {1, 3}}) {
    for (const WeightCast& wanted : kWeightCasts) {
      check_case({rows, width, wanted});
    }
    check_case({rows, width, kWeightCasts[3], true});
    check_case({rows, width, kWeightCasts[0], true});
    check_case({rows, width, kWeightCasts[3], false, 1});
  }
}

TEST_CASE("adamw casts the new weight of a gradient in bf16 as the cpu does",
          "[cuda][optimizer][small]") {
  for (const auto& [rows, width] : {std::pair{128, 128}, {130, 136}, {7, 12}, {1, 3}}) {
    for (const MomentFormats& moments : moment_formats()) {
      for (const int64_t offset : {0, 1}) {
        Case c = {rows, width, kWeightCasts[3], false, offset, moments};
        c.gradient = plain(DType::bf16);
        check_case(c);
      }
    }
  }
}

TEST_CASE("adamw reads an fp32 gradient as a narrower type would store it", "[cuda][optimizer]") {
  const MomentFormats fp32 = {plain(DType::f32), plain(DType::f32)};
  const MomentFormats scaled = moment_formats().back();
  for (const DType weight : {DType::f32, DType::bf16}) {
    for (const MomentFormats& moments : {fp32, scaled}) {
      for (const WeightCast& wanted : {kWeightCasts[0], kWeightCasts[3]}) {
        INFO("weight " << name_of(weight));
        Case c = {9, 136, wanted, false, 0, moments, plain(weight)};
        c.read_as = DType::bf16;
        check_case(c);
        const Result read = on_cpu([&](Side& side) { return update(side, c); });
        c.stores_first = true;
        check_same(read, on_cpu([&](Side& side) { return update(side, c); }));
        c.read_as = DType::f32;
        c.stores_first = false;
        const Result plain_read = on_cpu([&](Side& side) { return update(side, c); });
        // A rounding of the new value may hide it.
        CHECK((weight != DType::f32 || !same_values(read.weight, plain_read.weight)));
      }
    }
  }
}

TEST_CASE("a kernel of adamw walks over more tiles than it has blocks", "[cuda][optimizer]") {
  check_case({128 * 70, 8, kWeightCasts[3]});
}

TEST_CASE("adamw keeps moments in any format as the cpu does", "[cuda][optimizer]") {
  // Alone, by tiles, and without tiles where a group would straddle rows.
  size_t index = 0;
  for (const MomentFormats& moments : moment_formats()) {
    for (const auto& [rows, width] : {std::pair{1, 1}, {130, 128}, {9, 136}}) {
      if (!is_in_rotation(index++, 2)) {
        continue;
      }
      INFO(describe(moments.first) << " and " << describe(moments.second));
      for (const WeightCast& wanted : {kWeightCasts[0], kWeightCasts[3]}) {
        check_case({rows, width, wanted, false, 0, moments});
      }
      check_case({rows, width, kWeightCasts[3], true, 0, moments});
      check_case({rows, width, kWeightCasts[1], false, 1, moments});
    }
  }
}

TEST_CASE("adamw keeps weights and gradients in any format as the cpu does", "[cuda][optimizer]") {
  // Whole groups, parts of one, more groups than warps of a block; 1 element further in memory.
  size_t index = 0;
  for (const StoredFormats& formats : stored_formats()) {
    for (const auto& [rows, width] : {std::pair{1, 1}, {3, 128}, {9, 137}}) {
      if (!is_in_rotation(index++, 2)) {
        continue;
      }
      INFO(describe(formats.weight)
           << ", " << describe(formats.gradient) << ", " << describe(formats.moments.first));
      Case c = {rows, width,           kWeightCasts[3], false,
                0,    formats.moments, formats.weight,  formats.gradient};
      check_case(c);
      c.offset = 1;
      check_case(c);
      c.skip = true;
      check_case(c);
    }
  }
}

TEST_CASE("an amax that is found before is that of the update", "[cuda][optimizer][small]") {
  for (const StoredFormats& formats : stored_formats()) {
    INFO(describe(formats.weight) << ", " << describe(formats.moments.first));
    for (const bool skip : {false, true}) {
      Case c = {
          9, 137, kWeightCasts[0], skip, 0, formats.moments, formats.weight, formats.gradient};
      c.amax_first = true;
      check_case(c);
      const Result before = on_cpu([&](Side& side) { return update(side, c); });
      c.amax_first = false;
      const Result at_once = on_cpu([&](Side& side) { return update(side, c); });
      CHECK(same_values(before.weight, at_once.weight));
      CHECK(same_values(before.scales, at_once.scales));
      CHECK(same_values(before.scales2, at_once.scales2));
    }
  }
}

}  // namespace
}  // namespace fp8train::test
