#pragma once
// The results of activations as values that are cast where they are made. Only for .cu files.

#include "numeric/math.h"
#include "ops/cuda/cast_tiles.h"

namespace fp8train::ops::cuda {

/// value(i) for i = 0 .. 7, rounded to T; zeros from `available` on.
template <typename T, typename Value>
__device__ __forceinline__ Octet<T> made_octet(int64_t available, Value value) {
  float values[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    values[i] = value(i);
  }
  return octet_of<T>(values, available);
}

template <typename T, int Parts>
struct ActivationSource {
  using Value = T;
  static constexpr int kParts = Parts;

  template <bool Packed, bool Counted>
  static constexpr int blocks() {
    return kMadeTileBlocks<Packed, Counted, T>;
  }
};

template <typename T>
struct SwigluForwardSource : ActivationSource<T, 1> {
  const T* __restrict__ gate_up;
  int64_t width;
  const float* __restrict__ smoothing;  // may be null

  SwigluForwardSource(const T* from, int64_t columns, const float* scale)
      : gate_up(from), width(columns), smoothing(scale) {}

  template <bool Packed>
  __device__ __forceinline__ Octet<T> octet(int /*part*/, int64_t row, int64_t column,
                                            int64_t available) const {
    float gate[kOctet];
    float up[kOctet];
    const T* from = gate_up + row * 2 * width + column;
    octet_values(load_octet<Packed>(from, available), gate);
    octet_values(load_octet<Packed>(from + width, available), up);
    if (smoothing != nullptr) {
      float scale[kOctet];
      octet_values(load_octet<Packed>(smoothing + column, available), scale);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        up[i] *= scale[i];
      }
    }
    return made_octet<T>(available, [&](int i) { return silu(gate[i]) * up[i]; });
  }
};

/// Part 0: gradient of gate; part 1: of up.
template <typename T>
struct SwigluBackwardSource : ActivationSource<T, 2> {
  const T* __restrict__ dy;
  const T* __restrict__ gate_up;
  int64_t width;

  SwigluBackwardSource(const T* gradient, const T* from, int64_t columns)
      : dy(gradient), gate_up(from), width(columns) {}

  template <bool Packed>
  __device__ __forceinline__ Octet<T> octet(int part, int64_t row, int64_t column,
                                            int64_t available) const {
    float gradient[kOctet];
    float gate[kOctet];
    const T* from = gate_up + row * 2 * width + column;
    octet_values(load_octet<Packed>(dy + row * width + column, available), gradient);
    octet_values(load_octet<Packed>(from, available), gate);
    if (part == 1) {
      return made_octet<T>(available, [&](int i) { return gradient[i] * silu(gate[i]); });
    }
    float up[kOctet];
    octet_values(load_octet<Packed>(from + width, available), up);
    return made_octet<T>(available,
                         [&](int i) { return gradient[i] * up[i] * silu_derivative(gate[i]); });
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
    return made_octet<T>(available, [&](int i) { return gelu_tanh(in[i]); });
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
    return made_octet<T>(available,
                         [&](int i) { return gradient[i] * gelu_tanh_derivative(in[i]); });
  }
};

}  // namespace fp8train::ops::cuda
