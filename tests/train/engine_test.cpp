#include "engine/engine.h"

#include <catch2/catch.hpp>

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "device/cuda/cuda_device.h"
#include "support/parameters.h"
#include "train/trained_engine.h"

using namespace fp8train;
using test::same_bits;
using test::TrainedEngine;

TEST_CASE("the steady step allocates nothing and stays within its plan") {
  const std::string plan = GENERATE(from_range(plan_names()));
  CAPTURE(plan);
  TrainedEngine run(test::small_llama(plan, 2));
  const uint64_t before = run.device->ledger().allocations();
  const size_t memory = run.device->ledger().total();
  run.train(3, true);
  CHECK(run.device->ledger().allocations() == before);
  CHECK(run.device->ledger().total() == memory);
}

TEST_CASE("an infinity that a cast would hide makes the step a skipped one") {
  const std::string plan =
      GENERATE("te-delayed", "te-current", "te-blockwise", "te-mxfp8", "msamp-o1", "coat",
               "torchao-tensorwise", "torchao-rowwise", "torchao-rowwise-gw-hp");
  CAPTURE(plan);
  TrainedEngine run(test::small_llama(plan));
  run.train(1);
  CHECK(run.engine.optimizer().control().skipped_steps == 0);
  for (const auto& parameter : run.engine.model().parameters().all()) {
    if (parameter->name == "layers.1.mlp.up.weight") {
      std::vector<float> values = test::value_on_host(*run.device, *parameter);
      values[0] = INFINITY;
      set_value(*run.device, *parameter, values.data());
    }
  }
  run.engine.weights_changed();
  const std::vector<float> before = run.weights();
  run.train(1);
  CHECK(run.engine.optimizer().control().skipped_steps == 1);
  CHECK(same_bits(run.weights(), before));
}

TEST_CASE("an engine that does not train evaluates alike and holds no gradients or moments") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  EngineSettings settings = test::small_llama(plan);
  const auto loss_of = [&](TrainedEngine& run) {
    run.engine.begin_evaluation();
    run.engine.evaluate(test::random_batch(5));
    return run.engine.evaluation_loss().mean;
  };
  TrainedEngine training(settings);
  settings.trains = false;
  TrainedEngine reading(settings);
  CHECK(loss_of(reading) == loss_of(training));
  const MemoryLedger& ledger = reading.device->ledger();
  CHECK(ledger.current(MemoryCategory::gradients) == 0);
  CHECK(ledger.current(MemoryCategory::optimizer_state) == 0);
  CHECK(ledger.current(MemoryCategory::saved_activations) == 0);
  CHECK_THROWS_AS(reading.engine.optimizer(), InternalError);
}

TEST_CASE("the plan made on meta is what the step uses") {
  const EngineSettings settings = test::small_llama("te-delayed");
  const DryRunStep dry_run = dry_run_step(settings, {});
  const StepPlan& plan = dry_run.plan;
  TrainedEngine run(settings);
  run.train(1);
  CHECK(run.engine.high_water().saved_bytes == plan.saved_bytes);
  CHECK(run.engine.high_water().scratch_bytes <= plan.scratch_bytes);
  CHECK(dry_run.memory.total() == run.device->ledger().total());
}

TEST_CASE("the plan of scratch holds operands that a device has to dequantize") {
  DeviceTraits traits;
  traits.fp8_gemm_by_library = true;
  // Of a step without statistics, whose scratch can be more than that of a product.
  const auto scratch = [&traits] {
    const std::unique_ptr<Device> meta = make_meta_device(traits);
    Engine engine(*meta, test::small_llama("te-blockwise"));
    engine.weights_changed();
    engine.step([] { return test::random_batch(0); }, 0, 0.0, false);
    return engine.high_water().scratch_bytes;
  };
  const size_t native = scratch();
  traits.fp8_products = cuda_traits(89).fp8_products;
  // At least the bf16 copies of one operand pair of the widest layer, [64, 32] and [32, 32].
  CHECK(scratch() >= native + 6000);
}

TEST_CASE("the plan follows the rows of logits that a GPU's memory allows") {
  constexpr int64_t kVocabulary = 128256;
  EngineSettings settings = test::small_llama("bf16");
  settings.model.vocab_size = kVocabulary;
  settings.model.max_position_embeddings = 8192;
  settings.step.seq_length = 8192;
  settings.step.micro_batch_size = 1;
  const DryRunStep few = dry_run_step(settings, cuda_traits(90));
  const DryRunStep many = dry_run_step(settings, cuda_traits(90, size_t{139} << 30));
  CHECK(many.plan.scratch_bytes - few.plan.scratch_bytes ==
        static_cast<size_t>(kVocabulary * (4096 - 256) * 2));
  // The weight in bf16, read twice, and its fp32 gradient, read and written, in 30 chunks less.
  const double saved = static_cast<double>(kVocabulary * settings.model.hidden_size) * 30 * 12;
  CHECK(few.work.bytes - many.work.bytes == Approx(saved));
  CHECK(few.work.gemm_flops == many.work.gemm_flops);
}

TEST_CASE("a layer of a micro-batch takes so many operations") {
  const auto operations = [](const std::string& plan, int64_t layers, int64_t passes) {
    EngineSettings settings = test::small_llama(plan, passes);
    settings.model.num_hidden_layers = layers;
    return static_cast<int64_t>(dry_run_step(settings, cuda_traits(90)).work.operations);
  };
  const auto of_layer = [&](const std::string& plan) {
    return operations(plan, 3, 3) - operations(plan, 3, 2) - operations(plan, 2, 3) +
           operations(plan, 2, 2);
  };
  // Forward: norm, qkv, rope, attention, output, norm, up, SwiGLU, down; the norms add the
  // residual. Backward: two products for each linear, two norms, SwiGLU, attention, rope.
  CHECK(of_layer("bf16") == 9 + 13);
  // Casts that no operation before them makes: the attended values, dy of down, output and qkv.
  CHECK(of_layer("te-delayed") == 22 + 4);
  // A cast of each x and dy; the amax of those that no operation before them finds. Nothing that
  // clears an amax or finds a scale.
  CHECK(of_layer("te-current") == 22 + 8 + 4);
}

TEST_CASE("FP8 plans keep codes instead of activations for backward") {
  const StepPlan bf16 = dry_run_step(test::small_llama("bf16"), {}).plan;
  const StepPlan fp8 = dry_run_step(test::small_llama("te-delayed"), {}).plan;
  CHECK(fp8.saved_bytes < bf16.saved_bytes);
}

TEST_CASE("two runs of the same settings have the same bits") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  TrainedEngine a(test::small_llama(plan));
  TrainedEngine b(test::small_llama(plan));
  a.train(5);
  b.train(5);
  CHECK(same_bits(a.weights(), b.weights()));
}

TEST_CASE("recompute changes no bit") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  const Recompute recompute = GENERATE(Recompute::attention, Recompute::mlp, Recompute::block);
  CAPTURE(plan, name_of(recompute));
  EngineSettings settings = test::small_llama(plan);
  const auto saved_bytes = [&](Recompute choice) {
    settings.step.decoder.recompute = choice;
    return dry_run_step(settings, {}).plan.saved_bytes;
  };
  CHECK(saved_bytes(recompute) < saved_bytes(Recompute::none));
  CHECK((recompute == Recompute::block || saved_bytes(Recompute::block) < saved_bytes(recompute)));
  TrainedEngine stored(test::small_llama(plan));
  settings.step.decoder.recompute = recompute;
  TrainedEngine recomputed(settings);
  stored.train(5);
  recomputed.train(5);
  CHECK(same_bits(stored.weights(), recomputed.weights()));
}

TEST_CASE("what gradients held before a step changes no bit") {
  const std::string plan = GENERATE(from_range(plan_names()));
  const int64_t accumulation = GENERATE(1, 2);
  CAPTURE(plan, accumulation);
  EngineSettings settings = test::small_llama(plan, accumulation);
  settings.step.decoder.head_chunk_rows = 16;  // several chunks, of which the first overwrites
  settings.step.decoder.recompute = accumulation == 1 ? Recompute::none : Recompute::block;
  settings.model.tie_word_embeddings = accumulation == 2;
  settings.model.qk_norm = settings.model.qkv_bias = true;
  TrainedEngine clean(settings);
  TrainedEngine spoiled(settings);
  spoiled.spoils_gradients = true;
  for (TrainedEngine* run : {&clean, &spoiled}) {
    run->train(1);
    run->engine.calibrate(test::random_batch(99));
    run->train(2);
    CHECK(run->engine.optimizer().control().skipped_steps == 0);
  }
  CHECK(same_bits(clean.weights(), spoiled.weights()));
  CHECK(same_bits(test::gradients_of(*clean.device, clean.engine.model().parameters()),
                  test::gradients_of(*spoiled.device, spoiled.engine.model().parameters())));
}

TEST_CASE("only gradients of embeddings, and gaps, are cleared before a step") {
  EngineSettings settings = test::small_llama("te-delayed");
  settings.model.tie_word_embeddings = GENERATE(false, true);
  TrainedEngine run(settings);
  ParameterStore& store = run.engine.model().parameters();
  int64_t cleared = 0;
  for (const View& words : store.cleared_gradients()) {
    cleared += words.count();
  }
  int64_t expected = 0;
  for (const auto& parameter : store.all()) {
    const int64_t elements = parameter->shape.count();
    const int64_t with_gap = (elements + 127) / 128 * 128;
    CHECK(parameter->overwritten == (parameter->name != "embedding.weight"));
    expected += parameter->overwritten ? with_gap - elements : with_gap;
  }
  CHECK(cleared == expected);
}

TEST_CASE("accumulated micro-batches are one larger batch") {
  EngineSettings settings = test::small_llama("fp32");
  settings.step.micro_batch_size = 4;
  TrainedEngine whole(settings);
  TrainedEngine parts(test::small_llama("fp32", 2));
  const Batch first = test::random_batch(11);
  const Batch second = test::random_batch(12);
  Batch both = first;
  both.rows = 4;
  both.tokens.insert(both.tokens.end(), second.tokens.begin(), second.tokens.end());
  both.targets.insert(both.targets.end(), second.targets.begin(), second.targets.end());
  int next = 0;
  parts.engine.step([&] { return next++ == 0 ? first : second; }, 0, 1e-3F, false);
  whole.engine.step([&] { return both; }, 0, 1e-3F, false);
  CHECK(parts.engine.step_loss().mean == Approx(whole.engine.step_loss().mean).epsilon(1e-6));
  const float norm = whole.engine.optimizer().control().gradient_norm;
  CHECK(parts.engine.optimizer().control().gradient_norm == Approx(norm).epsilon(1e-5));
}

TEST_CASE("amax values of evaluations and earlier passes change no bit") {
  const std::string plan = GENERATE("te-current", "torchao-tensorwise", "te-delayed");
  CAPTURE(plan);
  EngineSettings settings = test::small_llama(plan, 2);
  settings.step.decoder.head_chunk_rows = 16;
  settings.plan.exemptions.head = false;
  TrainedEngine alone(settings);
  TrainedEngine evaluated(settings);
  const auto evaluate = [&](TrainedEngine& run, uint64_t batch) {
    run.engine.begin_evaluation();
    run.engine.evaluate(test::random_batch(batch));
    return run.engine.evaluation_loss().mean;
  };
  for (int i = 0; i < 3; ++i) {
    alone.train(1);
    evaluated.train(1);
    const double loss = evaluate(evaluated, 7);
    for (const auto& slot : evaluated.engine.model().scaling().slots()) {
      if (slot->begins_at_zero) {
        *slot->amax = 1e6F;
      }
    }
    CHECK(evaluate(evaluated, 7) == loss);
  }
  CHECK(same_bits(alone.weights(), evaluated.weights()));
}

TEST_CASE("statistics count every cast of the step") {
  EngineSettings settings = test::small_llama("te-current");
  settings.plan.exemptions.head = GENERATE(true, false);
  settings.step.decoder.head_chunk_rows = 16;  // the last of four is what the head's slots are of
  settings.step.micro_batch_size = 4;
  TrainedEngine run(settings);
  run.train(2, true);
  for (const SlotReport& report : run.engine.model().scaling().report()) {
    CAPTURE(report.slot->layer, report.slot->role);
    CHECK(report.statistics.count > 0);
    CHECK(report.statistics.saturated == 0);
    CHECK(report.scale > 0);
    // The scale that this tensor was cast with follows from its amax: exact.
    CHECK(report.scale == format_max(report.slot->format.dtype) / report.sample.amax);
    REQUIRE(report.snr_db());
    CHECK(*report.snr_db() > (report.slot->format.dtype == DType::e4m3 ? 25.0 : 20.0));
  }
}

TEST_CASE("every slot has a sample, and a step that collects them gives the same weights") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  TrainedEngine with(test::small_llama(plan, 2));
  TrainedEngine without(test::small_llama(plan, 2));
  with.train(3, true);
  without.train(3, false);
  CHECK(same_bits(with.weights(), without.weights()));  // exact
  for (const SlotReport& report : with.engine.model().scaling().report()) {
    CAPTURE(report.slot->layer, report.slot->role);
    CHECK(report.sample.amax > 0);
    CHECK(
        (report.snr_db() || report.slot->format.hadamard));  // only the amax of what is transformed
  }
}
