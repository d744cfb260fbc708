// Models divided into pipeline stages, each on a thread, train as one rank does: losses, weights,
// moments and scales have the same bits.

#include <catch2/catch.hpp>

#include <cmath>

#include "support/small_moe.h"
#include "train/pipeline_stages.h"

using namespace fp8train;
using namespace fp8train::test::stages;

TEST_CASE("two stages train as one rank does, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  const auto model = GENERATE(&test::small_llama, &test::small_deepseek);
  const EngineSettings settings = four_blocks(model(plan, 1), 4);
  const Trained one = train(settings, nullptr);
  const bool takes_long = settings.model.moe.experts > 0 && plan != "te-delayed";
  for (const Order& order : kOrders) {
    CAPTURE(plan, order.kind);
    if (!takes_long || order.kind == ScheduleKind::zero_bubble) {
      check_same(train_stages(in_order(settings, order, 2), 2), one);
    }
  }
}

TEST_CASE("any number of stages and micro-batches trains as one rank does") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current", "deepseek-v3", "msamp-o2");
  const int64_t stages = GENERATE(2, 4);
  const int64_t micro_batches = GENERATE(1, 3, 8);
  WholeRanks whole;
  for (const Order& order : kOrders) {
    CAPTURE(plan, stages, micro_batches, order.kind);
    const EngineSettings settings =
        in_order(four_blocks(test::small_gpt2(plan), micro_batches), order, stages);
    check_same(train_stages(settings, stages), whole.train_as(settings));
  }
}

TEST_CASE("stages do not wait for each other where messages are sent in the order of one stream") {
  const int64_t stages = GENERATE(2, 3, 4);
  const int64_t micro_batches = GENERATE(1, 3, 8);
  const bool tied = GENERATE(false, true);
  const Order order = GENERATE(from_range(kOrders), Order{ScheduleKind::interleaved, 3});
  CAPTURE(stages, micro_batches, tied, order.kind, order.chunks);
  EngineSettings settings =
      in_order(four_blocks(test::small_gpt2("te-delayed"), micro_batches), order, stages);
  settings.model.tie_word_embeddings = tied;
  check_same(train_stages(settings, stages, 2, true), train_stages(settings, stages, 2));
}

TEST_CASE("stages recompute, mask documents and have a head in FP8 as one rank does") {
  using Case = std::pair<const char*, Recompute>;
  const auto& [plan, recompute] =
      GENERATE(Case("te-delayed", Recompute::block), Case("te-current", Recompute::mlp),
               Case("coat", Recompute::mlp), Case("msamp-o3", Recompute::attention));
  WholeRanks whole;
  for (const Order& order : kOrders) {
    CAPTURE(plan, order.kind, name_of(recompute));
    EngineSettings settings = in_order(four_blocks(test::small_llama(plan), 5), order, 2);
    settings.step.decoder.recompute = recompute;
    settings.plan.exemptions.head = false;
    check_same(train_stages(settings, 2), whole.train_as(settings));
  }
}

TEST_CASE("stages mask documents and count targets as one rank does") {
  const Order order = GENERATE(from_range(kOrders));
  CAPTURE(order.kind);
  EngineSettings settings = in_order(four_blocks(test::small_gpt2("te-delayed"), 3), order, 3);
  settings.masks_documents = settings.counts_targets = true;
  settings.model.num_hidden_layers = 8;
  settings.strategy.layout.stage_blocks =
      order.chunks == 1 ? std::vector<int64_t>{5, 1, 2} : std::vector<int64_t>{1, 2, 1, 1, 2, 1};
  check_same(train_stages(settings, 3), train(settings, nullptr));
}

TEST_CASE("replicas of stages train as replicas of the whole model do, in every stage of ZeRO") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current", "msamp-o2", "fp8-lm");
  const int zero_stage = GENERATE(0, 1, 2, 3);
  const int64_t micro_batches = GENERATE(1, 3);
  WholeRanks whole(2);
  for (const Order& order : kOrders) {
    CAPTURE(plan, zero_stage, micro_batches, order.kind);
    EngineSettings settings =
        in_order(four_blocks(test::small_llama(plan), micro_batches), order, 2);
    settings.strategy.zero_stage = zero_stage;
    check_same(train_stages(settings, 2, 2), whole.train_as(settings));
  }
}

TEST_CASE("stages of ranks that share each layer train as whole ranks with the same parts do") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current", "torchao-tensorwise");
  const auto [stages, replicas, zero_stage] = GENERATE(
      table<int64_t, int, int>({{2, 1, 0}, {4, 1, 0}, {2, 2, 0}, {2, 2, 1}, {2, 2, 2}, {2, 2, 3}}));
  const Recompute recompute = GENERATE(Recompute::none, Recompute::mlp);
  WholeRanks whole_ranks(replicas);
  for (const Order& order : kOrders) {
    CAPTURE(plan, stages, replicas, zero_stage, order.kind);
    EngineSettings settings = in_order(four_blocks(test::small_gpt2(plan), 3), order, stages);
    settings.step.decoder.recompute = recompute;
    settings.strategy.layout.tensor_parts = 2;
    const Trained& whole = whole_ranks.train_as(settings);
    settings.strategy.layout.tensor = 2;
    settings.strategy.zero_stage = zero_stage;
    const Trained ranks = train_stages(settings, stages, 2 * replicas);
    CHECK(ranks.losses == whole.losses);  // after updates, too
    CHECK(ranks.norms == whole.norms);
    CHECK(ranks.evaluated == whole.evaluated);
    CHECK(ranks.as_planned);
  }
}

TEST_CASE("stages clip by the norm of the whole model, and run any optimizer") {
  EngineSettings settings = GENERATE(
      from_range(test::with_each_optimizer(four_blocks(test::small_llama("te-delayed"), 3))));
  settings.optimizer.grad_clip = 0.01;
  CAPTURE(settings.optimizer.name);
  check_same(train_stages(settings, 4), train(settings, nullptr));
  check_same(train_stages(in_order(settings, kOrders[1], 4), 4), train(settings, nullptr));
}

TEST_CASE("a gradient that is not finite in one stage makes all skip the step") {
  EngineSettings settings = four_blocks(test::small_llama("fp16"), 2);
  settings.model.initializer_range = 30.0F;
  const Trained one = train(settings, nullptr);
  CHECK_FALSE(std::isfinite(one.norms.front()));
  const Trained stages = train_stages(settings, 2);
  CHECK(stages.values == one.values);
}

TEST_CASE("stages with tied embeddings differ by the order of one sum, and both ends agree") {
  const std::string plan = GENERATE("fp32", "te-delayed", "te-current");
  const int zero_stage = GENERATE(0, 1, 2, 3);
  const bool head_in_fp8 = GENERATE(false, true);
  const Order order = GENERATE(from_range(kOrders));
  CAPTURE(plan, zero_stage, head_in_fp8, order.kind);
  EngineSettings settings = in_order(four_blocks(test::small_gpt2(plan), 3), order, 4);
  settings.model.tie_word_embeddings = true;
  settings.strategy.zero_stage = zero_stage;
  settings.plan.exemptions.head = !head_in_fp8;
  settings.optimizer.name = "sgd";  // its updates are as large as gradients
  const Trained whole = train_stages(settings, 1, 2);
  const Trained stages = train_stages(settings, 4, 2);
  CHECK(stages.agree);
  CHECK(stages.as_planned);
  // Codes of a value that is another one in its last bit may differ.
  const double tolerance = plan == "fp32" ? 1e-6 : 1e-2;
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    CHECK(stages.losses[step] == Approx(whole.losses[step]).epsilon(tolerance));
    CHECK(stages.norms[step] == Approx(whole.norms[step]).epsilon(tolerance));
  }
  for (const auto& [name, wanted] : whole.values) {
    CAPTURE(name);
    const std::vector<float>& values = stages.values.at(name);
    REQUIRE(values.size() == wanted.size());
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      difference += std::pow(static_cast<double>(values[i]) - wanted[i], 2.0);
      norm += std::pow(static_cast<double>(wanted[i]), 2.0);
    }
    CHECK(std::sqrt(difference) <= tolerance * std::sqrt(norm));
  }
}

TEST_CASE("stages train a part of the parameters as one rank does") {
  const auto frozen = GENERATE(values<std::vector<std::string>>(
      {{"layers.0.*"},
       {"embedding.*"},
       {"head.*"},
       {"layers.3.mlp.*"},
       {"embedding.*", "positions.*", "layers.0.*", "layers.1.*", "layers.2.attention*"}}));
  const int zero_stage = GENERATE(0, 3);
  WholeRanks whole(2);
  for (const Order& order : kOrders) {
    CAPTURE(frozen, order.kind, zero_stage);
    EngineSettings settings = in_order(four_blocks(test::small_gpt2("te-delayed"), 2), order, 2);
    settings.step.decoder.frozen = frozen;
    settings.strategy.zero_stage = zero_stage;
    check_same(train_stages(settings, 2, 2), whole.train_as(settings));
  }
}

TEST_CASE("stages that share a table which is not trained have the bits of one rank") {
  EngineSettings settings = four_blocks(test::small_gpt2("te-delayed"), 2);
  settings.model.tie_word_embeddings = true;
  settings.step.decoder.frozen = {"embedding.*"};
  check_same(train_stages(settings, 2, 2), train_stages(settings, 1, 2));
}

TEST_CASE("weight gradients of their own take the memory of their operands alone") {
  EngineSettings settings = four_blocks(test::small_llama("te-delayed"), 8);
  settings.strategy.layout.pipeline = 4;
  const Topology ranks = Topology::blocks(4, 4);
  const size_t at_once = dry_run_step(settings, {}, ranks, 3).plan.saved_bytes;
  settings.strategy.layout.schedule = ScheduleKind::zero_bubble;
  const StepPlan plan = dry_run_step(settings, {}, ranks, 3).plan;
  CHECK(plan.saved_bytes < at_once);
  CHECK(plan.held_bytes > 0);
  CHECK(plan.held_bytes < at_once);
}

TEST_CASE("a model that cannot be divided is refused") {
  const auto refusal = [](const EngineSettings& settings, int64_t stages) {
    EngineSettings divided = settings;
    divided.strategy.layout.pipeline = stages;
    return test::run_ranks(Topology::blocks(static_cast<int>(stages), static_cast<int>(stages)),
                           [&](Communicator& comm) {
                             const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
                             const Engine engine(*device, divided, &comm);
                           })
        .front();
  };
  EngineSettings settings = four_blocks(test::small_llama("bf16"), 1);
  CHECK(refusal(settings, 5) ==
        "parallelism.pipeline is 5, and the model has 4 blocks: a stage needs one at least; the "
        "nearest size that works is 4");
  settings.strategy.layout.stage_blocks = {3, 2};
  CHECK(
      refusal(settings, 2) ==
      "parallelism.stage_blocks: 2 stages take 2 numbers that add up to 4 blocks, each at least 1, "
      "and not 2 that add up to 5");
}
