// Engines on several ranks, each on a thread: they keep the same weights, and train as one rank
// does that has all their batches.

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "base/philox.h"
#include "support/parameters.h"
#include "train/rank_results.h"

using namespace fp8train;
using test::kSteps;
using test::RankResult;
using test::same_bits;
using test::tiny;
using test::train;
using test::train_ranks;

TEST_CASE("ranks keep the same weights and train as one rank would, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  const RankResult one = train(tiny(plan, 4), nullptr);
  const std::vector<RankResult> two = train_ranks(tiny(plan, 2), Topology::blocks(2, 2));
  REQUIRE(same_bits(two[0].weights, two[1].weights));
  CHECK(same_bits(two[0].delayed_scales, two[1].delayed_scales));
  CHECK(two[0].losses == two[1].losses);
  CHECK(two[0].skipped == 0);
  CHECK_FALSE(two[0].allocated);
  // fp32: another order of sums. Others round contributions elsewhere; the first step's loss
  // is before any update, and its casts see other tensors.
  const double tolerance = plan == "fp32" ? 1e-6 : 5e-3;
  for (size_t step = 0; step < one.losses.size(); ++step) {
    CHECK(two[0].losses[step] == Approx(one.losses[step]).epsilon(tolerance));
    // The update does not depend on the size of gradients, but the norm does.
    CHECK(two[0].norms[step] == Approx(one.norms[step]).epsilon(plan == "fp32" ? 1e-5 : 0.05));
  }
}

TEST_CASE("ranks have their own scales of x and dy where the plan or the user says so") {
  const bool by_plan = GENERATE(true, false);
  const int stage = GENERATE(0, 2, 3);
  CAPTURE(by_plan, stage);
  PlanRequest request;
  request.plan = by_plan ? "msamp-o1" : "te-delayed";
  EngineSettings settings = tiny(request.plan, 2);
  settings.strategy.zero_stage = stage;
  for (const bool reduce : {true, false}) {
    CAPTURE(reduce);
    request.reduce_amax = by_plan && !reduce ? std::nullopt : std::optional(reduce);
    settings.plan = resolve_plan(request);
    const std::vector<RankResult> two = train_ranks(settings, Topology::blocks(2, 2));
    CHECK(two[0].own_scales.empty() == reduce);
    CHECK(same_bits(two[0].own_scales, two[1].own_scales) == reduce);
    CHECK(two[0].delayed_scales.empty() == (by_plan && !reduce));  // else at least weights
    CHECK(same_bits(two[0].delayed_scales, two[1].delayed_scales));
    CHECK(same_bits(two[0].weights, two[1].weights));
    CHECK(two[0].as_planned);
  }
}

TEST_CASE("ranks keep the same weights with a head in FP8, tied to the embedding or not") {
  const std::string plan = GENERATE("te-delayed", "te-blockwise", "msamp-o3");
  const bool tied = GENERATE(true, false);
  CAPTURE(plan, tied);
  EngineSettings settings = tiny(plan, 2);
  settings.model.tie_word_embeddings = tied;
  settings.plan.exemptions.head = false;
  const std::vector<RankResult> whole = train_ranks(settings, Topology::blocks(2, 2));
  CHECK(same_bits(whole[0].weights, whole[1].weights));
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks = train_ranks(settings, Topology::blocks(2, 2));
    CHECK(same_bits(ranks[0].weights, ranks[1].weights));
    CHECK(same_bits(ranks[0].weights, whole[0].weights));
    CHECK(ranks[0].as_planned);
  }
}

TEST_CASE("what gradients of a rank held before a step changes no bit") {
  const std::string plan = GENERATE("fp32", "te-delayed", "te-blockwise", "msamp-o2", "fp8-min");
  const int64_t passes = GENERATE(1, 2);
  CAPTURE(plan, passes);
  EngineSettings settings = tiny(plan, passes);
  const auto spoil = [](Engine& engine) {
    test::fill_gradients_with_nan(engine.device(), engine.model().parameters());
  };
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> clean = train_ranks(settings, Topology::blocks(2, 2));
    const std::vector<RankResult> spoiled = train_ranks(settings, Topology::blocks(2, 2), spoil);
    CHECK(spoiled[1].skipped == 0);
    CHECK(same_bits(clean[1].weights, spoiled[1].weights));
  }
}

TEST_CASE("the first step casts the weights that it gathers, within the plan of its memory") {
  PlanRequest request;
  request.plan = GENERATE("msamp-o1", "msamp-o2", "fp8-lm", "te-delayed");
  if (GENERATE(false, true)) {
    request.schedule = {{0.5, request.plan}, {0, "bf16"}};
  } else {
    request.use_autocast_during_eval = false;
  }
  CAPTURE(request.plan, request.schedule.size());
  EngineSettings settings = tiny(request.plan, 1);
  settings.plan = resolve_plan(request);
  settings.model.hidden_size = 256;  // weights need more than activations
  settings.model.intermediate_size = 1024;
  settings.strategy.zero_stage = 3;
  for (const RankResult& rank : train_ranks(settings, Topology::blocks(2, 2))) {
    CHECK(rank.as_planned);
    CHECK_FALSE(rank.allocated);
  }
}

TEST_CASE("ranks that share an optimizer's work train as those that do not, with each optimizer") {
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed");
  EngineSettings settings = GENERATE_COPY(from_range(test::with_each_optimizer(tiny(plan, 1))));
  CAPTURE(plan, settings.optimizer.name);
  settings.optimizer.momentum = 0.9;
  const bool by_elements = optimizer_named(settings.optimizer.name).whole_cost == nullptr;
  const std::vector<RankResult> whole = train_ranks(settings, Topology::blocks(2, 2));
  for (int stage = 1; stage <= (by_elements ? 3 : 1); ++stage) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks = train_ranks(settings, Topology::blocks(2, 2));
    CHECK(ranks[0].skipped == 0);
    CHECK(ranks[0].as_planned);
    CHECK(same_bits(ranks[0].weights, ranks[1].weights));
    CHECK(same_bits(ranks[0].weights, whole[0].weights));
  }
}

TEST_CASE("weights that plain steps read too are gathered as values and cast in each pass") {
  const std::string plan = GENERATE("te-delayed", "te-current", "te-blockwise");
  CAPTURE(plan);
  PlanRequest request;
  request.plan = plan;
  request.schedule = {{0.5, plan}, {0, "bf16"}};
  EngineSettings settings = tiny(plan, 2);
  settings.plan = resolve_plan(request);
  settings.model.num_hidden_layers = 3;  // the third takes the memory of the first
  const std::vector<RankResult> whole = train_ranks(settings, Topology::blocks(2, 2));
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks = train_ranks(settings, Topology::blocks(2, 2));
    CHECK(ranks[0].as_planned);
    CHECK(same_bits(ranks[0].weights, ranks[1].weights));
    CHECK(same_bits(ranks[0].weights, whole[0].weights));
    CHECK(same_bits(ranks[0].delayed_scales, whole[0].delayed_scales));
  }
}

TEST_CASE("ranks that share the optimizer's work train as those that do not, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  // Gradients of several micro-batches stay: one plan of each kind of weight, gradient and scale.
  const bool adds = GENERATE(false, true);
  const std::string kinds[] = {"fp32", "te-delayed", "te-blockwise", "msamp-o2", "fp8-min"};
  if (adds && std::find(std::begin(kinds), std::end(kinds), plan) == std::end(kinds)) {
    return;
  }
  EngineSettings settings = tiny(plan, adds ? 2 : 1);
  const Topology topology = Topology::blocks(2, 2);
  const std::vector<RankResult> whole = train_ranks(settings, topology);
  std::vector<RankResult> first;
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks = train_ranks(settings, topology);
    REQUIRE(same_bits(ranks[0].weights, ranks[1].weights));
    CHECK(ranks[0].skipped == 0);
    CHECK_FALSE(ranks[0].allocated);
    CHECK(ranks[0].as_planned);
    CHECK(ranks[1].as_planned);
    CHECK(static_cast<double>(ranks[0].bytes) < 0.7 * static_cast<double>(whole[0].bytes));
    if (first.empty()) {
      first = ranks;
    }
    // Which rank updates what, and with which bits, does not depend on the stage.
    CHECK(same_bits(ranks[0].weights, first[0].weights));
    CHECK(same_bits(ranks[0].delayed_scales, first[0].delayed_scales));
    CHECK(ranks[0].losses == first[0].losses);
    CHECK(ranks[0].norms == first[0].norms);
  }
  // Of few bits a sum is not rounded again on its way to the update.
  const ParameterFormats formats = parameter_formats(plan_named(plan));
  const bool same = !formats.gradient.is_scaled() && !formats.gradient_wire.is_scaled();
  for (size_t step = 0; step < whole[0].losses.size(); ++step) {
    CHECK(first[0].losses[step] == Approx(whole[0].losses[step]).epsilon(same ? 0.0 : 5e-3));
  }
  if (same) {
    CHECK(same_bits(first[0].weights, whole[0].weights));
  }
}

TEST_CASE("exchanges in pieces train as whole ones do") {
  // A wire of each kind, and gradients that are stored as they cross it.
  const std::string plan =
      GENERATE("fp32", "bf16", "deepseek-v3", "fp8-safe", "msamp-o2", "fp8-lm");
  CAPTURE(plan);
  EngineSettings settings = tiny(plan, 1);
  settings.strategy.zero_stage = GENERATE(0, 1, 3);
  CAPTURE(settings.strategy.zero_stage);
  settings.strategy.bucket_bytes = 1 << 20;  // more than any parameter has
  const std::vector<RankResult> whole = train_ranks(settings, Topology::blocks(4, 2));
  settings.strategy.bucket_bytes = 1024;
  const std::vector<RankResult> pieces = train_ranks(settings, Topology::blocks(4, 2));
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    CHECK(same_bits(pieces[rank].weights, whole[rank].weights));  // exact
    CHECK(pieces[rank].losses == whole[rank].losses);
    CHECK(pieces[rank].as_planned);
    CHECK_FALSE(pieces[rank].allocated);
  }
}

TEST_CASE("ranks train with muon as one rank would, within the plan, and cannot cut its matrices") {
  const std::string plan = GENERATE("fp32", "te-delayed", "deepseek-v3");
  CAPTURE(plan);
  EngineSettings settings = tiny(plan, 2);
  settings.optimizer.name = "muon";
  const std::vector<RankResult> two = train_ranks(settings, Topology::blocks(2, 2));
  REQUIRE(same_bits(two[0].weights, two[1].weights));
  CHECK(two[0].skipped == 0);
  CHECK(two[0].as_planned);
  CHECK_FALSE(two[0].allocated);
  const RankResult adamw = train_ranks(tiny(plan, 2), Topology::blocks(2, 2))[0];
  CHECK(!same_bits(two[0].weights, adamw.weights));
  CHECK(two[0].bytes < adamw.bytes);
  settings.step.gradient_accumulation_steps = 4;
  const RankResult one = train(settings, nullptr);
  for (size_t step = 0; step < one.losses.size(); ++step) {
    // Rounding to bf16 in the iteration turns another order of sums into larger differences.
    CHECK(two[0].losses[step] == Approx(one.losses[step]).epsilon(5e-3));
  }
  settings.strategy.zero_stage = 2;
  const std::unique_ptr<Device> meta = make_meta_device({});
  const std::unique_ptr<Communicator> comm = make_dry_run(Topology::blocks(2, 2), 0);
  CHECK_THROWS_WITH(Engine(*meta, settings, comm.get()),
                    Catch::Contains("muon") && Catch::Contains("parallelism.zero_stage: 0 or 1"));
}

TEST_CASE("two nodes of two ranks") {
  const std::string plan = GENERATE("fp32", "deepseek-v3", "fp8-safe", "msamp-o2");
  CAPTURE(plan);
  const RankResult one = train(tiny(plan, 4), nullptr);
  const std::vector<RankResult> four = train_ranks(tiny(plan, 1), Topology::blocks(4, 2));
  for (const RankResult& rank : four) {
    REQUIRE(same_bits(rank.weights, four[0].weights));
  }
  CHECK(four[0].losses.back() == Approx(one.losses.back()).epsilon(plan == "fp32" ? 1e-6 : 5e-3));
}

namespace {

void set_first_value(Engine& engine, const std::string& name, float value) {
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->name == name) {
      std::vector<float> values = test::value_on_host(engine.device(), *parameter);
      values[0] = value;
      set_value(engine.device(), *parameter, values.data());
    }
  }
  engine.weights_changed();
}

}  // namespace

TEST_CASE("an infinity that a cast hides on one rank makes the step a skipped one on all") {
  const std::string plan = GENERATE("te-delayed", "te-current", "te-blockwise", "coat");
  CAPTURE(plan);
  int64_t calls = 0;
  const auto spoil = [&](Engine& engine) {
    if (++calls == kSteps - 1) {
      set_first_value(engine, "layers.1.mlp.up.weight", INFINITY);
    }
  };
  const std::vector<RankResult> two = train_ranks(tiny(plan, 1), Topology::blocks(2, 2), spoil);
  CHECK(two[0].skipped == 1);
  CHECK(two[1].skipped == 1);
}

TEST_CASE("after a step that was skipped training continues, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  int64_t calls = 0;
  const auto spoil = [&](Engine& engine) {
    set_first_value(engine, "layers.1.mlp_norm.weight", ++calls == 1 ? INFINITY : 1.0F);
  };
  const std::vector<RankResult> two = train_ranks(tiny(plan, 1), Topology::blocks(2, 2), spoil);
  CHECK(calls == kSteps - 1);
  CHECK(two[0].skipped == 1);
  CHECK(two[1].skipped == 1);
  CHECK(std::isfinite(two[1].norms.back()));
  CHECK(same_bits(two[0].delayed_scales, two[1].delayed_scales));
}

TEST_CASE("codes that are gathered are transposed where GEMMs read them so") {
  const std::string plan = GENERATE("te-delayed", "te-current", "msamp-o2", "te-blockwise");
  CAPTURE(plan);
  const DeviceTraits along_k_only = {.fp8_gemm_along_k_only = true};
  EngineSettings settings = tiny(plan, 2);
  const std::vector<RankResult> whole =
      train_ranks(settings, Topology::blocks(2, 2), {}, along_k_only);
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks =
        train_ranks(settings, Topology::blocks(2, 2), {}, along_k_only);
    CHECK(ranks[0].losses.front() == whole[0].losses.front());
    CHECK(ranks[0].losses.back() == Approx(whole[0].losses.back()).epsilon(5e-3));
    CHECK(same_bits(ranks[0].weights, ranks[1].weights));
    CHECK(same_bits(ranks[0].weights, whole[0].weights));
  }
}

TEST_CASE(
    "a weight in 16 bits that is its own master is what GEMMs read, whoever has parts of it") {
  EngineSettings settings = tiny("bf16", 2);
  settings.plan.master_weight.reset();
  settings.plan.weight.rounding = Rounding::stochastic;
  const std::vector<RankResult> whole = train_ranks(settings, Topology::blocks(2, 2));
  for (const int stage : {1, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const std::vector<RankResult> ranks = train_ranks(settings, Topology::blocks(2, 2));
    CHECK(ranks[0].losses == whole[0].losses);
    CHECK(same_bits(ranks[0].weights, whole[0].weights));
  }
}

TEST_CASE("what is gathered of a weight is as wide as its GEMMs read it") {
  // Gradients cross as fp32 in all of these plans: sent bytes differ by what is gathered after each
  // of the steps, and once before them.
  const auto sent = [](const std::string& plan) {
    EngineSettings settings = tiny(plan, 1);
    settings.strategy.zero_stage = 1;
    double bytes = 0;
    const std::vector<std::string> errors =
        test::run_ranks(Topology::blocks(2, 2), [&](Communicator& comm) {
          train(settings, &comm);
          if (comm.rank() == 0) {
            bytes = static_cast<double>(comm.traffic().total());
          }
        });
    CHECK(errors == std::vector<std::string>(2));
    return bytes;
  };
  const double fp32 = sent("fp32");
  // Two blocks of qkv, output, up and down; the head's copy is bf16 in all other plans. Half of
  // what is gathered is another's.
  const double scaled = 2 * (64 * 32 + 32 * 32 + 128 * 32 + 32 * 64);
  const double head = 64 * 32;
  const double gathers = kSteps + 1;
  CHECK(fp32 - sent("bf16") == Approx(gathers * (scaled + head) * 2 / 2).epsilon(0.01));
  for (const char* plan : {"te-current", "te-blockwise"}) {
    CAPTURE(plan);
    CHECK(fp32 - sent(plan) == Approx(gathers * (scaled * 3 + head * 2) / 2).epsilon(0.01));
  }
}
