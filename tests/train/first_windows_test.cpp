// First windows of delayed scales, which an overflow begins again (MS-AMP,
// msamp/optim/optimizer.py LBOptimizer._update_scaling_factors).

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/rank_threads.h"
#include "train/first_windows.h"
#include "train/trained_engine.h"

using namespace fp8train;
using test::same_bits;
using test::TrainedEngine;

namespace {

constexpr int kWindow = 4;

/// A step in which a gain of the second block is infinite.
void train_with_overflow(TrainedEngine& run) {
  test::with_overflow(run.engine, [&] { run.train(1); });
}

FirstWindows first_windows(Engine& engine) {
  engine.model().scaling().read_windows();
  return engine.model().scaling().first_windows();
}

/// The gain makes its x infinite, whose codes are the largest ones, and the gradient that leaves
/// its block NaN.
bool overflows(const ScalingSlot& slot) {
  const bool reads_gain = slot.layer == "layers.1.attention.qkv" && slot.role.starts_with("x");
  return reads_gain || (slot.layer.starts_with("layers.0.") && slot.role.starts_with("dy"));
}

/// What a delayed scale is says nothing any more for the slots that `which` chooses.
template <typename Which>
void spoil_scales(Engine& engine, const Which& which) {
  for (const auto& slot : engine.model().scaling().slots()) {
    if (slot->format.is_current_at_first() && which(*slot)) {
      *slot->scale *= 0x1p-30F;
    }
  }
}

}  // namespace

TEST_CASE("an overflow begins the first windows of the tensors that it reaches again") {
  const std::string plan = GENERATE("msamp-o1", "msamp-o3", "fp8-lm");
  const int64_t micro_batches = GENERATE(1, 2);
  const bool recompute = GENERATE(false, true);
  CAPTURE(plan, micro_batches, recompute);
  EngineSettings settings = test::with_window(test::small_llama(plan, micro_batches), kWindow);
  settings.step.decoder.recompute = recompute ? Recompute::block : Recompute::none;
  TrainedEngine run(settings);
  TrainedEngine spoiled(settings);
  TrainedEngine wrong(settings);
  for (TrainedEngine* each : {&run, &spoiled, &wrong}) {
    each->train(kWindow);
    CHECK(first_windows(each->engine) == FirstWindows::none);
    each->train(2);
    const std::vector<float> before = each->weights();
    train_with_overflow(*each);
    CHECK(same_bits(each->weights(), before));
    CHECK(each->engine.optimizer().control().skipped_steps == 1);
    CHECK(first_windows(each->engine) == FirstWindows::some);
  }
  for (const auto& slot : run.engine.model().scaling().slots()) {
    CAPTURE(slot->layer, slot->role);
    CHECK(slot->scales_now == (!slot->format.is_current_at_first() || overflows(*slot)));
  }
  // In the first window a tensor has its own scale, whatever the delayed one is; others have that.
  spoil_scales(spoiled.engine, overflows);
  spoil_scales(wrong.engine, [](const ScalingSlot& slot) { return !overflows(slot); });
  for (int step = 0; step < kWindow; ++step) {
    CAPTURE(step);
    CHECK(first_windows(run.engine) == FirstWindows::some);
    for (TrainedEngine* each : {&run, &spoiled, &wrong}) {
      each->train(1, step == 1);  // one with statistics
    }
    CHECK(run.engine.step_loss().mean == spoiled.engine.step_loss().mean);
    CHECK(run.engine.step_loss().mean != wrong.engine.step_loss().mean);
  }
  CHECK(first_windows(run.engine) == FirstWindows::none);
  run.train(2);
  spoiled.train(2);
  CHECK(same_bits(run.weights(), spoiled.weights()));
}

TEST_CASE("evaluation has the scales of the step that follows after an overflow too") {
  TrainedEngine run(test::with_window(test::small_llama("msamp-o1"), kWindow));
  run.train(kWindow + 1);
  train_with_overflow(run);
  for (int i = 0; i < kWindow + 2; ++i, ++run.step) {
    CAPTURE(i);
    const Batch batch = test::random_batch(static_cast<uint64_t>(40 + i));
    const auto before = run.engine.model().scaling().save();
    run.engine.begin_evaluation();
    run.engine.evaluate(batch);
    const auto after = run.engine.model().scaling().save();
    for (size_t tensor = 0; tensor < before.size(); ++tensor) {
      CHECK(before[tensor].values == after[tensor].values);
    }
    run.engine.step([&] { return batch; }, run.step, 1e-3F, false);
    CHECK(run.engine.evaluation_loss().mean == run.engine.step_loss().mean);  // exact
  }
}

TEST_CASE("ranks begin their own first windows again, and skip the step together") {
  constexpr int kRanks = 2;
  std::vector<std::vector<float>> weights(kRanks);
  const int stage = GENERATE(0, 1);
  CAPTURE(stage);
  const auto errors = test::run_ranks(Topology::blocks(kRanks, 1), [&](Communicator& comm) {
    EngineSettings settings = test::with_window(test::small_llama("msamp-o1"), kWindow);
    settings.strategy.zero_stage = stage;
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    engine.reserve(dry_run_step(settings, {}, comm.topology(), comm.rank()).plan);
    engine.model().initialize(3);
    engine.weights_changed();
    for (int64_t step = 0; step < 2 * kWindow + 2; ++step) {
      const auto train = [&] {
        engine.step(
            [&] { return test::random_batch(static_cast<uint64_t>(step * kRanks + comm.rank())); },
            step, 1e-3, false);
      };
      if (step == kWindow + 1 && comm.rank() == 1) {
        test::with_overflow(engine, train);
      } else {
        train();
      }
      const bool again = comm.rank() == 1 && step > kWindow && step <= 2 * kWindow;
      const FirstWindows expected = step + 1 < kWindow ? FirstWindows::all
                                    : again            ? FirstWindows::some
                                                       : FirstWindows::none;
      check(first_windows(engine) == expected, "each rank has its own windows");
    }
    check(engine.optimizer().control().skipped_steps == 1, "one step is skipped");
    weights[static_cast<size_t>(comm.rank())] = test::values_of(engine);
  });
  CHECK(errors == std::vector<std::string>(kRanks));
  CHECK(same_bits(weights[0], weights[1]));
}
