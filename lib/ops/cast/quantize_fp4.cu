// Casts to e2m1 with a scale for 16 or 32 elements, or their squares: a thread has the elements of
// a block of one line at a time. Scales in e4m3 are under a scale of the tensor, or of a line,
// whose amax takes a pass before.

#include "base/error.h"
#include "numeric/hadamard.h"
#include "numeric/rounding.h"
#include "ops/cast/blockwise_cast.cuh"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr float kSaturation = saturation_threshold(DType::e2m1);

/// One orientation of x: element k of line l is x[l * line_step + k * k_step].
struct Fp4Side {
  const void* x;
  DType x_type;
  int64_t lines, depth, line_step, k_step;
  int width;  ///< elements along K that share a scale
  bool hadamard;
  ExtentMap whole_lines = {}, whole_depth = {};  ///< of the matrix that draws

  FP8TRAIN_HD int64_t blocks() const { return ceil_div(depth, int64_t{width}); }
  /// Returns the element, in the whole, that a block of a line begins with.
  FP8TRAIN_HD uint64_t first_element(int64_t line, int64_t block) const {
    const int64_t blocks_of_whole = ceil_div(whole_depth.extent(depth), int64_t{width});
    return static_cast<uint64_t>(whole_lines.of(line) * blocks_of_whole * width +
                                 whole_depth.of(block * width));
  }

  /// The values of a block, transformed if the side says so; zeros where x has none.
  template <int Width>
  __device__ __forceinline__ void load_block(int64_t line, int64_t block,
                                             float (&values)[Width]) const {
    for (int k = 0; k < Width; ++k) {
      const int64_t at = block * Width + k;
      values[k] = at < depth ? load_element(x, x_type, line * line_step + at * k_step) : 0.0F;
    }
    if constexpr (Width == kHadamardSize) {
      if (hadamard && (block + 1) * Width <= depth) {
        random_hadamard(values, 1, 1);
        round_to_type(x_type, values);
      }
    }
  }
};

/// The largest magnitude, as bits.
template <int Width>
__device__ __forceinline__ uint32_t largest_of(const float (&values)[Width]) {
  uint32_t largest = 0;
  for (const float value : values) {
    largest = Largest{}(largest, bits_of(max_magnitude(value, 0.0F)));
  }
  return largest;
}

/// Raises result[line], or with one result *result, to the amax of the lines of a side, transformed
/// as they are cast. Blocks of threads have a line at a time.
__global__ void __launch_bounds__(kTileThreads)
    fp4_amax_kernel(Fp4Side side, float* result, bool by_line) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  for (int64_t line = blockIdx.x; line < side.lines; line += gridDim.x) {
    uint32_t largest = 0;
    for (int64_t block = threadIdx.x; block < side.blocks(); block += kTileThreads) {
      float values[kHadamardSize];
      side.load_block(line, block, values);
      largest = Largest{}(largest, largest_of(values));
    }
    raise_amax(result + (by_line ? line : 0), float_of(largest), shared);
  }
}

/// Turns the amax of the tensor, or of each line, in scale_inv into the scales.
struct FindTensorScales {
  float* scale;  ///< null: of lines
  float* scale_inv;
  float* amax;  ///< raised; may be null
  float largest;

  template <int N>
  __device__ void run(int64_t i) const {
    const float found = scale_inv[i];
    scale_inv[i] = two_level_scale_inv(found, largest);
    if (scale != nullptr) {
      *scale = two_level_scale(found, largest);
    }
    if (amax != nullptr) {
      atomicMax(reinterpret_cast<unsigned*>(amax), bits_of(max_magnitude(found, 0.0F)));
    }
  }
};

/// One cast of a side: where codes and scales go, and how values are scaled and rounded.
struct Fp4Cast {
  Fp4Side side;
  uint8_t* codes = nullptr;
  BlockScales scales = {};
  BlockRule rule = {};           ///< of scales that are not under another one
  const float* above = nullptr;  ///< amax of the tensor or of each line; null: scales under none
  bool by_line = false;
  float largest = kMaxE4M3;  ///< as for two_level_scale()
  bool four_over_six = false, squared = false;
  bool squares = false, stochastic = false;
  CastOptions random = {};
  float* amax = nullptr;                     ///< raised; may be null
  QuantizeStatistics* statistics = nullptr;  ///< may be null
};

/// The sum of errors over a block of a line, or over all lines of its square in the order of a
/// tree.
__device__ __forceinline__ float errors_of(const Fp4Cast& cast, int64_t line, int64_t block,
                                           e4m3 scale, float tensor_scale, float above) {
  const int count = cast.squares ? kHadamardSize : 1;
  const int64_t top = line / count * count;
  const float factor = two_level_factor(scale, tensor_scale);
  float sums[kHadamardSize] = {};
#pragma unroll 1
  for (int i = 0; i < count && top + i < cast.side.lines; ++i) {
    float values[kHadamardSize];
    cast.side.load_block(top + i, block, values);
    float sum = 0.0F;
    for (const float value : values) {
      sum += four_over_six_error(value, factor, scale, above, cast.largest, cast.squared);
    }
    sums[i] = sum;
  }
#pragma unroll 1
  for (int half = count / 2; half > 0; half /= 2) {
#pragma unroll 1
    for (int i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

/// Finds and stores the scale of a block of 16. Returns the factor of its values.
__device__ __forceinline__ float find_under(const Fp4Cast& cast, int64_t line, int64_t block,
                                            float amax) {
  const float above = cast.above[cast.by_line ? line : 0];
  const float tensor_scale = two_level_scale(above, cast.largest);
  e4m3 scale = two_level_block_scale(amax, tensor_scale);
  float least = 0.0F;
#pragma unroll 1
  for (int candidate = 0; cast.four_over_six && candidate < 2; ++candidate) {
    const e4m3 tried = four_over_six_block_scale(amax, tensor_scale, candidate == 1);
    const float errors = errors_of(cast, line, block, tried, tensor_scale, above);
    const bool better = candidate == 0 || errors < least;
    scale = better ? tried : scale;
    least = better ? errors : least;
  }
  cast.scales.under[cast.scales.grid.offset(line, block)] = scale;
  return two_level_factor(scale, tensor_scale);
}

/// Finds and stores the scale of a block of a line. Returns the factor of its values. Blocks of 16
/// have scales under another one, those of 32 have not.
template <int Width>
__device__ __forceinline__ float find_factor(const Fp4Cast& cast, int64_t line, int64_t block,
                                             float amax) {
  if constexpr (Width == kHadamardSize) {
    return find_under(cast, line, block, amax);
  } else {
    cast.scales.keep(line, block, amax, cast.rule);
    return cast.rule.factor(amax);
  }
}

/// A thread has the block of one line at a time. In squares it reads the lines of the other threads
/// too, for their amax.
template <int Width>
__global__ void __launch_bounds__(kTileThreads) fp4_kernel(Fp4Cast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  const Fp4Side& side = cast.side;
  const int64_t count = side.lines * side.blocks();
  const int64_t pitch = ceil_div(side.depth, int64_t{2});
  const uint64_t pass = cast.stochastic ? *cast.random.pass : 0;
  CastCounts cast_counts;
  uint32_t largest_of_all = 0;
  for (int64_t i = int64_t{blockIdx.x} * kTileThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kTileThreads) {
    const int64_t line = i / side.blocks();
    const int64_t block = i % side.blocks();
    float values[Width];
    side.load_block(line, block, values);
    uint32_t largest = largest_of(values);
    const int64_t top = line / Width * Width;
    for (int64_t other = top; cast.squares && other < top + Width && other < side.lines; ++other) {
      float others[Width];
      side.load_block(other, block, others);
      largest = Largest{}(largest, largest_of(others));
    }
    largest_of_all = Largest{}(largest_of_all, largest);
    const float factor = find_factor<Width>(cast, line, block, float_of(largest));
    const uint64_t first = cast.stochastic ? side.first_element(line, block) : 0;
    uint32_t pair = 0;
    for (int k = 0; k < Width && block * Width + k < side.depth; ++k) {
      const float scaled = values[k] * factor;
      uint32_t code = 0;
      if (cast.stochastic) {
        const uint64_t element = first + static_cast<uint64_t>(k);
        code = encode_stochastic<e2m1>(
                   scaled, stochastic_bits(cast.random.seed, pass, cast.random.tensor, element))
                   .bits;
      } else {
        code = encode<e2m1>(scaled).bits;
      }
      cast_counts.count(values[k], scaled, kSaturation, code & 0x7U);
      pair = k % 2 == 0 ? code : pair | code << 4;
      cast.codes[line * pitch + (block * Width + k) / 2] = static_cast<uint8_t>(pair);
    }
  }
  finish_blocks(cast.amax, largest_of_all, cast.statistics, cast_counts, shared);
}

/// dequantize_fp4() for map: an element for each index.
struct DequantizeFp4 {
  const uint8_t* codes;
  BlockScales scales;
  const float* tensor_scale;  ///< null: 1
  const float* row_scales;    ///< in its stead; may be null
  int64_t columns;
  void* y;
  DType y_type;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t row = i / columns;
    const int64_t column = i % columns;
    const float of_tensor = tensor_scale == nullptr ? 1.0F : *tensor_scale;
    const float above = row_scales == nullptr ? of_tensor : row_scales[row];
    const float factor = scales.inverse(row, column / scales.grid.width) * above;
    const uint32_t both = codes[row * ceil_div(columns, int64_t{2}) + column / 2];
    const float value = decode(e2m1{static_cast<uint8_t>(both >> column % 2 * 4 & 0xFU)}) * factor;
    with_type_of(FloatTypes{}, y_type, [&](auto tag) {
      store_from_float(static_cast<typename decltype(tag)::Type*>(y) + i, value);
    });
  }
};

/// The amax of a side, or of each of its lines, in `result`.
void find_amax(const Stream& stream, const Fp4Side& side, float* result, bool by_line) {
  const size_t bytes = static_cast<size_t>(by_line ? side.lines : 1) * sizeof(float);
  check_cuda(cudaMemsetAsync(result, 0, bytes, cuda_context(stream).stream), "resetting an amax");
  launch(stream, LaunchShape{blocks_for(stream, side.lines, 1), kTileThreads}, fp4_amax_kernel,
         side, result, by_line);
}

/// Makes a step of the cast of one orientation; its line scales are an amax before and what reads
/// them after.
void cast_side(const Stream& stream, const Fp4Cast& cast, float* row_scales, float* amax,
               CastStep step) {
  const Fp4Side& side = cast.side;
  const LaunchShape shape = {blocks_for(stream, side.lines * side.blocks(), kTileThreads),
                             kTileThreads};
  if (cast.by_line && step != CastStep::codes) {
    find_amax(stream, side, row_scales, true);
  }
  if (step == CastStep::amax) {
    return;
  }
  if (side.width == kHadamardSize) {
    launch(stream, shape, fp4_kernel<kHadamardSize>, cast);
  } else {
    launch(stream, shape, fp4_kernel<32>, cast);
  }
  if (cast.by_line) {
    map<1>(stream, side.lines, true, FindTensorScales{nullptr, row_scales, amax, cast.largest});
  }
}

}  // namespace

void quantize_fp4(Stream stream, ConstView x, const QuantizedTensor& out, float* amax_out,
                  QuantizeStatistics* statistics, const CastOptions& options) {
  const int64_t rows = x.shape.rows();
  const int64_t columns = x.shape.back();
  const Encoded& either = out.either();
  const TensorFormat& format = either.format;
  const ScaleTypeFacts& facts = facts_of(format.scale_type);
  FloatTypes::check(x.dtype);
  const auto width = static_cast<int>(format.block.columns);
  check((width == kHadamardSize) == facts.two_level, "quantize: no kernel for these scales");
  const Fp4Side rowwise = {x.data, x.dtype,         rows,         columns,        columns, 1,
                           width,  format.hadamard, options.rows, options.columns};
  const Fp4Side columnwise = {x.data, x.dtype,         columns,         rows,        1, columns,
                              width,  format.hadamard, options.columns, options.rows};
  if (statistics != nullptr) {
    reset_statistics(stream, statistics, x.count());
  }
  const bool by_tensor = facts.two_level && !format.row_scaled;
  const bool finds = by_tensor && options.step != CastStep::codes;
  if (finds && format.hadamard) {
    find_amax(stream, out.rowwise.codes.empty() ? columnwise : rowwise, either.tensor_scale, false);
  } else if (finds) {
    cuda::amax(stream, x, either.tensor_scale, false);
  }
  for (const Encoded* part : {&out.rowwise, &out.columnwise}) {
    if (part->codes.empty()) {
      continue;
    }
    const bool first = part == &out.rowwise || out.rowwise.codes.empty();
    const Fp4Cast cast = {.side = part == &out.rowwise ? rowwise : columnwise,
                          .codes = part->codes.as<uint8_t>(),
                          .scales = block_scales(*part),
                          .rule = facts.two_level ? BlockRule{} : block_rule(format, x.dtype),
                          .above = by_tensor           ? either.tensor_scale
                                   : format.row_scaled ? part->row_scales
                                                       : nullptr,
                          .by_line = format.row_scaled,
                          .largest = facts.largest,
                          .four_over_six = facts.four_over_six,
                          .squared = facts.squared,
                          .squares = format.block.is_square(),
                          .stochastic = format.rounding == Rounding::stochastic,
                          .random = options,
                          .amax = facts.two_level ? nullptr : amax_out,
                          .statistics = first ? statistics : nullptr};
    cast_side(stream, cast, part->row_scales, amax_out, options.step);
  }
  if (by_tensor && options.step != CastStep::amax) {
    map<1>(stream, 1, true,
           FindTensorScales{either.cast_scales, either.tensor_scale, amax_out, facts.largest});
  }
}

void dequantize_fp4(Stream stream, const Encoded& x, View y) {
  FloatTypes::check(y.dtype);
  const BlockScales scales = block_scales(x);
  map<1>(stream, y.count(), true,
         DequantizeFp4{x.codes.as<uint8_t>(), scales, x.tensor_scale, x.row_scales,
                       x.codes.shape.back(), y.data, y.dtype});
}

}  // namespace fp8train::ops::cuda
