// AdamW over weights, gradients and moments in any formats. What a step must leave is what it
// leaves of fp32 tensors with the same values (compared with torch in optimizer_test), stored by
// the reference: exact.

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "ops/adamw_cases.h"
#include "ops/stored_reference.h"

namespace fp8train::test {
namespace {

constexpr RoundingStream kRounding = {42, 7};

/// One tensor in memory.
struct StoredValues {
  TensorFormat format;
  Array codes, scales;

  StoredValues(const TensorFormat& how, int64_t count)
      : format(how), codes(how.dtype, {count}), scales(fresh_scales(how, count)) {}
  void put(const std::vector<float>& values) {
    NaiveTensor naive(format, codes.count());
    naive.store(values, {1, 2, 3});
    naive.write(codes, scales);
  }
  Encoded view() { return {codes, format, scales}; }
  size_t differences(const NaiveTensor& naive) { return naive.differences(codes, scales); }
};

std::vector<float> heavy_tailed(int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  for (float& value : values) {
    value = 0.01F * value * value * value;
  }
  return values;
}

/// All tensors of a call.
struct Model {
  StoredValues weight, gradient, first, second;
  Array copy;
  ops::StepControl control = adamw_control(false, 0);
  RoundingStream rounding = kRounding;

  Model(const StoredFormats& formats, int64_t count)
      : weight(formats.weight, count),
        gradient(formats.gradient, count),
        first(formats.moments.first, count),
        second(formats.moments.second, count),
        copy(DType::bf16, {count}) {
    weight.put(random_values(count, 1));
  }
  void step(const ops::OpTable& table, uint32_t seed) {
    gradient.put(heavy_tailed(weight.codes.count(), seed));
    step(table);
  }
  void step(const ops::OpTable& table) {
    control.applied_steps += control.skip == 0 ? 1 : 0;
    table.adamw(cpu_stream(),
                {weight.view(),
                 gradient.view(),
                 first.view(),
                 second.view(),
                 copy,
                 0.9,
                 0.95,
                 1e-8,
                 0.1,
                 {},
                 rounding},
                &control);
  }
  Bits bits() const {
    Bits all;
    for (const StoredValues* stored : {&weight, &gradient, &first, &second}) {
      all.add(stored->codes);
      all.add(stored->scales);
    }
    all.add(copy);
    return all;
  }
};

/// The same tensors, as the reference keeps them.
struct NaiveModel {
  NaiveTensor weight, gradient, first, second;

  NaiveModel(const StoredFormats& formats, int64_t count)
      : weight(formats.weight, count),
        gradient(formats.gradient, count),
        first(formats.moments.first, count),
        second(formats.moments.second, count) {
    weight.store(random_values(count, 1), {1, 2, 3});
  }
  void step(const ops::OpTable& table, uint32_t seed, const ops::StepControl& control) {
    const auto count = static_cast<int64_t>(weight.codes.size());
    gradient.store(heavy_tailed(count, seed), {1, 2, 3});
    Array w(DType::f32, {count}, weight.values());
    Array g(DType::f32, {count}, gradient.values());
    Array m(DType::f32, {count}, first.values());
    Array v(DType::f32, {count}, second.values());
    table.adamw(cpu_stream(), {w.view(), g.view(), m.view(), v.view(), {}, 0.9, 0.95, 1e-8, 0.1},
                &control);
    const auto step = static_cast<uint64_t>(control.applied_steps);
    first.store(m.values(), {kRounding.seed, step, kRounding.tensor * 4 + 1});
    second.store(v.values(), {kRounding.seed, step, kRounding.tensor * 4 + 2}, &first);
    weight.store(w.values(), {kRounding.seed, step, kRounding.tensor * 4});
  }
};

TEST_CASE("AdamW keeps weights in any format as a naive reference does", "[ops]") {
  for (const StoredFormats& formats : stored_formats()) {
    for (const int64_t count : {1, 127, 128, 1300}) {
      INFO(describe(formats.weight)
           << ", " << describe(formats.gradient) << ", " << describe(formats.moments.first) << ", "
           << describe(formats.moments.second) << ", " << count);
      const ops::OpTable& table = *cpu_tables().back();
      Model model(formats, count);
      NaiveModel naive(formats, count);
      for (uint32_t step = 0; step < 3; ++step) {
        model.step(table, 10 + step);
        naive.step(table, 10 + step, model.control);
      }
      CHECK(model.weight.differences(naive.weight) == 0);
      CHECK(model.gradient.differences(naive.gradient) == 0);
      CHECK(model.first.differences(naive.first) == 0);
      CHECK(model.second.differences(naive.second) == 0);
      CHECK(model.copy.bytes() == Array(DType::bf16, {count}, naive.weight.values()).bytes());
    }
  }
}

/// The tensors of a model in two parts, each with scales of its own where one is for all.
struct Halves {
  static constexpr int64_t kCut = 640;
  Model& model;
  std::vector<Array> scales;

  Encoded part(StoredValues& stored, int64_t first, int64_t count) {
    const Encoded whole = stored.view();
    Encoded result = part_of(whole, first, count);
    if (!whole.scales.empty() && stored.format.block == per::tensor) {
      scales.push_back(stored.scales);
      result.scales = scales.back();
    }
    return result;
  }
  ops::AdamW call(int64_t first, int64_t count) {
    ops::AdamW made = {part(model.weight, first, count),
                       part(model.gradient, first, count),
                       part(model.first, first, count),
                       part(model.second, first, count),
                       {},
                       0.9,
                       0.95,
                       1e-8,
                       0.1,
                       {},
                       model.rounding,
                       true};
    made.rounding.first = first;
    return made;
  }
};

/// Of the new values of both parts, next to the scales of both.
void combine_amax(const Encoded& a, const Encoded& b) {
  if (!a.scales.empty() && a.format.block == per::tensor) {
    const float amax = std::max(a.scales.as<float>()[1], b.scales.as<float>()[1]);
    a.scales.as<float>()[1] = amax;
    b.scales.as<float>()[1] = amax;
  }
}

TEST_CASE("a tensor that is updated in parts is as one that is updated whole", "[ops]") {
  for (const StoredFormats& formats : stored_formats()) {
    INFO(describe(formats.weight) << ", " << describe(formats.gradient) << ", "
                                  << describe(formats.moments.first) << ", "
                                  << describe(formats.moments.second));
    const ops::OpTable& table = *cpu_tables().back();
    const int64_t count = 1300;
    Model whole(formats, count);
    Model parted(formats, count);
    for (uint32_t step = 0; step < 3; ++step) {
      whole.step(table, 10 + step);
      parted.gradient.put(heavy_tailed(count, 10 + step));
      parted.control.applied_steps += 1;
      Halves halves = {parted, {}};
      halves.scales.reserve(8);  // views into them stay
      const ops::AdamW calls[] = {halves.call(0, Halves::kCut),
                                  halves.call(Halves::kCut, count - Halves::kCut)};
      for (const ops::AdamW& call : calls) {
        table.adamw_amax(cpu_stream(), call, &parted.control);
      }
      combine_amax(calls[0].weight, calls[1].weight);
      combine_amax(calls[0].moment1, calls[1].moment1);
      combine_amax(calls[0].moment2, calls[1].moment2);
      for (const ops::AdamW& call : calls) {
        table.adamw(cpu_stream(), call, &parted.control);
      }
      for (const auto& [stored, tensor] : {std::pair(&parted.weight, &calls[0].weight),
                                           std::pair(&parted.first, &calls[0].moment1),
                                           std::pair(&parted.second, &calls[0].moment2)}) {
        if (!tensor->scales.empty() && stored->format.block == per::tensor) {
          stored->scales = Array(DType::f32, {2}, {tensor->scales.as<float>()[0], 0.0F});
        }
      }
      CHECK(parted.weight.codes.bytes() == whole.weight.codes.bytes());
      CHECK(parted.weight.scales.bytes() == whole.weight.scales.bytes());
      CHECK(parted.first.codes.bytes() == whole.first.codes.bytes());
      CHECK(parted.second.codes.bytes() == whole.second.codes.bytes());
      CHECK(parted.second.scales.bytes() == whole.second.scales.bytes());
    }
  }
}

TEST_CASE("bits of stored weights depend on no thread, and a skipped step leaves them", "[ops]") {
  for (const StoredFormats& formats : stored_formats()) {
    INFO(describe(formats.weight) << " and " << describe(formats.gradient));
    REQUIRE(same_everywhere([&](const ops::OpTable& table) {
      Model model(formats, 20011);
      model.step(table, 5);
      model.step(table, 6);
      const Bits before = model.bits();
      model.control.skip = 1;
      model.step(table);
      CHECK(model.bits() == before);
      return model.bits();
    }));
  }
}

/// The mean of weights that begin at 1 and are pushed down by `rate` in each of 64 steps, next to
/// one in each group that is 1.9 and stays, so that scales do.
double mean_after_pushes(const TensorFormat& format, double rate, const RoundingStream& rounding,
                         Bits* bits = nullptr) {
  constexpr int64_t kCount = 4096;
  const TensorFormat fp32 = plain(DType::f32);
  Model model({format, fp32, {fp32, fp32}}, kCount);
  std::vector<float> start(kCount, 1.0F);
  std::vector<float> push(kCount, 1.0F);
  for (size_t i = 0; i < start.size(); i += 128) {
    start[i] = 1.9F;
    push[i] = 0.0F;
  }
  model.weight.put(start);
  model.gradient.put(push);
  model.control.lr = rate;
  for (int step = 0; step < 64; ++step) {
    model.control.applied_steps += 1;
    const ops::AdamW call = {.weight = model.weight.view(),
                             .gradient = model.gradient.view(),
                             .moment1 = model.first.view(),
                             .moment2 = model.second.view(),
                             .copy = {},
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.0,
                             .rounding = rounding};
    ops::adamw(cpu_stream(), call, &model.control);
  }
  double sum = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t group = format.block.is_group() ? i / 128 : 0;
    const float scale = format.is_scaled() ? model.weight.scales.get(group) : 1.0F;
    sum += i % 128 == 0 ? 0.0 : double{model.weight.codes.get(i)} / double{scale};
  }
  if (bits != nullptr) {
    *bits = model.bits();
  }
  constexpr int64_t kPushed = kCount - kCount / 128;
  return sum / static_cast<double>(kPushed);
}

TEST_CASE("stochastic rounding moves the mean of weights that nearest rounding stalls", "[ops]") {
  // An update of 2^-13 is below half a unit: 2^-8 for bf16 under 1, 9.3e-4 for fp16 with a scale of
  // 65504 / 1.9, 4.9e-4 with the power of two. After 64 steps the mean of 4064 weights has a
  // deviation of sqrt(64 p (1 - p) / 4064) units, with p = 2^-13 / unit: 8.5e-5, 3.9e-5, 2.7e-5.
  // Bound: five deviations of the first.
  constexpr double kRate = 0x1p-13;
  for (const TensorFormat& format :
       {plain(DType::bf16), by_tensor(DType::f16), by_group(DType::f16, ScaleType::pow2)}) {
    INFO(describe(format));
    const double stalled = mean_after_pushes(format, kRate, kRounding);
    CHECK(std::fabs(stalled - 1.0) < 5e-4);  // half a unit: 1 itself has no code in fp16
    const double moved = mean_after_pushes(stochastic(format), kRate, kRounding);
    CHECK(std::fabs(moved - (1.0 - 64 * kRate)) < 4.3e-4);
  }
}

TEST_CASE("stochastic rounding repeats, and differs by seed, parameter and role", "[ops]") {
  const TensorFormat format = stochastic(plain(DType::bf16));
  const auto run = [&](const RoundingStream& rounding) {
    Bits bits;
    mean_after_pushes(format, 1e-4, rounding, &bits);
    return bits;
  };
  CHECK(run({3, 4}) == run({3, 4}));
  CHECK_FALSE(run({3, 4}) == run({5, 4}));
  CHECK_FALSE(run({3, 4}) == run({3, 5}));
  // Moments of equal values are rounded by bits of their own.
  Model model({plain(DType::f32), plain(DType::f32), {format, format}}, 1024);
  model.first.put(std::vector<float>(1024, 1.001F));
  model.second.put(std::vector<float>(1024, 1.001F));
  model.gradient.put(std::vector<float>(1024, 1.001F));
  model.control.gradient_factor = 1.0F;
  model.step(*cpu_tables().back());
  CHECK(model.first.codes.bytes() != model.second.codes.bytes());
}

TEST_CASE("calls that AdamW does not know are refused", "[ops]") {
  const TensorFormat fp32 = plain(DType::f32);
  Model model({plain(DType::bf16), fp32, {fp32, fp32}}, 16);
  float amax = 0;
  ops::AdamW call = {model.weight.view(),
                     model.gradient.view(),
                     model.first.view(),
                     model.second.view(),
                     {},
                     0.9,
                     0.95,
                     1e-8,
                     0.0};
  CHECK_NOTHROW(ops::adamw(cpu_stream(), call, &model.control));
  call.cast = {.out = {}, .amax = &amax};
  CHECK_THROWS_AS(ops::adamw(cpu_stream(), call, &model.control), InternalError);
  call.cast = {};
  Array half(DType::f16, {16});
  call.gradient = half.view();
  CHECK_THROWS_AS(ops::adamw(cpu_stream(), call, &model.control), InternalError);
  Array shorter(DType::f32, {15});
  call.gradient = shorter.view();
  CHECK_THROWS_AS(ops::adamw(cpu_stream(), call, &model.control), InternalError);
}

}  // namespace
}  // namespace fp8train::test
