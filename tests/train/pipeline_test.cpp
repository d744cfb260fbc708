// Models divided into pipeline stages, each on a thread, train as one rank does: losses, weights,
// moments and scales have the same bits.

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/dry_run.h"
#include "support/in_order.h"
#include "support/parameters.h"
#include "support/rank_threads.h"
#include "support/small_gpt2.h"
#include "support/small_moe.h"
#include "train/stage_results.h"

using namespace fp8train;
using test::Trained;

namespace {

constexpr int64_t kBlocks = 4;
constexpr int64_t kSteps = 3;

EngineSettings four_blocks(EngineSettings settings, int64_t micro_batches) {
  settings.model.num_hidden_layers = kBlocks;
  settings.model.tie_word_embeddings = false;
  settings.step.gradient_accumulation_steps = micro_batches;
  settings.strategy.bucket_bytes = 4096;
  return settings;
}

/// A kind of schedule and the chunks of each stage.
struct Order {
  ScheduleKind kind;
  int64_t chunks;
};

constexpr std::array<Order, 3> kOrders = {{{ScheduleKind::one_forward_one_backward, 1},
                                           {ScheduleKind::zero_bubble, 1},
                                           {ScheduleKind::interleaved, 2}}};

/// Lets stages run in an order, with as many micro-batches as it takes at least.
EngineSettings in_order(EngineSettings settings, const Order& order, int64_t stages) {
  settings.strategy.layout.schedule = order.kind;
  settings.strategy.layout.virtual_stages = order.chunks;
  settings.model.num_hidden_layers = std::max(kBlocks, stages * order.chunks);
  int64_t& micro_batches = settings.step.gradient_accumulation_steps;
  if (order.kind == ScheduleKind::interleaved) {
    micro_batches = (micro_batches + stages - 1) / stages * stages;
  }
  return settings;
}

/// The second half of each sequence is another document.
Batch batch_of(const EngineSettings& settings, uint64_t index) {
  Batch batch = test::random_batch(index);
  if (settings.counts_targets) {
    batch.targets[index % batch.targets.size()] = kIgnoredTarget;
    batch.step_targets =
        static_cast<int64_t>(batch.targets.size() - 1) * settings.step.gradient_accumulation_steps;
  }
  if (settings.masks_documents) {
    for (int64_t i = 0; i < batch.rows * batch.columns; ++i) {
      const int64_t half = batch.columns / 2;
      batch.document_starts.push_back(static_cast<int32_t>(i % batch.columns / half * half));
    }
  }
  return batch;
}

void read(Engine& engine, Device& device, Trained& trained) {
  const int part = engine.mesh().index(Axis::data);  // of moments in ZeRO, and of own scales
  const Parameters& all = engine.model().parameters().all();
  const std::vector<std::vector<float>> values = test::values_by_parameter(engine);
  for (size_t i = 0; i < all.size(); ++i) {
    trained.values[all[i]->name] = values[i];
    for (const OptimizerState* state : engine.optimizer().states()) {
      const Encoded moment = state->of(i);
      if (!moment.empty() && moment.format == TensorFormat{}) {
        trained.values[fmt::format("{}.{}@{}", state->name(), all[i]->name, part)] =
            to_host_f32(device, moment.codes);
      }
    }
  }
  for (const SlotReport& report : engine.model().scaling().report()) {
    if (const ScalingSlot& slot = *report.slot; slot.scale != nullptr) {
      trained.scales[fmt::format("{}.{}@{}", slot.layer, slot.role, part)] = report.scale;
    }
  }
}

Trained train(const EngineSettings& settings, Communicator* comm) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings, comm);
  const DryRunStep dry_run =
      dry_run_step(settings, {}, comm == nullptr ? Topology() : comm->topology(),
                   comm == nullptr ? 0 : comm->rank());
  engine.reserve(dry_run.plan);
  engine.model().initialize(3);
  engine.weights_changed();
  const uint64_t allocations = device->ledger().allocations();
  const auto replicas = static_cast<uint64_t>(engine.mesh().size(Axis::data));
  uint64_t next = static_cast<uint64_t>(engine.mesh().index(Axis::data));
  const auto batch = [&] { return batch_of(settings, std::exchange(next, next + replicas)); };
  Trained trained;
  engine.calibrate(batch());
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.step(batch, step, 1e-3, step % 2 == 0);
    trained.losses.push_back(engine.step_loss().mean);
    trained.norms.push_back(engine.optimizer().control().gradient_norm);
  }
  engine.begin_evaluation();
  for (int i = 0; i < 3; ++i) {
    engine.evaluate(batch());
  }
  trained.evaluated = engine.evaluation_loss().mean;
  trained.as_planned = device->ledger().allocations() == allocations;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    trained.as_planned = trained.as_planned &&
                         dry_run.memory.current(category) == device->ledger().current(category);
  }
  read(engine, *device, trained);
  return trained;
}

/// Runs as many ranks as the layout and `replicas` ask for.
Trained train_stages(EngineSettings settings, int64_t stages, int replicas = 1,
                     bool in_order = false) {
  settings.strategy.layout.pipeline = stages;
  const int ranks = static_cast<int>(stages) * replicas;
  Trained all;
  std::mutex mutex;
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
        test::InOrder ordered(comm);
        const Trained stage = train(settings, in_order ? &ordered : &comm);
        const std::lock_guard<std::mutex> lock(mutex);
        all.add(stage);
      });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.empty());
  }
  return all;
}

/// Models on whole ranks, each trained once: the order of stages does not change what they compute.
class WholeRanks {
 public:
  /// 0: one rank without a communicator.
  explicit WholeRanks(int replicas = 0) : replicas_(replicas) {}

  const Trained& train_as(const EngineSettings& settings) {
    const auto [found, is_new] = trained_.try_emplace(
        {settings.model.num_hidden_layers, settings.step.gradient_accumulation_steps});
    if (is_new) {
      found->second =
          replicas_ == 0 ? train(settings, nullptr) : train_stages(settings, 1, replicas_);
    }
    return found->second;
  }

 private:
  int replicas_;
  std::map<std::pair<int64_t, int64_t>, Trained> trained_;  // by blocks and micro-batches
};

}  // namespace

TEST_CASE("two stages train as one rank does, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  const auto model = GENERATE(&test::small_llama, &test::small_deepseek);
  const EngineSettings settings = four_blocks(model(plan, 1), 4);
  const Trained one = train(settings, nullptr);
  const bool takes_long = settings.model.moe.experts > 0 && plan != "te-delayed";
  for (const Order& order : kOrders) {
    CAPTURE(plan, order.kind);
    if (!takes_long || order.kind == ScheduleKind::zero_bubble) {
      test::check_same(train_stages(in_order(settings, order, 2), 2), one);
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
    test::check_same(train_stages(settings, stages), whole.train_as(settings));
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
  test::check_same(train_stages(settings, stages, 2, true), train_stages(settings, stages, 2));
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
    test::check_same(train_stages(settings, 2), whole.train_as(settings));
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
  test::check_same(train_stages(settings, 3), train(settings, nullptr));
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
    test::check_same(train_stages(settings, 2, 2), whole.train_as(settings));
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
  test::check_same(train_stages(settings, 4), train(settings, nullptr));
  test::check_same(train_stages(in_order(settings, kOrders[1], 4), 4), train(settings, nullptr));
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
    test::check_same(train_stages(settings, 2, 2), whole.train_as(settings));
  }
}

TEST_CASE("stages that share a table which is not trained have the bits of one rank") {
  EngineSettings settings = four_blocks(test::small_gpt2("te-delayed"), 2);
  settings.model.tie_word_embeddings = true;
  settings.step.decoder.frozen = {"embedding.*"};
  test::check_same(train_stages(settings, 2, 2), train_stages(settings, 1, 2));
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
