// Ranks that have different experts compute what ranks with all experts do: all bits of the forward
// pass, the same choices and drops, and gradients but for roundings on the wire.

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "support/small_moe.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

EngineSettings with(EngineSettings settings, int64_t ranks, int64_t zero_stage = 0) {
  settings.strategy.layout.expert = ranks;
  settings.strategy.zero_stage = zero_stage;
  return settings;
}

/// With as many heads as ranks that share layers or sequences need.
EngineSettings model_of(const std::string& name, const std::string& plan) {
  EngineSettings settings = name == "moe" ? small_moe(plan) : small_deepseek(plan);
  settings.model.num_attention_heads = 4;
  settings.model.num_key_value_heads = 4;
  return settings;
}

/// The loads of the first step, of each data rank's batches.
ExpertLoads loads_of(const EngineSettings& settings, int ranks, std::vector<float>& bias) {
  ExpertLoads loads;
  std::mutex mutex;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        Engine engine(*device, settings, &comm);
        engine.reserve(dry_run_step(settings, {}, comm.topology(), comm.rank()).plan);
        engine.model().initialize(3);
        engine.weights_changed();
        engine.step([&] { return batch_of(settings, static_cast<uint64_t>(comm.rank()), ranks); },
                    0, 1e-3, false);
        const ExpertLoads own = engine.expert_loads();
        const std::vector<std::vector<float>> values = values_by_parameter(engine);
        const std::lock_guard lock(mutex);
        if (comm.rank() == 0) {
          loads = own;
          const Parameters& all = engine.model().parameters().all();
          for (size_t i = 0; i < all.size(); ++i) {
            if (all[i]->name.ends_with("router.bias")) {
              bias.insert(bias.end(), values[i].begin(), values[i].end());
            }
          }
        }
      });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return loads;
}

}  // namespace

TEST_CASE("ranks with different experts have the gradients of ranks with all", "[experts]") {
  const std::string model = GENERATE("moe", "deepseek");
  const int ranks = GENERATE(2, 4);
  const int64_t experts = GENERATE(2, 4);
  const int64_t passes = GENERATE(1, 2);
  if (experts > ranks) {
    return;
  }
  CAPTURE(model, ranks, experts, passes);
  EngineSettings settings = model_of(model, "fp32");
  settings.step.gradient_accumulation_steps = passes;
  settings.counts_targets = passes == 2;
  settings.step.decoder.recompute = passes == 2 ? Recompute::block : Recompute::none;
  const Results all = run(settings, ranks, 1);
  const Results parts = run(with(settings, experts), ranks, 1);
  CHECK(parts.losses == all.losses);
  CHECK(difference(all.gradients, parts.gradients, 1e-6) == "");
  CHECK(parts.norms[0] == Approx(all.norms[0]).epsilon(1e-6));
  CHECK(parts.as_planned);
}

TEST_CASE("choices, drops and biases do not depend on the ranks that have the experts",
          "[experts]") {
  const std::string plan = GENERATE("bf16", "te-delayed", "deepseek-v3");
  const int ranks = GENERATE(2, 4);
  CAPTURE(plan, ranks);
  EngineSettings settings = small_deepseek(plan);
  settings.step.micro_batch_size = 32;
  std::vector<float> bias, same_bias;
  const ExpertLoads all = loads_of(settings, ranks, bias);
  const ExpertLoads parts = loads_of(with(settings, ranks), ranks, same_bias);
  CHECK(all.dropped > 0.0);
  CHECK(parts.dropped == all.dropped);
  CHECK(parts.padding == all.padding);
  CHECK(parts.choices == all.choices);
  CHECK(std::ranges::any_of(bias, [](float value) { return value != 0.0F; }));
  CHECK(same_bits(bias, same_bias));
}

TEST_CASE("eight ranks have one expert each", "[experts]") {
  const EngineSettings settings = small_deepseek("fp32");
  const Results all = run(settings, 8, 1);
  for (const int64_t experts : {2, 8}) {
    CAPTURE(experts);
    const Results parts = run(with(settings, experts), 8, 1);
    CHECK(parts.losses == all.losses);
    CHECK(difference(all.gradients, parts.gradients, 1e-6) == "");
    CHECK(parts.as_planned);
  }
}

TEST_CASE("every plan trains with ranks that have different experts", "[experts]") {
  const std::string plan = GENERATE(from_range(compared_plans()));
  CAPTURE(plan);
  const EngineSettings settings = small_moe(plan);
  const Results all = run(settings, 2, 2);
  const Results parts = run(with(settings, 2), 2, 2);
  CHECK(parts.losses[0] == Approx(all.losses[0]).epsilon(2e-3));
  CHECK(parts.losses[1] == Approx(all.losses[1]).epsilon(1e-2));
  CHECK(parts.norms[0] == Approx(all.norms[0]).epsilon(3e-2));
  CHECK(parts.as_planned);
}

TEST_CASE("ranks with different experts share states in each ZeRO stage alike", "[experts]") {
  const std::string plan =
      GENERATE("fp32", "bf16", "te-delayed", "te-current", "deepseek-v3", "msamp-o2");
  const int64_t experts = GENERATE(2, 4);
  CAPTURE(plan, experts);
  EngineSettings settings = with(small_moe(plan), experts);
  settings.optimizer.weight_decay = 50;  // so that scales of weights follow smaller ones
  const Results whole = run(settings, 4);
  for (const int64_t stage : {1, 2, 3}) {
    CAPTURE(stage);
    EngineSettings shared = with(settings, experts, stage);
    const Results parts = run(shared, 4);
    CHECK(parts.losses == whole.losses);
    CHECK(difference(whole.values, parts.values, 0) == "");
    CHECK(parts.as_planned);
  }
}

TEST_CASE("groups of ranks with different experts share a copy each", "[experts]") {
  const std::string plan = GENERATE("fp32", "te-delayed", "te-current", "deepseek-v3", "msamp-o2");
  const int64_t tensor = plan == "fp32" ? GENERATE(1, 2) : 1;
  const int64_t experts = GENERATE(2, 4);
  CAPTURE(plan, tensor, experts);
  EngineSettings settings = model_of("moe", plan);
  settings.strategy.layout.tensor = tensor;
  settings.optimizer.weight_decay = 50;
  settings.step.gradient_accumulation_steps = 2;
  const int ranks = 8;
  const Results whole = run(with(settings, experts), ranks);
  for (const int64_t stage : {1, 2, 3}) {
    CAPTURE(stage);
    EngineSettings groups = with(settings, experts, stage);
    groups.strategy.shard_ranks = 4 / tensor;
    const Results parts = run(groups, ranks);
    CHECK(parts.losses == whole.losses);
    CHECK(parts.norms[2] == Approx(whole.norms[2]).epsilon(1e-6));
    CHECK(difference(whole.values, parts.values, 0) == "");
    CHECK(parts.as_planned);
  }
}

TEST_CASE("stages of a pipeline have ranks with different experts", "[experts]") {
  const std::string plan = GENERATE("fp32", "te-delayed");
  const ScheduleKind schedule =
      GENERATE(ScheduleKind::one_forward_one_backward, ScheduleKind::zero_bubble);
  CAPTURE(plan, schedule);
  EngineSettings settings = with(small_moe(plan, 2), 2);
  const Results one_stage = run(settings, 2);
  settings.strategy.layout.pipeline = 2;
  settings.strategy.layout.schedule = schedule;
  const Results stages = run(settings, 4);
  CHECK(difference(one_stage.values, stages.values, 0) == "");
  CHECK(stages.last_losses == one_stage.losses);
  CHECK(stages.as_planned);
}

TEST_CASE("sizes of the expert axis that do not fit are refused", "[experts]") {
  EngineSettings settings = with(small_moe("bf16"), 3);
  CHECK_THROWS_WITH(dry_run_step(settings, {}, Topology::blocks(6, 6), 0),
                    Catch::Contains("parallelism.expert is 3, which does not divide "
                                    "model.num_experts 4; the nearest size that does is 2"));
  settings.model.moe = {};
  CHECK_THROWS_WITH(dry_run_step(settings, {}, Topology::blocks(6, 6), 0),
                    Catch::Contains("the model has no experts"));
  settings = with(small_moe("bf16"), 4, 1);
  settings.strategy.shard_ranks = 2;
  CHECK_THROWS_WITH(dry_run_step(settings, {}, Topology::blocks(8, 8), 0),
                    Catch::Contains("parallelism.shard_ranks is 2: ranks that share one copy have "
                                    "all experts, and parallelism.expert is 4; the nearest number "
                                    "that works is 4"));
}

TEST_CASE("ranks that share sequences balance the loads of whole sequences", "[experts]") {
  const std::string model = GENERATE("moe", "deepseek");
  const int64_t experts = GENERATE(1, 2, 4);
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  CAPTURE(model, experts, kind);
  EngineSettings settings = model_of(model, "fp32");
  settings.step.decoder.moe.capacity_factor = 4.0;  // none is dropped, for whatever rows of a rank
  settings.step.decoder.moe.balance_loss = 0.5;
  const Results one = run(settings, 1, 1);
  settings.strategy.layout.context = 2;
  settings.strategy.layout.context_kind = kind;
  settings.step.gradient_accumulation_steps = experts == 4 ? 2 : 1;
  const int ranks = experts == 4 ? 4 : 2;
  const Results several = run(with(settings, experts), ranks, 1);
  if (experts < 4) {
    CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(1e-12));
    CHECK(difference(one.gradients, several.gradients, 2e-6) == "");
  } else {
    const Results data = run(with(settings, 1), ranks, 1);
    CHECK(several.losses == data.losses);
    CHECK(difference(data.gradients, several.gradients, 2e-6) == "");
  }
  CHECK(several.as_planned);
}

TEST_CASE("ranks that share layers have different experts", "[experts]") {
  const std::string model = GENERATE("moe", "deepseek");
  const int ranks = GENERATE(2, 4);
  const int64_t experts = GENERATE(2, 4);
  const int64_t stage = GENERATE(0, 3);
  const int64_t sequences = GENERATE(1, 4);
  if (experts > ranks) {
    return;
  }
  CAPTURE(model, ranks, experts, stage, sequences);
  EngineSettings settings = model_of(model, "fp32");
  settings.step.micro_batch_size = sequences;
  settings.step.decoder.moe.capacity_factor = 4.0;
  settings.step.decoder.moe.balance_loss = 0.5;
  const int64_t data = ranks / 2;
  const Results one = run(settings, static_cast<int>(data), 1);
  settings.strategy.layout.tensor = 2;
  const Results several = run(with(settings, experts, stage), ranks, 1);
  CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(1e-6));
  CHECK(several.norms[0] == Approx(one.norms[0]).epsilon(1e-5));
  CHECK(several.as_planned);
  if (stage == 0) {
    CHECK(difference(one.gradients, several.gradients, 4e-6) == "");
  }
}

TEST_CASE("experts go with every other axis", "[experts]") {
  EngineSettings settings = model_of("deepseek", "fp32");
  settings.step.gradient_accumulation_steps = 2;
  settings.step.decoder.moe.capacity_factor = 4.0;
  const Results one = run(settings, 1, 1);
  const auto check_layout = [&](const ParallelLayout& layout, int ranks) {
    EngineSettings several = settings;
    several.strategy.layout = layout;
    const Results results = run(several, ranks, 1);
    CHECK(results.last_losses[0] == Approx(one.losses[0]).epsilon(1e-6));
    CHECK(results.norms[0] == Approx(one.norms[0]).epsilon(1e-5));
    CHECK(difference(one.gradients, results.gradients, 4e-6) == "");
    CHECK(*results.loads.balance_loss == Approx(*one.loads.balance_loss).epsilon(1e-6));
    CHECK(*results.loads.z_loss == Approx(*one.loads.z_loss).epsilon(1e-6));
    CHECK(results.as_planned);
  };
  check_layout({.tensor = 2, .context = 2, .expert = 4}, 4);
  check_layout({.tensor = 2, .pipeline = 2, .expert = 2}, 4);
  check_layout({.context = 2, .pipeline = 2, .expert = 2}, 4);
  check_layout({.tensor = 2, .context = 2, .pipeline = 2, .expert = 4}, 8);
}

TEST_CASE("a block sends the bytes of its formula to experts and back", "[experts]") {
  // Four exchanges of rows in bf16; of DeepSeek-V3's plan two in codes with fp32 scales.
  const auto [plan, bytes] = GENERATE(std::pair("bf16", 8.0), std::pair("deepseek-v3", 6.0625));
  const int ranks = GENERATE(2, 4);
  CAPTURE(plan, ranks);
  EngineSettings settings = with(small_moe(plan), ranks);
  settings.model.hidden_size = 128;
  const auto sent = [&](int64_t blocks) {
    settings.model.num_hidden_layers = blocks;
    const DryRunStep step = dry_run_step(settings, {}, Topology::blocks(ranks, ranks), 0);
    return static_cast<double>(step.sent_by_layers.total());
  };
  const auto elements = static_cast<double>(4 * 16 * settings.model.hidden_size);
  CHECK(sent(3) - sent(2) == bytes * elements * (ranks - 1) / ranks);
}

TEST_CASE("experts of which only some are trained are refused where ranks have different ones",
          "[experts]") {
  EngineSettings settings = with(small_moe("bf16"), 2);
  settings.step.decoder.frozen = {"layers.*.mlp.experts.*"};
  CHECK_NOTHROW(dry_run_step(settings, {}, Topology::blocks(2, 2), 0));
  settings.step.decoder.frozen = {"layers.*.mlp.experts.1.*"};
  CHECK_THROWS_WITH(dry_run_step(settings, {}, Topology::blocks(2, 2), 0),
                    Catch::Contains("is trained in 3 of 4 experts"));
}

TEST_CASE("experts in different formats are refused where ranks have different ones", "[experts]") {
  EngineSettings settings = with(small_moe("te-delayed"), 2);
  settings.plan.exemptions.patterns = {"layers.*.mlp.experts.*"};
  CHECK_NOTHROW(dry_run_step(settings, {}, Topology::blocks(2, 2), 0));
  settings.plan.exemptions.patterns = {"layers.1.mlp.experts.3.*"};
  CHECK_THROWS_WITH(dry_run_step(settings, {}, Topology::blocks(2, 2), 0),
                    Catch::Contains("layers.1.mlp.experts.3.up have different formats"));
}

TEST_CASE("each rank names the frozen parameters of all", "[experts]") {
  EngineSettings settings = small_deepseek("bf16");
  settings.step.decoder.frozen = {"layers.1.mlp.experts.*", "head.weight"};
  const auto frozen_of = [&](Communicator* comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    return Engine(*device, settings, comm).model().frozen();
  };
  const std::vector<std::string> one = frozen_of(nullptr);
  CHECK(one.size() == 8 * 2 + 2);
  CHECK(std::ranges::count(one, "layers.1.mlp.experts.7.down.weight") == 1);
  CHECK(std::ranges::count(one, "layers.1.mlp.router.bias") == 1);
  settings.strategy.layout.expert = 2;
  settings.strategy.layout.pipeline = 2;
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(4, 4), [&](Communicator& comm) {
        if (frozen_of(&comm) != one) {
          throw std::runtime_error("another list");
        }
      });
  CHECK(errors == std::vector<std::string>(errors.size()));
}

TEST_CASE("each exchange of ranks with different experts is needed", "[experts]") {
  const std::string plan = GENERATE("bf16", "deepseek-v3", "te-delayed");
  CAPTURE(plan);
  EngineSettings settings = with(small_deepseek(plan), 2);
  settings.model.num_hidden_layers = 1;
  settings.model.dense_layers.clear();
  CHECK(exchanges_not_needed(settings, plan != "te-delayed") == std::vector<std::string>());
}
