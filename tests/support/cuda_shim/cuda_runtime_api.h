#pragma once
// The part of the CUDA runtime's host interface that the library uses, for builds whose cuda device
// is the host shim. Device memory is host memory, streams run at once, but for what waits for other
// ranks (submit.h); runtime.cpp counts what a test wants to know. A failure is the thread's last
// error until cudaGetLastError. The names and values are CUDA's.

#include <cstddef>

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind : int {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaDeviceAttr : int {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
enum cudaStreamCaptureMode : int { cudaStreamCaptureModeThreadLocal = 1 };
constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;

struct cudaDeviceProp {
  char name[256];
};

extern "C" {
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
}

namespace fp8train::shim {

/// Calls of the runtime by this thread.
struct RuntimeCalls {
  unsigned long allocations = 0;
  unsigned long synchronizations = 0;
  unsigned long reads_back = 0;
  unsigned long submissions = 0;  ///< kernels, products, fills and copies, but those of graphs
  unsigned long graph_launches = 0;
};
const RuntimeCalls& runtime_calls();

/// Work on the shim takes no time but what is said here: a fake library's products do.
void advance_clock(float milliseconds);

/// The compute capability that the GPU claims from now on: 89, 90, 100, ... At first it is that of
/// FP8TRAIN_SHIM_CAPABILITY, or 90.
void set_capability(int capability);
/// The compute capability that GPU 0 claims from now on instead; 0: that of the others.
void set_first_capability(int capability);

/// Whether the calling thread's queries of events that were reached say "not ready" at random, as a
/// GPU that lags behind would; at first they do. The draws are the same in every run of a test:
/// they begin anew when a thread without streams makes one.
void set_late_events(bool late);

/// The calling thread's next call of cudaMalloc, cudaMallocHost or cudaEventCreateWithFlags fails.
void fail_next(const char* function, cudaError_t error);

/// Allocations, streams and events that are not freed.
long live_objects();

/// Waiting for the GPU gives this error from now on, as after a kernel that went wrong;
/// cudaSuccess: no longer.
void break_gpu(cudaError_t error);

/// GPUs from now on; at first one. Each thread has a current one, as with CUDA.
void set_device_count(int count);

}  // namespace fp8train::shim
