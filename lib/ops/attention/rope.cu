// Rotary embedding: products and sums round separately, as on the cpu, so the bits are the same.

#include "ops/dispatch/cuda_operations.h"
#include "ops/support/kernel_support.cuh"

namespace fp8train::ops::cuda {
namespace {

constexpr int kPack = 8;  // pairs of one thread: 16 bytes of bf16 from each half of a head

/// Rotates the pairs (head[j], head[j + half]) for j < N.
template <int N, typename T>
__device__ __forceinline__ void rotate(T* head, const float* cosine, const float* sine, float sign,
                                       int64_t half) {
  Pack<T, N> left = load_pack<N>(head);
  Pack<T, N> right = load_pack<N>(head + half);
  const Pack<float, N> cosines = load_pack<N>(cosine);
  const Pack<float, N> sines = load_pack<N>(sine);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float x = load_as_float(&left.values[j]);
    const float y = load_as_float(&right.values[j]);
    const float s = sines.values[j] * sign;
    store_from_float(&left.values[j], x * cosines.values[j] - y * s);
    store_from_float(&right.values[j], y * cosines.values[j] + x * s);
  }
  store_pack(head, left);
  store_pack(head + half, right);
}

/// Blocks in x go over the packs of a position, those in y over positions.
template <int N, typename T>
__global__ void rope_kernel(Rope call, int64_t rows) {
  const int64_t half = call.head_dim / 2;
  const int64_t packs = half / N;
  const float sign = call.inverse ? -1.0F : 1.0F;
  const auto* const starts = static_cast<const int32_t*>(call.document_starts.data);
  const int64_t item = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (item >= call.heads * packs) {
    return;
  }
  const int64_t head = item / packs;
  const int64_t j = (item - head * packs) * N;
  const int64_t first = call.position_offset * half + j;
  const float* const cosines = static_cast<const float*>(call.cosines.data) + first;
  const float* const sines = static_cast<const float*>(call.sines.data) + first;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const int64_t b = row / call.length;
    const int64_t t = row - b * call.length;
    T* values = static_cast<T*>(call.x.data) + (b * call.x.length_capacity + t) * call.x.row_stride;
    const int64_t position = t - (starts == nullptr ? 0 : starts[row]);
    rotate<N>(values + head * 2 * half + j, cosines + position * half, sines + position * half,
              sign, half);
  }
}

/// Starts the kernel with N pairs for a thread.
template <int N, typename T>
void run(const Stream& stream, const Rope& call) {
  constexpr int kThreads = 128;
  constexpr int64_t kMostRows = 32768;  // what a grid takes in y, roughly
  const int64_t items = call.heads * (call.head_dim / 2 / N);
  const int64_t rows = call.batch * call.length;
  launch(stream,
         {{static_cast<unsigned>(ceil_div(items, kThreads)),
           static_cast<unsigned>(rows < kMostRows ? rows : kMostRows)},
          kThreads},
         rope_kernel<N, T>, call, rows);
}

}  // namespace

void rope(Stream stream, const Rope& call) {
  const int64_t half = call.head_dim / 2;
  with_float_type(call.x.dtype, [&]<typename T>(TypeTag<T>) {
    const size_t wide = sizeof(T) * kPack;
    const bool aligned = half % kPack == 0 && call.x.row_stride % kPack == 0 &&
                         is_aligned(call.x.data, wide) &&
                         is_aligned(call.cosines.data, sizeof(float) * kPack) &&
                         is_aligned(call.sines.data, sizeof(float) * kPack);
    aligned ? run<kPack, T>(stream, call) : run<1, T>(stream, call);
  });
}

}  // namespace fp8train::ops::cuda
