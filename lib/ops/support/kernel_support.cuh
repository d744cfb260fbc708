#pragma once
// Code that the CUDA kernels share: choosing a template by element type, 16-byte accesses,
// reductions with a fixed order within a warp and a block. Only for .cu files.

#include <cstdint>

#include "base/host_device.h"
#include "base/math.h"
#include "numeric/convert.h"
#include "numeric/dtype.h"
#include "numeric/with_type.h"
#include "ops/support/launch.cuh"

namespace fp8train::ops::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr int kBlock = 256;  ///< threads of a block, where nothing speaks for another number

/// Blocks for `items` threads of work, limited to what keeps a GPU full: kernels stride over the
/// rest.
inline unsigned blocks_for(const Stream& stream, int64_t items, int64_t per_block = kBlock) {
  const int64_t wanted = ceil_div(items, per_block);
  const int64_t most = int64_t{32} * cuda_context(stream).multiprocessors;
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

__device__ __forceinline__ int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

/// TypeList::with() in a kernel that chooses types when it runs. Nothing is thrown there: the host
/// has asked TypeList::check(). A type outside the list is treated as the last one.
template <typename First, typename... Others, typename Body>
__device__ __forceinline__ void with_type_of(TypeList<First, Others...> /*list*/, DType dtype,
                                             Body body) {
  if constexpr (sizeof...(Others) == 0) {
    body(TypeTag<First>{});
  } else if (dtype == kTypeOf<First>) {
    body(TypeTag<First>{});
  } else {
    with_type_of(TypeList<Others...>{}, dtype, body);
  }
}

/// body(begin) for begin = 0, Span, 2 * Span .. below `count`, one to a warp at a time. Blocks have
/// kBlock threads, and all lanes of a warp take part.
template <int Span, typename Body>
__device__ __forceinline__ void for_each_span(int64_t count, Body body) {
  const int64_t warps = int64_t{gridDim.x} * (kBlock / kWarp);
  const int64_t warp = int64_t{blockIdx.x} * (kBlock / kWarp) + warp_index();
  for (int64_t begin = warp * Span; begin < count; begin += warps * Span) {
    body(begin);
  }
}

/// N values that are read and written in one access.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

template <int N, typename T>
FP8TRAIN_HD Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, typename T>
FP8TRAIN_HD void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Host: whether packs of `bytes` bytes may be read at `pointer`; a null pointer is aligned.
inline bool is_aligned(const void* pointer, size_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Each thread handles N consecutive elements at a time with op.template run<N>(index), the tail
/// one by one with run<1>.
template <int N, typename Op>
__global__ void map_kernel(int64_t count, Op op) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x * N;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N; i < count; i += stride) {
    if (i + N <= count) {
      op.template run<N>(i);
      continue;
    }
    for (int64_t j = i; j < count; ++j) {
      op.template run<1>(j);
    }
  }
}

/// Host: runs `op` over `count` elements, in packs of N where `aligned`: all pointers of `op` are
/// aligned to N of their elements.
template <int N, typename Op>
void map(const Stream& stream, int64_t count, bool aligned, const Op& op) {
  if (aligned) {
    launch(stream, {blocks_for(stream, ceil_div(count, N)), kBlock}, map_kernel<N, Op>, count, op);
  } else {
    launch(stream, {blocks_for(stream, count), kBlock}, map_kernel<1, Op>, count, op);
  }
}

/// All lanes get combine() over the 32 values, always paired in the same order.
template <typename T, typename Combine>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, bits));
  }
  return value;
}

struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Smallest {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

/// All threads of a one-dimensional block of `Threads` get the reduction of its values; warps are
/// combined in order. `shared`: [Threads / 32] values, free again when the call returns.
template <int Threads, typename T, typename Combine>
__device__ __forceinline__ T block_reduce(T value, Combine combine, T* shared) {
  static_assert(Threads % kWarp == 0);
  value = warp_reduce(value, combine);
  if (lane_index() == 0) {
    shared[warp_index()] = value;
  }
  __syncthreads();
  T result = shared[0];
  for (int i = 1; i < Threads / kWarp; ++i) {
    result = combine(result, shared[i]);
  }
  __syncthreads();
  return result;
}

}  // namespace fp8train::ops::cuda
