// The CUDA runtime of the host shim.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "submit.h"

using Work = std::vector<std::function<void()>>;
using LateWorks = std::vector<std::shared_ptr<fp8train::shim::LateWork>>;
/// How much of each stream's work is known to come before.
using Seen = std::map<const CUstream_st*, unsigned long>;
struct CUgraph_st {
  Work work;
};
struct CUstream_st {
  std::thread::id owner;
  LateWorks late;
  Seen seen;  ///< its own entry: work that it was given
};
struct CUevent_st {
  double clock = 0;
  LateWorks late;
  Seen seen;
};
struct CUgraphExec_st {
  Work work;
};

namespace {

thread_local fp8train::shim::RuntimeCalls calls;
thread_local double clock_milliseconds = 0;
thread_local cudaGraph_t captured = nullptr;  // while the stream is being captured
std::atomic<int> device_count = 1;
std::atomic<cudaError_t> gpu_error = cudaSuccess;  // of waiting for the GPU
thread_local int current_device = 0;
std::mutex streams_mutex;  // of what streams and events hold: other threads ask for events

/// Never destroyed: devices that are may be destroyed later.
std::vector<cudaStream_t>& all_streams() {
  static auto& streams = *new std::vector<cudaStream_t>;
  return streams;
}

/// Of the calling thread. The mutex is held.
std::vector<cudaStream_t> own_streams() {
  std::vector<cudaStream_t> own;
  for (cudaStream_t stream : all_streams()) {
    if (stream->owner == std::this_thread::get_id()) {
      own.push_back(stream);
    }
  }
  return own;
}

void merge(Seen& into, const Seen& more) {
  for (const auto& [stream, count] : more) {
    into[stream] = std::max(into[stream], count);
  }
}

bool all_over(const LateWorks& late) {
  return std::all_of(late.begin(), late.end(), [](const auto& work) { return work->over(); });
}

void wait_for(const LateWorks& late) {
  while (!all_over(late)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// The host waits for what is ahead in the stream.
void settle(cudaStream_t stream) {
  wait_for(fp8train::shim::unfinished(stream));
  if (stream != nullptr) {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    stream->late.clear();
  }
}

/// The host waits for all that this thread has submitted.
void settle_all() {
  std::vector<cudaStream_t> own;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    own = own_streams();
  }
  for (cudaStream_t stream : own) {
    settle(stream);
  }
}

void count_work(cudaStream_t stream) {
  if (stream != nullptr) {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    stream->seen[stream] += 1;
  }
}

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

void break_gpu(cudaError_t error) {
  gpu_error = error;
}

void advance_clock(float milliseconds) {
  clock_milliseconds += milliseconds;
}

bool capturing() {
  return captured != nullptr;
}

void set_device_count(int count) {
  device_count = count;
}

void submit(cudaStream_t stream, std::function<void()> work) {
  if (captured != nullptr) {
    captured->work.push_back(std::move(work));
    return;
  }
  calls.submissions += 1;
  count_work(stream);
  settle(stream);
  work();
}

void submit_late(cudaStream_t stream, std::shared_ptr<LateWork> work) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  stream->seen[stream] += 1;
  stream->late = {std::move(work)};  // which waits for what was there
}

std::vector<std::shared_ptr<LateWork>> unfinished(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  return stream == nullptr ? LateWorks() : stream->late;
}

bool follows_all(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  const std::vector<cudaStream_t> own = own_streams();
  return std::all_of(own.begin(), own.end(),
                     [&](cudaStream_t other) { return stream->seen[other] == other->seen[other]; });
}

}  // namespace fp8train::shim

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count) {
    return cudaErrorInvalidDevice;
  }
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
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
  settle_all();
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  calls.allocations += 1;
  return allocate(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  settle_all();
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  calls.reads_back += kind == cudaMemcpyDeviceToHost ? 1 : 0;
  if (kind != cudaMemcpyDeviceToDevice && captured != nullptr) {
    return cudaErrorStreamCaptureUnsupported;  // host memory of one step would be in all of them
  }
  fp8train::shim::submit(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  fp8train::shim::submit(stream, [=] { std::memset(pointer, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new CUstream_st;
  (*stream)->owner = std::this_thread::get_id();
  const std::lock_guard<std::mutex> lock(streams_mutex);
  all_streams().push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  settle(stream);
  const std::lock_guard<std::mutex> lock(streams_mutex);
  std::erase(all_streams(), stream);
  for (cudaStream_t other : all_streams()) {
    other->seen.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  calls.synchronizations += 1;
  settle(stream);
  return outside_of_capture(gpu_error);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  for (const auto& work : event->late) {
    if (std::find(stream->late.begin(), stream->late.end(), work) == stream->late.end()) {
      stream->late.push_back(work);
    }
  }
  merge(stream->seen, event->seen);
  return cudaSuccess;
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
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  calls.graph_launches += 1;
  count_work(stream);
  settle(stream);
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
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(streams_mutex);
  event->clock = clock_milliseconds;
  event->late = stream == nullptr ? LateWorks() : stream->late;
  event->seen = stream == nullptr ? Seen() : stream->seen;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  LateWorks late;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    late = event->late;
  }
  return all_over(late) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  calls.synchronizations += 1;
  LateWorks late;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex);
    late = event->late;
  }
  wait_for(late);
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
