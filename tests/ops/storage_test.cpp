// Tensors stored in formats of their own. The reference spells out the scale rules and the sum;
// codes come from numeric/, which has exhaustive tests: exact.

#include "ops/storage/storage.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/adamw_cases.h"
#include "ops/op_test_support.h"

namespace fp8train::test {
namespace {

const TensorFormat kFormats[] = {
    plain(DType::f32),
    plain(DType::bf16),
    by_tensor(DType::f16, ScaleType::pow2),
    by_tensor(DType::e4m3, ScaleType::pow2),
    by_tensor(DType::e4m3, ScaleType::f32),
    by_group(DType::f16, ScaleType::f32),
    by_group(DType::e4m3, ScaleType::f32),
    by_group(DType::e5m2, ScaleType::pow2),
};

/// A stored tensor in host memory.
struct StoredValues {
  TensorFormat format;
  Array codes, scales;

  StoredValues(const TensorFormat& how, int64_t count)
      : format(how), codes(how.dtype, {count}), scales(DType::f32, {stored_scales(how, count)}) {
    for (int64_t i = 0; i < scales.count(); ++i) {
      scales.set(i, by_tensor() && i == 1 ? 0.0F : 1.0F);
    }
  }
  bool by_tensor() const { return format.is_scaled() && format.block == per::tensor; }
  Encoded view() { return {codes.view(), format, scales.count() == 0 ? View{} : scales.view()}; }
  float scale_of(int64_t i) const {
    return scales.count() == 0 ? 1.0F : scales.get(by_tensor() ? 0 : i / 128);
  }
  float value(int64_t i) const { return codes.get(i) * (1.0F / scale_of(i)); }
};

/// What ops::store says, one element after the other.
void store_naively(StoredValues& stored, const std::vector<float>& x, bool add, float factor) {
  const auto count = static_cast<int64_t>(x.size());
  std::vector<float> sums(x.size());
  for (int64_t i = 0; i < count; ++i) {
    const float sum = (add ? stored.value(i) : 0.0F) + x[static_cast<size_t>(i)];
    sums[static_cast<size_t>(i)] =
        std::isfinite(sum) ? sum : std::numeric_limits<float>::quiet_NaN();
  }
  const int64_t run = stored.by_tensor() ? count : 128;
  for (int64_t begin = 0; stored.format.is_scaled() && begin < count; begin += run) {
    float amax = 0.0F;
    bool finite = true;
    for (int64_t i = begin; i < std::min(count, begin + run); ++i) {
      const float magnitude = std::fabs(sums[static_cast<size_t>(i)]);
      finite = finite && std::isfinite(magnitude);
      amax = std::max(amax, magnitude);
    }
    float scale =
        amax == 0.0F ? 1.0F : std::min(format_max(stored.format.dtype) / amax, 3.40282347e+38F);
    if (stored.format.scale_type == ScaleType::pow2) {
      scale = std::exp2(std::floor(std::log2(scale)));
    }
    const float old = stored.scales.get(begin / 128);
    stored.scales.set(begin / 128, (finite ? scale : old) * factor);
  }
  for (int64_t i = 0; i < count; ++i) {
    stored.codes.set(i, sums[static_cast<size_t>(i)] * stored.scale_of(i));
  }
}

bool same(const StoredValues& a, const StoredValues& b) {
  return a.codes.bytes() == b.codes.bytes() && a.scales.bytes() == b.scales.bytes();
}

std::vector<float> gradient_values(int64_t count, uint32_t seed) {
  std::vector<float> values = random_values(count, seed, 1e-3F);
  for (size_t i = 0; i < values.size(); i += 37) {
    values[i] *= 300.0F;  // outliers
  }
  for (size_t i = 5; i < values.size(); i += 11) {
    values[i] = 0.0F;
  }
  return values;
}

TEST_CASE("store keeps values and sums rounded once", "[ops][storage]") {
  for (const TensorFormat& format : kFormats) {
    for (const int64_t count : {1, 127, 128, 3000, 20000}) {
      INFO(describe(format) << ", " << count);
      StoredValues expected(format, count);
      std::vector<std::vector<float>> steps;
      for (uint32_t step = 0; step < 3; ++step) {
        steps.push_back(gradient_values(count, step + 1));
        store_naively(expected, steps.back(), step > 0, 1.0F);
      }
      CHECK(same_everywhere([&](const ops::OpTable& table) {
        StoredValues stored(format, count);
        for (size_t step = 0; step < steps.size(); ++step) {
          Array x(DType::f32, {count}, steps[step]);
          table.store(cpu_stream(), {.x = x, .to = stored.view(), .add = step > 0});
        }
        CHECK(same(stored, expected));
        const int32_t skip = 1;
        Array twice(DType::f32, {count}, random_values(count, 9, 1.0F));
        table.store(cpu_stream(), {.x = twice, .to = stored.view(), .skip = &skip});
        CHECK(same(stored, expected));
        Array read(DType::f32, {count});
        table.read_stored(cpu_stream(), stored.view(), read);
        for (int64_t i = 0; i < count; ++i) {
          if (read.get(i) != stored.value(i)) {
            FAIL("element " << i << " is read as " << read.get(i));
          }
        }
        Bits bits;
        bits.add(stored.codes);
        return bits;
      }));
    }
  }
}

TEST_CASE("what is not finite is stored as NaN and does not touch the scale", "[ops][storage]") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const TensorFormat& format : kFormats) {
    for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
      INFO(describe(format) << ", " << bad);
      StoredValues stored(format, 300);
      StoredValues expected(format, 300);
      std::vector<float> values = gradient_values(300, 1);
      values[130] = bad;
      store_naively(expected, values, false, 1.0F);
      Array x(DType::f32, {300}, values);
      ops::store(cpu_stream(), {.x = x, .to = stored.view()});
      CHECK(std::isnan(stored.value(130)));
      CHECK(std::isfinite(stored.value(129)));
      stored.codes.set(130, 0.0F);  // the sign of a NaN is nobody's
      expected.codes.set(130, 0.0F);
      CHECK(same(stored, expected));
    }
  }
}

TEST_CASE("values of 16 bits are stored and read", "[ops][storage]") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Array x(dtype, {500}, random_values(500, 3));
    StoredValues stored(kFormats[6], 500);
    StoredValues expected(kFormats[6], 500);
    store_naively(expected, x.values(), false, 1.0F);
    ops::store(cpu_stream(), {.x = x, .to = stored.view()});
    CHECK(same(stored, expected));
    Array read(dtype, {500});
    ops::read_stored(cpu_stream(), stored.view(), read);
    Array rounded(dtype, {500});
    for (int64_t i = 0; i < 500; ++i) {
      rounded.set(i, stored.value(i));
    }
    CHECK(read.bytes() == rounded.bytes());
  }
}

TEST_CASE("automatic scaling multiplies the scale by a power of two", "[ops][storage]") {
  for (const float factor : {1.0F, 1.9F, 0.5F, 4.0F}) {
    StoredValues stored(kFormats[3], 1000);
    StoredValues expected(kFormats[3], 1000);
    const std::vector<float> values = gradient_values(1000, 8);
    Array x(DType::f32, {1000}, values);
    const ops::AutoScale automatic = {.factor = factor, .at_maximum = 0};
    store_naively(expected, values, false, std::exp2(std::floor(std::log2(factor))));
    ops::store(cpu_stream(), {.x = x, .to = stored.view(), .add = false, .automatic = &automatic});
    CHECK(same(stored, expected));
  }
}

TEST_CASE("automatic scaling leaves the scale of a tensor that is not finite", "[ops][storage]") {
  StoredValues stored(kFormats[3], 300);
  const ops::AutoScale automatic = {.factor = 0.25F, .at_maximum = 0};
  std::vector<float> values = gradient_values(300, 8);
  Array x(DType::f32, {300}, values);
  ops::store(cpu_stream(), {.x = x, .to = stored.view(), .add = false, .automatic = &automatic});
  const float scale = stored.scales.get(0);
  values[7] = std::numeric_limits<float>::infinity();
  Array bad(DType::f32, {300}, values);
  for (int i = 0; i < 3; ++i) {
    ops::store(cpu_stream(), {.x = bad, .to = stored.view(), .add = true, .automatic = &automatic});
    CHECK(stored.scales.get(0) == scale);
    CHECK(std::isnan(stored.value(7)));
  }
}

/// Counts the codes of a whole tensor on one rank, and updates its controller.
void update_auto_scale(Array& codes, ops::AutoScale& automatic, int32_t skip = 0) {
  automatic.elements = codes.count();
  ops::count_at_maximum(cpu_stream(), codes, &automatic);
  ops::update_auto_scales(cpu_stream(), &automatic, 1, &automatic, 1, &skip);
}

TEST_CASE("the automatic factor halves where codes saturate and grows slowly elsewhere",
          "[ops][storage]") {
  // 2 of 100000 codes at the largest magnitude are more than 1e-5 of them, 1 is not.
  for (const int saturated : {0, 1, 2, 500}) {
    std::vector<float> values(100000, 1.0F);
    for (int i = 0; i < saturated; ++i) {
      values[static_cast<size_t>(i) * 7] = i % 2 == 0 ? 448.0F : -448.0F;
    }
    Array codes(DType::e4m3, {100000}, values);
    ops::AutoScale automatic = {.factor = 0.25F, .at_maximum = 0};
    update_auto_scale(codes, automatic);
    CHECK(automatic.factor ==
          Approx(saturated > 1 ? 0.125 : 0.25 * std::exp2(0.001)).epsilon(1e-7));
    CHECK(automatic.at_maximum == 0);
  }
  // Of fewer codes one is more than 1e-5, but the largest magnitude alone may be there: at least
  // two.
  for (const int saturated : {0, 1, 2}) {
    std::vector<float> values(16384, 1.0F);
    std::fill_n(values.begin(), saturated, 448.0F);
    Array codes(DType::e4m3, {16384}, values);
    ops::AutoScale automatic;
    update_auto_scale(codes, automatic);
    CHECK(automatic.factor == Approx(saturated > 1 ? 0.5 : std::exp2(0.001)).epsilon(1e-7));
  }
  // A thousand steps without saturation double it, within the rounding of each product.
  ops::AutoScale automatic;
  Array zeros(DType::e4m3, {64});
  for (int step = 0; step < 1000; ++step) {
    update_auto_scale(zeros, automatic);
  }
  CHECK(automatic.factor == Approx(2.0).epsilon(1e-4));
  for (int step = 0; step < 20000; ++step) {
    update_auto_scale(zeros, automatic);
  }
  CHECK(automatic.factor == 65536.0F);
  automatic.factor = 0.75F;
  update_auto_scale(zeros, automatic, 1);
  CHECK(automatic.factor == 0.75F);
}

TEST_CASE("saved groups have a bf16 scale for 16 values", "[ops][storage]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t count : {1, 15, 16, 1000, 40000}) {
      std::vector<float> values = gradient_values(count, 2);
      for (int64_t i = 32; i < std::min<int64_t>(count, 48); ++i) {
        values[static_cast<size_t>(i)] = 0.0F;
      }
      Array x(dtype, {count}, values);
      const int64_t groups = (count + 15) / 16;
      CHECK(same_everywhere([&](const ops::OpTable& table) {
        Array codes(DType::e4m3, {count});
        Array scales(DType::bf16, {groups});
        const Encoded stored(codes, saved_groups(), scales);
        table.store(cpu_stream(), {.x = x, .to = stored});
        Array y(DType::f32, {count});
        table.read_stored(cpu_stream(), stored, y);
        for (int64_t group = 0; group < groups; ++group) {
          float amax = 0.0F;
          for (int64_t i = group * 16; i < std::min(count, group * 16 + 16); ++i) {
            amax = std::max(amax, std::fabs(x.get(i)));
          }
          Array scale(DType::bf16, {1}, {amax == 0.0F ? 1.0F : amax / 448.0F});
          CHECK(scales.get(group) == scale.get(0));
          for (int64_t i = group * 16; i < std::min(count, group * 16 + 16); ++i) {
            Array code(DType::e4m3, {1}, {x.get(i) / scale.get(0)});
            const bool right =
                code.get(0) == codes.get(i) && y.get(i) == codes.get(i) * scale.get(0);
            if (!right) {
              FAIL("element " << i);
            }
          }
        }
        Bits bits;
        bits.add(codes);
        bits.add(scales);
        return bits;
      }));
    }
  }
}

TEST_CASE("saved groups of tiny and non-finite values", "[ops][storage]") {
  std::vector<float> values(48, 1e-44F);
  values[20] = std::numeric_limits<float>::infinity();
  values[40] = std::numeric_limits<float>::quiet_NaN();
  values[1] = -0.0F;
  Array x(DType::f32, {48}, values);
  Array codes(DType::e4m3, {48});
  Array scales(DType::bf16, {3});
  Array y(DType::f32, {48});
  const Encoded groups(codes, saved_groups(), scales);
  ops::store(cpu_stream(), {.x = x, .to = groups});
  ops::read_stored(cpu_stream(), groups, y);
  CHECK(y.get(3) == 0.0F);  // below every bf16 scale that has a reciprocal
  CHECK(std::signbit(y.get(1)));
  CHECK(std::isnan(y.get(20)));
  CHECK(std::isnan(y.get(25)));
  CHECK(std::isnan(y.get(40)));
}

TEST_CASE("store refuses what does not fit", "[ops][storage]") {
  Array x(DType::f32, {100});
  StoredValues stored(kFormats[6], 100);
  StoredValues other(kFormats[6], 99);
  CHECK_THROWS_AS(ops::store(cpu_stream(), {.x = x, .to = other.view()}), InternalError);
  Encoded stochastic = stored.view();
  stochastic.format.rounding = Rounding::stochastic;
  CHECK_THROWS_AS(ops::store(cpu_stream(), {.x = x, .to = stochastic}), InternalError);
  const ops::AutoScale automatic;
  CHECK_THROWS_AS(ops::store(cpu_stream(), {.x = x, .to = stored.view(), .automatic = &automatic}),
                  InternalError);
  Array scales(DType::bf16, {6});
  const Encoded short_scales(stored.codes, saved_groups(), scales);
  CHECK_THROWS_AS(ops::store(cpu_stream(), {.x = x, .to = short_scales}), InternalError);
  Array all_scales(DType::bf16, {7});
  const Encoded groups(stored.codes, saved_groups(), all_scales);
  CHECK_NOTHROW(ops::store(cpu_stream(), {.x = x, .to = groups}));
  CHECK_THROWS_AS(ops::store(cpu_stream(), {.x = x, .to = groups, .add = true}), InternalError);
}

}  // namespace
}  // namespace fp8train::test
