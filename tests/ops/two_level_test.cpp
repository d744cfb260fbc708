// NVFP4 as a stored format and as a packet. A group of 128 elements is a row of a matrix that is
// cast as "e2m1 1x16 current e4m3 row_scaled", which nvfp4_test compares with TransformerEngine:
// the codes and scales are the same bits.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "numeric/codec.h"
#include "numeric/rounding.h"
#include "ops/adamw_cases.h"
#include "ops/exchange/wire.h"
#include "ops/fp4_cases.h"
#include "ops/storage/storage.h"

namespace fp8train::test {
namespace {

constexpr int64_t kCounts[] = {1, 15, 127, 128, 333, 3000, 20000};

/// A tensor in memory, with the scales of zeros.
struct Stored {
  TensorFormat format = two_level_groups();
  int64_t count;
  std::vector<uint8_t> codes;
  std::vector<GroupScales> scales;

  explicit Stored(int64_t elements)
      : count(elements),
        codes(static_cast<size_t>(elements + 1) / 2),
        scales(static_cast<size_t>(elements + 127) / 128) {}
  Encoded view() {
    return {View{codes.data(), DType::e2m1, {count}}, format,
            View{scales.data(), DType::f32, {3 * std::ssize(scales)}}};
  }
  uint8_t code(int64_t i) const {
    return codes[static_cast<size_t>(i) / 2] >> (i % 2 == 0 ? 0 : 4) & 0xF;
  }
  e4m3 block(int64_t i) const { return scales[static_cast<size_t>(i) / 128].blocks[i % 128 / 16]; }
  float above(int64_t i) const { return scales[static_cast<size_t>(i) / 128].above; }
  /// By the table of E2M1's values.
  float value(int64_t i) const {
    constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    const float magnitude = kMagnitudes[code(i) & 7];
    return (code(i) > 7 ? -magnitude : magnitude) * (decode(block(i)) * above(i));
  }
  std::vector<float> values() const {
    std::vector<float> all;
    for (int64_t i = 0; i < count; ++i) {
      all.push_back(value(i));
    }
    return all;
  }
  void add_to(Bits& all) const {
    for (const uint8_t pair : codes) all.add_value(pair);
    for (const GroupScales& of : scales) all.add_value(of);
  }
  Bits bits() const {
    Bits all;
    add_to(all);
    return all;
  }
};

/// The cast of values in rows of 128.
Fp4Cast cast_in_rows(std::vector<float> values) {
  const auto rows = static_cast<int64_t>((values.size() + 127) / 128);
  values.resize(static_cast<size_t>(rows) * 128);
  Array x(DType::f32, {rows, 128}, values);
  TensorFormat format = fp4(per::block_1x16);
  format.row_scaled = true;
  return Fp4Cast(x, format, false);
}

/// Elements whose code or scale is not that of the cast.
int64_t differences(const Stored& stored, const Fp4Cast& cast) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < stored.count; ++i) {
    const bool same = stored.code(i) == cast.code(i / 128, i % 128) &&
                      decode(stored.block(i)) == cast.block_scale(i / 128, i % 128) &&
                      stored.above(i) == cast.above(i / 128);
    wrong += same ? 0 : 1;
  }
  return wrong;
}

/// Values with outliers, zeros, a group of zeros and one of tiny numbers.
std::vector<float> mixed_values(int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed, 1e-3F);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= i % 37 == 0 ? 300.0F : i % 11 == 5 ? 0.0F : 1.0F;
    values[i] *= i / 128 == 3 ? 0.0F : i / 128 == 4 ? 1e-35F : 1.0F;
    values[i] += 0.0F;  // -0 would be stored as 0, as part of a sum
  }
  return values;
}

TEST_CASE("a stored NVFP4 tensor has the codes and scales of an operand", "[ops][storage]") {
  for (const int64_t count : kCounts) {
    INFO(count << " elements");
    const std::vector<float> first = mixed_values(count, 1);
    const std::vector<float> second = mixed_values(count, 2);
    CHECK(same_everywhere([&](const ops::OpTable& table) {
      Stored stored(count);
      Array x(DType::f32, {count}, first);
      table.store(cpu_stream(), {.x = x, .to = stored.view()});
      CHECK(differences(stored, cast_in_rows(first)) == 0);
      std::vector<float> sums = stored.values();
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] += second[i];
      }
      Array y(DType::f32, {count}, second);
      table.store(cpu_stream(), {.x = y, .to = stored.view(), .add = true});
      CHECK(differences(stored, cast_in_rows(sums)) == 0);
      Array read(DType::f32, {count});
      table.read_stored(cpu_stream(), stored.view(), read);
      CHECK(read.values() == stored.values());
      return stored.bits();
    }));
  }
}

TEST_CASE("NaN in a stored NVFP4 group is forgotten where codes are cleared", "[ops][storage]") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> values = mixed_values(384, 1);
    values[130] = bad;
    Stored stored(384);
    Array x(DType::f32, {384}, values);
    ops::store(cpu_stream(), {.x = x, .to = stored.view()});
    Array read(DType::f32, {384});
    ops::read_stored(cpu_stream(), stored.view(), read);
    for (int64_t i = 0; i < 384; ++i) {
      REQUIRE(std::isnan(read.get(i)) == (i / 128 == 1));
    }
    std::fill(stored.codes.begin(), stored.codes.end(), uint8_t{0});
    const std::vector<float> finite = mixed_values(384, 2);
    Array y(DType::f32, {384}, finite);
    ops::store(cpu_stream(), {.x = y, .to = stored.view(), .add = true});
    CHECK(differences(stored, cast_in_rows(finite)) == 0);
  }
}

constexpr RoundingStream kRounding = {42, 7};

/// A weight and two moments in NVFP4, and the same in fp32 as a step finds them.
struct Model {
  Stored weight, first, second;
  Array gradient;
  ops::StepControl control = adamw_control(false, 1);

  explicit Model(int64_t count)
      : weight(count),
        first(count),
        second(count),
        gradient(DType::f32, {count}, mixed_values(count, 3)) {
    Array start(DType::f32, {count}, random_values(count, 1));
    ops::store(cpu_stream(), {.x = start, .to = weight.view()});
    weight.format.rounding = Rounding::stochastic;
  }
  ops::AdamW call(int64_t begin, int64_t count, const Encoded& of_gradient) {
    return {.weight = part_of(weight.view(), begin, count),
            .gradient = part_of(of_gradient, begin, count),
            .moment1 = part_of(first.view(), begin, count),
            .moment2 = part_of(second.view(), begin, count),
            .copy = {},
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .rounding = {kRounding.seed, kRounding.tensor, begin}};
  }
  void step(const ops::OpTable& table, int64_t begin, int64_t count) {
    table.adamw(cpu_stream(), call(begin, count, gradient.view()), &control);
  }
};

/// The scale of the block of element i of a weight: the nearest one or, where that would cut the
/// largest element to 6, the next one.
float raised_scale(const Fp4Cast& nearest, Array& values, int64_t i) {
  const float scale = nearest.block_scale(i / 128, i % 128);
  double amax = 0.0;
  for (int64_t j = i / 16 * 16; j < std::min(values.count(), i / 16 * 16 + 16); ++j) {
    amax = std::max(amax, std::fabs(double{values.get(j)}));
  }
  const bool cuts = amax / (double{scale} * nearest.above(i / 128)) > 6.0 + 1e-5;
  const auto next = static_cast<uint8_t>(encode<e4m3>(scale).bits + 1);
  return cuts && scale < 448.0F ? decode(e4m3{next}) : scale;
}

/// The code of an element of the weight that is rounded by its own random bits.
uint8_t stochastic_code(const Stored& weight, Array& values, int64_t i, int64_t step) {
  float amax = 0.0F;
  for (int64_t j = i / 128 * 128; j < std::min(values.count(), i / 128 * 128 + 128); ++j) {
    amax = std::max(amax, std::fabs(values.get(j)));
  }
  const float factor = two_level_factor(weight.block(i), two_level_scale(amax));
  const uint32_t random = stochastic_bits(kRounding.seed, static_cast<uint64_t>(step),
                                          kRounding.tensor * 4, static_cast<uint64_t>(i));
  return encode_stochastic<e2m1>(values.get(i) * factor, random).bits;
}

TEST_CASE("AdamW stores NVFP4 weights and moments as fp32 ones are cast", "[ops]") {
  for (const int64_t count : {127, 128, 1300}) {
    INFO(count << " elements");
    Model model(count);
    for (int64_t step = 2; step < 5; ++step) {
      Array w(DType::f32, {count}, model.weight.values());
      Array m(DType::f32, {count}, model.first.values());
      Array v(DType::f32, {count}, model.second.values());
      model.control.applied_steps = step;
      ops::adamw(cpu_stream(),
                 {w.view(), model.gradient.view(), m.view(), v.view(), {}, 0.9, 0.95, 1e-8, 0.1},
                 &model.control);
      model.step(*cpu_tables().back(), 0, count);
      CHECK(differences(model.first, cast_in_rows(m.values())) == 0);
      const Fp4Cast cast = cast_in_rows(v.values());
      const Fp4Cast of_weight = cast_in_rows(w.values());
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) {
        const bool floored = model.first.value(i) != 0.0F && (cast.code(i / 128, i % 128) & 7) == 0;
        const uint8_t code = floored ? 1 : cast.code(i / 128, i % 128);
        const bool has_scale = cast.block_scale(i / 128, i % 128) > 0.0F;
        wrong += has_scale && model.second.code(i) != code ? 1 : 0;
        const bool vanished = cast.above(i / 128) > 0.0F && !(model.second.value(i) > 0.0F);
        wrong += vanished && model.first.value(i) != 0.0F ? 1 : 0;
        wrong += model.weight.code(i) != stochastic_code(model.weight, w, i, step) ? 1 : 0;
        const bool same_scales = decode(model.weight.block(i)) == raised_scale(of_weight, w, i) &&
                                 model.weight.above(i) == of_weight.above(i / 128);
        wrong += same_scales ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("stochastic rounding in NVFP4 has the mean of the largest elements of blocks", "[ops]") {
  constexpr int64_t kCount = 640000;
  Model model(kCount);
  model.control.lr = 0.05;  // the largest elements grow and shrink by steps of a block's scale
  Array w(DType::f32, {kCount}, model.weight.values());
  Array m(DType::f32, {kCount});
  Array v(DType::f32, {kCount});
  ops::adamw(cpu_stream(),
             {w.view(), model.gradient.view(), m.view(), v.view(), {}, 0.9, 0.95, 1e-8, 0.1},
             &model.control);
  model.step(*cpu_tables().back(), 0, kCount);
  double sum = 0.0;  // of the errors in magnitude, in units of code 1
  for (int64_t block = 0; block < kCount; block += 16) {
    int64_t largest = block;
    for (int64_t i = block; i < block + 16; ++i) {
      largest = std::fabs(w.get(i)) > std::fabs(w.get(largest)) ? i : largest;
    }
    const double unit = double{decode(model.weight.block(block))} * model.weight.above(block);
    sum += (std::fabs(double{model.weight.value(largest)}) - std::fabs(w.get(largest))) / unit;
  }
  CHECK(std::fabs(sum / (kCount / 16)) < 0.02);  // 4 deviations
}

TEST_CASE("a second moment in NVFP4 is not 0 next to one that is too large", "[ops]") {
  // Under the scale of 1e6 the scale of a block of 1e-8 would be 0.
  std::vector<float> of_gradient(128, 1e-4F);
  of_gradient[0] = 1e3F;
  Array weight(DType::f32, {128}, random_values(128, 1));
  Array gradient(DType::f32, {128}, of_gradient);
  Array first(DType::f32, {128});
  Stored second(128);
  const ops::StepControl control = adamw_control(false, 1);
  ops::adamw(
      cpu_stream(),
      {weight.view(), gradient.view(), first.view(), second.view(), {}, 0.9, 0.95, 1e-8, 0.1},
      &control);
  for (int64_t i = 0; i < 128; ++i) {
    REQUIRE(second.value(i) > 0.0F);
  }
}

TEST_CASE("an NVFP4 tensor that is updated in parts is as one that is updated whole", "[ops]") {
  Model whole(1300);
  CHECK(same_everywhere([&](const ops::OpTable& table) {
    Model model(20011);
    model.step(table, 0, 20011);
    Bits bits;
    for (const Stored* tensor : {&model.weight, &model.first, &model.second}) {
      tensor->add_to(bits);
    }
    return bits;
  }));
  Model parted(1300);
  for (int64_t step = 2; step < 5; ++step) {
    whole.control.applied_steps = parted.control.applied_steps = step;
    whole.step(*cpu_tables().back(), 0, 1300);
    parted.step(*cpu_tables().back(), 0, 640);
    parted.step(*cpu_tables().back(), 640, 660);
    CHECK(parted.weight.bits() == whole.weight.bits());
    CHECK(parted.first.bits() == whole.first.bits());
    CHECK(parted.second.bits() == whole.second.bits());
  }
}

/// Packets of values; each of `chunks` has 256 elements.
std::vector<uint8_t> packed(const std::vector<float>& values, int64_t chunks) {
  Array x(DType::f32, {std::ssize(values)}, values);
  std::vector<uint8_t> packets(
      static_cast<size_t>(chunks * ops::wire_bytes(two_level_groups(), 256)), 0xEE);
  ops::pack_wire(cpu_stream(), {.x = x.view(),
                                .format = two_level_groups(),
                                .chunk = 256,
                                .chunks = chunks,
                                .packets = packets.data()});
  return packets;
}

TEST_CASE("packets in NVFP4 have the codes and scales of stored tensors", "[wire]") {
  CHECK(ops::is_wire_format(two_level_groups()));
  CHECK(ops::wire_bytes(two_level_groups(), 256) == 128 + 2 * 12 + 8);
  const std::vector<float> values = mixed_values(1000, 4);
  Stored stored(1000);
  Array x(DType::f32, {1000}, values);
  ops::store(cpu_stream(), {.x = x, .to = stored.view()});
  const std::vector<uint8_t> packets = packed(values, 4);
  std::vector<uint8_t> copied(packets.size(), 0xEE);
  ops::pack_wire(cpu_stream(), {.x = stored.view(),
                                .format = two_level_groups(),
                                .chunk = 256,
                                .chunks = 4,
                                .packets = copied.data()});
  for (int64_t i = 0; i < 1000; ++i) {
    const auto packet = static_cast<size_t>(i / 256 * ops::wire_bytes(two_level_groups(), 256));
    for (const auto* of : {&packets, &std::as_const(copied)}) {
      const uint8_t pair = (*of)[packet + static_cast<size_t>(i % 256 / 2)];
      REQUIRE((i % 2 == 0 ? pair & 0xF : pair >> 4) == stored.code(i));
      GroupScales scales;
      std::memcpy(&scales, of->data() + packet + 128 + i % 256 / 128 * 12, sizeof(scales));
      REQUIRE(scales.above == stored.above(i));
      REQUIRE(scales.blocks[i % 128 / 16].bits == stored.block(i).bits);
    }
  }
  Stored back(1000);
  ops::unpack_wire(cpu_stream(),
                   {.packets = copied.data(), .chunk = 256, .chunks = 4, .y = back.view()});
  CHECK(back.bits() == stored.bits());
}

TEST_CASE("sums of packets in NVFP4 are those of their values, in order", "[wire]") {
  std::vector<uint8_t> packets;
  std::vector<float> expected(1000, -0.0F);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const std::vector<float> values = mixed_values(1000, rank + 1);
    const std::vector<uint8_t> more = packed(values, 4);
    packets.insert(packets.end(), more.begin(), more.end());
    Stored stored(1000);
    Array x(DType::f32, {1000}, values);
    ops::store(cpu_stream(), {.x = x, .to = stored.view()});
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] += stored.value(static_cast<int64_t>(i));
    }
  }
  Array y(DType::f32, {1000});
  ops::sum_wire(cpu_stream(), {.packets = packets.data(),
                               .format = two_level_groups(),
                               .contributions = 3,
                               .chunk = 256,
                               .chunks = 4,
                               .y = y.view()});
  CHECK(y.values() == expected);
}

}  // namespace
}  // namespace fp8train::test
