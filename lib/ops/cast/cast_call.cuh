#pragma once
// The scalars of a cast with one scale for the tensor, and eight values at a time: what every cast
// by tiles shares. Only for .cu files.

#include "ops/cast/code_tile.cuh"

namespace fp8train::ops::cuda {

/// A scale that every block finds from an amax, and the first of them writes.
struct CurrentScale {
  const float* amax = nullptr;  ///< null: the scale is there already
  float format_max = 0.0F, amax_epsilon = 0.0F;
  bool pow2 = false;
  float* scale = nullptr;
  float* scale_inv = nullptr;
};

/// The scalars of a cast. Null: not wanted.
struct CastCall {
  const float* scale;
  float* scale_inv;
  float* amax;
  QuantizeStatistics* statistics;
  CurrentScale current = {};
};

__device__ __forceinline__ void keep_reciprocal(const CastCall& call, float scale) {
  if (call.scale_inv != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *call.scale_inv = reciprocal(scale);
  }
}

/// The scale of a cast; the first thread of the grid writes what is wanted of it.
__device__ __forceinline__ float scale_of_cast(const CastCall& call) {
  float scale = call.scale == nullptr ? 1.0F : *call.scale;
  if (call.current.amax != nullptr) {
    const CurrentScale& current = call.current;
    scale = current_scale(*current.amax, current.format_max, current.amax_epsilon, current.pow2,
                          kMaxF32);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *current.scale = scale;
      *current.scale_inv = reciprocal(scale);
    }
  }
  keep_reciprocal(call, scale);
  return scale;
}

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

/// Host: blocks of a cast. Where there is nothing to cast one block writes the scalars.
inline unsigned cast_blocks(const Stream& stream, int64_t items, int64_t per_block) {
  return items == 0 ? 1U : blocks_for(stream, items, per_block);
}

/// Eight values as X, those from `available` on zero.
template <typename X>
__device__ __forceinline__ Vec8<X> vec8_of(const float (&values)[kVec8], int64_t available) {
  Vec8<X> vec;
#pragma unroll
  for (int pair = 0; pair < kVec8 / 2; ++pair) {
    const float low = 2 * pair < available ? values[2 * pair] : 0.0F;
    const float high = 2 * pair + 1 < available ? values[2 * pair + 1] : 0.0F;
    if constexpr (sizeof(X) == 4) {
      vec.words[2 * pair] = bits_of(low);
      vec.words[2 * pair + 1] = bits_of(high);
    } else {
      vec.words[pair] = narrow_pair<X>(low, high);
    }
  }
  return vec;
}

template <typename X>
__device__ __forceinline__ void vec8_values(const Vec8<X>& vec, float (&values)[kVec8]) {
#pragma unroll
  for (int pair = 0; pair < kVec8 / 2; ++pair) {
    vec.pair(pair, values[2 * pair], values[2 * pair + 1]);
  }
}

/// The first `available` of a Vec8. Packed: as for load_vec8.
template <bool Packed, typename X>
__device__ __forceinline__ void store_vec8(X* to, const Vec8<X>& vec, int64_t available) {
  if constexpr (Packed) {
    if (available > 0) {
#pragma unroll
      for (int i = 0; i < Vec8<X>::kWords / 4; ++i) {
        const uint32_t* from = vec.words + i * 4;
        store_words(reinterpret_cast<uint32_t*>(to) + i * 4,
                    Words{{from[0], from[1], from[2], from[3]}});
      }
    }
  } else {
    using Bits = std::conditional_t<sizeof(X) == 4, uint32_t, uint16_t>;
    for (int i = 0; i < kVec8; ++i) {
      if (i < available) {
        const uint32_t word = vec.words[i * Vec8<X>::kWords / kVec8];
        to[i] =
            __builtin_bit_cast(X, static_cast<Bits>(sizeof(X) == 4 ? word : word >> i % 2 * 16));
      }
    }
  }
}

}  // namespace fp8train::ops::cuda
