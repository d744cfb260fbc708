#pragma once
// How kernels read and write runs of N elements. Only for .cu files.

#include "ops/support/convert.cuh"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {

/// N values as fp32; zeros where there are none. `available` (may be negative) of them exist; if
/// Packed all N or none, and `from` is aligned to min(16, N * sizeof(T)) bytes.
template <int N, bool Packed, typename T>
__device__ __forceinline__ void load_values(const T* from, float (&values)[N], int64_t available) {
  constexpr int kAtOnce = N * sizeof(T) < 16 ? N : 16 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = 0.0F;
  }
  if constexpr (Packed) {
    if (available > 0) {
#pragma unroll
      for (int i = 0; i < N; i += kAtOnce) {
        const Pack<T, kAtOnce> pack = load_pack<kAtOnce>(from + i);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          values[i + j] = load_as_float(&pack.values[j]);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < available) {
        values[i] = load_as_float(from + i);
      }
    }
  }
}

/// The first `available` of N values, rounded to T. Packed: as for load_values.
template <int N, bool Packed, typename T>
__device__ __forceinline__ void store_values(T* to, const float (&values)[N], int64_t available) {
  constexpr int kAtOnce = N * sizeof(T) < 16 ? N : 16 / static_cast<int>(sizeof(T));
  if constexpr (Packed) {
    if (available > 0) {
#pragma unroll
      for (int i = 0; i < N; i += kAtOnce) {
        if constexpr (sizeof(T) == 4) {
          Pack<T, kAtOnce> pack;
#pragma unroll
          for (int j = 0; j < kAtOnce; ++j) {
            pack.values[j] = values[i + j];
          }
          store_pack(to + i, pack);
        } else {
          Pack<uint32_t, kAtOnce / 2> pack;
#pragma unroll
          for (int j = 0; j < kAtOnce; j += 2) {
            pack.values[j / 2] = narrow_pair<T>(values[i + j], values[i + j + 1]);
          }
          store_pack(reinterpret_cast<uint32_t*>(to + i), pack);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < available) {
        store_from_float(to + i, values[i]);
      }
    }
  }
}

/// Values as store_from_float leaves them in `type`: float, bf16 or f16.
template <int N>
__device__ __forceinline__ void round_to_type(DType type, float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    if (type == DType::bf16) {
      const uint32_t pair = narrow_pair<bf16>(values[i], values[i + 1]);
      values[i] = float_of(pair << 16);
      values[i + 1] = float_of(pair & 0xFFFF0000U);
    } else if (type == DType::f16) {
      widen_f16_pair(narrow_pair<f16>(values[i], values[i + 1]), values[i], values[i + 1]);
    }
  }
}

/// The values of N codes, without their scale.
template <typename Code, int N>
__device__ __forceinline__ void decode_pack(const Pack<Code, N>& pack, float (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    if constexpr (sizeof(Code) == 1) {
      const uint32_t low = __builtin_bit_cast(uint8_t, pack.values[j]);
      const uint32_t high = __builtin_bit_cast(uint8_t, pack.values[j + 1]);
      decode_pair<Code>(low | high << 8, values[j], values[j + 1]);
    } else {
      values[j] = decode(pack.values[j]);
      values[j + 1] = decode(pack.values[j + 1]);
    }
  }
}

/// Codes of N scaled values.
template <typename Code, int N>
__device__ __forceinline__ Pack<Code, N> encode_pack(const float (&scaled)[N]) {
  Pack<Code, N> pack;
#pragma unroll
  for (int j = 0; j < N; j += 2) {
    if constexpr (sizeof(Code) == 1) {
      const uint32_t pair = encode_pair<Code>(scaled[j], scaled[j + 1]);
      pack.values[j] = __builtin_bit_cast(Code, static_cast<uint8_t>(pair));
      pack.values[j + 1] = __builtin_bit_cast(Code, static_cast<uint8_t>(pair >> 8));
    } else {
      pack.values[j] = encode<Code>(scaled[j]);
      pack.values[j + 1] = encode<Code>(scaled[j + 1]);
    }
  }
  return pack;
}

}  // namespace fp8train::ops::cuda
