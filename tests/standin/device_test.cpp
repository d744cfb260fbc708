// The cuda device before a runtime whose GPU lags behind.

#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "ops/pointwise/elementwise.h"
#include "standin.h"
#include "tensor/view.h"

using namespace fp8train;

namespace {

constexpr int kCopies = 40;  // more than the ring of pinned memory has slots

}  // namespace

TEST_CASE("copies that the host submits ahead of the GPU arrive and leave no error") {
  const auto device = make_device(DeviceKind::cuda);
  std::vector<uint32_t> sent(kCopies);
  const Buffer buffer(*device, kCopies * sizeof(uint32_t), MemoryCategory::workspace);
  for (uint32_t i = 0; i < kCopies; ++i) {
    sent[i] = 1000 + i;
    device->copy_from_host(static_cast<uint32_t*>(buffer.data()) + i, &sent[i], sizeof(uint32_t));
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  }
  std::vector<uint32_t> got(kCopies);
  device->copy_to_host(got.data(), buffer.data(), kCopies * sizeof(uint32_t));
  CHECK(got == sent);
}

TEST_CASE("an event of the device is late and leaves no error") {
  const auto device = make_device(DeviceKind::cuda);
  const Buffer buffer(*device, 64, MemoryCategory::workspace);
  const auto event = device->make_event();
  for (int i = 0; i < 10; ++i) {
    device->fill_zero(buffer.data(), 64);
  }
  event->record(device->stream());
  CHECK_FALSE(event->reached());
  while (!event->reached()) {
    REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  }
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("a launch is not blamed for a refused call before it") {
  const auto device = make_device(DeviceKind::cuda);
  const Buffer buffer(*device, 64, MemoryCategory::workspace);
  char host = 0;
  REQUIRE(cudaFree(&host) == cudaErrorInvalidValue);
  REQUIRE(cudaFreeHost(&host) == cudaErrorInvalidValue);
  CHECK(standin::take_refusals().size() == 2);
  CHECK_NOTHROW(ops::fill(device->stream(), {buffer.data(), DType::f32, {16}}, 1.0F));
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
}
