// Smooth-SwiGLU's scales and the division by them: the same bits as on the cpu.

#include "ops/smoothing.h"

#include "ops/cuda/cast_tiles.h"
#include "ops/cuda/cuda_table.h"

namespace fp8train::ops::cuda {
namespace {

constexpr int kOctets = 8;                  // of a block's columns: 128 bytes of bf16 in each row
constexpr int kLanes = kBlock / kOctets;    // rows that are read at a time
constexpr int kColumns = kOctets * kOctet;  // of a block

/// Block b: scales of columns kColumns * b and on, from `up`, the right half of [rows, 2 width].
template <bool Packed, typename T>
__global__ void __launch_bounds__(kBlock)
    find_smoothing_kernel(const T* __restrict__ up, int64_t rows, int64_t width, float* scale) {
  FP8TRAIN_SHARED_ARRAY(float, shared, kLanes* kColumns);
  const int octet = static_cast<int>(threadIdx.x) % kOctets;
  const int lane = static_cast<int>(threadIdx.x) / kOctets;
  const int64_t column = int64_t{blockIdx.x} * kColumns + octet * kOctet;
  float largest[kOctet] = {};
#pragma unroll 4
  for (int64_t row = lane; row < rows; row += kLanes) {
    float values[kOctet];
    octet_values(load_octet<Packed>(up + row * 2 * width + column, width - column), values);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      largest[i] = max_magnitude(largest[i], values[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    shared[lane * kColumns + octet * kOctet + i] = largest[i];
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

void find_smoothing(Stream stream, ConstView gate_up, View scale) {
  const int64_t width = scale.count();
  const int64_t rows = gate_up.shape.rows();
  const auto blocks = static_cast<unsigned>(ceil_div(width, kColumns));
  with_float_type(gate_up.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const bool packed = width % kOctet == 0 && is_aligned(gate_up.data);
    launch(stream, {blocks, kBlock},
           packed ? find_smoothing_kernel<true, T> : find_smoothing_kernel<false, T>,
           gate_up.as<T>() + width, rows, width, scale.as<float>());
  });
}

struct DivideColumns {
  const float* x;
  const float* scale;
  float* y;
  int64_t width;
  bool add;

  template <int N>
  __device__ void run(int64_t i) const {
    const Pack<float, N> in = load_pack<N>(x + i);
    const Pack<float, N> divisor = load_pack<N>(scale + i % width);
    Pack<float, N> out = {};
    if (add) {
      out = load_pack<N>(y + i);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      out.values[j] += in.values[j] / divisor.values[j];
    }
    store_pack(y + i, out);
  }
};

void divide_columns(Stream stream, ConstView x, ConstView scale, View y, bool add) {
  const int64_t width = scale.count();
  const bool packed =
      width % 4 == 0 && is_aligned(x.data) && is_aligned(scale.data) && is_aligned(y.data);
  map<4>(stream, x.count(), packed,
         DivideColumns{x.as<float>(), scale.as<float>(), y.as<float>(), width, add});
}

}  // namespace

void fill_smoothing(OpTable& table) {
  table.find_smoothing = find_smoothing;
  table.divide_columns = divide_columns;
}

}  // namespace fp8train::ops::cuda
