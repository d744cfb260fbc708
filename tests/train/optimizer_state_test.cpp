// What ranks have saved in parts is read by any other number of ranks, with any ZeRO stage: to the
// same bits.

#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "ops/storage/storage.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"
#include "train/dry_run.h"
#include "train/optimizer_state.h"
#include "train/ranks.h"

using namespace fp8train;

namespace {

namespace fs = std::filesystem;

/// Bytes of everything that is stored, by name and first element, each put together from all ranks.
using Bytes = std::map<std::string, std::vector<uint8_t>>;

struct Layout {
  int ranks, stage;
};

EngineSettings settings_of(const std::string& plan, int stage) {
  EngineSettings settings = test::small_llama(plan);
  settings.zero_stage = stage;
  settings.bucket_bytes = 4096;
  return settings;
}

void run(const Layout& layout, const std::function<void(Communicator&)>& body) {
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(layout.ranks, layout.ranks), body);
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(layout.ranks)));
}

void reserve(Engine& engine, const Communicator& comm) {
  engine.reserve(
      dry_run_step(engine.settings(), DeviceTraits{}, comm.topology(), comm.rank()).plan);
}

void train(Engine& engine, const Communicator& comm) {
  reserve(engine, comm);
  engine.model().initialize(3);
  engine.weights_changed();
  uint64_t pass = 0;
  for (int64_t step = 0; step < 2; ++step) {
    engine.step(
        [&] {
          return test::random_batch(pass++ * static_cast<uint64_t>(comm.size()) +
                                    static_cast<uint64_t>(comm.rank()));
        },
        step, 1e-3, false);
  }
}

void save(const fs::path& root, Engine& engine, Communicator& comm) {
  if (comm.rank() == 0) {
    begin_checkpoint(root, 1);
  }
  wait_for_first_rank(comm);
  static std::mutex mutex;
  static std::vector<FileRecord> records;
  OptimizerFile own;
  refresh_optimizer_file(engine, own);
  if (engine.model().parameters().layout() != nullptr || comm.rank() == 0) {
    const FileRecord record = write_checkpoint_file(partial_checkpoint(root, 1), own.file);
    const std::lock_guard<std::mutex> lock(mutex);
    records.push_back(record);
  }
  comm.barrier().wait();
  if (comm.rank() == 0) {
    commit_checkpoint(root, 1, "test", records);
    records.clear();
  }
  wait_for_first_rank(comm);
}

/// All tensors of the files of a checkpoint: parts one after another.
Bytes contents(const fs::path& checkpoint) {
  std::map<std::string, std::map<int64_t, std::vector<uint8_t>>> parts;
  for (const FileRecord& record : verify_checkpoint(checkpoint).files) {
    const SafetensorsFile file(checkpoint / record.name);
    for (const SafetensorsEntry& entry : file.header().entries) {
      const size_t at = entry.name.rfind('@');
      const int64_t first = at == std::string::npos ? 0 : std::stoll(entry.name.substr(at + 1));
      std::vector<uint8_t>& bytes = parts[entry.name.substr(0, at)][first];
      bytes.resize(entry.bytes());
      file.read(entry, bytes.data());
    }
  }
  Bytes whole;
  for (const auto& [name, pieces] : parts) {
    for (const auto& [first, bytes] : pieces) {
      whole[name].insert(whole[name].end(), bytes.begin(), bytes.end());
    }
  }
  return whole;
}

}  // namespace

TEST_CASE("moments and values that ranks have saved in parts are the same in every other layout") {
  const std::string plan = GENERATE("fp32", "msamp-o2", "fp8-lm", "coat", "fp8-min");
  CAPTURE(plan);
  const test::TempDir dir;
  const Layout first = {4, 3};
  run(first, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings_of(plan, first.stage), &comm);
    train(engine, comm);
    save(dir / "first", engine, comm);
  });
  const Bytes saved = contents(dir / "first" / "step-000001");
  CHECK(saved.size() > 20);
  for (const Layout& other : {Layout{2, 1}, Layout{1, 0}, Layout{2, 0}, Layout{3, 2}}) {
    CAPTURE(other.ranks, other.stage);
    const fs::path again = dir / ("again" + std::to_string(other.ranks + 10 * other.stage));
    run(other, [&](Communicator& comm) {
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      Engine engine(*device, settings_of(plan, other.stage), &comm);
      load_optimizer_files(dir / "first" / "step-000001", engine);
      save(again, engine, comm);
    });
    CHECK(contents(again / "step-000001") == saved);
  }
}

namespace {

/// Weights that are their own copy in addition to a master, master and moments with one scale each,
/// below 1: more than a rank owns elements of follows from them.
PrecisionPlan large_values() {
  PlanRequest request;
  request.plan = "bf16";
  request.roles.weight = "bf16";
  request.roles.master_weight = "fp16 tensor";
  request.roles.moment1 = "bf16 tensor";
  request.roles.moment2 = "fp16 tensor";
  return resolve_plan(request);
}

void step(Engine& engine, const Communicator& comm) {
  engine.step([&] { return test::random_batch(1000 + static_cast<uint64_t>(comm.rank())); }, 2,
              1e-3, false);
}

}  // namespace

TEST_CASE("a run that is read in another stage goes on to the same bits") {
  const test::TempDir dir;
  const auto settings = [](int stage) {
    EngineSettings made = settings_of("bf16", stage);
    made.plan = large_values();
    made.model.initializer_range = 6.0F;
    made.optimizer.grad_clip = 0;
    made.bucket_bytes = 1 << 20;  // most ranks have nothing of most weights
    return made;
  };
  std::vector<float> expected;
  std::vector<std::vector<float>> saved;  // of parameters in fp32, as model.safetensors has them
  run({4, 3}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings(3), &comm);
    train(engine, comm);
    save(dir.path(), engine, comm);
    const std::vector<std::vector<float>> values_before = test::values_by_parameter(engine);
    if (comm.rank() == 0) {
      saved = values_before;
    }
    step(engine, comm);
    const std::vector<float> values = test::values_of(engine);
    if (comm.rank() == 0) {
      expected = values;
    }
  });
  CHECK(expected.size() > 10000);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    std::vector<float> found;
    run({4, stage}, [&](Communicator& comm) {
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      Engine engine(*device, settings(stage), &comm);
      reserve(engine, comm);
      const auto& parameters = engine.model().parameters().all();
      for (size_t i = 0; i < parameters.size(); ++i) {
        set_value(*device, *parameters[i], saved[i].data());
      }
      load_optimizer_files(dir / "step-000001", engine);
      ops::StepControl control = engine.optimizer().control();
      control.applied_steps = 2;
      engine.optimizer().set_control(control);
      engine.weights_changed();
      step(engine, comm);
      const std::vector<float> values = test::values_of(engine);
      if (comm.rank() == 0) {
        found = values;
      }
    });
    CHECK((found == expected));
  }
}

TEST_CASE("a checkpoint that lacks a rank's part says which elements are missing") {
  const test::TempDir dir;
  std::vector<std::string> messages(2);
  run({2, 1}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings_of("fp32", 1), &comm);
    if (comm.rank() == 0) {
      begin_checkpoint(dir.path(), 1);
      OptimizerFile own;
      refresh_optimizer_file(engine, own);
      const FileRecord record = write_checkpoint_file(partial_checkpoint(dir.path(), 1), own.file);
      commit_checkpoint(dir.path(), 1, "test", {record});
    }
    wait_for_first_rank(comm);
    try {
      load_optimizer_files(dir / "step-000001", engine);
    } catch (const CheckpointError& error) {
      messages[static_cast<size_t>(comm.rank())] = error.what();
    }
  });
  CHECK(messages[0].empty());
  CHECK_THAT(messages[1], Catch::Contains("have 0 of the elements"));
}

namespace {

/// Values of both moments of all parameters, in the order of the store.
struct Moments {
  std::vector<std::vector<float>> first, second;
};

std::vector<float> decoded(Device& device, const StoredTensor& stored) {
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
