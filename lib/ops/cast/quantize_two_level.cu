// Casts to e2m1 with an e4m3 scale for 16 elements, or 16 x 16, under a scale of the tensor: a pass
// for the amax, the tensor's scales, and a pass for the codes. A thread has the 16 elements of a
// block of one line at a time.

#include "numeric/hadamard.h"
#include "numeric/rounding.h"
#include "ops/cast/blockwise_cast.cuh"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kBlockWidth = 16;
constexpr float kSaturation = saturation_threshold(DType::e2m1);

/// One orientation of x: element k of line l is x[l * line_step + k * k_step].
struct TwoLevelSide {
  const void* x;
  DType x_type;
  int64_t lines, depth, line_step, k_step;
  bool hadamard;

  FP8TRAIN_HD int64_t blocks() const { return ceil_div(depth, int64_t{kBlockWidth}); }

  /// The values of a block, transformed if the side says so; zeros where x has none.
  __device__ __forceinline__ void load_block(int64_t line, int64_t block,
                                             float (&values)[kBlockWidth]) const {
    for (int k = 0; k < kBlockWidth; ++k) {
      const int64_t at = block * kBlockWidth + k;
      values[k] = at < depth ? load_element(x, x_type, line * line_step + at * k_step) : 0.0F;
    }
    if (hadamard && (block + 1) * kBlockWidth <= depth) {
      random_hadamard(values, 1, 1);
      round_to_type(x_type, values);
    }
  }
};

/// The largest magnitude, as bits.
__device__ __forceinline__ uint32_t largest_of(const float (&values)[kBlockWidth]) {
  uint32_t largest = 0;
  for (const float value : values) {
    largest = Largest{}(largest, bits_of(max_magnitude(value, 0.0F)));
  }
  return largest;
}

/// Raises *result to the amax of the values of a side, transformed as they are cast.
__global__ void __launch_bounds__(kTileThreads)
    two_level_amax_kernel(TwoLevelSide side, float* result) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  const int64_t count = side.lines * side.blocks();
  uint32_t largest = 0;
  for (int64_t i = int64_t{blockIdx.x} * kTileThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kTileThreads) {
    float values[kBlockWidth];
    side.load_block(i / side.blocks(), i % side.blocks(), values);
    largest = Largest{}(largest, largest_of(values));
  }
  raise_amax(result, float_of(largest), shared);
}

/// Turns the amax of the tensor in *scale_inv into both of its scales.
struct FindTensorScales {
  float* scale;
  float* scale_inv;
  float* amax;  ///< raised; may be null

  template <int N>
  __device__ void run(int64_t /*i*/) const {
    const float largest = *scale_inv;
    *scale = two_level_scale(largest);
    *scale_inv = two_level_scale_inv(largest);
    if (amax != nullptr) {
      *amax = max_magnitude(largest, *amax);
    }
  }
};

/// One cast of a side: where codes and scales go, and how values are rounded.
struct TwoLevelCast {
  TwoLevelSide side;
  uint8_t* codes = nullptr;
  BlockScales scales = {};
  const float* tensor_scale = nullptr;
  bool squares = false, stochastic = false;
  CastRandom random = {};
  QuantizeStatistics* statistics = nullptr;  ///< may be null
};

/// A thread has the block of one line at a time. In squares it reads the lines of the other threads
/// too, for their amax.
__global__ void __launch_bounds__(kTileThreads) two_level_kernel(TwoLevelCast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  const TwoLevelSide& side = cast.side;
  const float tensor_scale = *cast.tensor_scale;
  const int64_t count = side.lines * side.blocks();
  const int64_t pitch = ceil_div(side.depth, int64_t{2});
  const uint64_t pass = cast.stochastic ? *cast.random.pass : 0;
  CastCounts cast_counts;
  for (int64_t i = int64_t{blockIdx.x} * kTileThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kTileThreads) {
    const int64_t line = i / side.blocks();
    const int64_t block = i % side.blocks();
    float values[kBlockWidth];
    side.load_block(line, block, values);
    uint32_t largest = largest_of(values);
    const int64_t top = line / kBlockWidth * kBlockWidth;
    for (int64_t other = top; cast.squares && other < top + kBlockWidth && other < side.lines;
         ++other) {
      float others[kBlockWidth];
      side.load_block(other, block, others);
      largest = Largest{}(largest, largest_of(others));
    }
    const e4m3 scale = two_level_block_scale(float_of(largest), tensor_scale);
    const float factor = two_level_factor(scale, tensor_scale);
    cast.scales.under[cast.scales.grid.offset(line, block)] = scale;
    uint32_t pair = 0;
    for (int k = 0; k < kBlockWidth && block * kBlockWidth + k < side.depth; ++k) {
      const float scaled = values[k] * factor;
      uint32_t code = 0;
      if (cast.stochastic) {
        const uint64_t element = static_cast<uint64_t>(i * kBlockWidth + k);
        code = encode_stochastic<e2m1>(
                   scaled, stochastic_bits(cast.random.seed, pass, cast.random.tensor, element))
                   .bits;
      } else {
        code = encode<e2m1>(scaled).bits;
      }
      cast_counts.count(values[k], scaled, kSaturation, code & 0x7U);
      pair = k % 2 == 0 ? code : pair | code << 4;
      cast.codes[line * pitch + (block * kBlockWidth + k) / 2] = static_cast<uint8_t>(pair);
    }
  }
  if (cast.statistics != nullptr) {
    add_to_statistics(cast.statistics, cast_counts, shared);
  }
}

/// dequantize_two_level() for map: an element for each index.
struct DequantizeTwoLevel {
  const uint8_t* codes;
  BlockScales scales;
  const float* tensor_scale_inv;  ///< null: 1
  int64_t columns;
  void* y;
  DType y_type;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / columns;
    const int64_t column = i % columns;
    const float above = tensor_scale_inv == nullptr ? 1.0F : *tensor_scale_inv;
    const float factor = scales.inverse(row, column / kBlockWidth) * above;
    const uint32_t both = codes[row * ceil_div(columns, int64_t{2}) + column / 2];
    const float value = decode(e2m1{static_cast<uint8_t>(both >> column % 2 * 4 & 0xFU)}) * factor;
    with_type_of(FloatTypes{}, y_type, [&](auto tag) {
      store_from_float(static_cast<typename decltype(tag)::Type*>(y) + i, value);
    });
  }
};

LaunchShape shape_for(const Stream& stream, const TwoLevelSide& side) {
  return {blocks_for(stream, side.lines * side.blocks(), kTileThreads), kTileThreads};
}

}  // namespace

void quantize_two_level(Stream stream, ConstView x, const QuantizedTensor& out, float* amax_out,
                        QuantizeStatistics* statistics, const CastRandom& random) {
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  const TensorFormat& format = out.format;
  FloatTypes::check(x.dtype);
  const TwoLevelSide rowwise = {x.data, x.dtype, rows, columns, columns, 1, format.hadamard};
  const TwoLevelSide columnwise = {x.data, x.dtype, columns, rows, 1, columns, format.hadamard};
  if (statistics != nullptr) {
    reset_statistics(stream, statistics, x.count());
  }
  if (format.hadamard) {
    const TwoLevelSide& side = out.rowwise.codes.empty() ? columnwise : rowwise;
    check_cuda(cudaMemsetAsync(out.tensor_scale_inv, 0, sizeof(float), cuda_context(stream).stream),
               "resetting an amax");
    launch(stream, shape_for(stream, side), two_level_amax_kernel, side, out.tensor_scale_inv);
  } else {
    cuda::amax(stream, x, out.tensor_scale_inv, false);
  }
  map<1>(stream, 1, true, FindTensorScales{out.tensor_scale, out.tensor_scale_inv, amax_out});
  for (const Quantized* part : {&out.rowwise, &out.columnwise}) {
    if (part->codes.empty()) {
      continue;
    }
    const TwoLevelSide& side = part == &out.rowwise ? rowwise : columnwise;
    const bool counted = part == &out.rowwise || out.rowwise.codes.empty();
    launch(stream, shape_for(stream, side), two_level_kernel,
           TwoLevelCast{.side = side,
                        .codes = part->codes.as<uint8_t>(),
                        .scales = block_scales(*part, format, out.layout),
                        .tensor_scale = out.tensor_scale,
                        .squares = format.block == per::block_16x16,
                        .stochastic = format.rounding == Rounding::stochastic,
                        .random = random,
                        .statistics = counted ? statistics : nullptr});
  }
}

void dequantize_two_level(Stream stream, const QuantizedTensor& x, View y) {
  FloatTypes::check(y.dtype);
  map<1>(
      stream, y.count(), true,
      DequantizeTwoLevel{x.rowwise.codes.as<uint8_t>(), block_scales(x.rowwise, x.format, x.layout),
                         x.tensor_scale_inv, x.rowwise.codes.shape.back(), y.data, y.dtype});
}

}  // namespace fp8train::ops::cuda
