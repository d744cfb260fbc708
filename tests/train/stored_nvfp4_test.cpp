// Whole steps whose weights, moments, gradients and wires are in NVFP4, on one rank and on several.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "support/temp_dir.h"
#include "train/checkpoint/saved_state.h"
#include "train/rank_results.h"
#include "train/saved_states.h"

using namespace fp8train;
namespace fs = std::filesystem;

namespace {

constexpr const char* kNvfp4 = "e2m1 group(128) e4m3";

EngineSettings in_nvfp4(bool master, bool gradients, int stage) {
  PlanRequest request;
  request.plan = "te-current";
  request.roles.moment1 = kNvfp4;
  request.roles.moment2 = kNvfp4;
  request.roles.gradient_wire = kNvfp4;
  request.roles.weight_gradient = gradients ? kNvfp4 : "fp32";
  if (!master) {
    request.roles.weight = std::string(kNvfp4) + " stochastic";
    request.roles.master_weight = "none";
    request.roles.parameter_wire = request.roles.weight;
  }
  EngineSettings settings = test::tiny("te-current", 2);
  settings.plan = resolve_plan(request);
  settings.strategy.zero_stage = stage;
  return settings;
}

}  // namespace

TEST_CASE("a batch is learnt with state in NVFP4, on one rank too") {
  const bool master = GENERATE(true, false);
  CAPTURE(master);
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, in_nvfp4(master, true, 0), nullptr);
  engine.reserve(dry_run_step(engine.settings(), DeviceTraits{}, Topology(), 0).plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const Batch batch = test::random_batch(7);
  std::vector<double> losses;
  for (int64_t step = 0; step < 40; ++step) {
    engine.step([&] { return batch; }, step, 3e-3, false);
    losses.push_back(engine.step_loss().mean);
  }
  CAPTURE(losses);
  CHECK(losses.front() > 3.5);  // ln(50) = 3.9
  CHECK(losses.back() < 2.5);
}

TEST_CASE("ranks with state in NVFP4 have the same bits in all stages of ZeRO") {
  const bool master = GENERATE(true, false);
  const bool gradients = GENERATE(true, false);
  const int ranks = GENERATE(2, 3);
  CAPTURE(master, gradients, ranks);
  const Topology topology = Topology::blocks(ranks, ranks);
  std::vector<test::RankResult> first;
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto results = test::train_ranks(in_nvfp4(master, gradients, stage), topology);
    for (const test::RankResult& rank : results) {
      CHECK(rank.as_planned);
      CHECK_FALSE(rank.allocated);
      CHECK(rank.skipped == 0);
      CHECK(test::same_bits(rank.weights, results[0].weights));
    }
    if (stage == 1) {
      first = results;
    }
    if (stage > 1) {  // without ZeRO means are gathered, and rounded once more
      CHECK(test::same_bits(results[0].weights, first[0].weights));
      CHECK(results[0].losses == first[0].losses);
    }
  }
}

TEST_CASE("state in NVFP4 that ranks have saved is the same in every other layout") {
  const test::TempDir dir;
  const auto settings = [](int stage) { return in_nvfp4(false, false, stage); };
  test::run({4, 3}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings(3), &comm);
    test::train(engine, comm);
    test::save(dir / "first", engine, comm);
  });
  const test::Bytes saved = test::contents(dir / "first" / "step-000001");
  CHECK(saved.contains("value.layers.0.mlp.up.weight.scale"));
  for (const test::Layout& other : {test::Layout{2, 1}, test::Layout{1, 0}, test::Layout{3, 2}}) {
    CAPTURE(other.ranks, other.stage);
    const fs::path again = dir / ("again" + std::to_string(other.ranks));
    test::run(other, [&](Communicator& comm) {
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      Engine engine(*device, settings(other.stage), &comm);
      load_optimizer_files(dir / "first" / "step-000001", engine);
      test::save(again, engine, comm);
    });
    CHECK(test::contents(again / "step-000001") == saved);
  }
}

TEST_CASE("a converted second moment in NVFP4 has the nearest values that are not 0") {
  // In units of the smallest code of the smallest scale, under a group's largest of 448 * 512 * 12:
  // the scale of the second block vanishes, and that of the third does not.
  std::vector<float> values(301, 0.0F);
  values[0] = 448.0F * 512.0F * 12.0F;
  const std::vector<float> small = {5.0F, 4.6F, 3.9F, 3.0F, 2.0F, 1.1F, 0.9F, 0.3F, 1e-3F, 0.0F};
  std::copy(small.begin(), small.end(), &values[16]);
  std::fill_n(&values[32], 16, 24.0F);
  std::vector<float> first(301, 0.0F);
  std::fill_n(first.begin(), 128, -1.0F);
  first[18] = first[26] = 0.0F;
  values[300] = 2688.0F;
  first[299] = 1.0F;
  std::vector<float> expected = values;
  expected[299] = 224.0F;
  const std::vector<float> rounded = {4.0F, 4.0F, 4.0F, 3.0F, 2.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
  std::copy(rounded.begin(), rounded.end(), &expected[16]);
  std::fill(&expected[1], &expected[16], 448.0F * 512.0F);
  std::fill(&expected[27], &expected[32], 1.0F);
  expected[26] = 0.0F;
  std::fill(&expected[48], &expected[128], 1.0F);
  HostStored second = stored_in(two_level_groups(), values);
  floor_second_moment(first, values, second);
  CHECK(values_of(second) == expected);
}

TEST_CASE("moments in NVFP4 are converted to fp32 and back") {
  const test::TempDir dir;
  const auto moments = [](Engine& engine) {
    std::vector<std::vector<float>> all;
    for (const char* const role : {"moment1", "moment2"}) {
      for (size_t i = 0; i < engine.model().parameters().all().size(); ++i) {
        all.push_back(values_on_host(engine.device(), engine.optimizer().state(role, i)));
      }
    }
    return all;
  };
  std::vector<std::vector<float>> trained, converted, back;
  test::run({1, 0}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, in_nvfp4(true, false, 0), &comm);
    test::train(engine, comm);
    test::save(dir / "first", engine, comm);
    trained = moments(engine);
  });
  test::run({1, 0}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, test::settings_of("te-current", 0), &comm);
    convert_optimizer_files(dir / "first" / "step-000001", engine);
    test::save(dir / "fp32", engine, comm);
    converted = moments(engine);
  });
  CHECK(converted == trained);
  const auto errors = test::run_ranks(Topology::blocks(1, 1), [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, test::settings_of("te-current", 0), &comm);
    load_optimizer_files(dir / "first" / "step-000001", engine);
  });
  CHECK_THAT(errors[0], Catch::Contains("stored as four-bit codes (e2m1), and this run"));
  test::run({2, 1}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, in_nvfp4(true, false, 1), &comm);
    convert_optimizer_files(dir / "fp32" / "step-000001", engine);
    test::save(dir / "back", engine, comm);
  });
  // Values of a format have codes that are read as them, but for a scale that is rounded again.
  test::run({1, 0}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, in_nvfp4(true, false, 0), &comm);
    load_optimizer_files(dir / "back" / "step-000001", engine);
    back = moments(engine);
  });
  REQUIRE(back.size() == trained.size());
  size_t zeros = 0;
  for (size_t i = 0; i < back.size(); ++i) {
    double squares = 0;
    double difference = 0;
    for (size_t j = 0; j < back[i].size(); ++j) {
      squares += std::pow(static_cast<double>(trained[i][j]), 2);
      difference += std::pow(static_cast<double>(back[i][j]) - trained[i][j], 2);
      const bool is_second = i >= back.size() / 2;
      zeros += is_second && back[i][j] == 0.0F && back[i - back.size() / 2][j] != 0.0F ? 1 : 0;
    }
    CHECK(difference <= 0.01 * squares);
  }
  CHECK(zeros == 0);
}
