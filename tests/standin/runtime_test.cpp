// What the stand-in runtime refuses, as a driver does, and how late it answers.

#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "standin.h"

using Catch::Contains;
using fp8train::standin::take_refusals;

extern "C" void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*,
                                       dim3*, dim3*, int*);

namespace {

void kernel() {}
void unknown_kernel() {}

/// A stream of its own, destroyed at the end.
struct Stream {
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return handle; }  // NOLINT(google-explicit-constructor)

  cudaStream_t handle = nullptr;
};

struct Event {
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    REQUIRE(cudaEventCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return handle; }  // NOLINT(google-explicit-constructor)

  cudaEvent_t handle = nullptr;
};

struct GpuMemory {
  explicit GpuMemory(size_t bytes) { REQUIRE(cudaMalloc(&data, bytes) == cudaSuccess); }
  ~GpuMemory() { cudaFree(data); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  void* data = nullptr;
};

/// The one refusal since it was last asked.
std::string refusal() {
  const std::vector<std::string> all = take_refusals();
  REQUIRE(all.size() == 1);
  cudaGetLastError();
  return all[0];
}

}  // namespace

TEST_CASE("an error stays the thread's last one until it is asked for") {
  CHECK(cudaSetDevice(7) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(0) == cudaSuccess);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("an event is reached late, and asking for it leaves an error") {
  const Stream stream;
  const GpuMemory memory(100);
  const Event event;
  CHECK(cudaEventQuery(event) == cudaSuccess);  // not recorded
  for (int i = 0; i < 10; ++i) {
    REQUIRE(cudaMemsetAsync(memory.data, i, 100, stream) == cudaSuccess);
  }
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  REQUIRE(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  int queries = 0;
  while (cudaEventQuery(event) != cudaSuccess) {
    ++queries;
  }
  CHECK(queries > 10);
  cudaGetLastError();
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
}

TEST_CASE("a copy reads pinned memory late and other memory at once") {
  const Stream stream;
  const GpuMemory memory(2);
  char* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 1) == cudaSuccess);
  char pageable = 'a';
  *pinned = 'a';
  auto* const to = static_cast<char*>(memory.data);
  REQUIRE(cudaMemcpyAsync(to, pinned, 1, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(to + 1, &pageable, 1, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  *pinned = pageable = 'b';
  char got[3] = {};
  REQUIRE(cudaMemcpyAsync(got, to, 2, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(std::string(got) == "ba");
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("a stream waits for an event of another") {
  const Stream first;
  const Stream second;
  const GpuMemory memory(1);
  const Event event;
  const Event after;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(cudaMemsetAsync(memory.data, 1, 1, first) == cudaSuccess);
  }
  REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
  REQUIRE(cudaEventRecord(after, second) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(after) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
}

TEST_CASE("memory that is foreign, freed or too small is refused") {
  const Stream stream;
  char host[64] = {};
  void* freed = nullptr;
  REQUIRE(cudaMalloc(&freed, 64) == cudaSuccess);
  REQUIRE(cudaFree(freed) == cudaSuccess);
  const GpuMemory memory(64);
  CHECK(cudaMemsetAsync(host, 0, 64, stream) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("memory that the runtime did not allocate"));
  CHECK(cudaMemsetAsync(memory.data, 0, 65, stream) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("a range that ends behind it"));
  CHECK(cudaMemcpyAsync(memory.data, memory.data, 8, cudaMemcpyHostToDevice, stream) ==
        cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("the source is memory of the GPU"));
  CHECK(cudaMemcpyAsync(host, host, 8, cudaMemcpyDeviceToHost, stream) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("the source is memory that the runtime did not allocate"));
  CHECK(cudaFreeHost(memory.data) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("cudaFreeHost: frees memory of the GPU"));
  CHECK(cudaFree(static_cast<char*>(memory.data) + 8) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("cudaFree"));
  CHECK(cudaFree(nullptr) == cudaSuccess);
  if (freed != memory.data) {
    CHECK(cudaFree(freed) == cudaErrorInvalidValue);
    CHECK_THAT(refusal(), Contains("memory that was freed"));
  }
  size_t free_bytes = 0;
  size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
  CHECK(free_bytes + 64 == total);
  void* large = nullptr;
  CHECK(cudaMalloc(&large, total) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(take_refusals().empty());  // a correct program may meet it
}

TEST_CASE("handles that are not alive and the null stream are refused") {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
  CHECK_THAT(refusal(), Contains("cudaEventRecord: an event that is not alive"));
  CHECK(cudaEventDestroy(event) == cudaErrorInvalidResourceHandle);
  CHECK_THAT(refusal(), Contains("not alive"));
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  CHECK_THAT(refusal(), Contains("a stream that is not alive"));
  CHECK(cudaStreamSynchronize(nullptr) == cudaErrorInvalidResourceHandle);
  CHECK_THAT(refusal(), Contains("null stream"));
  CHECK(cudaGraphLaunch(nullptr, stream) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("not alive"));
}

TEST_CASE("a recording holds work, and calls that would break it are refused") {
  const Stream stream;
  const GpuMemory memory(8);
  const Event event;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaMemsetAsync(memory.data, 3, 8, stream) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(memory.data, 5, 4, stream) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  char got[8] = {};
  const auto read = [&] {
    REQUIRE(cudaMemcpyAsync(got, memory.data, 8, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  };
  read();
  CHECK(got[0] == 3);
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  read();
  CHECK(got[0] == 5);
  CHECK(got[4] == 3);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);

  const auto broken_by = [&](auto call) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(call() == cudaErrorStreamCaptureUnsupported);
    CHECK_THAT(refusal(), Contains("called while a graph is recorded"));
    CHECK(cudaMemsetAsync(memory.data, 0, 8, stream) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
  };
  void* pointer = nullptr;
  broken_by([&] { return cudaMalloc(&pointer, 8); });
  broken_by([&] { return cudaMallocHost(&pointer, 8); });
  broken_by([&] { return cudaFree(memory.data); });
  broken_by([&] { return cudaStreamSynchronize(stream); });
  broken_by([&] { return cudaEventQuery(event); });
  broken_by([&] { return cudaEventSynchronize(event); });
  broken_by([&] { return cudaMemcpyAsync(memory.data, got, 8, cudaMemcpyHostToDevice, stream); });
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaMemsetAsync(memory.data, 0, 8, nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK_THAT(refusal(), Contains("null stream"));
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_CASE("only an event that takes time can be timed") {
  const Stream stream;
  const Event from(cudaEventDefault);
  const Event to(cudaEventDefault);
  const Event untimed;
  for (cudaEvent_t event : {from.handle, to.handle, untimed.handle}) {
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  }
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, from, to) == cudaErrorNotReady);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaEventElapsedTime(&milliseconds, from, to) == cudaSuccess);
  CHECK(milliseconds > 0);
  CHECK(cudaEventElapsedTime(&milliseconds, from, untimed) == cudaErrorInvalidResourceHandle);
  CHECK_THAT(refusal(), Contains("takes no time"));
}

TEST_CASE("launches beyond the GPU's limits are refused") {
  const Stream stream;
  const auto function = [](void (*host)()) { return reinterpret_cast<const void*>(host); };
  __cudaRegisterFunction(nullptr, reinterpret_cast<const char*>(kernel), nullptr, "kernel", -1,
                         nullptr, nullptr, nullptr, nullptr, nullptr);
  const auto launch = [&](dim3 grid, dim3 block, size_t shared_bytes = 0) {
    return cudaLaunchKernel(function(kernel), grid, block, nullptr, shared_bytes, stream);
  };
  CHECK(launch({INT32_MAX, 65535, 65535}, {16, 1, 64}, 48 << 10) == cudaSuccess);
  struct Case {
    dim3 grid, block;
  };
  for (const Case& c :
       {Case{{0}, {32}}, Case{{1U << 31}, {32}}, Case{{1, 65536}, {32}}, Case{{1, 1, 65536}, {32}},
        Case{{1}, {0}}, Case{{1}, {1025}}, Case{{1}, {32, 33}}, Case{{1}, {1, 1, 65}}}) {
    CHECK(launch(c.grid, c.block) == cudaErrorInvalidConfiguration);
    CHECK_THAT(refusal(), Contains("beyond the limits, of kernel"));
  }
  CHECK(launch({1}, {32}, (48 << 10) + 1) == cudaErrorInvalidValue);
  CHECK_THAT(refusal(), Contains("more shared memory than was set"));
  const auto set = [&](int bytes) {
    return cudaFuncSetAttribute(function(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                bytes);
  };
  CHECK(set((227 << 10) + 1) == cudaErrorInvalidValue);  // an H200
  CHECK_THAT(refusal(), Contains("more shared memory than the GPU has"));
  CHECK(set(227 << 10) == cudaSuccess);
  CHECK(launch({1}, {32}, 227 << 10) == cudaSuccess);
  CHECK(cudaLaunchKernel(function(unknown_kernel), {1}, {32}, nullptr, 0, stream) ==
        cudaErrorInvalidDeviceFunction);
  CHECK_THAT(refusal(), Contains("not registered"));
}
