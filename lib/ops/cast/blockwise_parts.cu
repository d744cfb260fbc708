// Casts of parts of a matrix whose blocks reach beyond the part. A warp has 128 consecutive
// elements at a time: where they lie in one block, as in 128x128 of a matrix whose width is a
// multiple of 128, it raises that block's maximum once, and so do eight lanes in one of 32x32.

#include "ops/cast/blockwise_parts.h"

#include "ops/cast/code_tile.cuh"
#include "ops/cast/scale_blocks.h"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPerLane = 128 / kWarp;

/// Which block an element of the matrix lies in.
struct BlockOf {
  int64_t width;  ///< of the matrix
  ScaleGrid grid;

  __device__ __forceinline__ int64_t operator()(int64_t element) const {
    return element / width / grid.height * grid.columns + element % width / grid.width;
  }
  /// Whether elements `first` to `last` lie in one block and in one row.
  __device__ __forceinline__ bool one(int64_t first, int64_t last) const {
    return first / width == last / width && first % width / grid.width == last % width / grid.width;
  }
};

BlockOf block_of(const MatrixPart& x, ScaleBlock block) {
  return {x.matrix.back(), block_grid(block, x.matrix.rows(), x.matrix.back())};
}

/// *amax = max(*amax, |value|), NaN being larger than all.
__device__ __forceinline__ void raise(float* amax, float value) {
  atomicMax(reinterpret_cast<unsigned*>(amax), bits_of(max_magnitude(value, 0.0F)));
}

/// Raises a maximum once for the elements of `Lanes` lanes, this one's from `i` on; false, and
/// nothing raised, where such elements of the warp lie in several blocks. All lanes of the warp.
template <int Lanes>
__device__ __forceinline__ bool raise_together(const Pack<float, kPerLane>& values, int64_t i,
                                               int64_t first, int64_t count, const BlockOf& block,
                                               float* amax) {
  const int64_t begin = i - lane_index() % Lanes * kPerLane;
  const int64_t end = begin + Lanes * kPerLane;
  const int64_t last = (end < count ? end : count) - 1;
  const bool several = begin < count && !block.one(first + begin, first + last);
  if (__ballot_sync(kAllLanes, several) != 0) {
    return false;
  }
  uint32_t largest = 0;
  for (const float value : values.values) {
    largest = Largest{}(largest, bits_of(value) & 0x7FFFFFFFU);
  }
#pragma unroll
  for (int lanes = Lanes / 2; lanes > 0; lanes /= 2) {
    largest = Largest{}(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  }
  if (lane_index() % Lanes == 0 && begin < count) {
    raise(amax + block(first + begin), float_of(largest));
  }
  return true;
}

/// Raises the maxima of the blocks to the magnitudes of x [count], elements `first` and on of the
/// matrix. Packed: x is aligned to 16 bytes.
template <bool Packed>
__global__ void __launch_bounds__(kBlock)
    part_amax_kernel(const float* __restrict__ x, int64_t first, int64_t count, BlockOf block,
                     float* amax) {
  const int64_t stride = int64_t{gridDim.x} * kBlock * kPerLane;
  for (int64_t run = (int64_t{blockIdx.x} * kBlock + threadIdx.x - lane_index()) * kPerLane;
       run < count; run += stride) {
    const int64_t i = run + lane_index() * kPerLane;
    Pack<float, kPerLane> values = {};
    if (Packed && i + kPerLane <= count) {
      values = load_pack<kPerLane>(x + i);
    } else {
      for (int j = 0; j < kPerLane; ++j) {
        values.values[j] = i + j < count ? x[i + j] : 0.0F;
      }
    }
    if (raise_together<kWarp>(values, i, first, count, block, amax) ||
        raise_together<kWarp / 4>(values, i, first, count, block, amax)) {
      continue;
    }
    for (int j = 0; j < kPerLane; ++j) {
      if (i + j < count) {
        raise(amax + block(first + i + j), values.values[j]);
      }
    }
  }
}

/// The memory that a cast of a part reads and writes: x, codes and rounded have `count` elements.
struct PartCast {
  const float* x;
  int64_t first, count;
  BlockOf block;
  BlockRule rule;
  const float* amax;
  uint8_t* codes;
  float* rounded;  ///< may be null
};

/// Packed: x is aligned to 16 bytes, codes to 8.
template <bool Packed, bool Counted, typename Code>
__global__ void __launch_bounds__(kTileThreads)
    cast_part_kernel(PartCast cast, QuantizeStatistics* statistics, TypeTag<Code> /*tag*/) {
  FP8TRAIN_SHARED_ARRAY(uint32_t, shared, kTileThreads / kWarp);
  CastCounts cast_counts;
  const int64_t stride = int64_t{gridDim.x} * kTileThreads * kVec8;
  for (int64_t i = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) * kVec8; i < cast.count;
       i += stride) {
    const int64_t left = cast.count - i;
    const int count = left < kVec8 ? static_cast<int>(left) : kVec8;
    float factors[kVec8] = {};
    const int64_t at = cast.first + i;
    if (cast.block.one(at, at + count - 1)) {
      const float factor = cast.rule.factor(cast.amax[cast.block(at)]);
      for (float& each : factors) {
        each = factor;
      }
    } else {
      for (int j = 0; j < count; ++j) {
        factors[j] = cast.rule.factor(cast.amax[cast.block(at + j)]);
      }
    }
    const bool whole = left >= kVec8;
    const Vec8<float> vec =
        whole ? load_vec8<Packed>(cast.x + i, left) : load_vec8<false>(cast.x + i, left);
    const auto factor_of = [&factors](int j) { return factors[j]; };
    const CodeWords codes = encode_vec8<Code, Counted>(vec, factor_of, cast_counts);
    if (whole) {
      store_codes<Packed>(cast.codes + i, codes, left);
    } else {
      store_codes<false>(cast.codes + i, codes, left);
    }
    for (int j = 0; cast.rounded != nullptr && j < count; ++j) {
      const auto byte = static_cast<uint8_t>(codes.values[j / 4] >> j % 4 * 8);
      cast.rounded[i + j] = decode(__builtin_bit_cast(Code, byte)) * reciprocal(factors[j]);
    }
  }
  if (Counted) {
    add_to_statistics(statistics, cast_counts, shared);
  }
}

/// find_block_scales() for map: a block for each index.
struct FindScales {
  FindBlockScales finder;

  template <int N>
  __device__ void run(int64_t i) const {
    finder.keep(i);
  }
};

}  // namespace

void blockwise_part_amax(Stream stream, const MatrixPart& x, ScaleBlock block, View amax) {
  check_cuda(cudaMemsetAsync(amax.data, 0, amax.bytes(), cuda_context(stream).stream),
             "resetting maxima");
  const int64_t count = x.values.count();
  launch(stream, {blocks_for(stream, ceil_div(count, kPerLane)), kBlock},
         is_aligned(x.values.data) ? part_amax_kernel<true> : part_amax_kernel<false>,
         x.values.as<float>(), x.first, count, block_of(x, block), amax.as<float>());
}

void quantize_blockwise_part(Stream stream, const BlockwisePartCast& call) {
  const int64_t count = call.x.values.count();
  const bool counted = call.statistics != nullptr;
  if (counted) {
    reset_statistics(stream, call.statistics, count);
  }
  const PartCast cast = {.x = call.x.values.as<float>(),
                         .first = call.x.first,
                         .count = count,
                         .block = block_of(call.x, call.format.block),
                         .rule = block_rule(call.format, DType::f32),
                         .amax = call.amax.as<float>(),
                         .codes = call.codes.as<uint8_t>(),
                         .rounded = call.rounded.as<float>()};
  const LaunchShape shape = {blocks_for(stream, ceil_div(count, kVec8), kTileThreads),
                             kTileThreads};
  const bool packed = is_aligned(cast.x) && is_aligned(cast.codes, kVec8);
  with_code_type(call.format.dtype, [&]<typename Code>(TypeTag<Code> tag) {
    const auto kernel = counted  ? cast_part_kernel<false, true, Code>
                        : packed ? cast_part_kernel<true, false, Code>
                                 : cast_part_kernel<false, false, Code>;
    launch(stream, shape, kernel, cast, call.statistics, tag);
  });
}

void find_block_scales(Stream stream, const BlockScaleSearch& call) {
  map<1>(stream, call.amax.count(), true, FindScales{call.finder()});
}

}  // namespace fp8train::ops::cuda
