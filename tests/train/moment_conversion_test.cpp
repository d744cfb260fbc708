// Moments that were saved under one plan and are read under another.

#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>

#include "ops/storage/storage.h"
#include "support/temp_dir.h"
#include "train/saved_states.h"

using namespace fp8train;
using test::Bytes;
using test::contents;
using test::Layout;
using test::reserve;
using test::run;
using test::save;
using test::settings_of;
using test::train;
namespace fs = std::filesystem;

namespace {

/// Values of both moments of all parameters, in the order of the store.
struct Moments {
  std::vector<std::vector<float>> first, second;
};

std::vector<float> decoded(Device& device, const Encoded& stored) {
  const Tensor values(device, DType::f32, {stored.count()}, MemoryCategory::workspace);
  ops::read_stored(device.stream(), stored, values);
  std::vector<float> host(static_cast<size_t>(stored.count()));
  copy_to_host(device, host.data(), values);
  return host;
}

Moments moments_of(Engine& engine) {
  Moments moments;
  for (size_t i = 0; i < engine.model().parameters().all().size(); ++i) {
    moments.first.push_back(decoded(engine.device(), engine.optimizer().state("moment1", i)));
    moments.second.push_back(decoded(engine.device(), engine.optimizer().state("moment2", i)));
  }
  return moments;
}

/// The moments of a run of two steps under a plan, saved in `folder`.
Moments saved_moments(const std::string& plan, const fs::path& folder) {
  Moments moments;
  run({1, 0}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings_of(plan, 0), &comm);
    train(engine, comm);
    save(folder, engine, comm);
    moments = moments_of(engine);
  });
  return moments;
}

/// A checkpoint converted to a plan by ranks of a layout, saved in `folder`; the moments of the
/// first rank.
Moments converted_moments(const std::string& plan, const Layout& layout, const fs::path& from,
                          const fs::path& folder) {
  Moments moments;
  run(layout, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings_of(plan, layout.stage), &comm);
    convert_optimizer_files(from / "step-000001", engine);
    save(folder, engine, comm);
    if (comm.rank() == 0) {
      moments = moments_of(engine);
    }
  });
  return moments;
}

/// Half the distance of two neighbours in a format, relative to a value in its normal range.
float half_a_step(DType dtype) {
  return dtype == DType::e4m3 ? 0x1p-4F : dtype == DType::f16 ? 0x1p-11F : 0x1p-8F;
}

/// Values of one group or tensor are off by half a step of theirs, or of the smallest normal number
/// under a scale that brings the largest magnitude of the tensor to that of the format.
void check_rounded(const std::vector<float>& from, const std::vector<float>& to, DType dtype) {
  REQUIRE(from.size() == to.size());
  float amax = 0;
  for (const float value : from) {
    amax = std::max(amax, std::abs(value));
  }
  const float range = dtype == DType::e4m3 ? 0x1p-14F : dtype == DType::f16 ? 0x1p-28F : 0;
  size_t far = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const float largest_error = std::max(std::abs(from[i]), amax * range) * half_a_step(dtype);
    far += std::abs(from[i] - to[i]) > largest_error * 1.001F ? 1 : 0;
  }
  CHECK(far == 0);
}

}  // namespace

TEST_CASE("moments of fp32 are rounded to the nearest values of another plan's formats") {
  const test::TempDir dir;
  const Moments saved = saved_moments("fp32", dir / "fp32");
  struct Expected {
    const char* plan;
    DType first, second;
  };
  for (const Expected& expected : {Expected{"deepseek-v3", DType::bf16, DType::bf16},
                                   Expected{"msamp-o2", DType::e4m3, DType::f16},
                                   Expected{"fp8-min", DType::e4m3, DType::f16}}) {
    CAPTURE(expected.plan);
    const Moments found =
        converted_moments(expected.plan, {1, 0}, dir / "fp32", dir / expected.plan);
    size_t changed = 0;
    for (size_t i = 0; i < saved.first.size(); ++i) {
      const bool differs = found.first[i] != saved.first[i];
      changed += differs ? 1 : 0;
      if (differs) {
        check_rounded(saved.first[i], found.first[i], expected.first);
        check_rounded(saved.second[i], found.second[i], expected.second);
      }
    }
    CHECK(changed >= 8);  // the linear layers of two blocks
  }
}

TEST_CASE("a second moment too small for its format does not become 0 next to a first moment") {
  const test::TempDir dir;
  run({1, 0}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings_of("fp32", 0), &comm);
    for (size_t i = 0; i < engine.model().parameters().all().size(); ++i) {
      const auto count = static_cast<size_t>(engine.optimizer().state("moment1", i).count());
      std::vector<float> first(count, 1.0F);
      first[1] = 0.0F;
      std::vector<float> second(count, 1e-30F);  // next to 1: below every fp16 code
      second[0] = 1.0F;
      copy_from_host(*device, engine.optimizer().state("moment1", i).codes, first.data());
      copy_from_host(*device, engine.optimizer().state("moment2", i).codes, second.data());
    }
    save(dir / "fp32", engine, comm);
  });
  const Moments found = converted_moments("msamp-o2", {1, 0}, dir / "fp32", dir / "msamp-o2");
  size_t floored = 0;
  for (const std::vector<float>& second : found.second) {
    if (second[2] == 1e-30F) {
      continue;  // stored in fp32
    }
    ++floored;
    CHECK(second[0] == 1.0F);
    CHECK(second[1] == 0.0F);
    CHECK((second[2] > 0.0F && second[2] < 1e-9F));
  }
  CHECK(floored >= 8);
}

TEST_CASE("moments of any plan are read under fp32 as the values that they stand for") {
  const std::string plan =
      GENERATE("deepseek-v3", "msamp-o2", "coat", "fp8-lean", "fp8-min", "te-delayed");
  CAPTURE(plan);
  const test::TempDir dir;
  const Moments saved = saved_moments(plan, dir / "saved");
  const Moments found = converted_moments("fp32", {1, 0}, dir / "saved", dir / "fp32");
  CHECK((found.first == saved.first));
  CHECK((found.second == saved.second));
}

TEST_CASE("ranks convert moments to the bits of a single rank") {
  const std::string plan = GENERATE("msamp-o2", "coat", "fp8-lean");
  CAPTURE(plan);
  const test::TempDir dir;
  saved_moments("bf16", dir / "bf16");
  converted_moments(plan, {1, 0}, dir / "bf16", dir / "single");
  converted_moments(plan, {3, 2}, dir / "bf16", dir / "parts");
  Bytes single = contents(dir / "single" / "step-000001");
  Bytes parts = contents(dir / "parts" / "step-000001");
  for (Bytes* bytes : {&single, &parts}) {
    std::erase_if(*bytes, [](const auto& entry) { return entry.first.starts_with("value."); });
  }
  CHECK(single.size() > 20);
  CHECK(single == parts);
}

TEST_CASE("a moment that a checkpoint lacks is named when it is to be converted") {
  const test::TempDir dir;
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  run({1, 0}, [&](Communicator& comm) {
    EngineSettings settings = settings_of("fp32", 0);
    settings.optimizer = {.name = "sgd", .momentum = 0.9};
    Engine engine(*device, settings, &comm);
    save(dir.path(), engine, comm);
  });
  Engine engine(*device, settings_of("bf16", 0));
  CHECK_THROWS_WITH(convert_optimizer_files(dir / "step-000001", engine),
                    Catch::Contains("no 'moment2."));
}
