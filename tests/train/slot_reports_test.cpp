// Statistics of casts are those of the whole model, whatever ranks have its parts.

#include <catch2/catch.hpp>

#include <map>
#include <mutex>

#include "support/small_moe.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

/// The reports of all slots after a step, by "layers.0.mlp.up.x".
using Reports = std::map<std::string, SlotReport>;

/// As each rank has them.
std::vector<Reports> reports_of(const EngineSettings& settings, int ranks) {
  std::vector<Reports> reports(static_cast<size_t>(ranks));
  std::mutex mutex;
  const auto train_one = [&](Communicator* comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, comm);
    const int rank = comm == nullptr ? 0 : comm->rank();
    engine.reserve(
        dry_run_step(settings, {}, comm == nullptr ? Topology() : comm->topology(), rank).plan);
    engine.model().initialize(3);
    engine.weights_changed();
    uint64_t next = 0;
    engine.step([&] { return batch_of(settings, next++); }, 0, 1e-3, true);
    const std::vector<SlotReport> all = engine.slot_reports();
    const std::lock_guard lock(mutex);
    for (const SlotReport& report : all) {
      reports[static_cast<size_t>(rank)].emplace(report.slot->layer + "." + report.slot->role,
                                                 report);
    }
  };
  if (ranks == 1) {
    train_one(nullptr);
    return reports;
  }
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) { train_one(&comm); });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return reports;
}

/// `sums`: how far sums may differ; 0: not at all.
void check_same(const Reports& one, const Reports& other, double sums) {
  REQUIRE(other.size() == one.size());
  for (const auto& [name, report] : one) {
    CAPTURE(name);
    const SlotReport& of = other.at(name);
    CHECK(of.scale == report.scale);
    CHECK(of.statistics.count == report.statistics.count);
    CHECK(of.statistics.saturated == report.statistics.saturated);
    CHECK(of.statistics.underflow == report.statistics.underflow);
    CHECK(of.sample.amax == report.sample.amax);
    CHECK(of.sample.signal == Approx(report.sample.signal).epsilon(sums));
    // Errors are differences in fp32, and sums of them begin anew in each part.
    CHECK(of.sample.noise == Approx(report.sample.noise).epsilon(sums == 0 ? 0 : 1e-6));
  }
}

/// With as many heads as ranks that share layers or sequences need.
EngineSettings with_heads(EngineSettings settings) {
  settings.model.num_attention_heads = 4;
  settings.model.num_key_value_heads = 4;
  return settings;
}

}  // namespace

TEST_CASE("statistics are those of all stages of a pipeline", "[reports]") {
  const std::string plan = GENERATE("te-delayed", "te-current", "deepseek-v3");
  const auto schedule = GENERATE(ScheduleKind::one_forward_one_backward, ScheduleKind::zero_bubble);
  CAPTURE(plan, schedule);
  EngineSettings settings = with_heads(small_llama(plan, 3));
  const Reports one = reports_of(settings, 1).front();
  CHECK(one.contains("layers.1.mlp.down.x"));
  settings.strategy.layout.pipeline = 2;
  settings.strategy.layout.schedule = schedule;
  for (const Reports& of_rank : reports_of(settings, 2)) {
    check_same(one, of_rank, 0);
  }
}

TEST_CASE("statistics are those of the parts of tensors that ranks share", "[reports]") {
  const std::string plan = GENERATE("te-delayed", "te-current", "torchao-rowwise");
  const int stages = GENERATE(1, 2);
  CAPTURE(plan, stages);
  EngineSettings settings = with_heads(small_llama(plan));
  settings.strategy.layout.tensor_parts = 2;
  const Reports one = reports_of(settings, 1).front();
  settings.strategy.layout.tensor = 2;
  settings.strategy.layout.pipeline = stages;
  for (const Reports& of_rank : reports_of(settings, 2 * stages)) {
    check_same(one, of_rank, 1e-12);
  }
}

TEST_CASE("statistics are those of all experts, whatever ranks have them", "[reports]") {
  const std::string plan = GENERATE("te-delayed", "te-current");
  const int64_t stages = GENERATE(1, 2);
  CAPTURE(plan, stages);
  EngineSettings settings = with_heads(small_moe(plan));
  settings.step.micro_batch_size = 8;
  settings.step.decoder.moe.capacity_factor = 4.0;
  const Reports one = reports_of(settings, 1).front();
  settings.strategy.layout = {.tensor = 2, .pipeline = stages, .expert = 2};
  const Reports several = reports_of(settings, static_cast<int>(2 * stages)).back();
  REQUIRE(several.size() == one.size());
  int64_t of_experts = 0;
  for (const auto& [name, report] : one) {
    if (expert_of(name) < 0) {
      continue;
    }
    ++of_experts;
    CAPTURE(name);
    const SlotReport& other = several.at(name);
    CHECK(other.statistics.count > 0);
    // Partial sums are rounded to bf16.
    CHECK(other.sample.amax == Approx(report.sample.amax).epsilon(0.1));
    CHECK(other.sample.signal == Approx(report.sample.signal).epsilon(0.1));
  }
  CHECK(of_experts == 2 * 4 * 2 * 3);  // blocks, experts, layers of one, and x, w and dy
}
