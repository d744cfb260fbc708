// Saves that go on while training does: phases, failures of one rank, what a reader sees meanwhile.

#include "train/checkpoint/checkpoint_saver.h"
#include "engine/dry_run.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "support/file_size_limit.h"
#include "support/files.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

/// A state of one tensor whose values are all `value`; ranks after the first have no texts.
void make_state(StateCopy& copy, int64_t step, float value, int rank, size_t count = 1000) {
  copy.step = step;
  copy.run_id = "test";
  if (rank == 0) {
    copy.texts = {{"state.json", {}, "{}\n"}};
  }
  copy.optimizer.memory.resize(1);
  auto* values = static_cast<float*>(copy.optimizer.memory[0].resize(count * sizeof(float)));
  std::fill(values, values + count, value);
  copy.optimizer.file.name = "optimizer-" + std::to_string(rank) + ".safetensors";
  copy.optimizer.file.tensors = {{"w", DType::f32, {static_cast<int64_t>(count)}, values}};
}

CheckpointSaver make_saver(const fs::path& root, bool async, Communicator& comm) {
  fs::create_directories(root);
  return {root, async, CheckpointRetention(root, {.keep_last = 1}), comm};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_CASE("a save that continues while training does writes what a waiting one writes") {
  const test::TempDir dir;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  for (const bool async : {true, false}) {
    CheckpointSaver saver = make_saver(dir / (async ? "async" : "sync"), async, *self);
    saver.start([](StateCopy& copy) { make_state(copy, 7, 1.5F, 0); }, true);
    CHECK(saver.in_flight());
    std::optional<SaveResult> result;
    while (async && !result) {
      result = saver.advance();  // as at step boundaries
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!async) {
      result = saver.finish();
    }
    REQUIRE(result.has_value());
    CHECK(result->saved);
    CHECK(result->step == 7);
    CHECK(result->bytes > 4000);
    CHECK(result->write_seconds > 0);
    CHECK_FALSE(saver.finish().has_value());  // it is reported once
    CHECK_FALSE(saver.in_flight());
  }
  for (const char* file : {"MANIFEST.json", "state.json", "optimizer-0.safetensors"}) {
    CHECK(test::read_file(dir / "async/step-000007" / file) ==
          test::read_file(dir / "sync/step-000007" / file));
  }
}

TEST_CASE("older checkpoints are deleted after the new one is published, and only if asked") {
  const test::TempDir dir;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  CheckpointSaver saver = make_saver(dir.path(), true, *self);
  for (const int64_t step : {1, 2}) {
    saver.start([&](StateCopy& copy) { make_state(copy, step, 1.0F, 0); }, false);
    CHECK(saver.finish()->saved);
  }
  CHECK(find_checkpoints(dir.path()).size() == 2);
  saver.start([](StateCopy& copy) { make_state(copy, 3, 1.0F, 0); }, true);
  CHECK(saver.finish()->saved);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000003"});
}

TEST_CASE("a folder that cannot be looked at does not end the run") {
  const test::TempDir dir;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  const IsScheduled refused = [](const fs::path& folder) -> bool {
    throw fs::filesystem_error("cannot look", folder, std::make_error_code(std::errc::io_error));
  };
  CheckpointSaver saver(dir.path(), true,
                        CheckpointRetention(dir.path(), {.keep_last = 1}, {}, refused), *self);
  for (const int64_t step : {1, 2}) {
    saver.start([&](StateCopy& copy) { make_state(copy, step, 1.0F, 0); }, true);
    CHECK(saver.finish()->saved);
  }
  CHECK(find_checkpoints(dir.path()).size() == 2);  // nothing is deleted then
}

TEST_CASE("a save that the disk refuses leaves the older checkpoint and can be tried again") {
  const bool async = GENERATE(true, false);
  const test::TempDir dir;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  CheckpointSaver saver = make_saver(dir.path(), async, *self);
  const auto save = [&](int64_t step) {
    saver.start([&](StateCopy& copy) { make_state(copy, step, 2.0F, 0); }, true);
    return saver.finish().value();
  };
  CHECK(save(1).saved);
  {
    const test::FileSizeLimit full(1000);
    const SaveResult result = save(2);
    CHECK_FALSE(result.saved);
    CHECK_THAT(result.failure, Contains("optimizer-0.safetensors") && Contains("File too large"));
    CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000001"});
  }
  CHECK(save(2).saved);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000002"});
  fs::remove_all(dir.path());
  test::write_file(dir.path(), "a file where the folder was");
  CHECK_THAT(save(3).failure, Contains("is gone"));
}

/// Changes a byte of the file as soon as it has its name; the save reads it back after that.
void damage(const fs::path& file) {
  std::error_code unseen;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!fs::exists(file, unseen) && std::chrono::steady_clock::now() < end) {
  }
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(39'000'000);
  stream.put('x');
}

TEST_CASE("what is damaged before it is read back is a failed save") {
  const test::TempDir dir;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  CheckpointSaver saver = make_saver(dir.path(), true, *self);
  std::optional<SaveResult> result;
  // Where this thread had to wait, the file was read before.
  for (int attempt = 0; attempt < 8 && (!result || result->saved); ++attempt) {
    fs::remove_all(dir.path());
    fs::create_directories(dir.path());
    saver.start([](StateCopy& copy) { make_state(copy, 1, 1.0F, 0, 10'000'000); }, true);
    damage(dir / "step-000001.partial/optimizer-0.safetensors");
    result = saver.finish();
  }
  REQUIRE(result.has_value());
  CHECK_FALSE(result->saved);
  CHECK_THAT(result->failure, Contains("cannot be read back") && Contains("optimizer-0"));
  CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a save fails on all ranks where it fails on one, and the next one succeeds") {
  const bool async = GENERATE(true, false);
  constexpr int kRanks = 3;
  const test::TempDir dir;
  std::mutex mutex;
  std::vector<SaveResult> failed;
  std::vector<SaveResult> saved;
  const test::FileSizeLimit limit(20'000);
  const auto body = [&](Communicator& comm) {
    CheckpointSaver saver = make_saver(dir.path(), async, comm);
    const auto save = [&](int64_t step, std::vector<SaveResult>& results) {
      const bool is_large = step == 2 && comm.rank() == 1;
      saver.start(
          [&](StateCopy& copy) {
            make_state(copy, step, 1.0F, comm.rank(), is_large ? 100'000 : 1000);
          },
          true);
      std::optional<SaveResult> result;
      while (async && saver.in_flight() && !result) {
        result = saver.advance();
      }
      const std::optional<SaveResult> rest = saver.finish();
      const std::lock_guard<std::mutex> lock(mutex);
      results.push_back(result ? *result : rest.value());
    };
    save(1, saved);
    save(2, failed);
    save(3, saved);
  };
  CHECK(test::run_ranks(Topology::blocks(kRanks, kRanks), body) ==
        std::vector<std::string>(kRanks));
  REQUIRE(failed.size() == kRanks);
  for (const SaveResult& result : failed) {
    CHECK_FALSE(result.saved);
    CHECK_THAT(result.failure, Contains("rank 1: ") && Contains("File too large"));
  }
  REQUIRE(saved.size() == 2 * kRanks);
  CHECK(std::all_of(saved.begin(), saved.end(), [](const SaveResult& one) { return one.saved; }));
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000003"});
  CHECK(verify_checkpoint(dir / "step-000003").files.size() == kRanks + 1);
}

TEST_CASE("a state that is not finite on one rank is an error on all") {
  const test::TempDir dir;
  const auto body = [&](Communicator& comm) {
    CheckpointSaver saver = make_saver(dir.path(), true, comm);
    saver.start(
        [&](StateCopy&) {
          if (comm.rank() == 0) {
            throw NumericError("w[3] is nan");
          }
        },
        true);
  };
  const auto errors = test::run_ranks(Topology::blocks(2, 2), body);
  CHECK(errors == std::vector<std::string>(2, "w[3] is nan"));
  CHECK(names_in(dir.path()).empty());
}

TEST_CASE("the copy of the state takes the memory that was planned, for each rank") {
  for (const char* plan : {"fp32", "te-delayed", "fp8-lm", "fp8-min"}) {
    for (const int stage : {0, 2}) {
      CAPTURE(plan, stage);
      EngineSettings settings = test::small_llama(plan);
      settings.strategy.zero_stage = stage;
      const auto body = [&](Communicator& comm) {
        const size_t planned =
            dry_run_step(settings, DeviceTraits{}, comm.topology(), comm.rank()).state_copy;
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        engine.model().initialize(1);
        CheckpointSaver saver("nowhere", true, CheckpointRetention("nowhere", {}), comm);
        saver.reserve([&](StateCopy& copy) {
          copy_weights(*device, engine.model().parameters(), settings.model,
                       engine.strategy().mesh(), copy.weights);
          if (state_writer(engine).writes) {
            refresh_optimizer_file(engine, copy.optimizer);
          }
        });
        if (saver.copy_bytes() != planned || (planned == 0) != (stage == 0 && comm.rank() == 1)) {
          throw InternalError(std::to_string(saver.copy_bytes()) + " bytes, planned " +
                              std::to_string(planned));
        }
      };
      CHECK(test::run_ranks(Topology::blocks(2, 2), body) == std::vector<std::string>(2));
    }
  }
}

TEST_CASE("an object that goes away while its save is in flight leaves nothing half") {
  const test::TempDir dir;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  {
    CheckpointSaver saver = make_saver(dir.path(), true, *self);
    saver.start([](StateCopy& copy) { make_state(copy, 1, 1.0F, 0, 5'000'000); }, true);
  }
  CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a folder that is another run's by now is left as it is on all ranks") {
  const test::TempDir dir;
  std::atomic<bool> is_lost = false;
  const auto lossy_saver = [&](Communicator& comm) {
    return CheckpointSaver(dir.path(), true, CheckpointRetention(dir.path(), {.keep_last = 1}),
                           comm, [&] { return is_lost.load(); });
  };
  const auto body = [&](Communicator& comm) {
    CheckpointSaver saver = lossy_saver(comm);
    const auto start = [&](int step) {
      saver.start([&](StateCopy& copy) { make_state(copy, step, 1.0F, comm.rank()); }, true);
    };
    start(1);
    check(saver.finish()->saved, "the first save succeeds");
    start(2);
    if (comm.rank() == 0) {
      fs::create_directories(dir / "step-000009.partial");
      is_lost = true;
    }
    check(!saver.finish() && !saver.in_flight(), "the save has ended without a result");
  };
  CHECK(test::run_ranks(Topology::blocks(2, 2), body) == std::vector<std::string>(2));
  CHECK(names_in(dir.path()) == std::vector<std::string>{"latest", "step-000001",
                                                         "step-000002.partial",
                                                         "step-000009.partial"});
  is_lost = false;
  const std::unique_ptr<Communicator> self = make_self_communicator();
  {
    CheckpointSaver saver = lossy_saver(*self);
    saver.start([&](StateCopy& copy) { make_state(copy, 3, 1.0F, 0); }, true);
    is_lost = true;
  }
  CHECK(fs::exists(dir / "step-000003.partial"));
}

}  // namespace
}  // namespace fp8train
