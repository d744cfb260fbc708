// Kernels: what nvcc's code registers before main, and launches, which have no effect.

#include "gpu.h"
#include "state.h"

using fp8train::standin::Call;
using fp8train::standin::gpu;
using fp8train::standin::Kernel;
using fp8train::standin::state;

namespace {

/// Of a kernel that was started with <<< >>>, until its stub asks for it.
thread_local cudaLaunchConfig_t pushed = {};

/// Limits of all GPUs with FP8 units: CUDA C++ Programming Guide, "Compute Capabilities".
bool fits(const dim3& grid, const dim3& block) {
  constexpr unsigned kMaxRows = 65535;
  constexpr unsigned kMaxThreads = 1024;
  const auto threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= kMaxRows && grid.z > 0 &&
         grid.z <= kMaxRows && threads > 0 && threads <= kMaxThreads && block.x <= kMaxThreads &&
         block.y <= kMaxThreads && block.z <= 64;
}

cudaError_t launch(const char* function, const void* host_function,
                   const cudaLaunchConfig_t& config) {
  Call call(function);
  const auto found = call->kernels.find(host_function);
  if (found == call->kernels.end()) {
    return call.refuse(cudaErrorInvalidDeviceFunction, "a kernel that is not registered");
  }
  Kernel& kernel = found->second;
  if (!fits(config.gridDim, config.blockDim)) {
    return call.refuse(cudaErrorInvalidConfiguration,
                       "a grid or a block beyond the limits, of " + kernel.name);
  }
  if (config.dynamicSmemBytes > kernel.dynamic_shared) {
    return call.refuse(cudaErrorInvalidValue,
                       "more shared memory than was set, for " + kernel.name);
  }
  if (config.numAttrs != 0) {
    return call.refuse(cudaErrorInvalidValue, "an attribute of a launch, of " + kernel.name);
  }
  const cudaError_t error = call.submit(config.stream, {});
  if (error == cudaSuccess) {
    kernel.launches += 1;
    call->counts.launches += 1;
  }
  return error;
}

cudaLaunchConfig_t config_of(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return config;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  return new void*(binary);
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** handle) {
  delete handle;
}
void __cudaRegisterFunction(void** /*handle*/, const char* host_function, char* /*device_function*/,
                            const char* name, int /*thread_limit*/, uint3* /*thread*/,
                            uint3* /*block*/, dim3* /*block_extent*/, dim3* /*grid_extent*/,
                            int* /*warp_size*/) {
  state().kernels[host_function].name = name;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Call call(__func__);
  const auto kernel = call->kernels.find(function);
  if (kernel == call->kernels.end()) {
    return call.refuse(cudaErrorInvalidDeviceFunction, "a kernel that is not registered");
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return call.refuse(cudaErrorInvalidValue, "an attribute that the stand-in does not know");
  }
  if (value < 0 || static_cast<size_t>(value) > gpu().dynamic_shared) {
    return call.refuse(cudaErrorInvalidValue,
                       "more shared memory than the GPU has, for " + kernel->second.name);
  }
  kernel->second.dynamic_shared = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** /*arguments*/) {
  return launch(__func__, function, *config);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** /*arguments*/,
                             size_t shared_bytes, cudaStream_t stream) {
  return launch(__func__, function, config_of(grid, block, shared_bytes, stream));
}

// The code that nvcc writes for <<< >>>.
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream) {
  pushed = config_of(grid, block, shared_bytes, stream);
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  *grid = pushed.gridDim;
  *block = pushed.blockDim;
  *shared_bytes = pushed.dynamicSmemBytes;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
}
