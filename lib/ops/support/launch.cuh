#pragma once
// The door through which a .cu file sees CUDA, and the one file that knows in which form it is
// compiled: by nvcc for GPUs, or for the host, where kernels run as fibers
// (tests/support/cuda_shim). A kernel uses no other extension of the language than those declared
// here or in the shim's cuda_runtime.h. Inline PTX is only in convert.cuh, fast_math.cuh and
// mma.cuh of ops/support, and in ops/cast/vec8.cuh, with a plain alternative.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_context.h"
#include "device/stream.h"

#if defined(FP8TRAIN_CUDA_SHIM)
/// An array [count] of a trivial type in the block's shared memory; uninitialized.
#define FP8TRAIN_SHARED_ARRAY(type, name, count)                                              \
  type* const name = [] {                                                                     \
    static char site;                                                                         \
    return static_cast<type*>(::fp8train::shim::shared_array(&site, sizeof(type) * (count))); \
  }()
/// The launch's dynamic shared memory, 16-byte aligned.
#define FP8TRAIN_SHARED_DYNAMIC(type, name) \
  type* const name = static_cast<type*>(::fp8train::shim::dynamic_shared())
#else
#define FP8TRAIN_SHARED_ARRAY(type, name, count) __shared__ type name[count]
#define FP8TRAIN_SHARED_DYNAMIC(type, name)                                \
  extern __shared__ __align__(16) unsigned char fp8train_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(fp8train_dynamic_shared)
#endif

namespace fp8train::ops::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  ///< dynamic; 99 KiB is the most that every GPU has
};

/// Starts the kernel on the stream; nothing where the grid is empty. Throws DeviceError when this
/// launch is refused; an error that an earlier call left behind is not reported here.
template <typename... Parameters, typename... Arguments>
void launch(const Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) {
    return;
  }
#if defined(FP8TRAIN_CUDA_SHIM)
  const cudaError_t status = shim::launch(
      cuda_context(stream).stream, shape.grid, shape.block, shape.shared_bytes,
      [kernel, ... copies = static_cast<Parameters>(arguments)] { kernel(copies...); });
#else
  constexpr size_t kWithoutAsking = size_t{48} << 10;
  if (shape.shared_bytes > kWithoutAsking) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               "asking for shared memory");
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda_context(stream).stream;
  const cudaError_t status =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
#endif
  check_cuda(status, "starting a kernel");
}

}  // namespace fp8train::ops::cuda
