// Packets of gradients on a wire. The reference reads and writes them byte by byte; codes come from
// numeric/, which has exhaustive tests: exact.

#include "ops/exchange/wire.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"
#include "ops/adamw_cases.h"
#include "ops/exchange/wire_formats.h"
#include "ops/op_test_support.h"
#include "ops/wire_cases.h"

namespace fp8train::test {
namespace {

using Bytes = std::vector<uint8_t>;
using Values = std::vector<float>;

const std::vector<TensorFormat> kWires = all_wires();

/// Elements that share a scale; formats without one have none.
int64_t group_size(const TensorFormat& format) {
  return format.is_scaled() ? format.block.columns : 128;
}

/// Gradients with a zero group and one of tiny numbers.
Values gradients(int64_t count, uint32_t seed) {
  Values values = random_values(count, seed);
  for (int64_t i = 0; i < count; ++i) {
    const bool zero = i / 128 == 1;
    values[static_cast<size_t>(i)] *= zero ? 0.0F : i / 128 == 2 ? 1e-37F : 1e-3F;
  }
  return values;
}

/// Of the group that element `at` is in; groups begin again with each chunk.
float group_scale(const Values& values, int64_t at, int64_t chunk, const TensorFormat& format) {
  float amax = 0;
  const int64_t within = at % chunk / group_size(format) * group_size(format);
  const int64_t first = at / chunk * chunk + within;
  const int64_t end = std::min(first + std::min(group_size(format), chunk - within),
                               static_cast<int64_t>(values.size()));
  for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i) {
    if (!std::isfinite(values[i])) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    amax = std::max(amax, std::abs(values[i]));
  }
  if (amax == 0) {
    return 1;
  }
  const float largest = facts_of(format.dtype).max;
  const float scale = std::min(largest / amax, std::numeric_limits<float>::max());
  int exponent = 0;
  std::frexp(scale, &exponent);
  return is_exponent(format.scale_type) ? std::ldexp(1.0F, exponent - 1) : scale;
}

/// The value of an element as the packet at `packet` has it.
float read_packet(const uint8_t* packet, const TensorFormat& format, int64_t chunk, int64_t i) {
  if (format.dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, packet + 4 * i, 4);
    return value;
  }
  if (format.dtype == DType::bf16) {
    bf16 value = {};
    std::memcpy(&value, packet + 2 * i, 2);
    return decode(value);
  }
  const uint8_t* scales = packet + chunk;
  float scale = 0;
  if (is_exponent(format.scale_type)) {
    const uint8_t byte = scales[i / group_size(format)];
    scale = byte == 255 ? std::nanf("") : std::ldexp(1.0F, byte - 127);
  } else {
    std::memcpy(&scale, scales + i / group_size(format) * 4, 4);
  }
  float code = 0;
  WireCodes::with(format.dtype, [&](auto tag) {
    typename decltype(tag)::Type read{};
    std::memcpy(&read, packet + i, sizeof(read));
    code = decode(read);
  });
  return code * (1.0F / scale);
}

float rounded(float value, float scale, const TensorFormat& format) {
  if (format.dtype == DType::f32) {
    return value;
  }
  if (format.dtype == DType::bf16) {
    return decode(encode<bf16>(value));
  }
  if (std::isnan(scale)) {
    return scale;
  }
  float code = 0;
  WireCodes::with(format.dtype, [&](auto tag) {
    code = decode(encode<typename decltype(tag)::Type>(value * scale));
  });
  return code * (1.0F / scale);
}

/// Packets of a chunked array.
Bytes packed(const Values& values, const TensorFormat& format, int64_t chunk, int64_t chunks,
             int64_t inner = 1) {
  Array x(DType::f32, {static_cast<int64_t>(values.size())}, values);
  Bytes packets(static_cast<size_t>(chunks * ops::wire_bytes(format, chunk)), 0xEE);
  ops::pack_wire(cpu_stream(), {.x = x.view(),
                                .format = format,
                                .chunk = chunk,
                                .chunks = chunks,
                                .inner = inner,
                                .packets = packets.data()});
  return packets;
}

TEST_CASE("bytes of a packet", "[wire]") {
  CHECK(ops::wire_bytes(plain(DType::f32), 256) == 1024);
  CHECK(ops::wire_bytes(by_group(DType::e4m3), 256) == 256 + 2 * 4 + 8);
  CHECK(ops::wire_bytes(by_group(DType::e4m3, ScaleType::pow2), 128 * 17) == 128 * 17 + 17 + 15);
  CHECK_THROWS_AS(ops::wire_bytes(by_group(DType::e4m3, ScaleType::e4m3), 256), InternalError);
  CHECK(ops::is_wire_format(by_group(DType::e5m2)));
  TensorFormat transformed = by_group(DType::e4m3);
  transformed.hadamard = true;
  TensorFormat with_floor = by_group(DType::e4m3);
  with_floor.amax_epsilon = 0x1p-20F;
  for (const TensorFormat& other :
       {transformed, with_floor, plain(DType::i32), by_tensor(DType::e4m3), by_group(DType::f16),
        expanded(), stochastic(plain(DType::bf16)), stochastic(by_group(DType::e4m3)),
        by_group(DType::i32), by_group(DType::e4m3, ScaleType::e4m3)}) {
    CHECK_FALSE(ops::is_wire_format(other));
  }
}

TEST_CASE("pack_wire: every element once, in its chunk's packet", "[wire]") {
  constexpr int64_t kChunk = std::ranges::max(ops::kWireGroups);
  constexpr int64_t kChunks = 6;
  for (const TensorFormat& format : kWires) {
    for (const int64_t count : {int64_t{1}, int64_t{1300}, kChunk * kChunks}) {
      for (const int64_t inner : {1, 2, 6}) {
        INFO(describe(format) << ", " << count << " elements, inner " << inner);
        const Values values = gradients(count, 7);
        const Bytes packets = packed(values, format, kChunk, kChunks, inner);
        const auto stride = static_cast<size_t>(ops::wire_bytes(format, kChunk));
        for (int64_t i = 0; i < kChunk * kChunks; ++i) {
          // Chunk c = node * inner + local rank goes to slot local rank * nodes + node.
          const int64_t c = i / kChunk;
          const int64_t slot = c % inner * (kChunks / inner) + c / inner;
          const float found = read_packet(packets.data() + static_cast<size_t>(slot) * stride,
                                          format, kChunk, i % kChunk);
          const float value = i < count ? values[static_cast<size_t>(i)] : 0.0F;
          REQUIRE(found == rounded(value, group_scale(values, i, kChunk, format), format));
        }
      }
    }
  }
}

TEST_CASE("pack_wire: what is not finite poisons its group", "[wire]") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Values values = gradients(512, 3);
    values[300] = bad;
    for (const TensorFormat& format :
         {by_group(DType::e4m3), by_group(DType::e4m3, ScaleType::pow2)}) {
      const Bytes packets = packed(values, format, 512, 1);
      for (int64_t i = 0; i < 512; ++i) {
        REQUIRE(std::isnan(read_packet(packets.data(), format, 512, i)) == (i / 128 == 2));
      }
    }
  }
}

TEST_CASE("codes that are the wire's are copied, and come back", "[wire]") {
  for (const TensorFormat& format :
       {by_group(DType::e4m3), by_group(DType::e4m3, ScaleType::pow2)}) {
    Array codes(format.dtype, {700});
    Array scales(DType::f32, {6}, {2, 0.5F, 1024, 0x1p-20F, 0x1p100F, 1});
    for (int64_t i = 0; i < 700; ++i) {
      codes.as<uint8_t>()[i] = static_cast<uint8_t>(i % 127);
    }
    Bytes packets(static_cast<size_t>(3 * ops::wire_bytes(format, 256)));
    ops::pack_wire(cpu_stream(), {.x = Encoded(codes.view(), format, scales.view()),
                                  .format = format,
                                  .chunk = 256,
                                  .chunks = 3,
                                  .packets = packets.data()});
    Array codes_back(format.dtype, {700});
    Array scales_back(DType::f32, {6});
    ops::unpack_wire(cpu_stream(), {.packets = packets.data(),
                                    .chunk = 256,
                                    .chunks = 3,
                                    .y = {codes_back.view(), format, scales_back.view()}});
    CHECK(codes_back.bytes() == codes.bytes());
    CHECK(scales_back.bytes() == scales.bytes());
  }
}

/// The elements that chunks of 256 have, one chunk after another; zeros where they do not exist.
Values values_in_range(const Values& values, const ops::ChunkRange& range, int64_t chunks) {
  Values found(static_cast<size_t>(256 * chunks));
  for (int64_t i = 0; i < 256 * chunks; ++i) {
    const auto element = static_cast<size_t>(range.first + i / 256 * range.stride + i % 256);
    found[static_cast<size_t>(i)] = element < values.size() ? values[element] : 0.0F;
  }
  return found;
}

// Of chunks that lie apart the second ends within the tensor, the third beyond its end, and the
// fourth begins there.
constexpr ops::ChunkRange kApart = {.first = 128, .stride = 512};

TEST_CASE("chunks may lie apart in the tensor", "[wire]") {
  const Values values = gradients(1300, 5);
  const Values chosen = values_in_range(values, kApart, 4);
  for (const TensorFormat& format : kWires) {
    INFO(describe(format));
    Array x(DType::f32, {1300}, values);
    Bytes packets(static_cast<size_t>(4 * ops::wire_bytes(format, 256)), 0xEE);
    ops::pack_wire(cpu_stream(), {.x = x.view(),
                                  .format = format,
                                  .chunk = 256,
                                  .chunks = 4,
                                  .range = kApart,
                                  .packets = packets.data()});
    CHECK(packets == packed(chosen, format, 256, 4));
    Array y(DType::f32, {1300}, Values(1300, 7.0F));
    ops::sum_wire(cpu_stream(), {.packets = packets.data(),
                                 .format = format,
                                 .chunk = 256,
                                 .chunks = 4,
                                 .y = y.view(),
                                 .range = kApart});
    for (int64_t i = 0; i < 1300; ++i) {
      const int64_t within = (i - kApart.first) % kApart.stride;
      const bool has = i >= kApart.first && within < 256;
      const int64_t c = (i - kApart.first) / kApart.stride;
      const uint8_t* packet = packets.data() + c * ops::wire_bytes(format, 256);
      REQUIRE(y.get(i) == (has ? read_packet(packet, format, 256, within) : 7.0F));
    }
  }
}

TEST_CASE("codes in chunks that lie apart are copied, and come back", "[wire]") {
  const TensorFormat format = by_group(DType::e4m3);
  Array codes(format.dtype, {700});
  Array scales(DType::f32, {6}, {2, 0.5F, 1024, 0x1p-20F, 0x1p100F, 1});
  for (int64_t i = 0; i < 700; ++i) {
    codes.as<uint8_t>()[i] = static_cast<uint8_t>(i % 127);
  }
  Array codes_back(format.dtype, {700});
  Array scales_back(DType::f32, {6});
  Bytes packets(static_cast<size_t>(2 * ops::wire_bytes(format, 256)));
  for (const int64_t first : {0, 256}) {  // rows of 512: of the last one 60 elements more
    const ops::ChunkRange range = {.first = first, .stride = 512};
    ops::pack_wire(cpu_stream(), {.x = Encoded(codes.view(), format, scales.view()),
                                  .format = format,
                                  .chunk = 256,
                                  .chunks = 2,
                                  .range = range,
                                  .packets = packets.data()});
    ops::unpack_wire(cpu_stream(), {.packets = packets.data(),
                                    .chunk = 256,
                                    .chunks = 2,
                                    .y = {codes_back.view(), format, scales_back.view()},
                                    .range = range});
  }
  CHECK(codes_back.bytes() == codes.bytes());
  CHECK(scales_back.bytes() == scales.bytes());
}

TEST_CASE("sum_wire: fp32 sums in rank order", "[wire]") {
  constexpr int64_t kChunk = 384;
  constexpr int64_t kChunks = 2;
  constexpr int64_t kCount = 700;
  constexpr float kFactor = 0.37F;
  for (const TensorFormat& format : kWires) {
    std::vector<Values> contributions;
    Bytes packets;
    for (uint32_t rank = 0; rank < 5; ++rank) {
      contributions.push_back(gradients(kCount, rank + 1));
      const Bytes more = packed(contributions.back(), format, kChunk, kChunks);
      packets.insert(packets.end(), more.begin(), more.end());
    }
    for (const int64_t exact_index : {-1, 0, 3}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        INFO(describe(format) << " to " << name_of(dtype) << ", exact " << exact_index);
        Array exact(DType::f32, {kCount}, contributions[exact_index < 0 ? 0 : exact_index]);
        Array y(dtype, {kCount});
        ops::sum_wire(cpu_stream(), {.packets = packets.data(),
                                     .format = format,
                                     .contributions = 5,
                                     .chunk = kChunk,
                                     .chunks = kChunks,
                                     .exact_index = exact_index,
                                     .exact = exact,
                                     .factor = kFactor,
                                     .y = y.view()});
        Array expected(dtype, {kCount});
        for (int64_t i = 0; i < kCount; ++i) {
          float sum = 0;
          for (size_t rank = 0; rank < 5; ++rank) {
            const Values& values = contributions[rank];
            const float value = values[static_cast<size_t>(i)];
            const float scale = group_scale(values, i, kChunk, format);
            const bool as_it_is = static_cast<int64_t>(rank) == exact_index;
            sum += as_it_is ? value : rounded(value, scale, format);
          }
          expected.set(i, sum * kFactor);
        }
        CHECK(y.values() == expected.values());
      }
    }
  }
}

TEST_CASE("wires have the same bits at every level and thread count", "[wire]") {
  constexpr int64_t kCount = 50000;
  CHECK(same_everywhere([](const ops::OpTable& table) {
    Bits bits;
    for (const TensorFormat& format : kWires) {
      Array x(DType::bf16, {kCount}, gradients(kCount, 9));
      const int64_t chunk = 128 * 131;
      Array packets(DType::e4m3, {3 * ops::wire_bytes(format, chunk)});
      table.pack_wire(cpu_stream(), {.x = x.view(),
                                     .format = format,
                                     .chunk = chunk,
                                     .chunks = 3,
                                     .packets = packets.view().data});
      Array y(DType::f32, {chunk});
      table.sum_wire(cpu_stream(), {.packets = packets.view().data,
                                    .format = format,
                                    .contributions = 3,
                                    .chunk = chunk,
                                    .factor = 0.3F,
                                    .y = y.view()});
      bits.add(packets);
      bits.add(y);
    }
    return bits;
  }));
}

TEST_CASE("combine_ranks: sums in order, maxima with NaN above all", "[wire]") {
  const float big = 16777216.0F;
  Array parts(DType::f32, {3, 2}, {big, -3, 1, 2, 1, std::nanf("")});
  Array y(DType::f32, {2});
  ops::combine_ranks(cpu_stream(), parts, ops::Combine::sum, y);
  CHECK(y.get(0) == big);  // (2^24 + 1) + 1 stays, 2^24 + 2 would not
  ops::combine_ranks(cpu_stream(), parts, ops::Combine::max, y);
  CHECK(y.get(0) == big);
  CHECK(std::isnan(y.get(1)));
  std::vector<double> doubles = {0x1p53, -5, 1, 4, 1, 3};
  std::vector<double> result(2);
  ops::combine_ranks(cpu_stream(), ConstView{doubles.data(), DType::f64, {3, 2}}, ops::Combine::sum,
                     View{result.data(), DType::f64, {2}});
  CHECK(result == std::vector<double>{0x1p53, 2});
  ops::combine_ranks(cpu_stream(), ConstView{doubles.data(), DType::f64, {3, 2}}, ops::Combine::max,
                     View{result.data(), DType::f64, {2}});
  CHECK(result == std::vector<double>{0x1p53, 5});
}

TEST_CASE("wires refuse what they cannot carry", "[wire]") {
  Array x(DType::f32, {256}, gradients(256, 1));
  Bytes packets(4096);
  ops::PackWire call = {
      .x = x.view(), .format = by_group(DType::e4m3), .chunk = 100, .packets = packets.data()};
  CHECK_THROWS_AS(ops::pack_wire(cpu_stream(), call), InternalError);
  call.chunk = 128;  // too small
  CHECK_THROWS_AS(ops::pack_wire(cpu_stream(), call), InternalError);
  call.chunk = 256;
  call.range = {.first = 0, .stride = 128};  // chunks would overlap
  CHECK_THROWS_AS(ops::pack_wire(cpu_stream(), call), InternalError);
  call.range = {.first = 64, .stride = 256};
  CHECK_THROWS_AS(ops::pack_wire(cpu_stream(), call), InternalError);
  call.range = {};
  call.format = by_tensor(DType::e4m3);
  CHECK_THROWS_AS(ops::pack_wire(cpu_stream(), call), InternalError);
  call.format = by_group(DType::e4m3);
  call.chunk = 128;
  call.chunks = 2;
  for (const int64_t inner : {0, 3, 4}) {
    call.inner = inner;
    CHECK_THROWS_WITH(ops::pack_wire(cpu_stream(), call), Catch::Contains("`inner`"));
  }
  call.inner = 1;
  call.x.format = by_group(DType::e5m2);  // scales that are not the wire's
  CHECK_THROWS_WITH(ops::pack_wire(cpu_stream(), call), Catch::Contains("scales of x"));
}

}  // namespace
}  // namespace fp8train::test
