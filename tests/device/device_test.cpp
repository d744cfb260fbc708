#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "base/error.h"
#include "device/arena.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "device/device_choice.h"
#include "device/recording.h"

using namespace fp8train;

TEST_CASE("a device is chosen by name") {
  CHECK(device_choice_named("auto") == DeviceChoice::automatic);
  CHECK(device_choice_named("cuda") == DeviceChoice::cuda);
  CHECK_THROWS_WITH(device_choice_named("gpu"), "Unknown device 'gpu' (expected auto, cpu, cuda)");
}

TEST_CASE("large reads from the cpu are copies of every byte, wherever they go") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  constexpr size_t kMebibyte = size_t{1} << 20;
  for (const size_t bytes : {kMebibyte - 1, kMebibyte, 2 * kMebibyte + 77}) {
    std::vector<uint8_t> from(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      from[i] = static_cast<uint8_t>(i * 31 + i / 251);
    }
    for (const size_t offset : {size_t{0}, size_t{16}, size_t{3}}) {
      CAPTURE(bytes, offset);
      std::vector<uint8_t> to(bytes + offset + 64, 7);
      device->copy_to_host(to.data() + offset, from.data(), bytes);
      CHECK(std::equal(from.begin(), from.end(), to.begin() + static_cast<int64_t>(offset)));
      CHECK(std::all_of(to.begin() + static_cast<int64_t>(offset + bytes), to.end(),
                        [](uint8_t byte) { return byte == 7; }));
    }
  }
}

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

TEST_CASE("a side stream is ordered by events") {
  const auto cpu = make_device(DeviceKind::cpu);
  CHECK(cpu->side_stream().native() == cpu->stream().native());
  CHECK(cpu->make_event()->reached());
  if (!why_cuda_is_unusable().empty()) {
    return;
  }
  const auto device = make_device(DeviceKind::cuda);
  const Stream side = device->side_stream();
  CHECK(side.native() != device->stream().native());
  CHECK(device->side_stream().native() == side.native());
  CHECK_FALSE(device->hardware_id().empty());
  const auto event = device->make_event();
  event->record(device->stream());
  event->hold(side);
  event->record(side);
  event->hold(device->stream());
  device->synchronize();
  CHECK(event->reached());
  CHECK_THROWS_WITH(make_device(DeviceKind::cuda, 1000),
                    Catch::Contains("GPU 1000 was asked for, but this process sees"));
}

TEST_CASE("cuda is refused with its reason, or it serves") {
  const std::string obstacle = why_cuda_is_unusable();
  if (!obstacle.empty()) {
    CHECK_THROWS_WITH(make_device(DeviceKind::cuda), Catch::Contains(obstacle));
    return;
  }
  const auto device = make_device(DeviceKind::cuda);
  CHECK(device->traits().fp8_gemm_by_library);
  CHECK_THAT(device->description(), Catch::Contains("cuda: "));
  // More than the ring of pinned memory holds, and no multiple of its slots.
  std::vector<uint8_t> sent((size_t{20} << 20) + 13);
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<uint8_t>(i * 2654435761U >> 24);
  }
  const Buffer buffer(*device, sent.size(), MemoryCategory::batch);
  device->copy_from_host(buffer.data(), sent.data(), sent.size());
  std::vector<uint8_t> received(sent.size());
  device->copy_to_host(received.data(), buffer.data(), received.size());
  CHECK(received == sent);
  device->fill_zero(buffer.data(), 100);
  device->copy_to_host(received.data(), buffer.data(), received.size());
  CHECK(std::all_of(received.begin(), received.begin() + 100, [](uint8_t v) { return v == 0; }));
  CHECK(std::equal(received.begin() + 100, received.end(), sent.begin() + 100));
}

TEST_CASE("a meta device plans with the traits of another") {
  CHECK(make_device(DeviceKind::meta)->traits() == DeviceTraits{});
  const std::unique_ptr<Device> planning = make_meta_device(cuda_traits(90));
  CHECK(planning->traits() == cuda_traits(90));
  CHECK(planning->ledger().current(MemoryCategory::workspace) == size_t{32} << 20);
}

TEST_CASE("scale modes of GEMMs by capability") {
  using enum ScalePair;
  const auto modes = [](int capability) {
    std::vector<ScalePair> found;
    for (size_t i = 0; i < kScalePairs; ++i) {
      if (cuda_traits(capability).fp8_products.has(static_cast<ScalePair>(i))) {
        found.push_back(static_cast<ScalePair>(i));
      }
    }
    return found;
  };
  CHECK(modes(80).empty());
  CHECK(modes(89) == std::vector{tensor});
  CHECK(modes(90) ==
        std::vector{tensor, row, block_1x128_1x128, block_1x128_128x128, block_128x128_1x128});
  CHECK(modes(100) == std::vector{tensor, block_1x32, block_1x16});
}

TEST_CASE("each FP8 product has an entry of its own in the table") {
  Fp8Products products(Fp8Support::none);
  std::vector<Fp8Product> all;
  for (size_t pair = 0; pair < kScalePairs; ++pair) {
    const auto scales = static_cast<ScalePair>(pair);
    for (const DType a : ProductCodes::kTypes) {
      for (const DType b : ProductCodes::kTypes) {
        for (const DType c : ProductResults::kTypes) {
          if (!have_product(scales, a, b)) {
            CHECK(Fp8Products(Fp8Support::any).support({scales, a, b, c, false}) ==
                  Fp8Support::none);
            continue;
          }
          all.push_back({scales, a, b, c, false});
          if (has_fast_accumulation(scales)) {
            all.push_back({scales, a, b, c, true});
          }
        }
      }
    }
  }
  CHECK(all.size() == 84);  // 3 pairs of FP8 codes for 6 pairs of scales, one of e2m1; 3 results
  for (const Fp8Product& one : all) {
    products.set(one, Fp8Support::by_128);
    const auto others = std::count_if(all.begin(), all.end(), [&](const Fp8Product& other) {
      return products.support(other) != Fp8Support::none;
    });
    CHECK(others == 1);
    CHECK(products.has(one.scales));
    products.set(one, Fp8Support::none);
  }
  Fp8Product blocks = {ScalePair::block_1x128_1x128, DType::e5m2, DType::e4m3, DType::f32, false};
  products.set(blocks, Fp8Support::any);
  blocks.fast_accumulate = true;  // which blocks of 128 have no use for
  CHECK(products.support(blocks) == Fp8Support::any);
  products.set(ScalePair::row, Fp8Support::any);
  CHECK(products.support({ScalePair::row, DType::e5m2, DType::e5m2, DType::f32, false}) ==
        Fp8Support::none);
}

TEST_CASE("repeated work has the same effect each time, recorded or not") {
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    if (kind == DeviceKind::cuda && !why_cuda_is_unusable().empty()) {
      continue;
    }
    const auto device = make_device(kind);
    CHECK(device->records() == (kind == DeviceKind::cuda));
    const Buffer buffer(*device, 8, MemoryCategory::batch);
    RepeatedWork work;
    int host_runs = 0;
    for (int i = 0; i < 4; ++i) {
      const int64_t sent = 7;
      device->copy_from_host(buffer.data(), &sent, sizeof(sent));
      work.run(*device, [&] {
        device->fill_zero(buffer.data(), 4);
        ++host_runs;
      });
      int64_t received = 1;
      device->copy_to_host(&received, buffer.data(), sizeof(received));
      CHECK(received == 0);
    }
    CHECK(host_runs == (device->records() ? 2 : 4));  // as it is and recorded, or each time
  }
}

TEST_CASE("what must not be recorded is an error, and the device goes on") {
  if (!why_cuda_is_unusable().empty()) {
    CHECK_THROWS_AS(make_device(DeviceKind::cpu)->record([] {}), InternalError);
    return;
  }
  const auto device = make_device(DeviceKind::cuda);
  const Buffer buffer(*device, 8, MemoryCategory::batch);
  int64_t value = 5;
  CHECK_THROWS_AS(device->record([&] { device->synchronize(); }), DeviceError);
  CHECK_THROWS_AS(device->record([&] { device->copy_to_host(&value, buffer.data(), 8); }),
                  DeviceError);
  CHECK_THROWS_AS(device->record([&] { throw ConfigError("of the work"); }), ConfigError);
  device->copy_from_host(buffer.data(), &value, sizeof(value));
  int64_t received = 0;
  device->copy_to_host(&received, buffer.data(), sizeof(received));
  CHECK(received == 5);
}

TEST_CASE("meta memory reads back as zeros") {
  const auto meta = make_device(DeviceKind::meta);
  const Buffer buffer(*meta, 8, MemoryCategory::batch);
  int64_t value = 7;
  meta->copy_to_host(&value, buffer.data(), sizeof(value));
  CHECK(value == 0);
}
