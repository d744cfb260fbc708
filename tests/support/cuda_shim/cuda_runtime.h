#pragma once
// What a .cu file of lib/ sees instead of the CUDA runtime when it is compiled for the host
// (FP8TRAIN_CUDA=SHIM): the language extensions as macros and functions. Kernels run on the calling
// thread, block after block, each thread of a block as a fiber (block_runner.h). Declared is what
// the kernels use, and a vote; an unsupported intrinsic does not compile.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "block_runner.h"
#include "cuda_runtime_api.h"
#include "submit.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (::fp8train::shim::current_thread().thread_index)
#define blockIdx (::fp8train::shim::current_thread().block_index)
#define blockDim (::fp8train::shim::current_thread().block_extent)
#define gridDim (::fp8train::shim::current_thread().grid_extent)

// Macros, so that a barrier knows its line: threads that wait at different ones are an error.
#define __syncthreads() \
  ::fp8train::shim::barrier(reinterpret_cast<const void*>(std::uintptr_t{__LINE__}), 0)
/// Whether any thread's predicate is not 0.
#define __syncthreads_or(predicate)                                                   \
  (::fp8train::shim::barrier(reinterpret_cast<const void*>(std::uintptr_t{__LINE__}), \
                             (predicate)) != 0                                        \
       ? 1                                                                            \
       : 0)
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) {
  ::fp8train::shim::WarpExchange(mask, 0);
}

namespace fp8train::shim {

/// A kernel, given as what one of its threads does. Refuses what no GPU would run.
cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
                   std::function<void()> thread);

template <typename T>
T shuffle(unsigned mask, T value, int source_lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = WarpExchange(mask, bits).of_lane(source_lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace fp8train::shim

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = ::fp8train::shim::lane();
  return ::fp8train::shim::shuffle(mask, value, lane / width * width + source % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = ::fp8train::shim::lane();
  const int source = lane ^ bits;
  return ::fp8train::shim::shuffle(mask, value, source / width == lane / width ? source : lane);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = ::fp8train::shim::lane();
  const int source = lane + static_cast<int>(delta);
  return ::fp8train::shim::shuffle(mask, value, source / width == lane / width ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return ::fp8train::shim::WarpExchange(mask, predicate != 0 ? 1 : 0).ballot();
}

// Fibers of one thread never run at the same time, so plain reads and writes are atomic.
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = old < value ? value : old;
  return old;
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}
/// Bytes of the eight of low (0..3) and high (4..7) that the hexadecimal digits of `select` name.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned digit = select >> (4 * i) & 7U;
    result |= static_cast<unsigned>(bytes >> (8 * digit) & 0xFFU) << (8 * i);
  }
  return result;
}
/// The larger of each pair of 16-bit halves.
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  const unsigned low = (a & 0xFFFFU) > (b & 0xFFFFU) ? a & 0xFFFFU : b & 0xFFFFU;
  const unsigned high = a >> 16 > b >> 16 ? a >> 16 : b >> 16;
  return high << 16 | low;
}
inline double __longlong_as_double(long long bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline float rsqrtf(float x) {
  return 1.0F / std::sqrt(x);
}
