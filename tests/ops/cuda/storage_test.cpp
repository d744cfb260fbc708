// Tensors stored in formats of their own: the cpu's bits, since the arithmetic is the same and
// maxima and counts have no order.

#include "ops/storage/storage.h"

#include <catch2/catch.hpp>

#include "numeric/with_type.h"
#include "ops/adamw_cases.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

struct StoredValues {
  Array codes, scales, read;
};

struct Case {
  TensorFormat format;
  DType dtype = DType::f32;
  int64_t count = 0, offset = 0;
  bool finite = true;
  float factor = 0.0F;  ///< of automatic scaling
};

/// Two stores, the second added, a third that is skipped, and what is read then.
StoredValues keep(Side& side, const Case& c) {
  const View codes = side.put(Array(c.format.dtype, {c.count}), c.offset);
  const int64_t scales = stored_scales(c.format, c.count);
  Encoded to(codes, c.format, {});
  if (scales > 0) {
    std::vector<float> start(static_cast<size_t>(scales), 1.0F);
    start[1 % start.size()] = c.format.block == per::tensor ? 0.0F : 1.0F;
    to.scales = side.put(Array(DType::f32, {scales}, start));
  }
  const auto* automatic = c.factor == 0.0F ? nullptr : side.put_value(ops::AutoScale{c.factor, 0});
  for (const bool add : {false, true}) {
    const Array x(c.dtype, {c.count}, adversarial_values(c.count, add ? 2 : 1, c.finite));
    ops::Store call = {.x = side.put(x, c.offset),
                       .to = to,
                       .add = add,
                       .automatic = automatic,
                       .skip = add ? side.put_value(int32_t{0}) : nullptr};
    if (codec_of(c.format) == Codec::tensor && add) {
      call.step = CastStep::amax;
      ops::store(side.stream(), call);
      call.step = CastStep::codes;
    }
    ops::store(side.stream(), call);
  }
  const Array other(c.dtype, {c.count}, adversarial_values(c.count, 3, c.finite));
  ops::store(side.stream(), {.x = side.put(other, c.offset),
                             .to = to,
                             .automatic = automatic,
                             .skip = side.put_value(int32_t{1})});
  const View read = side.space(c.dtype, {c.count}, c.offset);
  ops::read_stored(side.stream(), to, read);
  return {side.get(codes), scales > 0 ? side.get(to.scales) : Array(), side.get(read)};
}

void check_case(const Case& c) {
  INFO(describe(c.format) << " from " << name_of(c.dtype) << ", " << c.count << " from "
                          << c.offset);
  const auto run = [&](Side& side) { return keep(side, c); };
  const StoredValues cuda = on_cuda(run);
  const StoredValues cpu = on_cpu(run);
  CHECK(same_values(cuda.codes, cpu.codes));
  CHECK(same_values(cuda.scales, cpu.scales));
  CHECK(same_values(cuda.read, cpu.read));
}

const TensorFormat kFormats[] = {
    plain(DType::bf16),
    by_tensor(DType::f16, ScaleType::pow2),
    by_tensor(DType::e4m3, ScaleType::f32),
    by_group(DType::f16, ScaleType::f32),
    by_group(DType::e4m3, ScaleType::pow2),
    by_group(DType::e5m2, ScaleType::f32),
    master_halves(),
    two_level_groups(),
};

TEST_CASE("stored tensors have the cpu's bits", "[cuda][storage]") {
  for (const TensorFormat& format : kFormats) {
    for (const bool finite : {true, false}) {
      check_case({format, DType::f32, 3000, 0, finite});
      check_case({format, DType::bf16, 131, 1, finite});
    }
    check_case({format, DType::f16, 1});
    check_case({format, DType::f32, 384, 1});
  }
  check_case({kFormats[2], DType::f32, 700, 0, true, 3.0F});
  check_case({kFormats[1], DType::bf16, 700, 0, true, 0.25F});
  check_case({kFormats[2], DType::f32, 700, 0, false, 0.25F});
}

TEST_CASE("automatic factors have the cpu's bits", "[cuda][storage]") {
  for (const int64_t count : {1, 5000, 300000}) {
    const auto run = [&](Side& side) {
      const View codes = side.put(Array(DType::e4m3, {count}, adversarial_values(count, 3, true)));
      auto* automatic = side.put_value(ops::AutoScale{0.75F, 0, count});
      const auto update = [&](const View& of, int32_t skip) {
        ops::count_at_maximum(side.stream(), of, automatic);
        ops::update_auto_scales(side.stream(), automatic, 1, automatic, 1, side.put_value(skip));
      };
      update(codes, 0);
      update(side.put(Array(DType::e5m2, {count})), 0);
      update(codes, 1);
      CHECK(side.get_value(automatic).at_maximum == 0);
      ops::count_at_maximum(side.stream(), codes, automatic);
      const ops::AutoScale counted = side.get_value(automatic);
      return std::pair(counted.factor, counted.at_maximum);
    };
    CHECK(on_cuda(run) == on_cpu(run));
  }
}

TEST_CASE("saved groups have the cpu's bits", "[cuda][storage][small]") {
  for (const DType dtype : FloatTypes::kTypes) {
    for (const auto& [count, offset] : {std::pair<int64_t, int64_t>{2048, 0}, {131, 0}, {300, 1}}) {
      for (const bool finite : {true, false}) {
        const auto run = [&, size = count, shift = offset](Side& side) {
          const View x = side.put(Array(dtype, {size}, adversarial_values(size, 5, finite)), shift);
          const Encoded out(side.space(DType::e4m3, {size}, shift), saved_groups(),
                            side.space(DType::bf16, {(size + 15) / 16}));
          ops::store(side.stream(), {.x = x, .to = out});
          const View y = side.space(dtype, {size}, shift);
          ops::read_stored(side.stream(), out, y);
          return StoredValues{side.get(out.codes), side.get(out.scales), side.get(y)};
        };
        const StoredValues cuda = on_cuda(run);
        const StoredValues cpu = on_cpu(run);
        CHECK(same_values(cuda.codes, cpu.codes));
        CHECK(same_values(cuda.scales, cpu.scales));
        CHECK(same_values(cuda.read, cpu.read));
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
