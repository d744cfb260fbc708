// Dry runs of deep models from those of a few blocks, held against runs of all blocks.

#include "engine/few_blocks.h"

#include <catch2/catch.hpp>

#include "device/gpu_kinds.h"
#include "engine/roofline.h"
#include "engine/step_time.h"
#include "support/small_moe.h"

using namespace fp8train;
using test::small_deepseek;
using test::small_moe;

namespace {

const GpuKind& h100() {
  return *find_gpu_kind("h100");
}

/// Wide enough for buckets of gradients to be of one block.
EngineSettings deep_moe(const std::string& plan, int64_t blocks) {
  EngineSettings settings = small_moe(plan, 8);
  settings.model.num_hidden_layers = blocks;
  settings.model.hidden_size = 1024;
  settings.model.num_attention_heads = 8;
  settings.model.num_key_value_heads = 8;
  settings.model.head_dim = 128;
  settings.model.intermediate_size = 1024;
  settings.model.moe.width = 512;
  settings.model.moe.experts = 8;
  settings.model.max_position_embeddings = 1024;
  settings.step.seq_length = 1024;
  settings.step.micro_batch_size = 4;
  settings.strategy.bucket_bytes = 1 << 20;
  return settings;
}

void check_alike(const EngineSettings& settings, const Topology& ranks) {
  REQUIRE(has_equal_blocks(settings));
  StageRuns runs[2];
  for (const bool few : {false, true}) {
    runs[few ? 1 : 0] =
        dry_run_stages(settings, ranks.size(), [&](const EngineSettings& engine, int rank) {
          return few ? logged_few_blocks(engine, traits_of(h100()), ranks, rank)
                     : logged_step(engine, traits_of(h100()), ranks, rank);
        });
  }
  REQUIRE(runs[0].runs.size() == runs[1].runs.size());
  for (size_t i = 0; i < runs[0].runs.size(); ++i) {
    const DryRunStep& all = runs[0].runs[i];
    const DryRunStep& few = runs[1].runs[i];
    CAPTURE(i);
    for (size_t j = 0; j < kMemoryCategories; ++j) {
      const auto category = static_cast<MemoryCategory>(j);
      CAPTURE(name_of(category));
      CHECK(static_cast<double>(few.memory.current(category)) ==
            Approx(static_cast<double>(all.memory.current(category))).epsilon(1e-3));
    }
    CHECK(few.work.gemm_flops == Approx(all.work.gemm_flops));
    CHECK(few.work.bytes == Approx(all.work.bytes));
    CHECK(few.work.operations == all.work.operations);
    CHECK(few.sent.total() == Approx(all.sent.total()));
    CHECK(few.sent_by_layers.total() == all.sent_by_layers.total());
    CHECK(static_cast<double>(few.state_copy) ==
          Approx(static_cast<double>(all.state_copy)).epsilon(1e-3));
  }
  const StepTime all = step_time(settings, runs[0], ranks, h100());
  const StepTime few = step_time(settings, runs[1], ranks, h100());
  // Without ZeRO exchanges do not end with blocks.
  const double error = settings.strategy.zero_stage == 0 ? 1e-3 : 1e-6;
  CHECK(few.total() == Approx(all.total()).epsilon(error));
  CHECK(few.gemms == Approx(all.gemms).epsilon(1e-6));
  CHECK(few.exposed == Approx(all.exposed).epsilon(1e-6).margin(1e-9));
}

}  // namespace

TEST_CASE("runs of a few blocks have the memory, the work and the time of a deep model's") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed", "deepseek-v3");
  EngineSettings settings = deep_moe(plan, 7);
  settings.step.decoder.recompute = GENERATE(Recompute::none, Recompute::mlp, Recompute::block);
  CAPTURE(plan, name_of(settings.step.decoder.recompute));
  check_alike(settings, Topology());
  for (const int64_t stage : {0, 1, 2, 3}) {
    for (const int64_t experts : {1, 4}) {
      CAPTURE(stage, experts);
      settings.strategy.zero_stage = stage;
      settings.strategy.layout = {.expert = experts};
      check_alike(settings, Topology::blocks(8, 4));
    }
  }
}

TEST_CASE("runs of a few blocks have those of the stages of a pipeline") {
  const std::string plan = GENERATE("fp32", "deepseek-v3");
  EngineSettings settings = deep_moe(plan, 12);
  settings.strategy.zero_stage = GENERATE(0, 1, 3);
  CAPTURE(plan, settings.strategy.zero_stage);
  settings.strategy.layout = {.tensor = 2, .pipeline = 2, .expert = 2};
  check_alike(settings, Topology::blocks(8, 4));
  settings.strategy.layout = {.pipeline = 4, .stage_blocks = {1, 5, 4, 2}};
  check_alike(settings, Topology::blocks(8, 4));
  settings.strategy.layout = {.pipeline = 2, .schedule = ScheduleKind::zero_bubble};
  check_alike(settings, Topology::blocks(4, 4));
}

TEST_CASE("blocks of different layers or formats are not equal") {
  CHECK(has_equal_blocks(deep_moe("deepseek-v3", 4)));
  CHECK(!has_equal_blocks(small_deepseek("deepseek-v3")));  // its first block has no experts
  EngineSettings settings = deep_moe("deepseek-v3", 4);
  settings.plan.exemptions.last_blocks = 1;
  CHECK(!has_equal_blocks(settings));
  settings = deep_moe("deepseek-v3", 4);
  settings.step.decoder.frozen = {"layers.0.*"};
  CHECK(!has_equal_blocks(settings));
}
