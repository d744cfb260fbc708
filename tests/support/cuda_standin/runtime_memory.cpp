// Devices, memory and copies.

#include <cstdio>
#include <cstring>
#include <memory>

#include "gpu.h"
#include "state.h"

using fp8train::standin::Call;
using fp8train::standin::gpu;
using fp8train::standin::gpu_count;
using fp8train::standin::MemoryKind;
using fp8train::standin::Work;

namespace {

thread_local int current_device = 0;

cudaError_t check_device(Call& call, int device) {
  return device >= 0 && device < gpu_count() ? cudaSuccess : call.fail(cudaErrorInvalidDevice);
}

cudaError_t allocate(Call& call, MemoryKind kind, void** pointer, size_t bytes) {
  if (const cudaError_t error = call.refuse_while_recording()) {
    return error;
  }
  *pointer = call->memory.allocate(kind, bytes);
  return *pointer == nullptr ? call.fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t release(Call& call, MemoryKind kind, void* pointer) {
  if (const cudaError_t error = call.refuse_while_recording()) {
    return error;
  }
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  call.wait_until(call->timeline.last_end());  // what is submitted may use it
  const std::string what = call->memory.description(pointer);
  return call->memory.release(kind, pointer) ? cudaSuccess
                                             : call.refuse(cudaErrorInvalidValue, "frees " + what);
}

/// An end of a copy: on the GPU, or anywhere but there.
cudaError_t check_end(Call& call, const char* name, const void* pointer, size_t bytes,
                      bool on_device) {
  const bool found = call->memory.holds(MemoryKind::device, pointer, on_device ? bytes : 0);
  return found == on_device
             ? cudaSuccess
             : call.refuse(cudaErrorInvalidValue,
                           std::string(name) + " is " + call->memory.description(pointer));
}

/// A copy whose end in host memory is not pinned: it is read at once, or waited for.
cudaError_t copy_pageable(Call& call, void* to, const void* from, size_t bytes, bool to_device,
                          cudaStream_t stream) {
  if (!to_device) {
    const cudaError_t error = call.submit(stream, [=] { std::memcpy(to, from, bytes); });
    if (error == cudaSuccess) {
      call.wait_until(stream->busy_until);
    }
    return error;
  }
  auto staged = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
  return call.submit(stream, [=] { std::memcpy(to, staged->data(), bytes); });
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const Call call(__func__);
  *count = gpu_count();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  Call call(__func__);
  if (const cudaError_t error = check_device(call, device)) {
    return error;
  }
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  const Call call(__func__);
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  Call call(__func__);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
  return check_device(call, device);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  const Call call(__func__);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  Call call(__func__);
  if (const cudaError_t error = check_device(call, device)) {
    return error;
  }
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = gpu().multiprocessors;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = static_cast<int>(gpu().cache);
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = gpu().capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = gpu().capability % 10;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(gpu().dynamic_shared);
      return cudaSuccess;
    default:
      return call.refuse(cudaErrorInvalidValue, "an attribute that the stand-in does not know");
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Call call(__func__);
  *properties = {};
  std::strncpy(properties->name, gpu().name, sizeof(properties->name) - 1);
  properties->totalGlobalMem = gpu().memory;
  properties->multiProcessorCount = gpu().multiprocessors;
  properties->major = gpu().capability / 10;
  properties->minor = gpu().capability % 10;
  return check_device(call, device);
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Call call(__func__);
  *total_bytes = gpu().memory;
  *free_bytes = gpu().memory - call->memory.used_on_device();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Call call(__func__);
  return allocate(call, MemoryKind::device, pointer, bytes);
}
cudaError_t cudaFree(void* pointer) {
  Call call(__func__);
  return release(call, MemoryKind::device, pointer);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  Call call(__func__);
  return allocate(call, MemoryKind::pinned, pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  Call call(__func__);
  return release(call, MemoryKind::pinned, pointer);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Call call(__func__);
  call->counts.copies += 1;
  if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost &&
      kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault) {
    return call.refuse(cudaErrorInvalidMemcpyDirection, "a copy of another kind");
  }
  const auto is_on_device = [&](const void* end, cudaMemcpyKind other) {
    return kind == cudaMemcpyDefault ? call->memory.holds(MemoryKind::device, end, 0)
                                     : kind != other;
  };
  const bool to_device = is_on_device(to, cudaMemcpyDeviceToHost);
  const bool from_device = is_on_device(from, cudaMemcpyHostToDevice);
  if (const cudaError_t error = check_end(call, "the destination", to, bytes, to_device)) {
    return error;
  }
  if (const cudaError_t error = check_end(call, "the source", from, bytes, from_device)) {
    return error;
  }
  if (to_device && from_device) {
    return call.submit(stream, [=] { std::memmove(to, from, bytes); });
  }
  // A graph would read or write the host memory of one step in all of them.
  if (const cudaError_t error = call.refuse_while_recording()) {
    return error;
  }
  if (!call->memory.holds(MemoryKind::pinned, to_device ? from : to, bytes)) {
    return copy_pageable(call, to, from, bytes, to_device, stream);
  }
  return call.submit(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  Call call(__func__);
  call->counts.copies += 1;
  const bool is_pinned = call->memory.holds(MemoryKind::pinned, pointer, bytes);
  if (const cudaError_t error = check_end(call, "the destination", pointer, bytes, !is_pinned)) {
    return error;
  }
  return call.submit(stream, [=] { std::memset(pointer, value, bytes); });
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureImplicit:
      return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    default:
      return "an error without a name in the stand-in";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return cudaGetErrorName(error);
  }
}
}
