// Samples of casts against the same sums in double precision of values that the test casts itself.
// The error is a difference of numbers of 24 bits that agree in their first five: 1e-4 of its
// energy is more than its rounding, and less than any wrong scale, block or format would change.
// The sum of millions of squares differs in the order of its additions: 1e-10.

#include "nn/cast_error.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/philox.h"
#include "numeric/convert.h"
#include "numeric/with_type.h"

using namespace fp8train;

namespace {

constexpr double kTolerance = 1e-4;

struct Matrix {
  int64_t rows, columns;
  std::vector<float> values;  // of bf16
};

/// Magnitudes that differ by a factor of 2^8 from element to element.
Matrix make_matrix(int64_t rows, int64_t columns) {
  Matrix matrix = {rows, columns, {}};
  matrix.values.resize(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < matrix.values.size(); ++i) {
    const PhiloxBlock bits = philox(7, 0, i);
    const float value = 2.0F * uniform_from_bits(bits.word[0]) - 1.0F;
    matrix.values[i] =
        decode(encode<bf16>(std::ldexp(value, static_cast<int>(bits.word[1] % 9) - 4)));
  }
  return matrix;
}

struct Extents {
  int64_t height, width;
};

struct Sums {
  double signal = 0;
  double noise = 0;
  float amax = 0;
};

float rounded(float scaled, DType dtype) {
  float value = 0;
  with_fp8_type(dtype,
                [&](auto tag) { value = decode(encode<typename decltype(tag)::Type>(scaled)); });
  return value;
}

/// Scales as torchao and the MX specification say, from each block; or `fixed` where it is not 0.
Sums reference(const Matrix& x, const TensorFormat& format, Extents block, float fixed) {
  const double largest = double{format_max(format.dtype)};
  Sums sums;
  for (int64_t top = 0; top < x.rows; top += block.height) {
    for (int64_t left = 0; left < x.columns; left += block.width) {
      const auto each = [&](const auto& work) {
        for (int64_t row = top; row < std::min(x.rows, top + block.height); ++row) {
          for (int64_t column = left; column < std::min(x.columns, left + block.width); ++column) {
            work(x.values[static_cast<size_t>(row * x.columns + column)]);
          }
        }
      };
      float amax = 0;
      each([&](float value) { amax = std::max(amax, std::abs(value)); });
      float scale = fixed != 0.0F ? fixed : static_cast<float>(largest / double{amax});
      if (format.scale_type != ScaleType::f32) {
        scale = std::exp2(std::floor(std::log2(scale)));
      }
      each([&](float value) {
        const double error = value - double{rounded(value * scale, format.dtype)} / scale;
        sums.signal += double{value} * value;
        sums.noise += error * error;
      });
      sums.amax = std::max(sums.amax, amax);
    }
  }
  return sums;
}

struct Bench {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Arena scratch{*device, MemoryCategory::workspace};
  ScalingState scaling;
  const ScalingSlot* slot;

  explicit Bench(const TensorFormat& format) : slot(scaling.add("layer", "x", format)) {
    scaling.allocate(*device);
    scratch.reserve(size_t{96} << 20);
  }
  StepContext context() {
    return {
        .device = device.get(), .stream = device->stream(), .saved = nullptr, .scratch = &scratch};
  }
  View upload(const Matrix& matrix) {
    const View view = allocate(scratch, DType::bf16, {matrix.rows, matrix.columns});
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      view.as<bf16>()[i] = encode<bf16>(matrix.values[i]);
    }
    return view;
  }
};

void check_sample(const Matrix& x, const TensorFormat& format, Extents block, float fixed) {
  CAPTURE(describe(format), x.rows, x.columns);
  Bench bench(format);
  if (fixed != 0.0F) {
    *bench.slot->scale = fixed;
  }
  const View view = bench.upload(x);
  const Sums wanted = reference(x, format, block, fixed);
  for (int pass = 0; pass < 2; ++pass) {  // a sample does not add to the one before
    sample_cast(bench.context(), view, *bench.slot);
    CHECK(bench.slot->sample->signal == Approx(wanted.signal).epsilon(1e-10));
    CHECK(bench.slot->sample->noise == Approx(wanted.noise).epsilon(kTolerance));
    CHECK(bench.slot->sample->amax == wanted.amax);  // exact
  }
  const SlotReport report = bench.scaling.report().front();
  REQUIRE(report.snr_db());
  CHECK(*report.snr_db() ==
        Approx(10.0 * std::log10(wanted.signal / wanted.noise)).margin(0.0051));  // to 0.01 dB
}

TensorFormat scaled(DType dtype, ScaleBlock block, ScaleType type = ScaleType::f32) {
  return {.dtype = dtype, .block = block, .policy = ScalePolicy::current, .scale_type = type};
}

}  // namespace

TEST_CASE("a sample has the amax and the energies of a tensor and of its cast's error") {
  const Matrix x = make_matrix(150, 160);
  for (const DType dtype : Fp8Types::kTypes) {
    // A scale that is right, one that clips and one below which most values vanish.
    for (const float scale : {16.0F, 4096.0F, 0x1p-12F}) {
      check_sample(x, scaled(dtype, per::tensor), {x.rows, x.columns}, scale);
    }
    check_sample(x, scaled(dtype, per::row), {1, x.columns}, 0.0F);
    check_sample(x, scaled(dtype, per::block_1x128), {1, 128}, 0.0F);
    check_sample(x, scaled(dtype, per::block_128x128, ScaleType::pow2), {128, 128}, 0.0F);
    check_sample(x, scaled(dtype, per::block_1x32, ScaleType::e8m0), {1, 32}, 0.0F);
  }
}

TEST_CASE("a tensor that is sampled in several parts") {
  const Matrix x = make_matrix(130, 65600);
  check_sample(x, scaled(DType::e4m3, per::tensor), {x.rows, x.columns}, 16.0F);
  check_sample(x, scaled(DType::e4m3, per::block_128x128), {128, 128}, 0.0F);
}

TEST_CASE("zeros, exact casts and values that are not finite have no ratio") {
  for (const float value : {0.0F, 1.0F, INFINITY, NAN}) {
    CAPTURE(value);
    Bench bench(scaled(DType::e4m3, per::tensor));
    sample_cast(bench.context(), bench.upload({1, 3, {0.0F, value, 2.0F * value}}), *bench.slot);
    CHECK_FALSE(bench.scaling.report().front().snr_db());
  }
  Bench bench(scaled(DType::e4m3, per::tensor));
  const View view = bench.upload({1, 2, {1.0F, -3.0F}});
  sample_cast(bench.context(), view, *bench.slot);
  sample_amax(bench.context(), view, *bench.slot);
  CHECK(bench.slot->sample->amax == 3.0F);
  CHECK_FALSE(bench.scaling.report().front().snr_db());
}
