// What ranks have saved in parts is read by any other number of ranks, with any ZeRO stage: to the
// same bits.

#include <catch2/catch.hpp>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "io/safetensors/safetensors.h"
#include "support/temp_dir.h"
#include "train/checkpoint/resume_checks.h"
#include "train/checkpoint/saved_state.h"
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
    made.strategy.bucket_bytes = 1 << 20;  // most ranks have nothing of most weights
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

TEST_CASE("a tensor that is stored in another type than the run's is named with both types") {
  const test::TempDir dir;
  const auto settings = [](std::string RoleRequest::*moment) {
    PlanRequest request;
    request.plan = "bf16";
    request.roles.*moment = "bf16";
    EngineSettings made = settings_of("bf16", 0);
    made.plan = resolve_plan(request);
    return made;
  };
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  run({1, 0}, [&](Communicator& comm) {
    Engine engine(*device, settings(&RoleRequest::moment1), &comm);
    save(dir.path(), engine, comm);
  });
  Engine engine(*device, settings(&RoleRequest::moment2));
  CHECK_THROWS_WITH(
      load_optimizer_files(dir / "step-000001", engine),
      Catch::Contains("step-000001: 'moment2.layers.0.") &&
          Catch::Contains("is stored as fp32, and this run stores it as bf16; to continue"));
}

TEST_CASE("a value that training cannot have left is named, also in files without a manifest") {
  const test::TempDir dir;
  const float values[] = {1.0F, std::numeric_limits<float>::infinity()};
  write_safetensors({{"value.w@0", DType::f32, {2}, values}}, {}, dir / "part.safetensors");
  const SavedState parts(dir.path(), {"part.safetensors"});
  const StateBox box = {.element = 0, .count = 2, .columns = 2, .width = 2};
  CHECK_THROWS_WITH(parts.read("value.w", DType::f32, box),
                    Catch::Contains("value.w[1] is NaN or infinite"));
  CHECK_THROWS_AS(parts.read("value.w", DType::bf16, box), OtherRunError);
}
