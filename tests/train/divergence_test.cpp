// What says that a run has diverged: spikes of the loss, and the first tensor that is not finite.

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "engine/dry_run.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "train/checkpoint/value_checks.h"
#include "train/watch/divergence.h"
#include "train/watch/first_non_finite.h"

using namespace fp8train;
using Catch::Contains;
using Catch::Equals;

namespace {

TrainingSettings spikes(double threshold, int64_t window, int64_t steps) {
  TrainingSettings settings;
  settings.spike_threshold = threshold;
  settings.spike_window = window;
  settings.spike_steps = steps;
  return settings;
}

/// What the ranks of a step say after `spoil` has been called on each of them before it.
std::vector<std::string> named(const EngineSettings& settings, int ranks,
                               const std::function<void(Engine&, int rank)>& spoil) {
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  const auto errors = test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    engine.reserve(dry_run_step(settings, DeviceTraits{}, comm.topology(), comm.rank()).plan);
    engine.model().initialize(3);
    engine.weights_changed();
    spoil(engine, comm.rank());
    const auto batch = [&] { return test::random_batch(static_cast<uint64_t>(comm.rank())); };
    engine.step(batch, 0, 1e-3, false);
    texts[static_cast<size_t>(comm.rank())] = first_non_finite(engine, comm, batch);
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(ranks)));
  return texts;
}

const Parameter& parameter_named(Engine& engine, const std::string& name) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->name == name) {
      return *parameter;
    }
  }
  throw InternalError("no parameter " + name);
}

/// One element of an fp32 value.
void set_element(Engine& engine, const std::string& name, int64_t element, float value) {
  const Parameter& parameter = parameter_named(engine, name);
  const int64_t first = parameter.updated.first;
  if (element >= first && element < first + parameter.updated.count()) {
    float* values = parameter.updated.value.codes.as<float>();
    engine.device().copy_from_host(values + (element - first), &value, sizeof value);
  }
  engine.weights_changed();
}

}  // namespace

TEST_CASE("the first activation of any pipeline stage that is not finite is named") {
  EngineSettings settings = test::small_llama("fp16");
  settings.model.num_hidden_layers = 4;
  settings.model.tie_word_embeddings = false;
  settings.step.gradient_accumulation_steps = 2;
  settings.strategy.layout.pipeline = 2;
  const bool has_chunks = GENERATE(false, true);
  settings.strategy.layout.schedule =
      has_chunks ? ScheduleKind::interleaved : ScheduleKind::one_forward_one_backward;
  settings.strategy.layout.virtual_stages = has_chunks ? 2 : 1;
  const auto overflow = [&](Engine& engine, int) {
    for (const auto& parameter : engine.model().parameters().all()) {
      if (parameter->name == "layers.2.mlp.down.weight") {
        const std::vector<float> large(static_cast<size_t>(parameter->shape.count()), 1e9F);
        set_value(engine.device(), *parameter, large.data());
      }
    }
    engine.weights_changed();
  };
  const std::string rank = has_chunks ? "rank 0: " : "rank 1: ";
  CHECK(named(settings, 2, overflow).front().starts_with(rank + "activation layers.2, its output"));
}

TEST_CASE("a loss is high above the mean and so many standard deviations of the window") {
  SpikeDetector detector(spikes(2, 4, 2));
  int64_t step = 0;
  detector.add(++step, 1000);  // the window is not full
  for (const double loss : {1.0, 2.0, 3.0, 4.0}) {
    detector.add(++step, loss);
  }
  // Mean 2.5, sd sqrt(5 / 3).
  const double limit = 2.5 + 2 * std::sqrt(5.0 / 3.0);
  SpikeDetector above = detector;
  above.add(step + 1, std::nextafter(limit, 10.0) + 1e-12);
  CHECK(above.history().high_steps > 0);
  CHECK_FALSE(above.has_spike());
  detector.add(++step, limit - 1e-12);
  CHECK_FALSE(detector.history().high_steps > 0);
  CHECK(detector.history().losses == std::vector<double>{2.0, 3.0, 4.0, limit - 1e-12});
}

TEST_CASE("so many high losses in a row are a spike, and they do not enter the window") {
  SpikeDetector detector(spikes(3, 4, 3));
  int64_t step = 0;
  for (const double loss : {2.0, 2.1, 2.0, 2.1}) {
    detector.add(++step, loss);
  }
  const std::vector<double> window = detector.history().losses;
  detector.add(++step, 9);
  detector.add(++step, 9);
  detector.add(++step, 2.05);  // not in a row
  CHECK_FALSE(detector.history().high_steps > 0);
  detector.add(++step, 9);
  detector.add(++step, std::numeric_limits<double>::quiet_NaN());  // is neither
  detector.add(++step, 9);
  CHECK_FALSE(detector.has_spike());
  detector.add(++step, 9);
  REQUIRE(detector.has_spike());
  CHECK(detector.history().first_high == 8);
  CHECK(detector.history().losses == std::vector<double>{2.1, 2.0, 2.1, 2.05});
  CHECK_THAT(detector.describe(), Contains("3 steps in a row, from step 8 on"));
  detector.add(++step, 2);
  CHECK(detector.has_spike());  // until a checkpoint's state replaces it

  SpikeDetector resumed(spikes(3, 4, 3));
  resumed.restore(detector.history());
  CHECK(resumed.has_spike());
  SpikeDetector shorter(spikes(3, 2, 3));
  shorter.restore(detector.history());
  CHECK(shorter.history().losses == std::vector<double>{2.1, 2.05});
}

TEST_CASE("values that no training leaves are found in every format") {
  const auto first = [](DType type, const auto& values, Signs signs = Signs::any) {
    return first_impossible(values.data(), type, static_cast<int64_t>(values.size()), signs);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  using Floats = std::vector<float>;
  CHECK(first(DType::f32, Floats{0, -1, 3e38F, -3e38F}) == 4);
  CHECK(first(DType::f32, Floats{0, -1, nan}) == 2);
  CHECK(first(DType::f32, Floats{-infinity, 1}) == 0);
  CHECK(first(DType::f32, Floats{0, -0.0F, 1, -1e-40F}, Signs::not_negative) == 3);
  using Halves = std::vector<uint16_t>;
  CHECK(first(DType::bf16, Halves{0x7f7f, 0xff7f, 0x7f80}) == 2);
  CHECK(first(DType::bf16, Halves{0x8000, 0x8001}, Signs::not_negative) == 1);
  CHECK(first(DType::f16, Halves{0x7bff, 0xfbff, 0xfc01}) == 2);
  using Bytes = std::vector<uint8_t>;
  CHECK(first(DType::e4m3, Bytes{0x7e, 0xfe, 0x80, 0xff}) == 3);
  CHECK(first(DType::e5m2, Bytes{0x7b, 0xfb, 0x7c}) == 2);
  CHECK(first(DType::e4m3, Bytes{0x7e, 0x80, 0x81}, Signs::not_negative) == 2);
  Floats many(300000, 1.0F);  // several blocks
  many[299999] = nan;
  many[200000] = -1;
  CHECK(first(DType::f32, many) == 299999);
  CHECK(first(DType::f32, many, Signs::not_negative) == 200000);
  const Floats second = {1, -1};
  CHECK_THAT(impossible_state("moment2.a@128", second.data(), DType::f32, 2, 128),
             Equals("moment2.a@128[129] is NaN, infinite or negative"));
  CHECK_THAT(impossible_state("moment1.a", second.data(), DType::f32, 2), Equals(""));
  const Bytes pairs = {0x77, 0x17, 0x71, 0x9F};
  CHECK_THAT(impossible_state("moment2.a", pairs.data(), DType::u8, 4, 8),
             Equals("moment2.a[22] is NaN, infinite or negative"));
  CHECK_THAT(impossible_state("moment2.a", Bytes{0x97}.data(), DType::u8, 1),
             Equals("moment2.a[1] is NaN, infinite or negative"));
  CHECK_THAT(impossible_state("moment1.a.scale", second.data(), DType::f32, 2), !Equals(""));
}

TEST_CASE("a step that drops more tokens than is allowed ends the run, and says what to do") {
  const ExpertLoads loads = {.dropped = 0.0349, .padding = 0.2, .most = 2.5, .least = 0.1};
  CHECK_NOTHROW(check_dropped(7, loads, {.max_dropped = 0.035}));
  try {
    check_dropped(7, loads, {.capacity_factor = 1.5, .balance_loss = 0.01, .max_dropped = 0.034});
    FAIL("3.49 % is more than 3.4 %");
  } catch (const NumericError& error) {
    CHECK(std::string(error.what()) ==
          "in step 7 experts had no memory for 3.49 % of what the router sent them, and "
          "moe.max_dropped is 3.40 %; the largest load was 2.50 times the mean: raise "
          "moe.capacity_factor (1.5), moe.balance_loss (0.01) or moe.max_dropped");
  }
}

TEST_CASE("a threshold of 0 looks for nothing") {
  SpikeDetector detector(spikes(0, 2, 1));
  for (int64_t step = 1; step < 9; ++step) {
    detector.add(step, static_cast<double>(step * step));
  }
  CHECK_FALSE(detector.has_spike());
  CHECK(detector.history() == SpikeHistory{});
}

TEST_CASE("the device keeps the losses of steps, and the history ends a run that does not ask") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  EngineSettings settings = test::small_llama("te-delayed");
  settings.loss_history = 70;  // more than one message between ranks has
  std::vector<std::vector<double>> taken(2), read(2);
  std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        engine.reserve(dry_run_step(settings, DeviceTraits{}, comm.topology(), comm.rank()).plan);
        engine.model().initialize(3);
        engine.weights_changed();
        const auto rank = static_cast<size_t>(comm.rank());
        for (uint64_t step = 0; step < 70; ++step) {
          engine.step([&] { return test::random_batch(step * 2 + rank); },
                      static_cast<int64_t>(step), 1e-3, false);
          read[rank].push_back(engine.step_loss().mean);
        }
        taken[rank] = engine.take_losses();
        engine.take_losses();
        for (int64_t step = 70; step < 141; ++step) {  // one more than there is memory for
          engine.step([&] { return test::random_batch(1); }, step, 1e-3, false);
        }
      });
  CHECK(taken[0] == read[0]);
  CHECK(taken[0].size() == 70);
  CHECK((ranks == 1 || taken[1] == taken[0]));
  CHECK_THAT(errors[0], Contains("losses are taken before their memory is full"));
}

TEST_CASE("the first tensor that is not finite is a weight, of its rank") {
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(stage);
  EngineSettings settings = test::small_llama("te-current");
  settings.strategy.zero_stage = stage;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Later weights, and all activations after it, are not finite either.
  const auto spoil = [&](Engine& engine, int rank) {
    if (rank == 1 || stage > 0) {
      set_element(engine, "layers.1.mlp.up.weight", 1017, nan);
      set_element(engine, "layers.0.attention_norm.weight", 31, nan);
    } else {  // of a later layer
      set_element(engine, "layers.1.mlp.down.weight", 3, nan);
      engine.weights_changed();
    }
  };
  const std::vector<std::string> texts = named(settings, 2, spoil);
  CHECK(texts[0] == texts[1]);
  CHECK_THAT(texts[0], Contains("weight layers.0.attention_norm.weight, element 31 is nan"));
  if (stage == 0) {
    CHECK_THAT(texts[0], Catch::StartsWith("rank 1: "));
  } else {
    CHECK_THAT(texts[0], Catch::StartsWith("rank "));
  }
}

TEST_CASE("the first tensor that is not finite is an activation, of its rank") {
  EngineSettings settings = test::small_llama("bf16");
  const auto spoil = [](Engine& engine, int rank) {
    if (rank == 1) {  // finite, but not as bf16; every token reads it
      for (int64_t row = 0; row < test::kSmallVocabulary; ++row) {
        set_element(engine, "embedding.weight", row * 32 + 5, 3.4e38F);
      }
    }
  };
  const std::vector<std::string> two = named(settings, 2, spoil);
  CHECK_THAT(two[0], Equals("rank 1: activation embedding, its output, element 5 is inf"));
  CHECK(two[1] == two[0]);
  const std::vector<std::string> one =
      named(settings, 1, [&](Engine& engine, int /*rank*/) { spoil(engine, 1); });
  CHECK_THAT(one[0], Equals("activation embedding, its output, element 5 is inf"));
}

TEST_CASE("the first tensor that is not finite is a gradient, the last layer's") {
  EngineSettings settings = test::small_llama("fp32");
  settings.step.decoder.z_loss = std::numeric_limits<float>::infinity();  // of backward only
  const std::vector<std::string> texts = named(settings, 1, [](Engine&, int) {});
  CHECK_THAT(texts[0], Contains("gradient head.weight, element 0 is"));
}

TEST_CASE("where all tensors are finite none is named") {
  const int ranks = GENERATE(1, 2);
  const std::vector<std::string> texts =
      named(test::small_llama("te-delayed"), ranks, [](Engine&, int) {});
  CHECK(texts == std::vector<std::string>(static_cast<size_t>(ranks)));
}
