// Whole steps with weights in blocks: ranks that have parts of them gather one set of codes where
// that is enough, else values, and train to the bits of a rank that is alone.

#include <catch2/catch.hpp>

#include "rank_results.h"

namespace fp8train::test {
namespace {

EngineSettings settings_of(const PlanRequest& request, int stage) {
  EngineSettings settings = tiny(request.plan, 1);
  settings.model.intermediate_size = 96;
  settings.plan = resolve_plan(request);
  settings.strategy.zero_stage = stage;
  settings.optimizer.grad_clip = 0;  // the order of the norm's sum is that of the shards
  return settings;
}

/// MXFP8 weights in squares of 32x32. `primary`: the codes are the weights, next to fp32 masters.
EngineSettings squares(int stage, bool primary) {
  PlanRequest request;
  request.plan = "te-mxfp8";
  request.roles.fprop_w = request.roles.dgrad_w = "e4m3 32x32 e8m0";
  request.roles.weight = primary ? request.roles.fprop_w : "";
  request.roles.master_weight = primary ? "fp32" : "";
  return settings_of(request, stage);
}

/// NVFP4 whose dgrad multiplies a plain dy, without random bits, which ranks draw apart.
EngineSettings packed_codes(int stage) {
  PlanRequest request;
  request.plan = "te-nvfp4";
  request.roles.dgrad_dy = "bf16";
  request.roles.wgrad_dy = "e2m1 1x16 e4m3 hadamard";
  return settings_of(request, stage);
}

struct Run {
  std::vector<float> weights;
  std::vector<double> losses;
  size_t gathered_as_codes = 0;
  bool as_planned = true;
};

/// All ranks with the same batches: in numbers that are powers of two their mean is exact.
Run run(const EngineSettings& settings, Communicator* comm) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings, comm);
  const Topology topology = comm == nullptr ? Topology() : comm->topology();
  const int rank = comm == nullptr ? 0 : comm->rank();
  const DryRunStep dry_run = dry_run_step(settings, {}, topology, rank);
  engine.reserve(dry_run.plan);
  engine.model().initialize(3);
  engine.weights_changed();
  Run result;
  for (int64_t step = 0; step < 6; ++step) {
    engine.step([&] { return random_batch(static_cast<uint64_t>(step % 2)); }, step, 1e-2F,
                step == 3);
    result.losses.push_back(engine.step_loss().mean);
  }
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    result.as_planned =
        result.as_planned && dry_run.memory.current(category) == device->ledger().current(category);
  }
  for (const auto& parameter : engine.model().parameters().all()) {
    result.gathered_as_codes += parameter->gathered.form == GatheredForm::codes ? 1 : 0;
  }
  result.weights = values_of(engine);
  return result;
}

Run run_on(int ranks, const EngineSettings& settings) {
  std::vector<Run> results(static_cast<size_t>(ranks));
  for (const std::string& error :
       run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
         results[static_cast<size_t>(comm.rank())] = run(settings, &comm);
       })) {
    CHECK(error == "");
  }
  CHECK(same_bits(results[0].weights, results[1].weights));
  return results[0];
}

TEST_CASE("MXFP8 weights in squares train alone and under ZeRO to the same bits") {
  const bool primary = GENERATE(false, true);
  const Run alone = run(squares(0, primary), nullptr);
  CHECK(alone.losses[5] < 0.9 * alone.losses[1]);
  for (const auto& [ranks, stage] : {std::pair{2, 1}, {2, 3}, {4, 3}}) {
    CAPTURE(primary, ranks, stage);
    const Run parts = run_on(ranks, squares(stage, primary));
    CHECK(parts.gathered_as_codes == 8);  // of two blocks
    CHECK(same_bits(parts.weights, alone.weights));
    CHECK(parts.losses == alone.losses);
    CHECK(parts.as_planned);
  }
}

TEST_CASE("weights in packed codes train alone and under ZeRO to the same bits") {
  const Run alone = run(packed_codes(0), nullptr);
  CHECK(alone.losses[5] < 0.9 * alone.losses[1]);
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    const Run parts = run_on(2, packed_codes(stage));
    CHECK(parts.gathered_as_codes == 0);  // a code is smaller than a byte
    CHECK(same_bits(parts.weights, alone.weights));
    CHECK(parts.losses == alone.losses);
    CHECK(parts.as_planned);
  }
}

}  // namespace
}  // namespace fp8train::test
