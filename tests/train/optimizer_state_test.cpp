// What ranks have saved in parts is read by any other number of ranks, with any ZeRO stage: to the
// same bits.

#include <catch2/catch.hpp>

#include <filesystem>
#include <map>
#include <mutex>

#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"
#include "train/dry_run.h"
#include "train/optimizer_state.h"
#include "train/ranks.h"

using namespace fp8train;

namespace {

namespace fs = std::filesystem;

/// Bytes of everything that is kept, by name and first element, each put together from all ranks.
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
      rehearse_step(engine.settings(), DeviceTraits{}, comm.topology(), comm.rank()).plan);
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

/// Weights that are their own copy beside a master, master and moments with one scale each, below
/// 1: more than a rank owns elements of follows from them.
PrecisionPlan large_values() {
  PlanRequest request;
  request.plan = "bf16";
  request.cells.weight = "bf16";
  request.cells.master_weight = "fp16 tensor";
  request.cells.moment1 = "bf16 tensor";
  request.cells.moment2 = "fp16 tensor";
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
