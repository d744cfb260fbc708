// Gradient wires: the cpu's bits, since the arithmetic is the same and sums have one order.

#include "ops/exchange/wire.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "numeric/with_type.h"
#include "ops/adamw_cases.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/exchange/shared_wire.h"
#include "ops/exchange/wire_formats.h"
#include "ops/storage/storage.h"
#include "ops/wire_cases.h"

namespace fp8train::test {
namespace {

const std::vector<TensorFormat> kWires = all_wires();

struct Results {
  std::vector<Array> arrays;
};

void check_same(const Results& cuda, const Results& cpu) {
  REQUIRE(cuda.arrays.size() == cpu.arrays.size());
  for (size_t i = 0; i < cpu.arrays.size(); ++i) {
    INFO("result " << i);
    CHECK(same_values(cuda.arrays[i], cpu.arrays[i]));
  }
}

template <typename Run>
void compare(const Run& run) {
  check_same(on_cuda(run), on_cpu(run));
}

struct Case {
  TensorFormat format;
  DType x = DType::f32, y = DType::f32;
  int64_t count = 0, offset = 0, inner = 1, exact_index = -1;
  bool finite = true;
  ops::ChunkRange range;
};

/// The largest group and a half.
constexpr int64_t kChunk = std::ranges::max(ops::kWireGroups) * 3 / 2, kChunks = 4;

/// What packets hold, whatever their padding and their NaNs are: they are read back.
Results pack_and_sum(Side& side, const Case& c) {
  const int64_t bytes = kChunks * ops::wire_bytes(c.format, kChunk);
  const View packets = side.space(DType::e4m3, {3 * bytes});
  View x;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    x = side.put(Array(c.x, {c.count}, adversarial_values(c.count, rank + 1, c.finite)), c.offset);
    ops::pack_wire(side.stream(), {.x = x,
                                   .format = c.format,
                                   .chunk = kChunk,
                                   .chunks = kChunks,
                                   .range = c.range,
                                   .inner = c.inner,
                                   .packets = packets.as<uint8_t>() + rank * bytes});
  }
  const View first = side.space(DType::f32, {kChunk * kChunks});
  ops::sum_wire(side.stream(), {.packets = packets.data,
                                .format = c.format,
                                .chunk = kChunk,
                                .chunks = kChunks,
                                .y = first});
  // What chunks do not have stays.
  const View sum = side.put(Array(c.y, {c.count}, random_values(c.count, 9)), c.offset);
  const View exact = side.put(Array(c.y, {c.count}, adversarial_values(c.count, 8, c.finite)));
  ops::sum_wire(side.stream(), {.packets = packets.data,
                                .format = c.format,
                                .contributions = 3,
                                .chunk = kChunk,
                                .chunks = kChunks,
                                .exact_index = c.exact_index,
                                .exact = exact,
                                .factor = 0.3F,
                                .y = sum,
                                .range = c.range});
  return {{side.get(first), side.get(sum)}};
}

TEST_CASE("packets and their sums have the cpu's bits", "[cuda][wire]") {
  for (const TensorFormat& format : kWires) {
    const Case cases[] = {
        {format, DType::f32, DType::f32, kChunk * kChunks, 0, 1, -1, true},
        {format, DType::bf16, DType::bf16, 900, 1, 2, 1, true},
        {format, DType::f16, DType::bf16, 131, 0, 4, 0, false},
        {format, DType::f32, DType::f32, 1, 1, 1, 2, false},
        {format, DType::f32, DType::f32, 1700, 0, 2, 1, true, {.first = 128, .stride = 512}},
        {format, DType::bf16, DType::f32, 1170, 1, 1, -1, false, {.first = 256, .stride = 512}},
    };
    for (const Case& c : cases) {
      INFO(describe(format) << " of " << name_of(c.x) << ", " << c.count << " elements");
      compare([&](Side& side) { return pack_and_sum(side, c); });
    }
  }
}

TEST_CASE("copied codes have the cpu's bytes", "[cuda][wire][small]") {
  for (const TensorFormat& format :
       {by_group(DType::e4m3, ScaleType::f32), by_group(DType::e4m3, ScaleType::pow2)}) {
    for (const int64_t offset : {0, 1}) {
      compare([&, shift = offset](Side& side) {
        const ops::ChunkRange range = {.first = 128 * shift, .stride = 0};
        const View codes = side.put(Array(format.dtype, {300}, random_values(300, 3)), shift);
        const View scales = side.put(Array(DType::f32, {3}, {4, 0, 0.125F}));
        const View packets = side.space(DType::e4m3, {2 * ops::wire_bytes(format, 256)});
        ops::pack_wire(side.stream(), {.x = Encoded(codes, format, scales),
                                       .format = format,
                                       .chunk = 256,
                                       .chunks = 2,
                                       .range = range,
                                       .packets = packets.data});
        const View codes_back = side.put(Array(format.dtype, {300}), shift);
        const View scales_back = side.put(Array(DType::f32, {3}));
        ops::unpack_wire(side.stream(), {.packets = packets.data,
                                         .chunk = 256,
                                         .chunks = 2,
                                         .y = {codes_back, format, scales_back},
                                         .range = range});
        return Results{{side.get(codes_back), side.get(scales_back)}};
      });
    }
  }
}

TEST_CASE("values of ranks are combined with the cpu's bits", "[cuda][wire]") {
  for (const ops::Combine how : {ops::Combine::sum, ops::Combine::pairs, ops::Combine::max}) {
    compare([&](Side& side) {
      const View parts = side.put(Array(DType::f32, {5, 77}, adversarial_values(5 * 77, 4)));
      const View y = side.space(DType::f32, {77});
      ops::combine_ranks(side.stream(), parts, how, y);
      const View wide = side.space(DType::f64, {3});
      const View doubles = side.put(Array(DType::f32, {18}, random_values(18, 5)));
      ops::combine_ranks(side.stream(), ConstView{doubles.data, DType::f64, {3, 3}}, how, wide);
      return Results{{side.get(y), side.get({wide.data, DType::f32, {6}})}};
    });
  }
}

TEST_CASE("sums in pairs have the cpu's bits", "[cuda][wire]") {
  for (const DType from : {DType::f32, DType::bf16}) {
    for (const DType to : FloatTypes::kTypes) {
      for (const int64_t ranks : {1, 2, 5, 8, 256}) {
        for (const int64_t count : {1000, 77}) {
          INFO(name_of(from) << " to " << name_of(to) << ", " << ranks << " of " << count);
          compare([&, offset = int64_t{count == 77}](Side& side) {
            const View parts =
                side.put(Array(from, {ranks, count}, adversarial_values(ranks * count, 4)), offset);
            const View y = side.space(to, {count});
            ops::combine_ranks(side.stream(), parts, ops::Combine::pairs, y);
            return Results{{side.get(y)}};
          });
        }
      }
    }
  }
}

/// Scales under controllers, what these count and what follows for the next step.
Results control(Side& side, const View& amax, const View& sum, int64_t count, const View& names) {
  const int64_t tensors = amax.count();
  std::vector<ops::AutoScale> initial;
  for (int64_t t = 0; t < 2 * tensors; ++t) {
    initial.push_back({0.3F + static_cast<float>(t), 1, 60000});
  }
  const View controllers = side.space(DType::i64, {2, tensors, 2});  // of two ranks
  copy_from_host(side.device(), controllers, initial.data());
  const View next = side.space(DType::i64, {tensors, 2});
  copy_from_host(side.device(), next, initial.data());
  auto* own = controllers.as<ops::AutoScale>();
  std::vector<ops::AutoScale*> addresses;
  for (int64_t t = 0; t < tensors; ++t) {
    addresses.push_back(own + t);
  }
  const View table = side.space(DType::i64, {tensors});
  copy_from_host(side.device(), table, addresses.data());
  const View scales = side.space(DType::f32, {tensors});
  ops::shared_scales(side.stream(), amax, by_tensor(DType::e4m3, ScaleType::pow2), 0.7F, scales,
                     table);
  ops::count_largest(side.stream(), {sum.data, DType::e4m3, {count}}, names, table);
  Results results = {{side.get(scales), side.get({own, DType::f32, {4 * tensors}})}};
  ops::update_auto_scales(side.stream(), own, 2, next.as<ops::AutoScale>(), tensors,
                          side.put_value(int32_t{0}));
  results.arrays.push_back(side.get({next.data, DType::f32, {4 * tensors}}));
  return results;
}

/// code_sum from gradients in any type to what is read of them.
Results share(Side& side, DType dtype, int64_t count, int64_t offset, bool finite) {
  const TensorFormat format = by_tensor(DType::e4m3, ScaleType::pow2);
  const int64_t groups = (count + 127) / 128;
  std::vector<int32_t> table(static_cast<size_t>(groups));
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<int32_t>(i / 2);
  }
  const int64_t tensors = (groups + 1) / 2;
  Array names(DType::i32, {groups});
  std::copy(table.begin(), table.end(), names.as<int32_t>());
  std::vector<float> stored(static_cast<size_t>(2 * tensors), 0.0F);
  for (size_t t = 0; t < stored.size(); t += 2) {
    stored[t] = t == 0 ? 0.0F : 0.5F;
  }
  const ops::SharedBucket bucket = {
      side.put(Array(dtype, {count}, adversarial_values(count, 6, finite)), offset),
      is_fp8(dtype) ? side.put(Array(DType::f32, {tensors, 2}, stored)) : View{}, side.put(names)};
  const View amax = side.space(DType::f32, {tensors});
  const View scales = side.space(DType::f32, {tensors});
  const View codes = side.space(DType::e4m3, {2, 1024});
  const View row = {codes.data, DType::e4m3, {1024}};
  ops::shared_amax(side.stream(), bucket, amax);
  ops::shared_scales(side.stream(), amax, format, 0.7F, scales);
  ops::pack_shared(side.stream(), bucket, scales, row);
  const View second = {codes.as<uint8_t>() + 1024, DType::e4m3, {1024}};
  ops::pack_shared(side.stream(), bucket, scales, second);
  const View sum = side.space(DType::e4m3, {1024});
  ops::sum_shared(side.stream(), codes, sum);
  Results controlled = control(side, amax, sum, count, bucket.tensor_of_group);
  Results results = {{side.get(amax), side.get(scales), side.get(row), side.get(sum)}};
  results.arrays.insert(results.arrays.end(), controlled.arrays.begin(), controlled.arrays.end());
  ops::read_shared(side.stream(), sum, scales, 0.5F, bucket);
  results.arrays.push_back(side.get(bucket.values));
  if (count > 128) {
    const View shard = side.space(DType::f32, {count - 128}, offset);
    const View later = {bucket.tensor_of_group.as<int32_t>() + 1, DType::i32, {groups - 1}};
    const View after = {sum.as<uint8_t>() + 128, DType::e4m3, {1024 - 128}};
    ops::read_shared(side.stream(), after, scales, 0.5F, {shard, {}, later});
    results.arrays.push_back(side.get(shard));
  }
  if (is_fp8(dtype)) {
    results.arrays.push_back(side.get(bucket.code_scales));
  }
  // Chunks that lie apart; of codes without their scales.
  const ops::ChunkRange apart = {.first = 128, .stride = 384};
  const View rows = {codes.data, DType::e4m3, {4, 256}};
  ops::pack_shared(side.stream(), bucket, scales, rows, apart);
  results.arrays.push_back(side.get(row));
  ops::read_shared(side.stream(), rows, scales, 0.7F, {bucket.values, {}, bucket.tensor_of_group},
                   apart);
  results.arrays.push_back(side.get(bucket.values));
  return results;
}

TEST_CASE("codes under shared scales have the cpu's bits", "[cuda][wire][small]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
    for (const bool finite : {true, false}) {
      INFO(name_of(dtype));
      compare([&](Side& side) { return share(side, dtype, 1024, 0, finite); });
      compare([&](Side& side) { return share(side, dtype, 701, 1, finite); });
      compare([&](Side& side) { return share(side, dtype, 3, 0, finite); });
    }
  }
}

}  // namespace
}  // namespace fp8train::test
