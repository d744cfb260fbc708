// Products on the cpu take no memory but what the plan of a run has, whatever asks for them.

#include <catch2/catch.hpp>

#include <future>

#include "ops/gemm/gemm.h"
#include "support/environment.h"
#include "support/small_moe.h"
#include "train/inference/generator.h"
#include "train/layout_results.h"
#include "train/rank_device.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

/// Returns the bytes that products of `work` take in addition to the memory that they are given.
/// Runs it in a thread that holds none of earlier products.
template <typename Work>
size_t taken_by(int64_t threads, const Work& work) {
  return std::async(std::launch::async,
                    [&] {
                      configure_threads(threads);
                      const size_t before = ops::cpu_gemm_workspace_bytes();
                      work();
                      return ops::cpu_gemm_workspace_bytes() - before;
                    })
      .get();
}

EngineSettings settings_of(const std::string& kind, const std::string& plan) {
  if (kind == "experts" || kind == "dropless") {
    EngineSettings settings = small_deepseek(plan);
    settings.step.decoder.moe.dropless = kind == "dropless";
    return settings;
  }
  EngineSettings settings = small_llama(plan);
  if (kind == "muon") {
    settings.optimizer.name = "muon";
  } else if (kind == "adapters") {
    settings.model.lora = {.rank = 4, .alpha = 8, .targets = {"all-linear"}};
  } else if (kind == "recompute") {
    settings.step.decoder.recompute = Recompute::block;
  }
  return settings;
}

/// Two steps and an evaluation, as the dry run has them.
void run_all(ReadyEngine& ready, const EngineSettings& settings) {
  for (const bool statistics : {true, false}) {
    ready.engine.step([&] { return batch_of(settings, statistics ? 1 : 2); }, 0, 1e-3, statistics);
  }
  ready.engine.begin_evaluation();
  ready.engine.evaluate(batch_of(settings, 3));
}

void check_all(const EngineSettings& settings, Communicator* comm = nullptr) {
  const size_t before = ops::cpu_gemm_workspace_bytes();
  ReadyEngine ready(settings, comm);
  const uint64_t allocations = ready.device->ledger().allocations();
  run_all(ready, settings);
  check(ready.device->ledger().allocations() == allocations, "a step allocates nothing");
  check(ready.is_as_planned(), "each category has the bytes that were planned");
  check(ready.engine.high_water().scratch_bytes == ready.dry_run.plan.scratch_bytes,
        "the step uses the scratch that was planned");
  check(ops::cpu_gemm_workspace_bytes() == before, "products take no other memory");
}

}  // namespace

TEST_CASE("products of a step take no memory outside of the plan", "[workspace]") {
  const std::string plan = GENERATE(from_range(compared_plans()));
  const int64_t threads = GENERATE(1, 3);
  CAPTURE(plan, threads);
  CHECK(taken_by(threads, [&] { check_all(small_llama(plan)); }) == 0);
}

TEST_CASE("nor do those of other kinds of steps, and weights that are packed", "[workspace]") {
  const std::string kind = GENERATE("muon", "experts", "dropless", "adapters", "recompute");
  const std::string plan =
      GENERATE("fp32", "bf16", "te-delayed", "te-mxfp8", "torchao-rowwise", "deepseek-v3");
  const std::string packs = GENERATE("0", "1");
  CAPTURE(kind, plan, packs);
  const EnvironmentScope scope("FP8TRAIN_CPU_PACK", packs.c_str());
  CHECK(taken_by(1, [&] { check_all(settings_of(kind, plan)); }) == 0);
}

TEST_CASE("nor does a start take memory, whatever weights are stored in", "[workspace]") {
  const std::string plan = GENERATE("bf16", "te-delayed", "deepseek-v3", "fp8-lm", "te-nvfp4");
  const std::string base = GENERATE("", "bf16", "e4m3 row", "int8 row");
  const int ranks = GENERATE(1, 2);
  CAPTURE(plan, base, ranks);
  EngineSettings settings = small_llama(plan);
  if (!base.empty()) {
    settings.model.lora = {
        .rank = 4, .alpha = 8, .targets = {"all-linear"}, .base = parse_format(base)};
  }
  settings.strategy.zero_stage = ranks == 1 ? 0 : 3;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        ReadyEngine ready(settings, &comm);
        check(ready.device->ledger().peak() == ready.dry_run.memory.total(),
              "a start takes the memory that was planned");
      });
  CHECK(errors == std::vector<std::string>(errors.size()));
}

TEST_CASE("nor do those of ranks", "[workspace]") {
  const std::string kind = GENERATE("dense", "muon", "experts");
  const int stage = GENERATE(0, 1, 3);
  const int64_t tensor = GENERATE(1, 2);
  if (kind == "muon" && stage == 3) {
    return;  // which is refused
  }
  CAPTURE(kind, stage, tensor);
  const EnvironmentScope scope("FP8TRAIN_CPU_PACK", "1");
  EngineSettings settings = settings_of(kind, "te-delayed");
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.strategy.zero_stage = stage;
  settings.strategy.layout.tensor = tensor;
  settings.strategy.layout.expert = kind == "experts" ? tensor : 1;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(2, 2), [&](Communicator& comm) { check_all(settings, &comm); });
  CHECK(errors == std::vector<std::string>(errors.size()));
}

TEST_CASE("nor do texts, and batches that are smaller than those of a step", "[workspace]") {
  const std::string plan =
      GENERATE("fp32", "bf16", "te-delayed", "te-mxfp8", "torchao-rowwise", "deepseek-v3");
  const std::string packs = GENERATE("0", "1");
  CAPTURE(plan, packs);
  const EnvironmentScope scope("FP8TRAIN_CPU_PACK", packs.c_str());
  EngineSettings settings = small_llama(plan);
  settings.step.seq_length = settings.model.max_position_embeddings = 96;
  CHECK(taken_by(1, [&] {
          ReadyEngine ready(settings, nullptr);
          for (int64_t columns = 1; columns <= 96; ++columns) {
            ready.engine.target_losses(random_batch(1, 1 + columns % kSmallRows, columns));
          }
        }) == 0);
  CHECK(taken_by(1, [&] {
          ReadyEngine ready(settings, nullptr);
          Generator generator(*ready.device, ready.engine.model(), 96, {}, 3);
          for (size_t length = 1; length < 80; ++length) {
            const std::vector<int32_t> prompt(length, 5);
            const TextRequest request = {prompt, {.max_new_tokens = 2}};
            generator.generate({request, request, request}, [](size_t, int32_t) { return true; });
          }
        }) == 0);
}
