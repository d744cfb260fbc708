// Master weights in two halves, a bf16 weight and a remainder, against fp32 ones: exact.

#include <catch2/catch.hpp>

#include "engine/dry_run.h"
#include "numeric/codec.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "train/checkpoint/state_formats.h"

namespace fp8train::test::master_halves_test {
namespace {

constexpr int64_t kSteps = 50;

EngineSettings settings_of(const std::string& plan, const std::string& master, int stage = 0) {
  PlanRequest request;
  request.plan = plan;
  request.roles.weight = "bf16";
  request.roles.master_weight = master;
  EngineSettings settings = small_llama(plan, 1);
  settings.plan = resolve_plan(request);
  settings.strategy.zero_stage = stage;
  settings.strategy.bucket_bytes = 4096;
  return settings;
}

struct Result {
  std::vector<double> losses;
  std::vector<float> masters;
  bool as_planned = true;
};

/// What GEMMs read next to fp32 masters: rounded as the upper halves are. Collective.
void round_copies(Engine& engine) {
  const std::vector<std::vector<float>> values = values_by_parameter(engine);
  const auto& parameters = engine.model().parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    const bool has_copy = !parameter.copy.empty() && !parameter.matrices.empty();
    if (!has_copy || parameter.formats.value != TensorFormat{}) {
      continue;  // the head has fp32 values in both
    }
    for (size_t k = 0; k < values[i].size(); ++k) {
      parameter.copy.as<uint16_t>()[k] = split_master(values[i][k]).upper;
    }
  }
}

Result train(const EngineSettings& settings, Communicator* comm) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings, comm);
  const int ranks = comm == nullptr ? 1 : comm->size();
  const int rank = comm == nullptr ? 0 : comm->rank();
  const DryRunStep dry_run =
      dry_run_step(settings, {}, comm == nullptr ? Topology() : comm->topology(), rank);
  engine.reserve(dry_run.plan);
  engine.model().initialize(3);
  engine.weights_changed();
  Result result;
  for (int64_t step = 0; step < kSteps; ++step) {
    round_copies(engine);
    engine.step([&] { return random_batch(static_cast<uint64_t>(step % 7 * ranks + rank)); }, step,
                1e-2, step == 3);
    result.losses.push_back(engine.step_loss().mean);
  }
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    result.as_planned =
        result.as_planned && dry_run.memory.current(category) == device->ledger().current(category);
  }
  result.masters = values_of(engine);
  return result;
}

Result train_on(int ranks, const EngineSettings& settings) {
  if (ranks == 1) {
    return train(settings, nullptr);
  }
  std::vector<Result> results(static_cast<size_t>(ranks));
  for (const std::string& error :
       run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
         results[static_cast<size_t>(comm.rank())] = train(settings, &comm);
       })) {
    CHECK(error == "");
  }
  return results[0];
}

TEST_CASE("masters in two halves train to the bits of fp32 ones") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-blockwise", "te-mxfp8");
  const int ranks = GENERATE(1, 4);
  CAPTURE(plan, ranks);
  const Result whole = train_on(ranks, settings_of(plan, "fp32"));
  const Result halves = train_on(ranks, settings_of(plan, "bf16 remainder"));
  CHECK(halves.losses == whole.losses);
  CHECK(same_bits(halves.masters, whole.masters));
  CHECK(halves.as_planned);
  CHECK(halves.losses.back() < halves.losses.front());
}

TEST_CASE("masters in two halves that ranks have parts of train to the bits of fp32 ones") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-blockwise");
  CAPTURE(plan);
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    EngineSettings halves = settings_of(plan, "bf16 remainder", stage);
    EngineSettings reference = settings_of(plan, "fp32", stage);
    if (stage == 3 && plan == "bf16") {
      // Its copies are gathered anew in each pass: the reference are halves of stage 2, without the
      // norm, whose order of sums is another one.
      reference = settings_of(plan, "bf16 remainder", 2);
      reference.optimizer.grad_clip = halves.optimizer.grad_clip = 0;
    }
    const Result whole = train_on(4, reference);
    const Result parts = train_on(4, halves);
    CHECK(parts.losses == whole.losses);
    CHECK(same_bits(parts.masters, whole.masters));
    CHECK(parts.as_planned);
  }
}

TEST_CASE("smoothed layers read masters in two halves that ranks gather whole") {
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    EngineSettings halves = settings_of("te-delayed", "bf16 remainder", stage);
    EngineSettings whole = settings_of("te-delayed", "fp32", stage);
    halves.plan.swiglu = whole.plan.swiglu = SwigluInput::smoothed;
    const Result a = train_on(2, halves);
    const Result b = train_on(2, whole);
    CHECK(a.losses == b.losses);
    CHECK(same_bits(a.masters, b.masters));
  }
}

TEST_CASE("a checkpoint does not say whether masters were in two halves") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine whole(*device, settings_of("te-delayed", "fp32"));
  Engine halves(*device, settings_of("te-delayed", "bf16 remainder"));
  CHECK(state_formats(whole.model()) == state_formats(halves.model()));
}

TEST_CASE("a master in two halves has a bf16 weight, and nothing else is stored so") {
  PlanRequest request;
  request.plan = "te-delayed";
  request.roles.master_weight = "bf16 remainder";
  CHECK_THROWS_WITH(resolve_plan(request), Catch::Contains("precision.weight: bf16"));
  request.roles = {};
  request.roles.moment1 = "bf16 remainder";
  CHECK_THROWS_WITH(resolve_plan(request), Catch::Contains("precision.moment1"));
  request.roles = {};
  request.roles.gradient_wire = "bf16 remainder";
  CHECK_THROWS_WITH(resolve_plan(request), Catch::Contains("precision.gradient_wire"));
  request.roles = {};
  request.roles.weight = "bf16";
  request.roles.master_weight = "e4m3 remainder";
  CHECK_THROWS_WITH(resolve_plan(request), Catch::Contains("bf16 alone"));
}

TEST_CASE("the halves of a value hold all of it, rounded to nearest and away from zero in a tie") {
  for (uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const uint32_t bits = upper << 16 | lower;
      if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
        continue;  // NaN
      }
      const MasterHalves halves = split_master(float_of(bits));
      REQUIRE(bits_of(join_master(halves.upper, halves.lower)) == bits);
      REQUIRE(halves.upper == ((bits + 0x8000U) >> 16 & 0xFFFFU));
      REQUIRE(halves.lower == lower);
    }
  }
  const MasterHalves nan = split_master(float_of(0xFFFFFFFFU));
  CHECK(join_master(nan.upper, nan.lower) != join_master(nan.upper, nan.lower));
}

}  // namespace
}  // namespace fp8train::test::master_halves_test
