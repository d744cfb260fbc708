#include <catch2/catch.hpp>

#include "base/error.h"
#include "device/arena.h"
#include "device/device.h"

using namespace fp8train;

TEST_CASE("a buffer charges its category for as long as it lives") {
  const auto device = make_device(DeviceKind::cpu);
  {
    const Buffer weights(*device, 1000, MemoryCategory::weights);
    const Buffer moments(*device, 24, MemoryCategory::optimizer_state);
    CHECK(reinterpret_cast<uintptr_t>(weights.data()) % 256 == 0);
    CHECK(device->ledger().current(MemoryCategory::weights) == 1000);
    CHECK(device->ledger().total() == 1024);
    CHECK(device->ledger().allocations() == 2);
  }
  CHECK(device->ledger().total() == 0);
  CHECK(device->ledger().peak() == 1024);
}

TEST_CASE("moving a buffer moves its charge") {
  const auto device = make_device(DeviceKind::cpu);
  Buffer a(*device, 512, MemoryCategory::workspace);
  Buffer b;
  b = std::move(a);
  CHECK(device->ledger().total() == 512);
  b = Buffer();
  CHECK(device->ledger().total() == 0);
}

TEST_CASE("an arena planned on meta serves the same requests on the cpu without allocating") {
  const auto run = [](Arena& arena) {
    const ArenaScope scope(arena);
    arena.allocate(100);
    const Arena::Mark mark = arena.mark();
    arena.allocate(1000);
    arena.release(mark);
    arena.allocate(300);
  };
  const auto meta = make_device(DeviceKind::meta);
  Arena plan(*meta, MemoryCategory::workspace);
  run(plan);
  CHECK(plan.high_water() == 256 + 1024);

  const auto cpu = make_device(DeviceKind::cpu);
  Arena arena(*cpu, MemoryCategory::workspace);
  arena.reserve(plan.high_water());
  const uint64_t allocations = cpu->ledger().allocations();
  run(arena);
  run(arena);
  CHECK(cpu->ledger().allocations() == allocations);
  CHECK_THROWS_AS(arena.allocate(5000), InternalError);
}

TEST_CASE("cuda is refused with one clear error in a build without it") {
  CHECK_THROWS_AS(make_device(DeviceKind::cuda), DeviceError);
}

TEST_CASE("meta memory reads back as zeros") {
  const auto meta = make_device(DeviceKind::meta);
  const Buffer buffer(*meta, 8, MemoryCategory::batch);
  int64_t value = 7;
  meta->copy_to_host(&value, buffer.data(), sizeof(value));
  CHECK(value == 0);
}
