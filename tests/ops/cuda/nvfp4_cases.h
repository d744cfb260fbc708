#pragma once
// Casts and products in NVFP4 on one device.

#include "ops/cast/scale_blocks.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::test {

inline TensorFormat nvfp4_format(ScaleBlock block, bool hadamard = false, bool stochastic = false) {
  TensorFormat format = plain(DType::e2m1);
  format.block = block;
  format.policy = ScalePolicy::current;
  format.scale_type = ScaleType::e4m3;
  format.hadamard = hadamard;
  format.rounding = stochastic ? Rounding::stochastic : Rounding::nearest_even;
  return format;
}

/// Those of NVFP4, with its options, and of MXFP4.
inline std::vector<TensorFormat> nvfp4_formats() {
  std::vector<TensorFormat> formats = {
      nvfp4_format(per::block_1x16), nvfp4_format(per::block_16x16),
      nvfp4_format(per::block_1x16, true), nvfp4_format(per::block_1x16, true, true),
      nvfp4_format(per::block_1x16, false, true)};
  for (const auto& [block, scale_type] : {std::pair{per::block_1x16, ScaleType::e4m3_4over6_mse},
                                          {per::block_16x16, ScaleType::e4m3_4over6},
                                          {per::block_16x16, ScaleType::e4m3_4over6_448_mse},
                                          {per::block_1x32, ScaleType::e8m0_floor},
                                          {per::block_1x32, ScaleType::e8m0_even},
                                          {per::block_32x32, ScaleType::e8m0}}) {
    formats.push_back(nvfp4_format(block));
    formats.back().scale_type = scale_type;
  }
  formats.push_back(nvfp4_format(per::block_1x32, false, true));
  formats.back().scale_type = ScaleType::e8m0;
  for (const bool hadamard : {false, true}) {
    formats.push_back(nvfp4_format(per::block_1x16, hadamard));
    formats.back().row_scaled = true;
    formats.back().scale_type = hadamard ? ScaleType::e4m3 : ScaleType::e4m3_4over6;
  }
  return formats;
}

/// A cast of x [rows, columns] on the device of a side, in one orientation.
struct Nvfp4Cast {
  Nvfp4Cast(Side& side, const Array& x, int64_t rows, int64_t columns, const TensorFormat& format,
            ScaleLayout layout, bool columnwise)
      : is_columnwise(columnwise) {
    const Shape shape = columnwise ? Shape{columns, rows} : Shape{rows, columns};
    const int64_t count = ops::scale_grid(format.block, shape[0], shape[1], layout).count;
    Encoded& written = columnwise ? out.columnwise : out.rowwise;
    written = {side.space(DType::e2m1, shape), format,
               side.put(Array(dtype_of(format.scale_type), {count})), layout};
    if (format.row_scaled) {
      row_scales = side.space(DType::f32, {shape[0]});
      written.row_scales = row_scales.as<float>();
    } else if (format.is_two_level()) {
      written.cast_scales = side.put_value(0.0F);
      written.tensor_scale = side.put_value(0.0F);
    }
    statistics = side.put_value(ops::QuantizeStatistics{9, 9, 9});
    amax = side.put_value(0.25F);
    const uint64_t* pass = side.put_value(uint64_t{77});
    ops::CastOptions random = {.seed = 3, .pass = pass, .tensor = 8};
    const View values = side.put(x);
    // Parts of the contracted extent are whole blocks.
    if (!format.is_two_level() || rows % (is_columnwise ? 32 : 2) != 0) {
      ops::quantize(side.stream(), values, out, amax, statistics, random);
      return;
    }
    // Of the first of two ranks that have halves of two pieces.
    random.rows = {.whole = 2 * rows, .begins = {0, rows / 2}, .before = {0, rows / 2}, .runs = 2};
    random.step = CastStep::amax;
    ops::quantize(side.stream(), values, out, amax, nullptr, random);
    random.step = CastStep::codes;
    ops::quantize(side.stream(), values, out, amax, statistics, random);
  }

  const Encoded& part() const { return is_columnwise ? out.columnwise : out.rowwise; }

  Bits bits(Side& side) const {
    Bits bits;
    bits.add(side.get(part().codes));
    bits.add(side.get(part().scales));
    if (!row_scales.empty()) {
      bits.add(side.get(row_scales));
    } else if (part().cast_scales != nullptr) {
      bits.add_value(side.get_value(part().cast_scales));
      bits.add_value(side.get_value(part().tensor_scale));
    }
    bits.add_value(side.get_value(statistics));
    bits.add_value(side.get_value(amax));
    return bits;
  }

  ops::GemmOperand operand(bool transposed) const { return {part(), transposed}; }

  bool is_columnwise;
  QuantizedTensor out;
  View row_scales;  ///< empty: the tensor has the scales above those of blocks, or none has
  ops::QuantizeStatistics* statistics = nullptr;
  float* amax = nullptr;
};

}  // namespace fp8train::test
