// The CUDA runtime of the host shim.

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "submit.h"

using Work = std::vector<std::function<void()>>;
struct CUgraph_st {
  Work work;
};
struct CUevent_st {
  double clock = 0;
};
struct CUgraphExec_st {
  Work work;
};

namespace {

fp8train::shim::RuntimeCalls calls;
double clock_milliseconds = 0;
cudaGraph_t captured = nullptr;  // while the stream is being captured

/// A call that would break the capture on a GPU too.
cudaError_t outside_of_capture(cudaError_t status) {
  return captured == nullptr ? status : cudaErrorStreamCaptureUnsupported;
}

int initial_capability() {
  const char* value = std::getenv("FP8TRAIN_SHIM_CAPABILITY");
  return value == nullptr ? 90 : std::atoi(value);
}

int& capability() {
  static int value = initial_capability();
  return value;
}

constexpr size_t kAlignment = 256;

cudaError_t allocate(void** pointer, size_t bytes) {
  // A fresh allocation is not zero on a GPU either: NaN bits show what relies on it.
  *pointer = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (*pointer == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*pointer, 0xFF, bytes);
  return cudaSuccess;
}

void release(void* pointer) {
  ::operator delete (pointer, std::align_val_t{kAlignment});
}

}  // namespace

namespace fp8train::shim {

const RuntimeCalls& runtime_calls() {
  return calls;
}
void set_capability(int value) {
  capability() = value;
}

void advance_clock(float milliseconds) {
  clock_milliseconds += milliseconds;
}

bool capturing() {
  return captured != nullptr;
}

void submit(std::function<void()> work) {
  if (captured != nullptr) {
    captured->work.push_back(std::move(work));
    return;
  }
  calls.submissions += 1;
  work();
}

}  // namespace fp8train::shim

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 4096;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = capability() / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = capability() % 10;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  std::strcpy(properties->name, "host shim");
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  calls.allocations += 1;
  return captured == nullptr ? allocate(pointer, bytes) : cudaErrorStreamCaptureUnsupported;
}
cudaError_t cudaFree(void* pointer) {
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  calls.allocations += 1;
  return allocate(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  calls.reads_back += kind == cudaMemcpyDeviceToHost ? 1 : 0;
  if (kind != cudaMemcpyDeviceToDevice && captured != nullptr) {
    return cudaErrorStreamCaptureUnsupported;  // host memory of one step would be in all of them
  }
  fp8train::shim::submit([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t /*stream*/) {
  fp8train::shim::submit([=] { std::memset(pointer, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = nullptr;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  calls.synchronizations += 1;
  return outside_of_capture(cudaSuccess);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) {
  if (captured != nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  }
  captured = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  *graph = std::exchange(captured, nullptr);
  return *graph == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  calls.graph_launches += 1;
  for (const auto& work : executable->work) {
    work();
  }
  return outside_of_capture(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  event->clock = clock_milliseconds;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  calls.synchronizations += 1;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(to->clock - from->clock);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "error of the host shim";
}
const char* cudaGetErrorName(cudaError_t /*error*/) {
  return "shim";
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
}
