// Evaluation next to training, the head in FP8, and the windows of delayed scales.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "train/first_windows.h"
#include "train/trained_engine.h"

using namespace fp8train;
using test::same_bits;
using test::TrainedEngine;

TEST_CASE("evaluation changes neither weights nor scaling state") {
  const std::string plan = GENERATE("te-delayed", "msamp-o1");
  CAPTURE(plan);
  TrainedEngine run(test::small_llama(plan));
  run.train(2);
  const std::vector<float> weights = run.weights();
  const auto before = run.engine.model().scaling().save();
  run.engine.begin_evaluation();
  run.engine.evaluate(test::random_batch(99));
  CHECK(run.engine.evaluation_loss().mean > 0);
  CHECK(same_bits(run.weights(), weights));
  const auto after = run.engine.model().scaling().save();
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].values == after[i].values);
  }
}

TEST_CASE("evaluation has the scales of the step that follows, within the first window and after") {
  EngineSettings settings = test::with_window(test::small_llama("msamp-o1"), 3);
  settings.plan.exemptions.head = GENERATE(true, false);
  settings.step.decoder.head_chunk_rows = 16;
  TrainedEngine run(settings);
  for (int64_t step = 0; step < 6; ++step) {
    CAPTURE(step);
    run.engine.model().scaling().read_windows();
    CHECK(run.engine.model().scaling().first_windows() ==
          (step < 3 ? FirstWindows::all : FirstWindows::none));
    const Batch batch = test::random_batch(static_cast<uint64_t>(40 + step));
    run.engine.begin_evaluation();
    run.engine.evaluate(batch);
    run.engine.step([&] { return batch; }, step, 1e-3F, false);
    CHECK(run.engine.evaluation_loss().mean == run.engine.step_loss().mean);  // exact
  }
}

TEST_CASE("the loss of training is that of evaluation, and the z-loss apart from it") {
  EngineSettings settings = test::small_llama("bf16");
  settings.step.decoder.z_loss = 0.01;
  settings.step.decoder.head_chunk_rows = 16;  // of 32
  TrainedEngine run(settings);
  const Batch batch = test::random_batch(1);
  run.engine.begin_evaluation();
  run.engine.evaluate(batch);
  run.engine.step([&] { return batch; }, 0, 1e-3F, false);
  const LossReport loss = run.engine.step_loss();
  CHECK(loss.mean == run.engine.evaluation_loss().mean);  // exact
  // Untrained logits are small: log sum exp is about the log of the vocabulary.
  CHECK(loss.z_loss == Approx(0.01 * std::pow(std::log(test::kSmallVocabulary), 2)).epsilon(0.05));
  CHECK(run.engine.evaluation_loss().z_loss == 0);
}

TEST_CASE("a head in FP8 trains and evaluates, tied to the embedding too, and keeps fp32 states") {
  const std::string plan = GENERATE("te-delayed", "te-current", "te-blockwise", "torchao-rowwise",
                                    "msamp-o1", "msamp-o3", "fp8-lm", "fp8-lean", "int8-qat");
  const bool tied = GENERATE(true, false);
  CAPTURE(plan, tied);
  EngineSettings settings = test::small_llama(plan);
  settings.model.tie_word_embeddings = tied;
  settings.plan.exemptions.head = false;
  settings.step.decoder.head_chunk_rows = 16;  // of 32
  TrainedEngine run(settings);
  int slots = 0;
  for (const auto& slot : run.engine.model().scaling().slots()) {
    slots += slot->layer == "head" ? 1 : 0;
  }
  CHECK(slots > 0);
  for (const auto& parameter : run.engine.model().parameters().all()) {
    if (parameter->name == (tied ? "embedding.weight" : "head.weight")) {
      --slots;
      CHECK(parameter->formats.value == TensorFormat{});
      CHECK(parameter->formats.gradient == TensorFormat{});
      CHECK(parameter->formats.moment1 == TensorFormat{});
    }
  }
  const Batch batch = test::random_batch(5);
  double first = 0;
  for (int64_t step = 0; step < 20; ++step) {
    run.engine.step([&] { return batch; }, step, 3e-3, true);
    first = step == 0 ? run.engine.step_loss().mean : first;
  }
  CHECK(run.engine.step_loss().mean < 0.8 * first);  // of one batch
  run.engine.begin_evaluation();
  run.engine.evaluate(batch);
  CHECK(run.engine.evaluation_loss().mean < run.engine.step_loss().mean * 1.05);
  for (const SlotReport& report : run.engine.model().scaling().report()) {
    if (report.slot->layer == "head") {
      CHECK(report.statistics.count > 0);
    }
  }
}

TEST_CASE("in the first window a head that comes in chunks notes the amax of all of them") {
  const uint64_t batch = GENERATE(3, 4, 5, 6);
  const auto history = [batch](int64_t chunk_rows) {
    EngineSettings settings = test::small_llama("msamp-o1");
    settings.plan.exemptions.head = false;
    settings.step.decoder.head_chunk_rows = chunk_rows;
    TrainedEngine run(settings);
    run.engine.step([&] { return test::random_batch(batch); }, 0, 1e-3F, false);
    std::vector<float> values;
    for (const auto& saved : run.engine.model().scaling().save()) {
      if (saved.name.ends_with(".amax_history")) {
        values.insert(values.end(), saved.values.begin(), saved.values.end());
      }
    }
    return values;
  };
  const std::vector<float> whole = history(32);
  CHECK(std::count_if(whole.begin(), whole.end(), [](float amax) { return amax > 0; }) == 2 * 9);
  CHECK(history(16) == whole);
}

TEST_CASE(
    "MS-AMP's windows move once for each optimizer step, TransformerEngine's with each pass") {
  const std::string plan = GENERATE("msamp-o1", "te-delayed");
  CAPTURE(plan);
  TrainedEngine run(test::small_llama(plan, 3));
  run.train(2);
  const int64_t moves = plan == "te-delayed" ? 6 : 2;
  int histories = 0;
  int full = 0;
  for (const auto& saved : run.engine.model().scaling().save()) {
    if (!saved.name.ends_with(".amax_history")) {
      continue;
    }
    ++histories;
    const int64_t filled = std::ranges::count_if(saved.values, [](float amax) { return amax > 0; });
    // A weight is cast once for each step, and for the one to come.
    CHECK((filled == moves || filled == 2));
    full += filled == moves ? 1 : 0;
  }
  CHECK(histories > 0);
  CHECK(full >= histories / 2);
}

TEST_CASE("a batch without its padding has the loss of the whole one") {
  const std::string plan = GENERATE("fp32", "te-delayed", "torchao-rowwise");
  CAPTURE(plan);
  TrainedEngine run(test::small_llama(plan));
  run.train(2);
  Batch whole = test::random_batch(5);
  std::fill(whole.targets.begin() + 8, whole.targets.end(), kIgnoredTarget);
  Batch part = {.rows = 1, .columns = 8};
  part.tokens.assign(whole.tokens.begin(), whole.tokens.begin() + 8);
  part.targets.assign(whole.targets.begin(), whole.targets.begin() + 8);
  LossReport losses[2];
  for (int i = 0; i < 2; ++i) {
    run.engine.begin_evaluation();
    run.engine.evaluate(i == 0 ? whole : part);
    losses[i] = run.engine.evaluation_loss();
  }
  CHECK(losses[0].targets == 8);
  CHECK(losses[1].targets == 8);
  CHECK(losses[1].mean == Approx(losses[0].mean).epsilon(1e-6));
}

TEST_CASE("ignored targets do not count") {
  TrainedEngine run(test::small_llama("fp32"));
  Batch batch = test::random_batch(1);
  run.engine.begin_evaluation();
  for (size_t i = 4; i < batch.targets.size(); ++i) {
    batch.targets[i] = kIgnoredTarget;
  }
  run.engine.evaluate(batch);
  CHECK(run.engine.evaluation_loss().targets == 4);
}
