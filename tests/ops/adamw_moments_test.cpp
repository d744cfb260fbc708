// AdamW over moments in any format. The reference decodes, updates in the same fp32 formula and
// looks for the nearest code among all there are: exact. Against fp32 moments: how far the weights
// of 30 steps drift, with the reason of each bound.

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "numeric/bits.h"
#include "ops/adamw_cases.h"

namespace fp8train::test {
namespace {

float decode_bits(DType dtype, uint32_t bits) {
  switch (dtype) {
    case DType::bf16:
      return decode(bf16{static_cast<uint16_t>(bits)});
    case DType::f16:
      return decode(f16{static_cast<uint16_t>(bits)});
    case DType::e4m3:
      return decode(e4m3{static_cast<uint8_t>(bits)});
    case DType::e5m2:
      return decode(e5m2{static_cast<uint8_t>(bits)});
    default:
      return float_of(bits);
  }
}

/// Bits of the finite code nearest to `value`, the even one of two. Codes of one sign are ordered.
uint32_t nearest_code(DType dtype, float value) {
  if (dtype == DType::f32) {
    return bits_of(value);
  }
  const uint32_t sign = size_of(dtype) == 2 ? 0x8000U : 0x80U;
  const double magnitude = std::fabs(double{value});
  uint32_t low = 0;
  uint32_t high = sign - 1;
  while (!std::isfinite(decode_bits(dtype, high))) {
    --high;
  }
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (decode_bits(dtype, middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - decode_bits(dtype, low);
  const double above = decode_bits(dtype, high) - magnitude;
  const uint32_t nearest = below < above || (below == above && low % 2 == 0) ? low : high;
  return nearest | (std::signbit(value) ? sign : 0);
}

/// Moments as a reference keeps them: bits of codes, and a scale for each element.
struct NaiveMoment {
  TensorFormat format;
  std::vector<uint32_t> codes;
  std::vector<float> scales;

  NaiveMoment(const TensorFormat& how, int64_t count)
      : format(how), codes(static_cast<size_t>(count)), scales(static_cast<size_t>(count), 1.0F) {}

  float value(size_t i) const { return decode_bits(format.dtype, codes[i]) * (1.0F / scales[i]); }

  void store(const std::vector<float>& values, const NaiveMoment* floor_where) {
    const size_t run = format.granularity == Granularity::group ? 128 : values.size();
    for (size_t begin = 0; format.is_scaled() && begin < values.size(); begin += run) {
      const size_t end = std::min(values.size(), begin + run);
      float amax = 0.0F;
      for (size_t i = begin; i < end; ++i) {
        amax = std::max(amax, std::fabs(values[i]));
      }
      float scale = amax == 0.0F ? 1.0F : format_max(format.dtype) / amax;
      scale = std::min(scale, 3.40282347e+38F);
      if (format.scale_type == ScaleType::pow2) {
        scale = std::exp2(std::floor(std::log2(scale)));
      }
      for (size_t i = begin; std::isfinite(amax) && i < end; ++i) {
        scales[i] = scale;
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      codes[i] = nearest_code(format.dtype, values[i] * scales[i]);
      const bool floored = floor_where != nullptr && floor_where->value(i) != 0.0F;
      codes[i] = codes[i] == 0 && floored && format.is_scaled() ? 1 : codes[i];
    }
  }
};

/// A weight, its moments, and steps with them.
struct Trained {
  Array weight;
  Array codes1, codes2, scales1, scales2, copy;
  MomentFormats formats;
  ops::StepControl control = adamw_control(false, 0);

  Trained(const MomentFormats& how, int64_t count)
      : weight(DType::f32, {count}, random_values(count, 1)),
        codes1(how.first.dtype, {count}),
        codes2(how.second.dtype, {count}),
        scales1(scales_of(how.first, count)),
        scales2(scales_of(how.second, count)),
        copy(DType::bf16, {count}),
        formats(how) {
    control.gradient_factor = 1.0F;
  }
  static Array scales_of(const TensorFormat& format, int64_t count) {
    const int64_t scales = stored_scales(format, count);
    std::vector<float> ones(static_cast<size_t>(scales), 1.0F);
    if (format.is_scaled() && format.granularity == Granularity::tensor) {
      ones[1] = 0.0F;
    }
    return Array(DType::f32, {scales}, ones);
  }
  void step(const ops::OpTable& table, Array& gradient) {
    control.applied_steps += control.skip == 0 ? 1 : 0;
    const StoredTensor first(codes1, formats.first, scales1);
    const StoredTensor second(codes2, formats.second, scales2);
    table.adamw(cpu_stream(), {weight.view(), gradient.view(), first, second, copy, 0.9, 0.95, 1e-8, 0.1},
                &control);
  }
  Bits bits() const {
    Bits all;
    for (const Array* array : {&weight, &codes1, &codes2, &scales1, &scales2, &copy}) {
      all.add(*array);
    }
    return all;
  }
};

uint32_t bits_at(Array& array, size_t i) {
  switch (size_of(array.dtype())) {
    case 1:
      return array.as<uint8_t>()[i];
    case 2:
      return array.as<uint16_t>()[i];
    default:
      return array.as<uint32_t>()[i];
  }
}

/// One step in fp32, written out; the order of torch.optim.AdamW.
void naive_step(std::vector<float>& weight, NaiveMoment& first, NaiveMoment& second,
                const Array& gradient, const ops::StepControl& control) {
  const double t = static_cast<double>(control.applied_steps);
  const auto root = static_cast<float>(std::sqrt(1.0 - std::pow(0.95, t)));
  const auto rate = static_cast<float>(-(control.lr / (1.0 - std::pow(0.9, t))));
  const auto decay = static_cast<float>(1.0 - control.lr * 0.1);
  const auto rest1 = static_cast<float>(1.0 - 0.9);
  const auto rest2 = static_cast<float>(1.0 - 0.95);
  std::vector<float> m(weight.size());
  std::vector<float> v(weight.size());
  for (size_t i = 0; i < weight.size(); ++i) {
    const float g = gradient.get(static_cast<int64_t>(i)) * control.gradient_factor;
    const float old = first.value(i);
    m[i] = old + rest1 * (g - old);
    v[i] = second.value(i) * static_cast<float>(0.95) + rest2 * g * g;
    weight[i] = weight[i] * decay + rate * m[i] / (std::sqrt(v[i]) / root + 1e-8F);
  }
  first.store(m, nullptr);
  second.store(v, &first);
}

void compare(Trained& trained, const NaiveMoment& first, const NaiveMoment& second,
             const std::vector<float>& weight) {
  const auto compare_moment = [](Array& codes, Array& scales, const NaiveMoment& naive) {
    size_t wrong = 0;
    for (size_t i = 0; i < naive.codes.size(); ++i) {
      const size_t group = naive.format.granularity == Granularity::group ? i / 128 : 0;
      const bool scale_differs =
          naive.format.is_scaled() && scales.values()[group] != naive.scales[i];
      wrong += bits_at(codes, i) != naive.codes[i] || scale_differs ? 1 : 0;
    }
    return wrong;
  };
  CHECK(compare_moment(trained.codes1, trained.scales1, first) == 0);
  CHECK(compare_moment(trained.codes2, trained.scales2, second) == 0);
  // The bias corrections of the two differ by the last bit of pow in fp64 at most.
  size_t wrong = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    const float got = trained.weight.get(static_cast<int64_t>(i));
    wrong += std::fabs(got - weight[i]) > 1e-6F * std::max(1.0F, std::fabs(weight[i])) ? 1 : 0;
  }
  CHECK(wrong == 0);
}

std::vector<float> heavy_tailed(int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed);
  for (float& value : values) {
    value = 0.01F * value * value * value;
  }
  return values;
}

TEST_CASE("AdamW keeps moments in any format as a naive reference does", "[ops]") {
  for (const MomentFormats& formats : moment_formats()) {
    for (const int64_t count : {1, 127, 128, 1300}) {
      INFO(describe(formats.first) << " and " << describe(formats.second) << ", " << count);
      Trained trained(formats, count);
      NaiveMoment first(formats.first, count);
      NaiveMoment second(formats.second, count);
      std::vector<float> weight = trained.weight.values();
      for (uint32_t step = 0; step < 3; ++step) {
        Array gradient(DType::f32, {count}, heavy_tailed(count, 10 + step));
        trained.step(*cpu_tables().back(), gradient);
        naive_step(weight, first, second, gradient, trained.control);
      }
      compare(trained, first, second, weight);
    }
  }
}

TEST_CASE("weights of 30 steps stay near those of fp32 moments", "[ops]") {
  // Of the way that weights go, in the two-norm. The roundings of codes (2^-4 at most for e4m3,
  // 2^-3 for e5m2, 2^-9 for bf16) are independent from step to step, so that part of them cancels;
  // research/msamp-fp8lm-coat.md 4.3 simulates 0.4 %, 5.6 %, 5.5 % and 6.6 % in one update for the
  // first ones below. With one e4m3 scale for a tensor, v is what diverges.
  struct Row {
    MomentFormats formats;
    double bound;
  };
  const Row rows[] = {{{plain(DType::bf16), plain(DType::bf16)}, 0.01},
                      {{by_tensor(DType::e4m3), by_tensor(DType::f16)}, 0.06},
                      {{by_group(DType::e4m3), by_group(DType::f16)}, 0.06},
                      {{by_group(DType::e4m3), by_group(DType::e4m3)}, 0.10},
                      {{by_group(DType::bf16), by_group(DType::f16)}, 0.01},
                      {{by_group(DType::e5m2), by_group(DType::f16)}, 0.12}};
  constexpr int64_t kCount = 2048;
  for (const Row& row : rows) {
    INFO(describe(row.formats.first) << " and " << describe(row.formats.second));
    Trained exact({plain(DType::f32), plain(DType::f32)}, kCount);
    Trained coded(row.formats, kCount);
    const std::vector<float> start = exact.weight.values();
    for (uint32_t step = 0; step < 30; ++step) {
      std::vector<float> values = random_values(kCount, 100 + step, 0.01F);
      const std::vector<float> signal = random_values(kCount, 99, 0.01F);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] += signal[i];
      }
      Array gradient(DType::f32, {kCount}, values);
      exact.step(*cpu_tables().back(), gradient);
      coded.step(*cpu_tables().back(), gradient);
    }
    double difference = 0;
    double way = 0;
    for (size_t i = 0; i < start.size(); ++i) {
      const double wanted = exact.weight.values()[i];
      difference += std::pow(coded.weight.values()[i] - wanted, 2);
      way += std::pow(wanted - start[i], 2);
    }
    CHECK(std::sqrt(difference / way) < row.bound);
    CHECK(difference > 0);
  }
}

TEST_CASE("moments of zeros have scale 1, and an overflow keeps the old scale", "[ops]") {
  for (const MomentFormats& formats : moment_formats()) {
    INFO(describe(formats.first) << " and " << describe(formats.second));
    Trained trained(formats, 256);
    Array zeros(DType::f32, {256});
    trained.step(*cpu_tables().back(), zeros);
    for (Array* scales : {&trained.scales1, &trained.scales2}) {
      CHECK((scales->count() == 0 || scales->get(0) == 1.0F));
    }
    CHECK(std::isfinite(trained.weight.get(7)));
    Array gradient(DType::f32, {256}, random_values(256, 3));
    trained.step(*cpu_tables().back(), gradient);
    const std::vector<float> before = trained.scales2.values();
    gradient.set(5, 1e30F);  // its square is not finite
    trained.step(*cpu_tables().back(), gradient);
    if (formats.second.is_scaled()) {
      CHECK(trained.scales2.get(0) == before[0]);
    }
    CHECK(std::isfinite(trained.weight.get(5)));
  }
}

TEST_CASE("a second moment is not rounded to zero beside a first that is not", "[ops]") {
  Trained trained({by_tensor(DType::e4m3), by_tensor(DType::e4m3)}, 64);
  Array gradient(DType::f32, {64});
  gradient.set(0, 1.0F);
  gradient.set(1, 0.01F);  // m / amax 0.01, which e4m3 has; v / amax 1e-4 * 2^-9: not
  trained.step(*cpu_tables().back(), gradient);
  trained.step(*cpu_tables().back(), gradient);
  CHECK(trained.codes2.get(1) > 0.0F);
  CHECK(trained.codes2.get(2) == 0.0F);
  // A step without a new gradient divides by the floor, not by eps.
  const float before = trained.weight.get(1);
  Array zeros(DType::f32, {64});
  trained.step(*cpu_tables().back(), zeros);
  CHECK(std::fabs(trained.weight.get(1) - before) < 3e-3F);
}

TEST_CASE("a skipped step leaves codes and scales, and bits depend on no thread", "[ops]") {
  for (const MomentFormats& formats : moment_formats()) {
    INFO(describe(formats.first) << " and " << describe(formats.second));
    REQUIRE(same_everywhere([&](const ops::OpTable& table) {
      Trained trained(formats, 40007);
      Array gradient(DType::f32, {40007}, heavy_tailed(40007, 5));
      trained.step(table, gradient);
      trained.step(table, gradient);
      const Bits before = trained.bits();
      trained.control.skip = 1;
      trained.step(table, gradient);
      CHECK(trained.bits() == before);
      return trained.bits();
    }));
  }
}

TEST_CASE("formats that no moment has are refused", "[ops]") {
  TensorFormat wide = by_tensor(DType::e4m3);
  wide.expanded = true;
  TensorFormat small = by_group(DType::e4m3);
  small.group_size = 32;
  for (const TensorFormat& format : {plain(DType::f16), plain(DType::e4m3), by_tensor(DType::f32),
                                     wide, small, by_tensor(DType::e4m3, ScaleType::e8m0)}) {
    INFO(describe(format));
    CHECK_FALSE(is_stored_format(format));
  }
  Trained trained({by_tensor(DType::e4m3), plain(DType::bf16)}, 8);
  trained.scales1 = Array(DType::f32, {1});
  const StoredTensor first(trained.codes1, trained.formats.first, trained.scales1);
  CHECK_THROWS_AS(ops::adamw(cpu_stream(),
                             {trained.weight.view(), trained.weight.view(), first, trained.codes2.view(),
                              trained.copy, 0.9, 0.95, 1e-8, 0.1},
                             &trained.control),
                  InternalError);
}

}  // namespace
}  // namespace fp8train::test
