// A dry run counts what a run takes for its samples, to the byte, on each rank.

#include <catch2/catch.hpp>

#include "support/small_moe.h"
#include "train/inference/generator.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

constexpr int64_t kPositions = 20;
constexpr int64_t kTexts = 3;

void check_rank(const EngineSettings& settings, Communicator* comm) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  const DryRunStep dry_run =
      dry_run_step(settings, {}, comm == nullptr ? Topology() : comm->topology(),
                   comm == nullptr ? 0 : comm->rank());
  Engine engine(*device, settings, comm);
  engine.reserve(dry_run.plan);
  engine.model().initialize(3);
  engine.weights_changed();
  engine.step([&] { return batch_of(settings, 0); }, 0, 1e-3, false);
  const MemoryLedger before = device->ledger();
  const auto generator = std::static_pointer_cast<Generator>(settings.samples(engine));
  const bool takes_part = engine.mesh().leads() || engine.passes_are_collective();
  check((generator != nullptr) == takes_part, "the ranks that take part have a generator");
  check((device->ledger().total() > before.total()) == takes_part, "samples take memory");
  const uint64_t allocations = device->ledger().allocations();
  if (generator != nullptr) {
    generator->generate({{{1, 2, 3}, {.max_new_tokens = 9}}, {{4, 5}, {.max_new_tokens = 4}}},
                        [](size_t, int32_t) { return true; });
  }
  check(device->ledger().allocations() == allocations, "texts need no more");
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const size_t planned = dry_run.memory.current(category);
    const size_t taken = device->ledger().current(category);
    if (planned != taken) {
      throw InternalError(std::string(name_of(category)) + ": planned " + std::to_string(planned) +
                          ", taken " + std::to_string(taken));
    }
  }
}

}  // namespace

TEST_CASE("samples have the memory that a dry run counts", "[samples]") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current");
  const ParallelLayout layout =
      GENERATE(ParallelLayout{}, ParallelLayout{.tensor = 2}, ParallelLayout{.pipeline = 2},
               ParallelLayout{.context = 2}, ParallelLayout{.expert = 2},
               ParallelLayout{.tensor = 2, .pipeline = 2});
  const int stage = GENERATE(0, 1, 3);
  const int ranks = static_cast<int>(
      std::max<int64_t>(layout.tensor * layout.pipeline * layout.context, stage == 0 ? 1 : 2));
  CAPTURE(plan, layout.tensor, layout.pipeline, layout.context, layout.expert, stage, ranks);
  EngineSettings settings = layout.expert > 1 ? small_moe(plan) : small_llama(plan, 2);
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.strategy.layout = layout;
  settings.strategy.zero_stage = stage;
  settings.samples = [](Engine& engine) { return make_sampler(engine, kPositions, kTexts); };
  const int all = layout.expert > 1 ? 2 : ranks;
  if (all == 1) {
    check_rank(settings, nullptr);
    return;
  }
  const std::vector<std::string> errors = run_ranks(
      Topology::blocks(all, all), [&](Communicator& comm) { check_rank(settings, &comm); });
  CHECK(errors == std::vector<std::string>(errors.size()));
}
