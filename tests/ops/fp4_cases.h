#pragma once
// Casts to e2m1 on the cpu, and how the fixtures of tests/golden print them.

#include <cmath>
#include <utility>

#include "ops/cast/scale_blocks.h"
#include "ops/gemm/gemm.h"
#include "ops/quantizer_fixtures.h"

namespace fp8train::test {

inline TensorFormat fp4(ScaleBlock block, bool hadamard = false,
                        Rounding rounding = Rounding::nearest_even,
                        ScaleType scale_type = ScaleType::e4m3) {
  TensorFormat format = plain(DType::e2m1);
  format.block = block;
  format.policy = ScalePolicy::current;
  format.scale_type = scale_type;
  format.hadamard = hadamard;
  format.rounding = rounding;
  return format;
}

/// make_nvfp4.py's narrow().
inline Array narrow(int64_t rows, int64_t columns) {
  Array x(DType::bf16, {rows, columns});
  uint32_t state = 12345;
  for (int64_t i = 0; i < x.count(); ++i) {
    state = state * 1664525U + 1013904223U;
    const uint32_t word = state >> 16;
    x.as<uint16_t>()[i] = static_cast<uint16_t>((word & 0x807FU) | (120U + (word >> 7) % 9U) << 7);
  }
  return x;
}

/// One orientation of a cast: codes [rows, columns] and what they are read with.
struct Fp4Cast {
  Fp4Cast(Array& x, const TensorFormat& wanted, bool columnwise,
          const ops::CastOptions& random = {})
      : format(wanted),
        rows(ConstView(x).shape[columnwise ? 1 : 0]),
        columns(ConstView(x).shape[columnwise ? 0 : 1]),
        codes(DType::e2m1, {rows, columns}),
        scales(dtype_of(wanted.scale_type),
               {ops::scale_grid(format.block, rows, columns, ScaleLayout::row_major).count}),
        row_scales(DType::f32, {rows}) {
    const Encoded part = tensor();
    const QuantizedTensor out = {columnwise ? Encoded{} : part, columnwise ? part : Encoded{}};
    ops::quantize(cpu_stream(), x, out, &amax, &statistics, random);
  }

  uint8_t code(int64_t row, int64_t column) const {
    const auto pitch = (columns + 1) / 2;
    const uint8_t both = codes.bytes()[static_cast<size_t>(row * pitch + column / 2)];
    return column % 2 == 0 ? both & 0xFU : both >> 4;
  }
  float block_scale(int64_t row, int64_t column) const {
    const int64_t width = format.block.columns;
    const int64_t across = (columns + width - 1) / width;
    const uint8_t bits = scales.bytes()[static_cast<size_t>(row * across + column / width)];
    return format.is_two_level() ? decode(e4m3{bits}) : decode(e8m0{bits});
  }
  /// The scales above those of blocks.
  float above(int64_t row) const {
    return format.row_scaled ? row_scales.get(row) : format.is_two_level() ? scale_inv : 1.0F;
  }
  Encoded tensor() {
    Encoded result = {codes, format, scales};
    if (format.row_scaled) {
      result.row_scales = row_scales.as<float>();
    } else if (format.is_two_level()) {
      result.cast_scales = &scale;
      result.tensor_scale = &scale_inv;
    }
    return result;
  }
  ops::GemmOperand operand(bool transposed) { return {tensor(), transposed}; }

  TensorFormat format;
  int64_t rows, columns;
  Array codes, scales, row_scales;
  float scale = 0.0F, scale_inv = 0.0F, amax = 0.0F;
  ops::QuantizeStatistics statistics = {};
};

/// As make_nvfp4.py prints a cast: codes of a NaN amax mean nothing, and -0 is 0 there.
inline std::string prints(const Fp4Cast& cast) {
  std::vector<uint8_t> codes = cast.codes.bytes();
  for (uint8_t& both : codes) {
    const uint32_t low = (both & 0xFU) == 8 ? 0U : both & 0xFU;
    const uint32_t high = both >> 4 == 8 ? 0U : both & 0xF0U;
    both = static_cast<uint8_t>(std::isnan(cast.amax) ? 0U : low | high);
  }
  char amax[9];
  std::snprintf(amax, sizeof(amax), "%08x", bits_of(cast.amax));
  const std::vector<uint8_t>& scales = cast.scales.bytes();
  const std::vector<uint8_t>& of_rows = cast.row_scales.bytes();
  return fingerprint(codes.data(), codes.size()) + " " + fingerprint(scales.data(), scales.size()) +
         " " + (cast.format.row_scaled ? fingerprint(of_rows.data(), of_rows.size()) : amax);
}

}  // namespace fp8train::test
