#pragma once
// Stored tensors in any format, chosen at run time, each in its own: a switch that is the same for
// all threads costs less than a kernel for every pair of formats. Only for .cu files.

#include "ops/storage/storage_math.h"
#include "ops/support/runs.cuh"

namespace fp8train::ops::cuda {

/// Elements that a warp finds one scale for.
constexpr int kGroupSpan = kStoredBlock.columns;

/// The random bits of elements i .. i + N - 1, where i is a multiple of four.
template <int N>
__device__ __forceinline__ void draw_pack(const RoundingDraw& draw, int64_t i,
                                          uint32_t (&random)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    const PhiloxBlock block = draw.block((i + j) / 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      random[j + k] = block.word[k];
    }
  }
}

/// An Encoded tensor. Extended: of any format; otherwise not of an expanded, a stochastic or a
/// two-level one, for kernels that are to need fewer registers.
template <bool Extended = true>
struct DeviceEncoded {
  void* codes;
  float* scales;  ///< null: none
  DType dtype;
  float largest_code;  ///< format_max of the dtype
  bool grouped, pow2, expanded, stochastic;
  uint16_t* remainders;  ///< the lower halves of fp32 values; null: none
  int two_level;         ///< elements of a group of AllGroupScales; 0: another codec

  /// How elements i .. are read. Of two levels: `exponent` is the scale of their block, `center`
  /// that above it, and `scale`, of new values only, what that is found with.
  __device__ __forceinline__ ScaleExpansion scale_at(int64_t i, int64_t available) const {
    if (scales == nullptr || available <= 0) {
      return {};
    }
    if (Extended && expanded) {
      return reinterpret_cast<const ScaleExpansion*>(scales)[i / kGroupSpan];
    }
    if (Extended && two_level != 0) {
      return levels_at<AllGroupScales>(i);
    }
    return {grouped ? scales[i / kGroupSpan] : scales[0], 1.0F, 1.0F};
  }

  /// Elements i .. i + N - 1, of which `available` exist; zeros for others. Packed: all N or none,
  /// aligned to what they take, 16 bytes at most.
  template <int N, bool Packed>
  __device__ __forceinline__ void load(int64_t i, int64_t available, const ScaleExpansion& scale,
                                       float (&values)[N]) const {
    if (Extended && remainders != nullptr) {
      const Pack<uint16_t, N> upper = get<N, Packed>(static_cast<uint16_t*>(codes) + i, available);
      const Pack<uint16_t, N> lower = get<N, Packed>(remainders + i, available);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        values[j] = join_master(upper.values[j], lower.values[j]);
      }
      return;
    }
    if (Extended && two_level != 0) {
      const auto pairs =
          get<N / 2, Packed>(static_cast<const uint8_t*>(codes) + i / 2, (available + 1) / 2);
      const float factor = scale.exponent * scale.center;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int code = pairs.values[j / 2] >> (4 * (j % 2)) & 0xF;
        values[j] = two_level_value(static_cast<uint8_t>(code), factor);
      }
      return;
    }
    with_type_of(StoredTypes{}, dtype, [&]<typename Code>(TypeTag<Code>) {
      decode_pack<Code, N>(get<N, Packed>(static_cast<const Code*>(codes) + i, available), values);
    });
    if (Extended && expanded) {
      const float inverse_exponent = reciprocal(scale.exponent);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        values[j] = contract(values[j], scale, inverse_exponent);
      }
      return;
    }
    const float factor = reciprocal(scale.scale);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] *= factor;
    }
  }

  /// The scale of new values: all lanes that share a group take part. `old` is theirs so far.
  template <int N>
  __device__ __forceinline__ ScaleExpansion new_scale(const float (&values)[N],
                                                      const ScaleExpansion& old) const {
    if (scales == nullptr) {
      return {};
    }
    if (!grouped) {
      return {stored_scale(scales[1], old.scale, largest_code, pow2), 1.0F, 1.0F};
    }
    uint32_t largest = 0;
    uint32_t smallest = 0xFFFFFFFFU;  // magnitudes less one, so that zeros come last
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t bits = bits_of(values[j]) & 0x7FFFFFFFU;
      largest = bits > largest ? bits : largest;
      smallest = bits - 1U < smallest ? bits - 1U : smallest;
    }
    constexpr int kLanesOfGroup = kGroupSpan / N;
    if constexpr (Extended) {
      if (two_level != 0) {
        return scales_of_levels<AllGroupScales, N>(largest);
      }
    }
#pragma unroll
    for (int bits = kLanesOfGroup / 2; bits > 0; bits /= 2) {
      largest = Largest{}(largest, __shfl_xor_sync(kAllLanes, largest, bits));
    }
    if constexpr (Extended) {
      if (expanded) {
#pragma unroll
        for (int bits = kLanesOfGroup / 2; bits > 0; bits /= 2) {
          smallest = Smallest{}(smallest, __shfl_xor_sync(kAllLanes, smallest, bits));
        }
        return stored_expansion(float_of(largest), float_of(smallest + 1U), old);
      }
    }
    return {stored_scale(float_of(largest), old.scale, largest_code, pow2), 1.0F, 1.0F};
  }

  FP8TRAIN_HD bool has_tensor_scale() const {
    return scales != nullptr && !grouped;
  }

  /// A block's largest magnitude goes next to the scale.
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

  /// Encodes elements i .. i + N - 1 as load reads them; i is a multiple of N. A bit of `floored`
  /// forbids the code of its element to be zero. Returns which elements are not zero any more, as
  /// bits. `draw`: of stochastic rounding.
  template <int N, bool Packed>
  __device__ __forceinline__ uint32_t store(int64_t i, int64_t available,
                                            const ScaleExpansion& scale, uint32_t floored,
                                            const float (&values)[N],
                                            const RoundingDraw& draw) const {
    if (Extended && remainders != nullptr) {
      Pack<uint16_t, N> upper;
      Pack<uint16_t, N> lower;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const MasterHalves halves = split_master(values[j]);
        upper.values[j] = halves.upper;
        lower.values[j] = halves.lower;
      }
      put<N, Packed>(static_cast<uint16_t*>(codes) + i, upper, available);
      put<N, Packed>(remainders + i, lower, available);
      return 0;  // has no twin that is floored
    }
    uint32_t random[N] = {};
    if (Extended && stochastic) {
      draw_pack<N>(draw, i, random);
    }
    if constexpr (Extended) {
      if (two_level != 0) {
        return store_codes<AllGroupScales, N, Packed>(i, available, scale, floored, values, random);
      }
    }
    float scaled[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      scaled[j] = Extended && expanded ? expand(values[j], scale) : values[j] * scale.scale;
    }
    uint32_t present = 0;
    with_type_of(StoredTypes{}, dtype, [&]<typename Code>(TypeTag<Code>) {
      Pack<Code, N> pack;
      if (Extended && stochastic) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          pack.values[j] = encode_stochastic<Code>(scaled[j], random[j]);
        }
      } else {
        pack = encode_pack<Code, N>(scaled);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        pack.values[j] = floor_code(pack.values[j], (floored >> j & 1U) != 0);
        present |= is_zero_code(pack.values[j]) ? 0U : 1U << j;
      }
      put<N, Packed>(static_cast<Code*>(codes) + i, pack, available);
    });
    if (grouped && available > 0 && i % kGroupSpan == 0) {
      if (Extended && expanded) {
        reinterpret_cast<ScaleExpansion*>(scales)[i / kGroupSpan] = scale;
      } else {
        scales[i / kGroupSpan] = scale.scale;
      }
    }
    return present;
  }

 private:
  template <typename Scales>
  __device__ __forceinline__ Scales& group_scales(int64_t i) const {
    return reinterpret_cast<Scales*>(scales)[i / Scales::kGroup];
  }
  template <typename Scales>
  static __device__ __forceinline__ int block_of(int64_t i) {
    return static_cast<int>(i % Scales::kGroup) / Scales::kBlock;
  }

  /// How elements i .. of a block are read under scales of two levels.
  template <typename List>
  __device__ __forceinline__ ScaleExpansion levels_at(int64_t i) const {
    using Scales = typename List::Head;
    if constexpr (!List::kIsLast) {
      if (two_level != Scales::kGroup) {
        return levels_at<typename List::Tail>(i);
      }
    }
    const Scales& group = group_scales<Scales>(i);
    return {1.0F, decode(group.blocks[block_of<Scales>(i)]), decode(group.above)};
  }

  /// The scales of new values by their largest magnitude in each lane. All lanes of a group.
  template <typename List, int N>
  __device__ __forceinline__ ScaleExpansion scales_of_levels(uint32_t largest) const {
    using Scales = typename List::Head;
    if constexpr (!List::kIsLast) {
      if (two_level != Scales::kGroup) {
        return scales_of_levels<typename List::Tail, N>(largest);
      }
    }
    uint32_t of_group = largest;
#pragma unroll
    for (int bits = 1; bits < Scales::kGroup / N; bits *= 2) {
      of_group = Largest{}(of_group, __shfl_xor_sync(kAllLanes, of_group, bits));
      largest = bits < Scales::kBlock / N ? of_group : largest;
    }
    const float amax = finite_or_nan(float_of(of_group));
    const float factor = Scales::factor_of(amax);
    const e4m3 block = new_block_scale(float_of(largest), factor, false, stochastic);
    return {factor, decode(block), Scales::above_of(amax)};
  }

  /// Does what store() does for codes of two levels. All lanes of a group.
  template <typename List, int N, bool Packed>
  __device__ __forceinline__ uint32_t store_codes(int64_t i, int64_t available,
                                                  const ScaleExpansion& scale, uint32_t floored,
                                                  const float (&values)[N],
                                                  const uint32_t (&random)[N]) const {
    using Scales = typename List::Head;
    if constexpr (!List::kIsLast) {
      if (two_level != Scales::kGroup) {
        return store_codes<typename List::Tail, N, Packed>(i, available, scale, floored, values,
                                                           random);
      }
    }
    uint32_t floors = floored;
#pragma unroll
    for (int bits = 1; bits < Scales::kBlock / N; bits *= 2) {
      floors |= __shfl_xor_sync(kAllLanes, floors, bits);
    }
    const e4m3 block = floor_code(encode<e4m3>(scale.exponent), floors != 0);
    const float factor = two_level_factor(block, scale.scale);
    uint32_t present = 0;
    Pack<uint8_t, N / 2> pairs = {};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float scaled = values[j] * factor;
      const e2m1 rounded =
          stochastic ? encode_stochastic<e2m1>(scaled, random[j]) : encode<e2m1>(scaled);
      const uint32_t code = j < available ? two_level_code(rounded, (floored >> j & 1U) != 0) : 0U;
      pairs.values[j / 2] = static_cast<uint8_t>(pairs.values[j / 2] | code << (4 * (j % 2)));
      present |= (code & 7U) != 0 && block.bits != 0 ? 1U << j : 0U;
    }
    put<N / 2, Packed>(static_cast<uint8_t*>(codes) + i / 2, pairs, (available + 1) / 2);
    if (available + i % Scales::kGroup > 0 && i % Scales::kBlock == 0) {  // zeros if missing
      group_scales<Scales>(i).blocks[block_of<Scales>(i)] = available > 0 ? block : e4m3{};
    }
    if (available > 0 && i % Scales::kGroup == 0) {
      group_scales<Scales>(i).above = encode<decltype(Scales::above)>(scale.center);
    }
    return present;
  }

  template <int N, bool Packed, typename Code>
  static __device__ __forceinline__ Pack<Code, N> get(const Code* from, int64_t available) {
    [[maybe_unused]] constexpr int kAtOnce = N * sizeof(Code) <= 16 ? N : 4;
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
    return pack;
  }
  template <int N, bool Packed, typename Code>
  static __device__ __forceinline__ void put(Code* to, const Pack<Code, N>& pack,
                                             int64_t available) {
    [[maybe_unused]] constexpr int kAtOnce = N * sizeof(Code) <= 16 ? N : 4;
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
  }
};

/// Host: whether a tensor needs the Extended form.
inline bool is_extended(const Encoded& tensor) {
  const Codec codec = codec_of(tensor.format);
  return codec == Codec::expanded || codec == Codec::halves || codec == Codec::two_level ||
         tensor.format.rounding == Rounding::stochastic;
}

/// Host: a tensor as the kernels see it.
template <bool Extended = true>
DeviceEncoded<Extended> encoded(const Encoded& tensor) {
  const TensorFormat& format = tensor.format;
  const Codec codec = codec_of(format);
  if (codec != Codec::two_level) {
    StoredTypes::check(format.dtype);
  }
  return {tensor.codes.data,
          codec == Codec::halves ? nullptr : tensor.scales.as<float>(),
          format.dtype,
          format_max(format.dtype),
          codec == Codec::groups || codec == Codec::expanded || codec == Codec::two_level,
          is_exponent(format.scale_type),
          codec == Codec::expanded,
          format.rounding == Rounding::stochastic,
          codec == Codec::halves ? tensor.scales.as<uint16_t>() : nullptr,
          codec == Codec::two_level ? format.block.columns : 0};
}

}  // namespace fp8train::ops::cuda
