// What the cuda device holds after a call of the runtime has failed; only the host shim fails on
// request.

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "cuda_runtime_api.h"
#include "device/device.h"

using namespace fp8train;

TEST_CASE("a cuda device that cannot be made leaves nothing behind") {
  const long before = shim::live_objects();
  shim::fail_next("cudaMalloc", cudaErrorMemoryAllocation);  // its workspace
  CHECK_THROWS_WITH(make_device(DeviceKind::cuda), Catch::Contains("out of GPU memory"));
  CHECK(shim::live_objects() == before);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("a cuda device frees its streams, events and memory") {
  const long before = shim::live_objects();
  {
    const auto device = make_device(DeviceKind::cuda);
    device->side_stream();
    const auto event = device->make_event();
    const Buffer buffer(*device, 100, MemoryCategory::workspace);
    const std::vector<uint8_t> bytes(100, 7);
    device->copy_from_host(buffer.data(), bytes.data(), bytes.size());
  }
  CHECK(shim::live_objects() == before);
}

TEST_CASE("a copy to the GPU works after one whose pinned memory or event was refused") {
  for (const char* refused : {"cudaMallocHost", "cudaEventCreateWithFlags"}) {
    CAPTURE(refused);
    const auto device = make_device(DeviceKind::cuda);
    std::vector<uint8_t> bytes(3 << 20);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(i * i >> 8);
    }
    const Buffer buffer(*device, bytes.size(), MemoryCategory::workspace);
    shim::fail_next(refused, cudaErrorMemoryAllocation);
    CHECK_THROWS_AS(device->copy_from_host(buffer.data(), bytes.data(), bytes.size()), DeviceError);
    for (int i = 0; i < 17; ++i) {  // more than the ring holds: the refused slot comes by again
      device->copy_from_host(buffer.data(), bytes.data(), bytes.size());
    }
    std::vector<uint8_t> got(bytes.size());
    device->copy_to_host(got.data(), buffer.data(), got.size());
    CHECK(got == bytes);
    cudaGetLastError();
  }
}

TEST_CASE("copies and queries ahead of the GPU leave no error") {
  const auto device = make_device(DeviceKind::cuda);
  const Buffer buffer(*device, 100, MemoryCategory::workspace);
  const std::vector<uint8_t> bytes(100, 7);
  const auto event = device->make_event();
  int late = 0;
  for (int i = 0; i < 50; ++i) {  // three times around the ring of pinned memory
    device->copy_from_host(buffer.data(), bytes.data(), bytes.size());
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
    event->record(device->stream());
    for (; !event->reached(); ++late) {
      REQUIRE(cudaPeekAtLastError() == cudaSuccess);
    }
  }
  CHECK(late > 10);  // half of the answers are drawn to be "not ready"
}
