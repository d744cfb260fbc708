#pragma once
// The parts of their device that operations of the cuda backend need: its stream, the abilities of
// the chip, and the workspace of libraries on that stream. Stream::native() of a cuda stream points
// to one; the CudaDevice that owns it outlives the stream. Only for files under cuda/.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "device/stream.h"

namespace fp8train {

struct DeviceTraits;

/// State of a library for one device, such as a handle with its plans; destroyed with the device.
class CudaExtension {
 public:
  virtual ~CudaExtension() = default;
};

class Device;

/// The parts of one cuda device.
struct CudaContext {
  Device* owner = nullptr;  ///< device for extensions that need memory of their own
  cudaStream_t stream = nullptr;
  int device = 0;      ///< ordinal
  int capability = 0;  ///< 89, 90, 100, ...
  int multiprocessors = 0;
  const DeviceTraits* traits = nullptr;  ///< the device's own
  void* workspace = nullptr;  ///< device memory for library calls on `stream`, 256-byte aligned
  size_t workspace_bytes = 0;
  std::unique_ptr<CudaExtension> gemm;       ///< made on first use by ops/gemm
  std::unique_ptr<CudaExtension> attention;  ///< likewise
};

/// Returns the context of a cuda stream.
inline CudaContext& cuda_context(const Stream& stream) {
  return *static_cast<CudaContext*>(stream.native());
}

/// Throws DeviceError "<what>: <CUDA's words>" unless `error` is cudaSuccess.
void check_cuda(cudaError_t error, const char* what);

}  // namespace fp8train
