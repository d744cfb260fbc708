// Smooth-SwiGLU's scales and the division by them: the same bits as on the cpu.

#include "ops/pointwise/smoothing.h"

#include "ops/cast/cast_tiles.cuh"
#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kVec8s = 8;                 // of a block's columns: 128 bytes of bf16 in each row
constexpr int kLanes = kBlock / kVec8s;   // rows that are read at a time
constexpr int kColumns = kVec8s * kVec8;  // of a block

/// Block b: scales of columns kColumns * b and on, from `up`, the right half of [rows, 2 width].
template <bool Packed, typename T>
__global__ void __launch_bounds__(kBlock)
    find_smoothing_kernel(const T* __restrict__ up, int64_t rows, int64_t width, float* scale) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kLanes* kColumns);
  const int vec = static_cast<int>(threadIdx.x) % kVec8s;
  const int lane = static_cast<int>(threadIdx.x) / kVec8s;
  const int64_t column = int64_t{blockIdx.x} * kColumns + vec * kVec8;
  float largest[kVec8] = {};
#pragma unroll 4
  for (int64_t row = lane; row < rows; row += kLanes) {
    float values[kVec8];
    vec8_values(load_vec8<Packed>(up + row * 2 * width + column, width - column), values);
#pragma unroll
    for (int i = 0; i < kVec8; ++i) {
      largest[i] = max_magnitude(largest[i], values[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kVec8; ++i) {
    shared[lane * kColumns + vec * kVec8 + i] = largest[i];
  }
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  const int64_t to = int64_t{blockIdx.x} * kColumns + mine;
  if (mine >= kColumns || to >= width) {
    return;
  }
  float all = 0.0F;
  for (int i = 0; i < kLanes; ++i) {
    all = max_magnitude(all, shared[i * kColumns + mine]);
  }
  scale[to] = smoothing_scale(all);
}

/// Each thread has N columns of the rows blockIdx.y and on. A scale is a power of two, so that its
/// reciprocal, and multiplying by it instead of dividing, is exact.
template <int N>
__global__ void __launch_bounds__(kBlock)
    divide_columns_kernel(const float* x, const float* scale, float* y, int64_t rows, int64_t width,
                          bool add) {
  const int64_t column = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * N;
  if (column >= width) {
    return;
  }
  Pack<float, N> factor = load_pack<N>(scale + column);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    factor.values[j] = float_of(0x7F000000U - bits_of(factor.values[j]));
  }
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const int64_t i = row * width + column;
    const Pack<float, N> in = load_pack<N>(x + i);
    Pack<float, N> out = {};
    if (add) {
      out = load_pack<N>(y + i);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      out.values[j] += in.values[j] * factor.values[j];
    }
    store_pack(y + i, out);
  }
}

}  // namespace

void find_smoothing(Stream stream, ConstView gate_up, View scale) {
  const int64_t width = scale.count();
  const int64_t rows = gate_up.shape.rows();
  const auto blocks = static_cast<unsigned>(ceil_div(width, kColumns));
  with_float_type(gate_up.dtype, [&]<typename T>(TypeTag<T>) {
    const bool packed = width % kVec8 == 0 && is_aligned(gate_up.data);
    launch(stream, {blocks, kBlock},
           packed ? find_smoothing_kernel<true, T> : find_smoothing_kernel<false, T>,
           gate_up.as<T>() + width, rows, width, scale.as<float>());
  });
}

void divide_columns(Stream stream, ConstView x, ConstView scale, View y, bool add) {
  const int64_t width = scale.count();
  if (width == 0) {
    return;
  }
  const int64_t rows = x.count() / width;
  const bool packed =
      width % 4 == 0 && is_aligned(x.data) && is_aligned(scale.data) && is_aligned(y.data);
  const int64_t across = ceil_div(width, int64_t{kBlock} * (packed ? 4 : 1));
  const unsigned blocks = blocks_for(stream, across * rows, 1);
  const auto down = static_cast<unsigned>(ceil_div(int64_t{blocks}, across));
  launch(stream, {dim3(static_cast<unsigned>(across), down), kBlock},
         packed ? divide_columns_kernel<4> : divide_columns_kernel<1>, x.as<float>(),
         scale.as<float>(), y.as<float>(), rows, width, add);
}

}  // namespace fp8train::ops::cuda
