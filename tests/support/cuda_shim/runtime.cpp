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

#include "cuda_runtime.h"
#include "runtime_state.h"
#include "submit.h"

struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};

using fp8train::shim::asked_failure;
using fp8train::shim::counted_calls;
using fp8train::shim::report;
using fp8train::shim::streams_mutex;

namespace {

thread_local cudaGraph_t captured = nullptr;  // while the stream is being captured
std::atomic<int> device_count = 1;
std::atomic<int> first_capability = 0;             // of GPU 0, if it differs from the others
std::atomic<cudaError_t> gpu_error = cudaSuccess;  // of waiting for the GPU
thread_local int current_device = 0;

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

/// What is ahead in the stream is done. The host may not know of it yet.
void settle(cudaStream_t stream) {
  fp8train::shim::wait_for(fp8train::shim::unfinished(stream));
  if (stream != nullptr) {
    const std::lock_guard<std::mutex> lock(streams_mutex());
    stream->late.clear();
  }
}

/// The host waits for the stream, and knows its events afterwards.
void synchronize(cudaStream_t stream) {
  settle(stream);
  if (stream != nullptr) {
    const std::lock_guard<std::mutex> lock(streams_mutex());
    fp8train::shim::mark_reached(stream->order);
  }
}

/// The host waits for all that this thread has submitted.
void settle_all() {
  std::vector<cudaStream_t> own;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex());
    own = own_streams();
  }
  for (cudaStream_t stream : own) {
    synchronize(stream);
  }
}

void count_work(cudaStream_t stream) {
  if (stream != nullptr) {
    const std::lock_guard<std::mutex> lock(streams_mutex());
    stream->seen[stream] += 1;
  }
}

/// A call that would break the capture on a GPU too.
cudaError_t outside_of_capture(cudaError_t status) {
  return captured == nullptr ? status : report(cudaErrorStreamCaptureUnsupported);
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

std::mutex& allocations_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// The bytes of all memory of the device and of pinned memory, by address.
std::map<const char*, size_t>& allocations() {
  static std::map<const char*, size_t> map;
  return map;
}

long live_allocations() {
  const std::scoped_lock lock(allocations_mutex());
  return static_cast<long>(allocations().size());
}

bool is_allocated(const void* pointer) {
  const std::scoped_lock lock(allocations_mutex());
  const auto* const address = static_cast<const char*>(pointer);
  auto found = allocations().upper_bound(address);
  return found != allocations().begin() &&
         address < std::prev(found)->first + std::prev(found)->second;
}

cudaError_t allocate(void** pointer, size_t bytes) {
  // A fresh allocation is not zero on a GPU either: NaN bits show what relies on it.
  *pointer = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (*pointer == nullptr) {
    return report(cudaErrorMemoryAllocation);
  }
  {
    const std::scoped_lock lock(allocations_mutex());
    allocations()[static_cast<char*>(*pointer)] = bytes;
  }
  std::memset(*pointer, 0xFF, bytes);
  return cudaSuccess;
}

void release(void* pointer) {
  {
    const std::scoped_lock lock(allocations_mutex());
    allocations().erase(static_cast<char*>(pointer));
  }
  ::operator delete (pointer, std::align_val_t{kAlignment});
}

}  // namespace

namespace fp8train::shim {

void set_capability(int value) {
  capability() = value;
}

void set_first_capability(int value) {
  first_capability = value;
}

void break_gpu(cudaError_t error) {
  gpu_error = error;
}

bool capturing() {
  return captured != nullptr;
}

long live_objects() {
  const std::lock_guard<std::mutex> lock(streams_mutex());
  return live_allocations() + live_events() + static_cast<long>(all_streams().size());
}

void set_device_count(int count) {
  device_count = count;
}

void submit(cudaStream_t stream, std::function<void()> work) {
  if (captured != nullptr) {
    captured->work.push_back(std::move(work));
    return;
  }
  counted_calls().submissions += 1;
  count_work(stream);
  settle(stream);
  work();
}

cudaError_t launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
                   std::function<void()> thread) {
  // The limits of every GPU that the library is built for.
  constexpr unsigned kMaxRows = 65535;
  if (uint64_t{block.x} * block.y * block.z > 1024 || block.z > 64 || grid.x > INT32_MAX ||
      grid.y > kMaxRows || grid.z > kMaxRows || shared_bytes > kMaxDynamicSharedBytes) {
    return report(cudaErrorInvalidConfiguration);
  }
  submit(stream, [grid, block, shared_bytes, thread = std::move(thread)] {
    run_blocks(grid, block, shared_bytes, thread);
  });
  return cudaSuccess;
}

void submit_late(cudaStream_t stream, std::shared_ptr<LateWork> work) {
  const std::lock_guard<std::mutex> lock(streams_mutex());
  stream->seen[stream] += 1;
  stream->late = {std::move(work)};  // which waits for what was there
}

std::vector<std::shared_ptr<LateWork>> unfinished(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(streams_mutex());
  return stream == nullptr ? LateWorks() : stream->late;
}

bool follows_all(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(streams_mutex());
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
    return report(cudaErrorInvalidDevice);
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
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const int claimed = device == 0 && first_capability != 0 ? first_capability.load() : capability();
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 4096;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = claimed / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = claimed % 10;
      return cudaSuccess;
  }
  return report(cudaErrorInvalidValue);
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
  if (const cudaError_t asked = asked_failure(__func__); asked != cudaSuccess) {
    return asked;
  }
  counted_calls().allocations += 1;
  return captured == nullptr ? allocate(pointer, bytes) : report(cudaErrorStreamCaptureUnsupported);
}
cudaError_t cudaFree(void* pointer) {
  settle_all();
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  if (const cudaError_t asked = asked_failure(__func__); asked != cudaSuccess) {
    return asked;
  }
  counted_calls().allocations += 1;
  return allocate(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  settle_all();
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool reads = kind == cudaMemcpyDefault ? !is_allocated(to) : kind == cudaMemcpyDeviceToHost;
  counted_calls().reads_back += reads ? 1 : 0;
  if (kind != cudaMemcpyDeviceToDevice && captured != nullptr) {
    return report(cudaErrorStreamCaptureUnsupported);  // one step's host memory in all of them
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
  const std::lock_guard<std::mutex> lock(streams_mutex());
  if (own_streams().empty()) {
    fp8train::shim::restart_late_events();
  }
  all_streams().push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  settle(stream);
  const std::lock_guard<std::mutex> lock(streams_mutex());
  std::erase(all_streams(), stream);
  for (cudaStream_t other : all_streams()) {
    other->seen.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  counted_calls().synchronizations += 1;
  synchronize(stream);
  return outside_of_capture(gpu_error);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) {
  if (captured != nullptr) {
    return report(cudaErrorStreamCaptureUnsupported);
  }
  captured = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  *graph = std::exchange(captured, nullptr);
  return *graph == nullptr ? report(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  counted_calls().graph_launches += 1;
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
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
}
