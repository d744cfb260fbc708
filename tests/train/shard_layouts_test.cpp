// Two ways to share: gradients of each micro-batch that ranks add to their shards
// (parallelism.sync_each_batch), and groups of ranks that share a copy each
// (parallelism.shard_ranks).

#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "ops/exchange/wire.h"
#include "parallel/sharded_store.h"
#include "precision/plan_entries.h"
#include "support/temp_dir.h"
#include "train/rank_results.h"
#include "train/saved_states.h"

using namespace fp8train;
using test::RankResult;
using test::same_bits;
using test::tiny;
using test::train_ranks;

namespace {

/// Of each parameter, by name: the sum over ranks that is updated.
using Gradients = std::map<std::string, std::vector<float>>;

EngineSettings sharing(const std::string& plan, int64_t passes, int stage, bool sync_each,
                       int64_t shard_ranks = 0) {
  EngineSettings settings = tiny(plan, passes);
  settings.strategy.zero_stage = stage;
  settings.strategy.sync_each_batch = sync_each;
  settings.strategy.shard_ranks = shard_ranks;
  return settings;
}

/// Adds this rank's parts. Parts that several ranks have must be the same.
void collect(Engine& engine, Gradients& all) {
  for (const auto& parameter : engine.model().parameters().all()) {
    const Parameter::Updated& own = parameter->updated;
    if (!parameter->trained || own.count() == 0) {
      continue;
    }
    std::vector<float> part(static_cast<size_t>(own.count()));
    Encoded flat = own.gradient;
    flat.codes.shape = {own.count()};
    ops::read_stored(engine.device().stream(), flat, {part.data(), DType::f32, {own.count()}});
    std::vector<float>& whole = all[parameter->name];
    whole.resize(static_cast<size_t>(parameter->shape.count()), NAN);
    for (size_t i = 0; i < part.size(); ++i) {
      float& value = whole[static_cast<size_t>(own.first) + i];
      check(std::isnan(value) || value == part[i], "ranks have the same sums");
      value = part[i];
    }
  }
}

/// The sums of the second of two steps that change no value.
Gradients gradients_of(const EngineSettings& settings, const Topology& topology) {
  Gradients all;
  std::mutex mutex;
  const auto errors = test::run_ranks(topology, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    test::reserve(engine, comm);
    engine.model().initialize(3);
    engine.weights_changed();
    uint64_t pass = 0;
    const auto next = [&] {
      return test::random_batch(pass++ * static_cast<uint64_t>(comm.size()) +
                                static_cast<uint64_t>(comm.rank()));
    };
    engine.step(next, 0, 0.0, false);
    engine.step(next, 1, 0.0, false);
    const std::lock_guard<std::mutex> lock(mutex);
    collect(engine, all);
  });
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(topology.size())));
  return all;
}

/// The largest difference of a tensor, relative to it in the norm of squares.
double largest_difference(const Gradients& found, const Gradients& expected) {
  double largest = 0;
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, values] : expected) {
    double squares = 0;
    double difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += static_cast<double>(values[i]) * values[i];
      difference += std::pow(static_cast<double>(found.at(name)[i]) - values[i], 2);
    }
    largest = std::max(largest, std::sqrt(difference / squares));
  }
  return largest;
}

void check_alike(const std::vector<RankResult>& ranks) {
  for (const RankResult& rank : ranks) {
    CHECK(same_bits(rank.weights, ranks[0].weights));
    CHECK(same_bits(rank.delayed_scales, ranks[0].delayed_scales));
    CHECK(rank.as_planned);
    CHECK_FALSE(rank.allocated);
    CHECK(rank.skipped == 0);
  }
}

void check_same(const std::vector<RankResult>& found, const std::vector<RankResult>& expected) {
  check_alike(found);
  CHECK(same_bits(found[0].weights, expected[0].weights));
  CHECK(same_bits(found[0].delayed_scales, expected[0].delayed_scales));
  CHECK(found[0].losses == expected[0].losses);
}

}  // namespace

TEST_CASE("gradients that are added in shards are those that are added whole") {
  const std::string plan = GENERATE("fp32", "te-delayed", "te-blockwise", "deepseek-v3");
  const int ranks = GENERATE(2, 4);
  CAPTURE(plan, ranks);
  const bool is_fp32 = plan_named(plan).gradient_wire == plain(DType::f32);
  for (const int stage : {2, 3}) {
    for (const bool frozen : {false, true}) {
      CAPTURE(stage, frozen);
      const Topology topology = Topology::blocks(ranks, ranks);
      EngineSettings settings = sharing(plan, 3, stage, false);
      if (frozen) {
        settings.step.decoder.frozen = {"embedding.weight", "layers.1.mlp.up.weight"};
      }
      const Gradients whole = gradients_of(settings, topology);
      settings.strategy.sync_each_batch = true;
      const Gradients shards = gradients_of(settings, topology);
      const double difference = largest_difference(shards, whole);
      CAPTURE(difference);
      CHECK(difference <= (is_fp32 ? 1e-6 : 5e-3));
      CHECK(difference > 0);
    }
  }
}

TEST_CASE("with one micro-batch, and in stages 0 and 1, sync_each_batch changes nothing") {
  const std::string plan = GENERATE("fp32", "te-delayed", "msamp-o2", "fp8-lm", "fp8-min");
  const auto& [stage, passes] = GENERATE(std::pair(3, 1), std::pair(2, 1), std::pair(1, 2));
  CAPTURE(plan, stage, passes);
  const Topology topology = Topology::blocks(2, 2);
  check_same(train_ranks(sharing(plan, passes, stage, true), topology),
             train_ranks(sharing(plan, passes, stage, false), topology));
}

TEST_CASE("ranks that add in shards hold no whole gradients, in every plan") {
  const std::string plan = GENERATE(from_range(test::compared_plans()));
  CAPTURE(plan);
  const Topology topology = Topology::blocks(2, 2);
  const auto bytes_of = [&](const EngineSettings& settings, MemoryCategory category) {
    return dry_run_step(settings, DeviceTraits{}, Topology::blocks(8, 8)).memory.current(category);
  };
  if (plan == "fp8-lm") {  // its controller counts the codes of one sum per step
    CHECK_THROWS_WITH(bytes_of(sharing(plan, 2, 2, true), MemoryCategory::gradients),
                      Catch::Contains("parallelism.sync_each_batch: this plan"));
    return;
  }
  const std::vector<RankResult> whole = train_ranks(sharing(plan, 3, 3, false), topology);
  std::vector<RankResult> first;
  for (const int stage : {2, 3}) {
    CAPTURE(stage);
    EngineSettings settings = sharing(plan, 3, stage, true);
    const std::vector<RankResult> ranks = train_ranks(settings, topology);
    check_alike(ranks);
    first = first.empty() ? ranks : first;
    check_same(ranks, first);
    CHECK(ranks[0].losses.back() == Approx(whole[0].losses.back()).epsilon(5e-3));
    // Whole gradients exist for two of the blocks. In bf16 they are half of as many in fp32.
    settings.model.num_hidden_layers = 8;
    const size_t with = bytes_of(settings, MemoryCategory::gradients);
    settings.strategy.sync_each_batch = false;
    CHECK(with < bytes_of(settings, MemoryCategory::gradients));
  }
  const auto spoil = [](Engine& engine) {
    test::fill_gradients_with_nan(engine.device(), engine.model().parameters());
  };
  check_same(train_ranks(sharing(plan, 3, 2, true), topology, spoil), first);
}

TEST_CASE("gradients added in shards cross once for each micro-batch") {
  const auto sent = [](int64_t passes, bool sync_each) {
    EngineSettings settings = sharing("bf16", passes, 2, sync_each);
    return static_cast<double>(
        dry_run_step(settings, DeviceTraits{}, Topology::blocks(4, 4)).sent.total());
  };
  const double values = 2 * sent(1, false) - sent(2, true);  // not of gradients
  CHECK(sent(5, true) - values == Approx(5 * (sent(5, false) - values)).epsilon(0.01));
  CHECK(sent(2, false) == Approx(sent(1, false)).epsilon(0.01));
}

TEST_CASE("ranks add in shards what they round on the wire once each, but for their own") {
  EngineSettings settings = sharing("llm.q", 3, 2, false);
  settings.plan.self_exact = true;
  const Topology topology = Topology::blocks(2, 2);
  const Gradients whole = gradients_of(settings, topology);
  settings.strategy.sync_each_batch = true;
  CHECK(largest_difference(gradients_of(settings, topology), whole) < 5e-3);
}

TEST_CASE("groups that share a copy each have the bits of ranks that share one") {
  // Wires in fp32, in bf16, of codes with scales (in two hops between nodes) and of codes that are
  // summed.
  const std::string plan =
      GENERATE("fp32", "te-delayed", "deepseek-v3", "fp8-safe", "msamp-o2", "fp8-lm", "fp8-min");
  const auto& [ranks, per_node, sharing_ranks] =
      GENERATE(std::tuple(4, 2, int64_t{2}), std::tuple(4, 2, kRanksOfNode),
               std::tuple(4, 4, int64_t{2}), std::tuple(6, 6, int64_t{2}));
  CAPTURE(plan, ranks, per_node, sharing_ranks);
  const Topology topology = Topology::blocks(ranks, per_node);
  const bool hops_in_bf16 = plan == "deepseek-v3" && per_node < ranks;  // see the next test
  for (const int stage : hops_in_bf16 ? std::vector<int>() : std::vector<int>{1, 2, 3}) {
    const bool sync_each = stage == 2 && plan != "fp8-lm";
    CAPTURE(stage, sync_each);
    const std::vector<RankResult> all = train_ranks(sharing(plan, 2, stage, sync_each), topology);
    const std::vector<RankResult> groups =
        train_ranks(sharing(plan, 2, stage, sync_each, sharing_ranks), topology);
    check_same(groups, all);
    CHECK(groups[0].bytes > all[0].bytes);
  }
}

TEST_CASE("groups of ranks that are no nodes, and bf16 in two hops, train as all ranks do") {
  const std::string plan = GENERATE("deepseek-v3", "fp8-safe", "msamp-o2");
  const int64_t sharing_ranks = GENERATE(1, 2, 4);
  CAPTURE(plan, sharing_ranks);
  const Topology topology = Topology::blocks(8, 2);
  const Gradients all = gradients_of(sharing(plan, 1, 3, false), topology);
  const Gradients groups = gradients_of(sharing(plan, 1, 3, false, sharing_ranks), topology);
  const double difference = largest_difference(groups, all);
  CAPTURE(difference);
  CHECK(difference < (plan == "deepseek-v3" ? 5e-3 : 5e-2));
  // At other ends or in fewer hops a sum is rounded otherwise.
  CHECK((difference == 0) == (plan == "msamp-o2" || (plan == "fp8-safe") == (sharing_ranks == 2)));
  check_alike(train_ranks(sharing(plan, 1, 3, false, sharing_ranks), topology));
}

TEST_CASE("between groups of ranks only gradients cross, as planned") {
  const std::string plan = GENERATE("fp32", "deepseek-v3", "fp8-safe", "msamp-o2");
  CAPTURE(plan);
  const Topology topology = Topology::blocks(4, 2);
  const EngineSettings settings = sharing(plan, 3, 3, true, 2);
  const DryRunStep planned = dry_run_step(settings, DeviceTraits{}, topology, 1);
  Traffic sent;
  double expected = 0;
  const auto errors = test::run_ranks(topology, [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    test::reserve(engine, comm);
    engine.model().initialize(3);
    engine.weights_changed();
    const auto next = [] { return test::random_batch(1); };
    engine.step(next, 0, 1e-3, false);
    const Traffic before = comm.traffic();
    engine.step(next, 1, 1e-3, false);
    if (comm.rank() != 1) {
      return;
    }
    sent = {comm.traffic().within_node - before.within_node,
            comm.traffic().between_nodes - before.between_nodes};
    // A rank sums a quarter. Contributions: in fp32, and as codes that are summed, its own to two
    // ranks of the other node; else the sum of its node to one. Then, once, the sum to one in fp32.
    const ParameterStore& store = engine.model().parameters();
    for (const StoreLayout::Segment& segment :
         static_cast<const ShardedStore&>(*store.shards()).layout().segments) {
      const TensorFormat& wire = store.all()[segment.parameters.front()]->formats.gradient_wire;
      const bool hops = wire.is_scaled() ? wire.block.is_group() : wire.dtype == DType::bf16;
      const double bytes = wire.block.is_group()
                               ? static_cast<double>(ops::wire_bytes(wire, 1024)) / 1024
                               : static_cast<double>(size_of(wire.dtype));
      const double each = hops ? bytes : 2 * bytes;
      expected += static_cast<double>(segment.shard) / 2 * (3 * each + 4);
    }
  });
  CHECK(errors == std::vector<std::string>(4));
  CHECK(sent == planned.sent);
  CHECK(static_cast<double>(sent.between_nodes) == Approx(expected).epsilon(0.02));
}

TEST_CASE("one of several groups writes a checkpoint, which has the bytes of all ranks' one") {
  const std::string plan = GENERATE("fp32", "fp8-lm", "fp8-min");
  CAPTURE(plan);
  const test::TempDir dir;
  const auto saved = [&](const std::string& name, int64_t shard_ranks) {
    test::run({4, 3}, [&](Communicator& comm) {
      const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
      EngineSettings settings = test::settings_of(plan, 3);
      settings.strategy.shard_ranks = shard_ranks;
      Engine engine(*device, settings, &comm);
      test::train(engine, comm);
      test::save(dir / name, engine, comm);
      load_optimizer_files(dir / name / "step-000001", engine);
      test::save(dir / (name + "again"), engine, comm);
    });
    CHECK(test::contents(dir / name / "step-000001") ==
          test::contents(dir / (name + "again") / "step-000001"));
    return test::contents(dir / name / "step-000001");
  };
  CHECK(saved("groups", 2) == saved("all", 0));
  CHECK(verify_checkpoint(dir / "groups" / "step-000001").files.size() == 2);
}

TEST_CASE("groups that do not divide the ranks are refused, with the nearest number") {
  const auto error = [](int ranks, int per_node, int64_t shard_ranks) -> std::string {
    try {
      dry_run_step(sharing("fp32", 1, 3, false, shard_ranks), DeviceTraits{},
                   Topology::blocks(ranks, per_node));
    } catch (const ConfigError& caught) {
      return caught.what();
    }
    return "";
  };
  CHECK(error(8, 4, 2).empty());
  CHECK_THAT(error(8, 4, 3), Catch::Contains("parallelism.shard_ranks is 3, which does not divide "
                                             "8 ranks; the nearest number that does is 2"));
  CHECK_THAT(error(7, 4, kRanksOfNode), Catch::Contains("different numbers of ranks"));
}
