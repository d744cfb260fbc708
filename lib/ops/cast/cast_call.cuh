#pragma once
// The scalars of a cast with one scale for the tensor. Only for .cu files.

#include "ops/cast/code_tile.cuh"

namespace fp8train::ops::cuda {

/// A scale that every block finds from an amax, by current scaling, and the first of them writes.
struct CurrentScale {
  const float* amax = nullptr;  ///< null: the scale is there already
  float format_max = 0.0F, amax_epsilon = 0.0F;
  bool pow2 = false;
  float* scale = nullptr;
  float* scale_inv = nullptr;

  __device__ __forceinline__ float find() const {
    return current_scale(*amax, format_max, amax_epsilon, pow2, kMaxF32);
  }
  __device__ __forceinline__ void keep(float found) const {
    *scale = found;
    *scale_inv = reciprocal(found);
  }
};

/// The scalars of a cast. Null: not wanted.
struct CastCall {
  const float* scale;  ///< null: 1, or `current`
  float* scale_inv;
  float* amax;
  QuantizeStatistics* statistics;
  CurrentScale current = {};
};

/// The first thread of the grid stores the reciprocal scale where it is wanted.
__device__ __forceinline__ void keep_reciprocal(const CastCall& call, float scale) {
  if (call.scale_inv != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *call.scale_inv = reciprocal(scale);
  }
}

/// The scale of a cast; the first thread of the grid writes what is wanted of it.
__device__ __forceinline__ float scale_of_cast(const CastCall& call) {
  float scale = call.scale == nullptr ? 1.0F : *call.scale;
  if (call.current.amax != nullptr) {
    scale = call.current.find();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      call.current.keep(scale);
    }
  }
  keep_reciprocal(call, scale);
  return scale;
}

/// Adds what a block has seen to the amax and the statistics that are wanted. All its threads.
template <bool Counted, typename X>
__device__ __forceinline__ void finish_cast(const CastCall& call, const AmaxBits<X>& amax_bits,
                                            const CastCounts& cast_counts, uint32_t* shared) {
  if (call.amax != nullptr) {
    raise_amax(call.amax, amax_bits.value(), shared);
  }
  if (Counted && call.statistics != nullptr) {
    add_to_statistics(call.statistics, cast_counts, shared);
  }
}

/// Host: the scalars of a cast with one scale for the tensor.
inline CastCall cast_call(const QuantizeSink& sink, const CurrentScale& current = {}) {
  const Encoded& out = sink.out.either();
  return {current.amax == nullptr ? out.cast_scales : nullptr, out.tensor_scale, sink.amax,
          sink.statistics, current};
}

/// Host: blocks of a cast. Where there is nothing to cast one block writes the scalars.
inline unsigned cast_blocks(const Stream& stream, int64_t items, int64_t per_block) {
  return items == 0 ? 1U : blocks_for(stream, items, per_block);
}

}  // namespace fp8train::ops::cuda
