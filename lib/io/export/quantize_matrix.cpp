#include "io/export/quantize_matrix.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "numeric/convert.h"
#include "numeric/rounding.h"
#include "numeric/with_type.h"

namespace fp8train {
namespace {

float value_at(ConstView x, int64_t i) {
  switch (x.dtype) {
    case DType::f32:
      return x.as<float>()[i];
    case DType::bf16:
      return decode(x.as<bf16>()[i]);
    default:
      return decode(x.as<f16>()[i]);
  }
}

/// The cast with the nearest code, and the scales that values are multiplied by.
struct NearestCast {
  QuantizedMatrix matrix;
  std::vector<float> scale;
};

size_t scale_bytes(const TensorFormat& format) {
  return size_of(dtype_of(format.scale_type));
}

/// The cast of a matrix of the shape of x, as operations take it.
Encoded encoded(QuantizedMatrix& matrix, const TensorFormat& format, ConstView x) {
  const auto count = static_cast<int64_t>(matrix.scales.size() / scale_bytes(format));
  Encoded tensor({matrix.codes.data(), format.dtype, {x.shape[0], x.shape[1]}}, format,
                 {matrix.scales.data(), dtype_of(format.scale_type), {count}});
  if (format.block == per::tensor) {
    tensor.tensor_scale = tensor.scales.as<float>();
  }
  return tensor;
}

/// Casts to e2m1 round stochastically themselves.
NearestCast cast_to_nearest(Stream cpu, ConstView x, TensorFormat format,
                            const StochasticKey& key) {
  if (format.dtype != DType::e2m1) format.rounding = Rounding::nearest_even;
  const ops::ScaleGrid blocks = matrix_blocks(format.block, x.shape[0], x.shape[1]);
  const auto count = static_cast<size_t>(blocks.rows * blocks.columns);
  NearestCast cast;
  cast.matrix.codes.resize(bytes_of_rows(format.dtype, x.shape[0], x.shape[1]));
  cast.matrix.scales.resize(count * scale_bytes(format));
  cast.scale.resize(count);
  CastQuality& quality = cast.matrix.quality;
  Encoded out = encoded(cast.matrix, format, x);
  out.cast_scales = cast.scale.data();
  if (format.block == per::tensor) {
    ops::amax(cpu, x, &quality.amax);
    ops::compute_current_scale(cpu, &quality.amax, format, out.cast_scales, out.tensor_scale);
    ops::quantize(cpu, x, {out}, nullptr, &quality.statistics);
    return cast;
  }
  const uint64_t pass = 0;
  float tensor_scale = 1.0F;
  if (format.is_two_level()) {  // a file has what values were multiplied by only
    out.cast_scales = &cast.matrix.tensor_scale;
    out.tensor_scale = &tensor_scale;
  }
  ops::quantize(cpu, x, {out}, &quality.amax, &quality.statistics, {key.seed, &pass, key.tensor});
  return cast;
}

bool is_zero_code(uint8_t code) {
  return (code & 0x7FU) == 0;  // int8 codes are never -128
}

/// Other codes for the same scales. Statistics as those of the nearest codes: beyond the same
/// threshold a value counts as saturated.
void round_stochastically(NearestCast& cast, ConstView x, const TensorFormat& format,
                          const StochasticKey& key) {
  const int64_t columns = x.shape[1];
  const ops::ScaleGrid blocks = matrix_blocks(format.block, x.shape[0], columns);
  const float threshold = saturation_threshold(format.dtype);
  ops::QuantizeStatistics statistics = {static_cast<uint64_t>(x.count()), 0, 0};
  with_code_type(format.dtype, [&]<typename Code>(TypeTag<Code>) {
    auto* codes = reinterpret_cast<Code*>(cast.matrix.codes.data());
    PhiloxBlock block = {};
    for (int64_t i = 0; i < x.count(); ++i) {
      if (i % 4 == 0) {
        block = stochastic_block(key.seed, 0, key.tensor, static_cast<uint64_t>(i / 4));
      }
      const int64_t scale_block =
          i / columns / blocks.height * blocks.columns + i % columns / blocks.width;
      const float value = value_at(x, i);
      const float scaled = value * cast.scale[static_cast<size_t>(scale_block)];
      codes[i] = encode_stochastic<Code>(scaled, block.word[i % 4]);
      statistics.saturated += std::abs(scaled) > threshold ? 1 : 0;
      const bool vanished =
          value != 0.0F && is_zero_code(cast.matrix.codes[static_cast<size_t>(i)]);
      statistics.underflow += vanished ? 1 : 0;
    }
  });
  cast.matrix.quality.statistics = statistics;
}

void measure_noise(Stream cpu, ConstView x, const TensorFormat& format, QuantizedMatrix& matrix) {
  std::vector<float> read(static_cast<size_t>(x.count()));
  dequantize_matrix(cpu, matrix, format, {read.data(), DType::f32, x.shape});
  CastQuality& quality = matrix.quality;
  for (int64_t i = 0; i < x.count(); ++i) {
    const float value = value_at(x, i);
    if (!is_finite(value)) {
      (is_nan(value) ? quality.not_a_number : quality.infinite) += 1;
      continue;
    }
    const float back = read[static_cast<size_t>(i)];
    const double error =
        static_cast<double>(value) - (is_finite(back) ? static_cast<double>(back) : 0.0);
    quality.signal += static_cast<double>(value) * static_cast<double>(value);
    quality.noise += error * error;
  }
}

}  // namespace

double CastQuality::snr_db() const {
  return 10.0 * std::log10(signal / noise);
}

CastQuality& CastQuality::operator+=(const CastQuality& other) {
  amax = std::isnan(amax) || other.amax <= amax ? amax : other.amax;
  statistics.count += other.statistics.count;
  statistics.saturated += other.statistics.saturated;
  statistics.underflow += other.statistics.underflow;
  not_a_number += other.not_a_number;
  infinite += other.infinite;
  signal += other.signal;
  noise += other.noise;
  return *this;
}

QuantizedMatrix quantize_matrix(Stream cpu, ConstView x, const TensorFormat& format,
                                const StochasticKey& key) {
  check(x.shape.rank() == 2 && x.count() > 0, "quantize_matrix: a matrix with elements expected");
  NearestCast cast = cast_to_nearest(cpu, x, format, key);
  if (format.rounding == Rounding::stochastic && format.dtype != DType::e2m1) {
    round_stochastically(cast, x, format, key);
  }
  measure_noise(cpu, x, format, cast.matrix);
  return std::move(cast.matrix);
}

void dequantize_matrix(Stream cpu, QuantizedMatrix& matrix, const TensorFormat& format, View y) {
  Encoded tensor = encoded(matrix, format, y);
  float above = 1.0F / matrix.tensor_scale;
  if (format.is_two_level()) {
    tensor.tensor_scale = &above;
  }
  ops::dequantize(cpu, tensor, y);
}

}  // namespace fp8train
