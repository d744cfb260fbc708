#pragma once
// The results of activations as values that are cast where they are made. Only for .cu files.

#include "ops/cuda/cast_tiles.h"
#include "ops/cuda/fast_math.h"

namespace fp8train::ops::cuda {

/// value(i) for i = 0 .. 7, rounded to T. An element that does not exist was read as zero, which
/// every activation makes zero again.
template <typename T, typename Value>
__device__ __forceinline__ Octet<T> made_octet(Value value) {
  float values[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    values[i] = value(i);
  }
  return octet_of<T>(values, kOctet);
}

template <typename T, int Parts>
struct ActivationSource {
  using Value = T;
  static constexpr int kParts = Parts;
  static constexpr int kRowsAtOnce = 4;

  template <bool Packed, bool Counted>
  static constexpr int blocks() {
    return Packed && sizeof(T) == 2 ? (Parts == 1 ? 3 : 2) : 1;
  }
};

/// silu(gate) * up. Smoothed: with the channels multiplied by `smoothing`.
template <typename T, bool Smoothed>
struct SwigluForwardSource : ActivationSource<T, 1> {
  const T* __restrict__ gate_up;
  int64_t width;
  const float* __restrict__ smoothing;

  SwigluForwardSource(const T* from, int64_t columns, const float* scale)
      : gate_up(from), width(columns), smoothing(scale) {}

  template <bool Packed, bool Counted>
  static constexpr int blocks() {
    return Packed && sizeof(T) == 2 ? (Smoothed ? 2 : 3) : 1;
  }
  template <bool Packed>
  __device__ __forceinline__ Octet<T> octet(int /*part*/, int64_t row, int64_t column,
                                            int64_t available) const {
    float gate[kOctet];
    float up[kOctet];
    const T* from = gate_up + row * 2 * width + column;
    octet_values(load_octet<Packed>(from, available), gate);
    octet_values(load_octet<Packed>(from + width, available), up);
    if constexpr (Smoothed) {
      float scale[kOctet];
      octet_values(load_octet<Packed>(smoothing + column, available), scale);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        up[i] *= scale[i];
      }
    }
    return made_octet<T>([&](int i) { return silu_fast(gate[i]) * up[i]; });
  }
};

/// Part 0: gradient of gate; part 1: of up. Both from one exponential.
template <typename T>
struct SwigluBackwardSource : ActivationSource<T, 2> {
  const T* __restrict__ dy;
  const T* __restrict__ gate_up;
  int64_t width;

  SwigluBackwardSource(const T* gradient, const T* from, int64_t columns)
      : dy(gradient), gate_up(from), width(columns) {}

  template <bool Packed>
  __device__ __forceinline__ void octets(int64_t row, int64_t column, int64_t available,
                                         Octet<T> (&made)[2]) const {
    float gradient[kOctet];
    float gate[kOctet];
    float up[kOctet];
    const T* from = gate_up + row * 2 * width + column;
    octet_values(load_octet<Packed>(dy + row * width + column, available), gradient);
    octet_values(load_octet<Packed>(from, available), gate);
    octet_values(load_octet<Packed>(from + width, available), up);
    float d_gate[kOctet];
    float d_up[kOctet];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const SiluFast silu = silu_parts(gate[i]);
      d_gate[i] = gradient[i] * up[i] * silu_derivative_fast(silu);
      d_up[i] = gradient[i] * silu.value;
    }
    made[0] = octet_of<T>(d_gate, kOctet);
    made[1] = octet_of<T>(d_up, kOctet);
  }
};

template <typename T>
struct GeluForwardSource : ActivationSource<T, 1> {
  const T* __restrict__ x;
  int64_t width;

  GeluForwardSource(const T* from, int64_t columns) : x(from), width(columns) {}

  template <bool Packed>
  __device__ __forceinline__ Octet<T> octet(int /*part*/, int64_t row, int64_t column,
                                            int64_t available) const {
    float in[kOctet];
    octet_values(load_octet<Packed>(x + row * width + column, available), in);
    return made_octet<T>([&](int i) { return gelu_tanh_fast(in[i]); });
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
  __device__ __forceinline__ Octet<T> octet(int /*part*/, int64_t row, int64_t column,
                                            int64_t available) const {
    float gradient[kOctet];
    float in[kOctet];
    const int64_t at = row * width + column;
    octet_values(load_octet<Packed>(dy + at, available), gradient);
    octet_values(load_octet<Packed>(x + at, available), in);
    return made_octet<T>([&](int i) { return gradient[i] * gelu_tanh_derivative_fast(in[i]); });
  }
};

}  // namespace fp8train::ops::cuda
