// NVFP4 as a stored format and as a packet: the cpu's bits.

#include <catch2/catch.hpp>

#include "ops/adamw_cases.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/exchange/wire.h"
#include "ops/storage/storage.h"

namespace fp8train::test {
namespace {

using Results = std::vector<Array>;

template <typename Run>
void compare(const Run& run) {
  const Results cuda = on_cuda(run);
  const Results cpu = on_cpu(run);
  REQUIRE(cuda.size() == cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    INFO("result " << i);
    CHECK(same_values(cuda[i], cpu[i]));
  }
}

/// A tensor with these values; its memory begins `offset` bytes further.
Encoded put_stored(Side& side, const std::vector<float>& values, int64_t offset = 0) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t scales = stored_scales(two_level_groups(), count);
  const Encoded stored(side.put(Array(DType::e2m1, {count}), 2 * offset), two_level_groups(),
                       side.put(Array(DType::f32, {scales}, std::vector<float>(scales, 1.0F))));
  ops::store(side.stream(), {.x = side.put(Array(DType::f32, {count}, values)), .to = stored});
  return stored;
}

TEST_CASE("adamw keeps NVFP4 weights and moments as the cpu does", "[cuda][optimizer]") {
  for (const int64_t count : {1, 15, 128, 1233, 40000}) {
    for (const int64_t offset : {0, 1}) {
      for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        INFO(count << " elements, offset " << offset);
        compare([&](Side& side) {
          Encoded weight = put_stored(side, random_values(count, 1), offset);
          Encoded first = put_stored(side, std::vector<float>(count), offset);
          const Encoded second = put_stored(side, std::vector<float>(count), offset);
          weight.format.rounding = first.format.rounding = rounding;
          const View copy = side.put(Array(DType::bf16, {count}), offset);
          for (uint32_t step = 0; step < 3; ++step) {
            const std::vector<float> gradient = adversarial_values(count, 10 + step, true);
            ops::adamw(side.stream(),
                       {.weight = weight,
                        .gradient = side.put(Array(DType::f32, {count}, gradient), offset),
                        .moment1 = first,
                        .moment2 = second,
                        .copy = copy,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .rounding = {99, 5}},
                       side.put_value(adamw_control(false)));
          }
          Results all = {side.get(copy)};
          for (const Encoded& tensor : {weight, first, second}) {
            all.push_back(side.get(tensor.codes));
            all.push_back(side.get(tensor.scales));
          }
          return all;
        });
      }
    }
  }
}

TEST_CASE("packets in NVFP4 and their sums have the cpu's bits", "[cuda][wire]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [count, offset] : {std::pair<int64_t, int64_t>{1536, 0}, {900, 1}, {1, 0}}) {
      for (const int64_t exact_index : {-1, 1}) {
        for (const bool finite : {true, false}) {
          INFO(name_of(dtype) << ", " << count << " elements, exact " << exact_index);
          compare([&, size = count, shift = offset](Side& side) {
            const int64_t bytes = 4 * ops::wire_bytes(two_level_groups(), 384);
            const View packets = side.space(DType::e4m3, {3 * bytes});
            View x;
            for (uint32_t rank = 0; rank < 3; ++rank) {
              x = side.put(Array(dtype, {size}, adversarial_values(size, rank + 1, finite)), shift);
              ops::pack_wire(side.stream(), {.x = x,
                                             .format = two_level_groups(),
                                             .chunk = 384,
                                             .chunks = 4,
                                             .inner = 2,
                                             .packets = packets.as<uint8_t>() + rank * bytes});
            }
            const View sum = side.space(dtype, {size}, shift);
            const View exact = side.put(Array(dtype, {size}, random_values(size, 8)));
            ops::sum_wire(side.stream(), {.packets = packets.data,
                                          .format = two_level_groups(),
                                          .contributions = 3,
                                          .chunk = 384,
                                          .chunks = 4,
                                          .exact_index = exact_index,
                                          .exact = exact,
                                          .factor = 0.3F,
                                          .y = sum});
            return Results{side.get(sum)};
          });
        }
      }
    }
  }
}

TEST_CASE("copied NVFP4 codes have the cpu's bytes", "[cuda][wire][small]") {
  for (const int64_t offset : {0, 1}) {
    compare([&](Side& side) {
      const Encoded stored = put_stored(side, random_values(301, 3), offset);
      const View packets = side.space(DType::e4m3, {2 * ops::wire_bytes(two_level_groups(), 256)});
      ops::pack_wire(side.stream(), {.x = stored,
                                     .format = two_level_groups(),
                                     .chunk = 256,
                                     .chunks = 2,
                                     .packets = packets.data});
      const Encoded back = put_stored(side, std::vector<float>(301), offset);
      ops::unpack_wire(side.stream(),
                       {.packets = packets.data, .chunk = 256, .chunks = 2, .y = back});
      return Results{side.get(back.codes), side.get(back.scales)};
    });
  }
}

}  // namespace
}  // namespace fp8train::test
