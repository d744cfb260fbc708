// Stages of a pipeline train as one rank does in any order that works.

#include "train/pipeline_stages.h"

using namespace fp8train;
using namespace fp8train::test::stages;

TEST_CASE("stages train in any legal order as one rank does") {
  // All forward passes first; results that are received late in both directions; weight gradients
  // in odd times; chunks with weight gradients of their own.
  using Case = std::pair<int64_t, const char*>;
  const auto [chunks, text] = GENERATE(
      Case(1, "stage 0: F0 F1 F2 F3 B0 B1 B2 B3\nstage 1: F0 F1 B0 F2 F3 B1 B2 B3\n"),
      Case(1, "stage 0: F0 F1 F2 F3 F4 B0 B1 B2 B3 B4\nstage 1: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4\n"),
      Case(1,
           "stage 0: F0 F1 B0 F2 W0 F3 B1 B2 W1 B3 W2 W3\n"
           "stage 1: F0 B0 F1 F2 B1 B2 F3 W0 W1 B3 W2 W3\n"),
      Case(2,
           "stage 0: F0 F1 F0.1 F1.1 F2 F3 B0.1 B1.1 F2.1 F3.1 B0 W0.1 B1 B2.1 B3.1 W1.1 B2 W0 B3 "
           "W2.1 W3.1 W1 W2 W3\n"
           "stage 1: F0 F1 F0.1 B0.1 F1.1 B1.1 W0.1 B0 F2 F3 F2.1 B2.1 F3.1 B3.1 B1 W0 W1.1 B2 "
           "W2.1 B3 W1 W2 W3 W3.1\n"));
  const std::string plan = GENERATE("bf16", "te-delayed", "deepseek-v3");
  const bool in_stream_order = GENERATE(false, true);
  const int zero_stage = GENERATE(0, 3);
  CAPTURE(text, plan, in_stream_order, zero_stage);
  const PipelineSchedule schedule = read_schedule(text);
  const auto micro_batches =
      std::ranges::count(schedule.of_stage[0], ActionKind::forward, &PipelineAction::kind) / chunks;
  EngineSettings settings = four_blocks(test::small_llama(plan), micro_batches);
  settings.strategy.zero_stage = zero_stage;
  settings.strategy.layout.virtual_stages = chunks;
  settings.strategy.layout.given_schedule = schedule;
  const int replicas = zero_stage == 0 ? 1 : 2;
  check_same(train_stages(settings, 2, replicas, in_stream_order),
             train_stages(settings, 1, replicas));
}
