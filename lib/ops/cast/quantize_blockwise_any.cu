// Casts with one scale for each block of matrices of any type, width and alignment, and to int8,
// where nothing needs to be fast: types are chosen when the kernel runs, and a warp has a block
// at a time, which it reads twice.

#include "ops/cast/blockwise_cast.cuh"

namespace fp8train::ops::cuda {
namespace {

/// One orientation of a cast: its blocks in the matrix [rows, columns] of its codes, of which
/// element (r, c) is element r * row_step + c * column_step of x.
struct AnyCast {
  const void* x;
  DType x_type;
  int64_t rows, columns, row_step, column_step;
  uint8_t* codes;
  DType code_type;
  ScaleGrid blocks;
  BlockScales scales;
  BlockRule rule;
  float* amax;                     ///< may be null
  QuantizeStatistics* statistics;  ///< may be null
  CastStep step;

  __device__ __forceinline__ float load(int64_t row, int64_t column) const {
    return load_element(x, x_type, row * row_step + column * column_step);
  }

  /// The code of a value, also counted.
  __device__ __forceinline__ uint8_t code(float value, float factor,
                                          CastCounts& cast_counts) const {
    const float scaled = value * factor;
    uint32_t code = 0;
    with_type_of(ByteCodes{}, code_type, [&]<typename Code>(TypeTag<Code>) {
      code = encode_pair<Code>(scaled, 0.0F) & 0xFFU;
      cast_counts.add<Code>(value, scaled, code);
    });
    return static_cast<uint8_t>(code);
  }
};

/// A warp has a block at a time: a read for its amax, another for its codes.
__global__ void __launch_bounds__(kTileThreads) any_blocks_kernel(AnyCast cast) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileWarps);
  const ScaleGrid& grid = cast.blocks;
  const int64_t blocks = grid.rows * grid.columns;
  const int64_t warps = int64_t{gridDim.x} * kTileWarps;
  uint32_t largest = 0;
  CastCounts cast_counts;
  for (int64_t index = int64_t{blockIdx.x} * kTileWarps + warp_index(); index < blocks;
       index += warps) {
    const int64_t first_row = index / grid.columns * grid.height;
    const int64_t first_column = index % grid.columns * grid.width;
    const int64_t rows_left = cast.rows - first_row;
    const int64_t columns_left = cast.columns - first_column;
    const int64_t height = rows_left < grid.height ? rows_left : grid.height;
    const int64_t width = columns_left < grid.width ? columns_left : grid.width;
    uint32_t amax_bits =  // a step of a cast has one block for each row
        cast.step == CastStep::codes ? bits_of(cast.scales.scale[index]) : 0;
    for (int64_t i = lane_index(); cast.step != CastStep::codes && i < height * width; i += kWarp) {
      const float value = cast.load(first_row + i / width, first_column + i % width);
      amax_bits = Largest{}(amax_bits, bits_of(max_magnitude(value, 0.0F)));
    }
    amax_bits = warp_reduce(amax_bits, Largest{});
    largest = Largest{}(largest, amax_bits);
    const float amax = float_of(amax_bits);
    if (cast.step == CastStep::amax) {
      if (lane_index() == 0) {
        cast.scales.scale[index] = amax;
      }
      continue;
    }
    const float factor = cast.rule.factor(amax);
    if (lane_index() == 0) {
      cast.scales.keep_block(index / grid.columns, index % grid.columns, grid.height, amax,
                             cast.rule);
    }
    for (int64_t i = lane_index(); i < height * width; i += kWarp) {
      const int64_t row = first_row + i / width;
      const int64_t column = first_column + i % width;
      cast.codes[row * cast.columns + column] =
          cast.code(cast.load(row, column), factor, cast_counts);
    }
  }
  finish_blocks(cast.amax, largest, cast.statistics, cast_counts, shared);
}

void run(const Stream& stream, const AnyCast& cast) {
  const int64_t blocks = cast.blocks.count;
  launch(stream, {blocks_for(stream, blocks, kTileWarps), kTileThreads}, any_blocks_kernel, cast);
}

}  // namespace

void quantize_any_blocks(const Stream& stream, ConstView x, ScaleBlock block,
                         const BlockwiseCast& cast) {
  FloatTypes::check(x.dtype);
  ByteCodes::check(cast.code_type);
  AnyCast one = {.x = x.data,
                 .x_type = x.dtype,
                 .rows = cast.rows,
                 .columns = cast.columns,
                 .row_step = cast.columns,
                 .column_step = 1,
                 .codes = cast.codes,
                 .code_type = cast.code_type,
                 .blocks = block_grid(block, cast.rows, cast.columns),
                 .scales = cast.rowwise,
                 .rule = cast.rule,
                 .amax = cast.amax,
                 .statistics = cast.statistics,
                 .step = cast.step};
  if (cast.codes != nullptr) {
    run(stream, one);
    one.statistics = nullptr;  // counted once
  }
  if (cast.transposed.codes != nullptr) {
    one.rows = cast.columns;
    one.columns = cast.rows;
    one.row_step = 1;
    one.column_step = cast.columns;
    one.codes = cast.transposed.codes;
    one.blocks = block_grid(block, one.rows, one.columns);
    one.scales = cast.columnwise;
    run(stream, one);
  }
}

}  // namespace fp8train::ops::cuda
