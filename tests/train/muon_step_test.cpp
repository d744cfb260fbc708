// Steps with Muon: on cuda, on a GPU or through the host shim, as on the cpu, and recorded as
// launched.

#include <catch2/catch.hpp>

#include <cmath>
#include <functional>

#include "device/cuda/cuda_device.h"
#include "engine/dry_run.h"
#include "support/small_llama.h"

using namespace fp8train;

namespace {

EngineSettings with_muon(const std::string& plan, const char* momentum) {
  EngineSettings settings = test::small_llama(plan, 2);
  PlanRequest request;
  request.plan = plan;
  request.roles.moment1 = momentum;
  settings.plan = resolve_plan(request);
  settings.optimizer.name = "muon";
  return settings;
}

struct Trained {
  std::vector<float> before, after;
  double first_loss = 0, last_loss = 0;
  bool allocated = false, as_planned = true;
};

Trained train(DeviceKind kind, EngineSettings settings, bool record) {
  settings.step.cuda_graphs = record;
  const std::unique_ptr<Device> device = make_device(kind);
  const DryRunStep dry_run = dry_run_step(settings, *device);
  Engine engine(*device, settings);
  engine.reserve(dry_run.plan);
  engine.model().initialize(3);
  engine.weights_changed();
  Trained trained;
  trained.before = test::values_of(engine);
  const uint64_t allocations = device->ledger().allocations();
  constexpr int64_t kSteps = 4;
  for (int64_t step = 0; step < kSteps; ++step) {
    uint64_t index = 0;  // the same batch in each step
    engine.step([&] { return test::random_batch(index++); }, step,
                2e-2 / static_cast<double>(step + 1), step == 1);
    (step == 0 ? trained.first_loss : trained.last_loss) = engine.step_loss().mean;
  }
  trained.allocated = device->ledger().allocations() != allocations;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    trained.as_planned = trained.as_planned &&
                         device->ledger().current(category) == dry_run.memory.current(category);
  }
  trained.after = test::values_of(engine);
  CHECK(engine.optimizer().control().skipped_steps == 0);
  return trained;
}

double norm_of_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("muon has the weights of linear layers in blocks, and adamw all others") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, with_muon("te-current", "fp32"));
  const auto& parameters = engine.model().parameters().all();
  int matrices = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(parameters[i]->name);
    const bool is_matrix =
        parameters[i]->name.starts_with("layers.") && parameters[i]->shape.rank() == 2;
    CHECK(engine.optimizer().state("momentum", i).empty() != is_matrix);
    CHECK(engine.optimizer().state("moment1", i).empty() == is_matrix);
    CHECK(engine.optimizer().state("moment2", i).empty() == is_matrix);
    matrices += is_matrix ? 1 : 0;
  }
  CHECK(matrices == 2 * 4);
}

TEST_CASE("steps with muon learn within the memory planned") {
  for (const char* plan : {"fp32", "te-delayed", "te-blockwise"}) {
    for (const char* momentum : {"fp32", "bf16", "e4m3 tensor current"}) {
      CAPTURE(plan, momentum);
      const Trained trained = train(DeviceKind::cpu, with_muon(plan, momentum), false);
      CHECK(trained.last_loss < 0.95 * trained.first_loss);
      CHECK_FALSE(trained.allocated);
      CHECK(trained.as_planned);
    }
  }
}

TEST_CASE("steps with muon on cuda are the cpu's, and recorded ones those that are launched",
          "[cuda]") {
  if (const std::string obstacle = why_cuda_is_unusable(); !obstacle.empty()) {
    WARN("not run: " << obstacle);
    return;
  }
  for (const char* momentum : {"fp32", "bf16", "e4m3 tensor current"}) {
    CAPTURE(momentum);
    EngineSettings settings = with_muon("bf16", momentum);
    settings.step.deterministic = true;  // else cuDNN's backward of attention sums with atomics
    const Trained cpu = train(DeviceKind::cpu, settings, false);
    const Trained recorded = train(DeviceKind::cuda, settings, true);
    const Trained launched = train(DeviceKind::cuda, settings, false);
    CHECK(recorded.after == launched.after);
    CHECK_FALSE(recorded.allocated);
    CHECK(recorded.as_planned);
    CHECK(std::abs(recorded.last_loss - cpu.last_loss) < 5e-3 * cpu.last_loss);
    // Another order of sums, then rounded to bf16 five times.
    CHECK(norm_of_difference(recorded.after, cpu.after) <
          0.1 * norm_of_difference(cpu.before, cpu.after));
  }
}
