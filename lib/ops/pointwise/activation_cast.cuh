#pragma once
// The results of activations as values that are cast where they are made. Only for .cu files.

#include "ops/cast/cast_tiles.cuh"
#include "ops/storage/storage_math.h"
#include "ops/support/fast_math.cuh"

namespace fp8train::ops::cuda {

/// value(i) for i = 0 .. 7, rounded to T. An element that does not exist was read as zero, which
/// every activation makes zero again.
template <typename T, typename Value>
__device__ __forceinline__ Vec8<T> made_vec8(Value value) {
  float values[kVec8];
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    values[i] = value(i);
  }
  return vec8_of<T>(values, kVec8);
}

/// Code that the sources of activations share (cast_tiles.cuh).
template <typename T, int Parts>
struct ActivationSource {
  using Value = T;
  static constexpr int kParts = Parts;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kBlocks = sizeof(T) == 2 ? (Parts == 1 ? 3 : 2) : 1;
};

static_assert(kSavedBlock.columns == 2 * kVec8);

/// silu(gate) of eight channels from `column` of a row of `width` as codes in groups of 16 hold it.
/// The other half of the group is computed here too, for its amax. gate: eight gates of the row
/// that begins at `row`; available: as for load_vec8.
template <bool Packed, typename T>
__device__ __forceinline__ void silu_in_groups(const T* row, int64_t column, int64_t width,
                                               int64_t available, const float (&gate)[kVec8],
                                               float (&activated)[kVec8]) {
  const int64_t other = column ^ kVec8;
  float others[kVec8];
  vec8_values(load_vec8<Packed>(row + other, available > 0 ? width - other : 0), others);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    activated[i] = silu_fast(gate[i]);
    largest = Largest{}(largest, bits_of(activated[i]) & 0x7FFFFFFFU);
    largest = Largest{}(largest, bits_of(silu_fast(others[i])) & 0x7FFFFFFFU);
  }
  const bf16 scale = divided_scale(float_of(largest));
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    activated[i] = divided_value(activated[i], scale);
  }
}

/// silu(gate) * up. Smoothed: channels are multiplied by `smoothing`. Encoded: silu(gate) is read
/// from its codes.
template <typename T, bool Smoothed, bool Encoded>
struct SwigluForwardSource : ActivationSource<T, 1> {
  const T* __restrict__ gate_up;
  int64_t width;
  const float* __restrict__ smoothing;
  static constexpr int kBlocks = sizeof(T) == 2 && !Encoded ? (Smoothed ? 2 : 3) : 1;

  SwigluForwardSource(const T* from, int64_t columns, const float* scale)
      : gate_up(from), width(columns), smoothing(scale) {}

  template <bool Packed>
  __device__ __forceinline__ Vec8<T> vec(int64_t row, int64_t column, int64_t available) const {
    float gate[kVec8];
    float up[kVec8];
    const T* from = gate_up + row * 2 * width + column;
    vec8_values(load_vec8<Packed>(from, available), gate);
    vec8_values(load_vec8<Packed>(from + width, available), up);
    if constexpr (Smoothed) {
      float scale[kVec8];
      vec8_values(load_vec8<Packed>(smoothing + column, available), scale);
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        up[i] *= scale[i];
      }
    }
    if constexpr (Encoded) {
      float activated[kVec8];
      silu_in_groups<Packed>(from - column, column, width, available, gate, activated);
      return made_vec8<T>([&](int i) { return activated[i] * up[i]; });
    }
    return made_vec8<T>([&](int i) { return silu_fast(gate[i]) * up[i]; });
  }
};

/// Part 0: the gradient of gate; part 1: that of up. Both follow from one exponential. Encoded:
/// that of up reads the codes of silu(gate).
template <typename T, bool Encoded>
struct SwigluBackwardSource : ActivationSource<T, 2> {
  const T* __restrict__ dy;
  const T* __restrict__ gate_up;
  int64_t width;

  SwigluBackwardSource(const T* gradient, const T* from, int64_t columns)
      : dy(gradient), gate_up(from), width(columns) {}

  template <bool Packed>
  __device__ __forceinline__ void vecs(int64_t row, int64_t column, int64_t available,
                                       Vec8<T> (&made)[2]) const {
    float gradient[kVec8];
    float gate[kVec8];
    float up[kVec8];
    const T* from = gate_up + row * 2 * width + column;
    vec8_values(load_vec8<Packed>(dy + row * width + column, available), gradient);
    vec8_values(load_vec8<Packed>(from, available), gate);
    vec8_values(load_vec8<Packed>(from + width, available), up);
    float d_gate[kVec8];
    float d_up[kVec8];
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      const SiluFast silu = silu_parts(gate[i]);
      d_gate[i] = gradient[i] * up[i] * silu_derivative_fast(silu);
      d_up[i] = gradient[i] * silu.value;
    }
    if constexpr (Encoded) {
      float activated[kVec8];
      silu_in_groups<Packed>(from - column, column, width, available, gate, activated);
#pragma unroll
      for (int i = 0; i < kVec8; ++i) {
        d_up[i] = gradient[i] * activated[i];
      }
    }
    made[0] = vec8_of<T>(d_gate, kVec8);
    made[1] = vec8_of<T>(d_up, kVec8);
  }
};

template <typename T>
struct GeluForwardSource : ActivationSource<T, 1> {
  const T* __restrict__ x;
  int64_t width;

  GeluForwardSource(const T* from, int64_t columns) : x(from), width(columns) {}

  template <bool Packed>
  __device__ __forceinline__ Vec8<T> vec(int64_t row, int64_t column, int64_t available) const {
    float in[kVec8];
    vec8_values(load_vec8<Packed>(x + row * width + column, available), in);
    return made_vec8<T>([&](int i) { return gelu_tanh_fast(in[i]); });
  }
};

template <typename T>
struct GeluBackwardSource : ActivationSource<T, 1> {
  const T* __restrict__ dy;
  const T* __restrict__ x;
  int64_t width;

  GeluBackwardSource(const T* gradient, const T* from, int64_t columns)
      : dy(gradient), x(from), width(columns) {}

  template <bool Packed>
  __device__ __forceinline__ Vec8<T> vec(int64_t row, int64_t column, int64_t available) const {
    float gradient[kVec8];
    float in[kVec8];
    const int64_t at = row * width + column;
    vec8_values(load_vec8<Packed>(dy + at, available), gradient);
    vec8_values(load_vec8<Packed>(x + at, available), in);
    return made_vec8<T>([&](int i) { return gradient[i] * gelu_tanh_derivative_fast(in[i]); });
  }
};

}  // namespace fp8train::ops::cuda
