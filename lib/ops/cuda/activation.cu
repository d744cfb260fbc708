// Activations of the MLPs, with the formulas of numeric/math.h: the same bits as on the cpu.

#include "numeric/math.h"
#include "ops/cuda/activation_cast.h"
#include "ops/cuda/cuda_table.h"
#include "ops/cuda/kernel_support.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 8;  // elements of one thread: 16 bytes of bf16

/// Host: whether packs of T may be read at all of the pointers.
template <typename T, typename... Pointers>
bool packs_fit(Pointers... pointers) {
  return (is_aligned(pointers, sizeof(T) * kPack) && ...);
}

/// Index i of [rows, width] as an index of the left half of [rows, 2 width].
__device__ __forceinline__ int64_t in_pair(int64_t i, int64_t width) {
  return i + i / width * width;
}

template <int N>
__device__ __forceinline__ Pack<float, N> ones() {
  Pack<float, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    pack.values[j] = 1.0F;
  }
  return pack;
}

template <typename T>
struct SwigluForward {
  const T* gate_up;
  T* y;
  int64_t width;
  const float* smoothing;  // may be null

  template <int N>
  __device__ void run(int64_t i) const {
    const T* from = gate_up + in_pair(i, width);
    const Pack<T, N> gate = load_pack<N>(from);
    const Pack<T, N> up = load_pack<N>(from + width);
    const Pack<float, N> scale =
        smoothing == nullptr ? ones<N>() : load_pack<N>(smoothing + i % width);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float smooth = load_as_float(&up.values[j]) * scale.values[j];
      store_from_float(&out.values[j], silu(load_as_float(&gate.values[j])) * smooth);
    }
    store_pack(y + i, out);
  }
};

void swiglu_forward(Stream stream, ConstView gate_up, View y, const QuantizeSink& cast,
                    ConstView smoothing) {
  const int64_t width = y.shape.back();
  const auto* scale = smoothing.as<float>();
  with_float_type(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (!cast.empty()) {
      return cast_tiles(stream, SwigluForwardSource<T>(gate_up.as<T>(), width, scale),
                        y.shape.rows(), width, y.data, cast,
                        is_aligned(gate_up.data) && is_aligned(scale));
    }
    map<kPack>(stream, y.count(),
               width % kPack == 0 && packs_fit<T>(gate_up.data, y.data) &&
                   is_aligned(scale, sizeof(float) * kPack),
               SwigluForward<T>{gate_up.as<T>(), y.as<T>(), width, scale});
  });
}

template <typename T>
struct SwigluBackward {
  const T* dy;
  const T* gate_up;
  T* d_gate_up;
  int64_t width;

  template <int N>
  __device__ void run(int64_t i) const {
    const int64_t at = in_pair(i, width);
    const Pack<T, N> gradient = load_pack<N>(dy + i);
    const Pack<T, N> gate = load_pack<N>(gate_up + at);
    const Pack<T, N> up = load_pack<N>(gate_up + at + width);
    Pack<T, N> d_gate;
    Pack<T, N> d_up;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float g = load_as_float(&gate.values[j]);
      const float incoming = load_as_float(&gradient.values[j]);
      store_from_float(&d_gate.values[j],
                       incoming * load_as_float(&up.values[j]) * silu_derivative(g));
      store_from_float(&d_up.values[j], incoming * silu(g));
    }
    store_pack(d_gate_up + at, d_gate);
    store_pack(d_gate_up + at + width, d_up);
  }
};

void swiglu_backward(Stream stream, ConstView dy, ConstView gate_up, View d_gate_up,
                     const QuantizeSink& cast) {
  const int64_t width = dy.shape.back();
  with_float_type(dy.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (!cast.empty()) {
      return cast_tiles(stream, SwigluBackwardSource<T>(dy.as<T>(), gate_up.as<T>(), width),
                        dy.shape.rows(), width, d_gate_up.data, cast,
                        is_aligned(dy.data) && is_aligned(gate_up.data));
    }
    map<kPack>(stream, dy.count(),
               width % kPack == 0 && packs_fit<T>(dy.data, gate_up.data, d_gate_up.data),
               SwigluBackward<T>{dy.as<T>(), gate_up.as<T>(), d_gate_up.as<T>(), width});
  });
}

template <typename T>
struct GeluForward {
  const T* x;
  T* y;

  template <int N>
  __device__ void run(int64_t i) const {
    const Pack<T, N> in = load_pack<N>(x + i);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], gelu_tanh(load_as_float(&in.values[j])));
    }
    store_pack(y + i, out);
  }
};

void gelu_forward(Stream stream, ConstView x, View y, const QuantizeSink& cast) {
  const int64_t width = y.shape.back();
  with_float_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (!cast.empty()) {
      return cast_tiles(stream, GeluForwardSource<T>(x.as<T>(), width), y.shape.rows(), width,
                        y.data, cast, is_aligned(x.data));
    }
    map<kPack>(stream, x.count(), packs_fit<T>(x.data, y.data),
               GeluForward<T>{x.as<T>(), y.as<T>()});
  });
}

template <typename T>
struct GeluBackward {
  const T* dy;
  const T* x;
  T* dx;

  template <int N>
  __device__ void run(int64_t i) const {
    const Pack<T, N> gradient = load_pack<N>(dy + i);
    const Pack<T, N> in = load_pack<N>(x + i);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      store_from_float(&out.values[j], load_as_float(&gradient.values[j]) *
                                           gelu_tanh_derivative(load_as_float(&in.values[j])));
    }
    store_pack(dx + i, out);
  }
};

void gelu_backward(Stream stream, ConstView dy, ConstView x, View dx, const QuantizeSink& cast) {
  const int64_t width = dx.shape.back();
  with_float_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (!cast.empty()) {
      return cast_tiles(stream, GeluBackwardSource<T>(dy.as<T>(), x.as<T>(), width),
                        dx.shape.rows(), width, dx.data, cast,
                        is_aligned(dy.data) && is_aligned(x.data));
    }
    map<kPack>(stream, x.count(), packs_fit<T>(dy.data, x.data, dx.data),
               GeluBackward<T>{dy.as<T>(), x.as<T>(), dx.as<T>()});
  });
}

}  // namespace

void fill_activation(OpTable& table) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
}

}  // namespace fp8train::ops::cuda
