#pragma once
// Moments in any format, chosen at run time, each moment in its own: a switch that is the same for
// all threads costs less than a kernel for every pair of formats. Only for .cu files.

#include "ops/cuda/runs.h"

namespace fp8train::ops::cuda {

/// body(TypeTag<T>) with T a type that a moment may have.
template <typename Body>
__device__ __forceinline__ void with_stored_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f32:
      return body(TypeTag<float>{});
    case DType::bf16:
      return body(TypeTag<bf16>{});
    case DType::f16:
      return body(TypeTag<f16>{});
    case DType::e4m3:
      return body(TypeTag<e4m3>{});
    default:
      return body(TypeTag<e5m2>{});
  }
}

/// The values of N codes times `factor`.
template <typename Code, int N>
__device__ __forceinline__ void decode_pack(const Pack<Code, N>& pack, float factor,
                                            float (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    if constexpr (sizeof(Code) == 1) {
      const uint32_t pair = pack.values[j].bits | static_cast<uint32_t>(pack.values[j + 1].bits)
                                                      << 8;
      decode_pair<Code>(pair, values[j], values[j + 1]);
    } else {
      values[j] = load_as_float(&pack.values[j]);
      values[j + 1] = load_as_float(&pack.values[j + 1]);
    }
    values[j] *= factor;
    values[j + 1] *= factor;
  }
}

/// Codes of N values; a bit of `floored` forbids the code of its element to be zero.
template <typename Code, int N>
__device__ __forceinline__ Pack<Code, N> encode_pack(const float (&values)[N], float scale,
                                                     uint32_t floored) {
  Pack<Code, N> pack;
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    const float low = values[j] * scale;
    const float high = values[j + 1] * scale;
    if constexpr (sizeof(Code) == 1) {
      const uint32_t pair = encode_pair<Code>(low, high);
      pack.values[j].bits = static_cast<uint8_t>(pair);
      pack.values[j + 1].bits = static_cast<uint8_t>(pair >> 8);
    } else {
      pack.values[j] = encode_stored<Code>(low);
      pack.values[j + 1] = encode_stored<Code>(high);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    pack.values[j] = floor_code(pack.values[j], (floored >> j & 1U) != 0);
  }
  return pack;
}

/// A moment and how it is kept.
struct CodedTensor {
  void* codes;
  float* scales;  ///< null: none
  DType dtype;
  float largest_code;  ///< format_max of the dtype
  bool grouped, pow2;

  __device__ __forceinline__ float scale_at(int64_t i, int64_t available) const {
    if (scales == nullptr || available <= 0) {
      return 1.0F;
    }
    return grouped ? scales[i / kStoredGroup] : scales[0];
  }

  template <int N, bool Packed>
  __device__ __forceinline__ void load(int64_t i, int64_t available, float scale,
                                       float (&values)[N]) const {
    const float factor = reciprocal(scale);
    with_stored_type(dtype, [&](auto tag) {
      using Code = typename decltype(tag)::Type;
      [[maybe_unused]] constexpr int kAtOnce = N * sizeof(Code) <= 16 ? N : 4;
      const Code* from = static_cast<const Code*>(codes) + i;
      Pack<Code, N> pack = {};
      if constexpr (Packed) {
        if (available > 0) {
#pragma unroll
          for (int j = 0; j < N; j += kAtOnce) {
            const Pack<Code, kAtOnce> part = load_pack<kAtOnce>(from + j);
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
              pack.values[j + k] = part.values[k];
            }
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (j < available) {
            pack.values[j] = from[j];
          }
        }
      }
      decode_pack<Code, N>(pack, factor, values);
    });
  }

  /// The scale of new values: all lanes that share a group take part. `old_scale` is theirs so far.
  template <int N>
  __device__ __forceinline__ float new_scale(const float (&values)[N], float old_scale) const {
    if (scales == nullptr) {
      return 1.0F;
    }
    float amax = 0.0F;
    if (grouped) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const uint32_t bits = bits_of(values[j]) & 0x7FFFFFFFU;
        largest = bits > largest ? bits : largest;
      }
#pragma unroll
      for (int bits = static_cast<int>(kStoredGroup) / N / 2; bits > 0; bits /= 2) {
        largest = Largest{}(largest, __shfl_xor_sync(kAllLanes, largest, bits));
      }
      amax = float_of(largest);
    } else {
      amax = scales[1];
    }
    return stored_scale(amax, old_scale, largest_code, pow2);
  }

  __device__ __forceinline__ bool has_tensor_scale() const {
    return scales != nullptr && !grouped;
  }

  /// A block's largest magnitude goes beside the scale.
  __device__ __forceinline__ void raise_tensor_amax(uint32_t magnitude, uint32_t* shared) const {
    const uint32_t largest = block_reduce<kBlock>(magnitude, Largest{}, shared);
    if (has_tensor_scale() && threadIdx.x == 0) {
      atomicMax(reinterpret_cast<unsigned*>(scales + 1), largest);
    }
  }
  __device__ __forceinline__ void keep_tensor_scale() const {
    if (has_tensor_scale()) {
      scales[0] = stored_scale(scales[1], scales[0], largest_code, pow2);
      scales[1] = 0.0F;
    }
  }

  /// Which elements are not zero any more, as bits.
  template <int N, bool Packed>
  __device__ __forceinline__ uint32_t store(int64_t i, int64_t available, float scale,
                                            uint32_t floored, const float (&values)[N]) const {
    uint32_t present = 0;
    with_stored_type(dtype, [&](auto tag) {
      using Code = typename decltype(tag)::Type;
      [[maybe_unused]] constexpr int kAtOnce = N * sizeof(Code) <= 16 ? N : 4;
      Code* to = static_cast<Code*>(codes) + i;
      const Pack<Code, N> pack = encode_pack<Code, N>(values, scale, floored);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        present |= is_zero_code(pack.values[j]) ? 0U : 1U << j;
      }
      if constexpr (Packed) {
        if (available > 0) {
#pragma unroll
          for (int j = 0; j < N; j += kAtOnce) {
            Pack<Code, kAtOnce> part;
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
              part.values[k] = pack.values[j + k];
            }
            store_pack(to + j, part);
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (j < available) {
            to[j] = pack.values[j];
          }
        }
      }
    });
    if (grouped && available > 0 && i % kStoredGroup == 0) {
      scales[i / kStoredGroup] = scale;
    }
    return present;
  }
};

/// As PlainMoments, for any two formats.
struct CodedMoments {
  CodedTensor first, second;

  struct Scales {
    float first, second;
  };

  /// A group must lie in one row of a tile.
  bool fits_tiles(int64_t width) const {
    return width % kStoredGroup == 0 || !(first.grouped || second.grouped);
  }

  template <int N, bool Packed>
  __device__ __forceinline__ Scales load(int64_t i, int64_t available, float (&moment1)[N],
                                         float (&moment2)[N]) const {
    const Scales scales = {first.scale_at(i, available), second.scale_at(i, available)};
    first.load<N, Packed>(i, available, scales.first, moment1);
    second.load<N, Packed>(i, available, scales.second, moment2);
    return scales;
  }
  template <int N, bool Packed>
  __device__ __forceinline__ void store(int64_t i, int64_t available, const Scales& old,
                                        const float (&moment1)[N],
                                        const float (&moment2)[N]) const {
    const float scale1 = first.new_scale(moment1, old.first);
    const float scale2 = second.new_scale(moment2, old.second);
    const uint32_t present = first.store<N, Packed>(i, available, scale1, 0, moment1);
    const uint32_t floored = second.scales != nullptr ? present : 0U;
    second.store<N, Packed>(i, available, scale2, floored, moment2);
  }
};

/// Host: a moment as the kernels see it.
inline CodedTensor coded(const StoredTensor& moment) {
  const TensorFormat& format = moment.format;
  return {moment.codes.data,
          moment.scales.as<float>(),
          format.dtype,
          format_max(format.dtype),
          format.granularity == Granularity::group,
          format.scale_type == ScaleType::pow2};
}

}  // namespace fp8train::ops::cuda
