// Parameters that are not trained (training.frozen): their values stay, in every layout, and they
// have neither a gradient nor a state.

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/math.h"
#include "precision/linear_plan.h"
#include "precision/plan_entries.h"
#include "support/temp_dir.h"
#include "train/rank_results.h"
#include "train/saved_states.h"

using namespace fp8train;

namespace {

using Patterns = std::vector<std::string>;

EngineSettings freezing(EngineSettings settings, const Patterns& patterns) {
  settings.step.decoder.frozen = patterns;
  return settings;
}

/// Norms, a bias-free block and the embedding; matrices of another block next to trained ones.
const Patterns kSome = {"embedding.weight", "layers.0.*", "layers.1.mlp.up.weight",
                        "layers.1.mlp_norm.weight", "final_norm.*"};
/// All below the last block, so that backward ends there.
const Patterns kBelow = {"embedding.weight", "layers.0.*"};

bool is_frozen(const std::string& name, const Patterns& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_match(pattern, name); });
}

/// Values of a model that has not been trained, by parameter.
struct Initial {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine;

  explicit Initial(const EngineSettings& settings) : engine(*device, settings) {
    engine.model().initialize(3);
  }
  const std::vector<std::unique_ptr<Parameter>>& parameters() {
    return engine.model().parameters().all();
  }
};

/// `weights`: those of all parameters after training.
void check_values(const EngineSettings& settings, const std::vector<float>& weights) {
  Initial initial(settings);
  size_t begin = 0;
  for (const auto& parameter : initial.parameters()) {
    CAPTURE(parameter->name);
    const std::vector<float> before = test::value_on_host(*initial.device, *parameter);
    const auto first = weights.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::vector<float> after(first, first + static_cast<std::ptrdiff_t>(before.size()));
    const bool frozen = is_frozen(parameter->name, settings.step.decoder.frozen);
    CHECK(parameter->trained != frozen);
    CHECK(test::same_bits(before, after) == frozen);
    begin += before.size();
  }
  CHECK(begin == weights.size());
}

int64_t bytes_of(const EngineSettings& settings, MemoryCategory category, int ranks) {
  return static_cast<int64_t>(dry_run_step(settings, DeviceTraits{}, Topology::blocks(ranks, ranks))
                                  .memory.current(category));
}

}  // namespace

TEST_CASE("frozen values keep their bits on one rank, in DDP and in each stage of ZeRO") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed", "te-current", "deepseek-v3",
                                    "fp8-lm", "coat", "fp8-min");
  const Patterns patterns = GENERATE(kSome, kBelow);
  const int64_t passes = GENERATE(1, 2);
  CAPTURE(plan, patterns, passes);
  EngineSettings settings = freezing(test::tiny(plan, passes), patterns);
  const test::RankResult one = test::train(settings, nullptr);
  check_values(settings, one.weights);
  CHECK(one.as_planned);
  std::vector<float> of_first_stage;
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<test::RankResult> results =
        test::train_ranks(settings, Topology::blocks(3, 3));
    for (const test::RankResult& result : results) {
      CHECK(result.as_planned);
      CHECK_FALSE(result.allocated);
      CHECK(result.skipped == 0);
    }
    const std::vector<float>& weights = results.front().weights;
    check_values(settings, weights);
    of_first_stage = stage == 1 ? weights : of_first_stage;
    CHECK((stage < 2 || test::same_bits(weights, of_first_stage)));
  }
}

TEST_CASE("what is trained gets the gradients that it has where all is trained") {
  std::vector<std::string> plans;
  for (const PlanEntry& entry : plan_entries()) {
    plans.emplace_back(entry.name);
  }
  const std::string plan = GENERATE_COPY(from_range(plans));
  const Patterns patterns = GENERATE(kSome, kBelow);
  const Recompute recompute = GENERATE(Recompute::none, Recompute::attention, Recompute::block);
  CAPTURE(plan, patterns, recompute);
  EngineSettings all = test::tiny(plan, 2);
  all.optimizer.grad_clip = 0;  // the norm is of what is trained
  all.step.decoder.recompute = recompute;
  const test::RankResult of_all = test::train(all, nullptr, {}, {}, 1);
  const EngineSettings some = freezing(all, patterns);
  const test::RankResult of_some = test::train(some, nullptr, {}, {}, 1);
  CHECK(of_all.losses == of_some.losses);
  Initial model(some);
  size_t begin = 0;
  for (const auto& parameter : model.parameters()) {
    CAPTURE(parameter->name);
    const auto count = static_cast<size_t>(parameter->shape.count());
    const auto part = [&](const test::RankResult& result) {
      const auto first = result.weights.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(count));
    };
    CHECK((!parameter->trained || test::same_bits(part(of_all), part(of_some))));
    begin += count;
  }
}

TEST_CASE("biases, layer norms, positions and a tied table are frozen one by one") {
  const Patterns patterns = GENERATE(Patterns{"positions.weight", "*.bias"},
                                     Patterns{"embedding.weight", "layers.?.*_norm.weight"},
                                     Patterns{"layers.*.mlp.*.weight", "*_norm.bias"});
  CAPTURE(patterns);
  EngineSettings settings = freezing(test::tiny("te-delayed", 2), patterns);
  settings.model = test::small_gpt2_model();
  check_values(settings, test::train(settings, nullptr).weights);
  settings.strategy.zero_stage = 3;
  check_values(settings, test::train_ranks(settings, Topology::blocks(2, 2)).front().weights);
}

TEST_CASE("an optimizer of whole matrices leaves frozen parameters alone") {
  EngineSettings settings = freezing(test::tiny("bf16", 1), kSome);
  settings.optimizer.name = "muon";
  check_values(settings, test::train(settings, nullptr).weights);
  settings.strategy.zero_stage = 1;
  for (const test::RankResult& result : test::train_ranks(settings, Topology::blocks(2, 2))) {
    check_values(settings, result.weights);
    CHECK(result.as_planned);
  }
}

TEST_CASE("gradients and states are smaller by what the frozen parameters had") {
  const std::string plan = GENERATE("fp32", "bf16", "fp8-lm", "coat");
  const Patterns patterns = GENERATE(kSome, kBelow);
  const int ranks = GENERATE(1, 4);
  CAPTURE(plan, patterns, ranks);
  const EngineSettings all = test::tiny(plan, 1);
  const EngineSettings some = freezing(all, patterns);
  Initial model(all);
  int64_t gradients = 0;
  int64_t states = 0;
  // Tensors are padded to 128 elements; one scale has space for an amax next to it.
  const auto bytes = [](const TensorFormat& format, int64_t count) {
    const int64_t padded = round_up(count, kRangeAlignment);
    const int64_t scaled = format.block == per::tensor ? count : padded;
    return padded * static_cast<int64_t>(size_of(format.dtype)) + 4 * stored_scales(format, scaled);
  };
  for (const auto& parameter : model.parameters()) {
    if (is_frozen(parameter->name, patterns)) {
      const ParameterFormats& formats = parameter->formats;
      const int64_t count = parameter->shape.count();
      gradients += bytes(running_gradient(formats, ranks > 1), count);
      if (running_gradient(formats, ranks > 1) != formats.gradient) {
        gradients += bytes(formats.gradient, count);
      }
      states += bytes(formats.moment1, count) + bytes(formats.moment2, count);
    }
  }
  CHECK(states > 0);
  const auto saved = [&](MemoryCategory category) {
    return bytes_of(all, category, ranks) - bytes_of(some, category, ranks);
  };
  CHECK(saved(MemoryCategory::gradients) == gradients);
  CHECK(saved(MemoryCategory::optimizer_state) == states);
  CHECK(saved(MemoryCategory::weights) == 0);
  CHECK(saved(MemoryCategory::master_weights) == 0);
}

TEST_CASE("a checkpoint of a run with frozen parameters continues to the same bits") {
  const std::string plan = GENERATE("bf16", "fp8-min");
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(plan, stage);
  const test::TempDir dir;
  const EngineSettings settings = freezing(test::settings_of(plan, stage), kSome);
  const auto step = [](Engine& engine, const Communicator& comm) {
    engine.step([&] { return test::random_batch(1000 + static_cast<uint64_t>(comm.rank())); }, 2,
                1e-3, false);
  };
  std::vector<std::vector<float>> saved;
  std::vector<float> expected;
  std::vector<float> found;
  test::run({3, stage}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    test::train(engine, comm);
    test::save(dir.path(), engine, comm);
    const auto values = test::values_by_parameter(engine);
    step(engine, comm);
    const std::vector<float> after = test::values_of(engine);
    if (comm.rank() == 0) {
      saved = values;
      expected = after;
    }
  });
  for (const auto& [name, bytes] : test::contents(dir / "step-000001")) {
    CAPTURE(name);
    const bool is_state = name.starts_with("moment");
    CHECK_FALSE((is_state && is_frozen(name.substr(name.find('.') + 1), kSome)));
  }
  test::run({3, stage}, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    test::reserve(engine, comm);
    const auto& parameters = engine.model().parameters().all();
    for (size_t i = 0; i < parameters.size(); ++i) {
      set_value(*device, *parameters[i], saved[i].data());
    }
    load_optimizer_files(dir / "step-000001", engine);
    ops::StepControl control = engine.optimizer().control();
    control.applied_steps = 2;
    engine.optimizer().set_control(control);
    engine.weights_changed();
    step(engine, comm);
    const std::vector<float> after = test::values_of(engine);
    if (comm.rank() == 0) {
      found = after;
    }
  });
  CHECK(test::same_bits(found, expected));
}

TEST_CASE("patterns that match nothing, or everything, are refused") {
  const auto message = [](const Patterns& patterns) {
    try {
      Initial initial(freezing(test::small_llama("fp32"), patterns));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message({"embeding.weight"}) ==
        "training.frozen: 'embeding.weight' matches no parameter; did you mean embedding.weight?");
  CHECK_THAT(
      message({"layers.*", "blocks.*"}),
      Catch::StartsWith("training.frozen: 'blocks.*' matches no parameter; those of block 0 "
                        "and outside are: embedding.weight, layers.0.attention_norm.weight, "));
  CHECK(message({"*"}) ==
        "training.frozen: its patterns match all parameters; leave some to train");
}
