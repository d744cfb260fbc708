#pragma once
// Engines of small models on the cpu and the cuda device, stepped with the same batches.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "device/cuda/cuda_device.h"
#include "engine/dry_run.h"
#include "support/parameters.h"
#include "support/sanitized.h"
#include "support/small_gpt2.h"
#include "support/small_llama.h"

namespace fp8train::test::steps {

constexpr int64_t kRows = test::kSmallRows;
constexpr int64_t kColumns = 24;
constexpr uint32_t kVocabulary = test::kSmallVocabulary;

inline EngineSettings small_llama(const std::string& plan) {
  EngineSettings settings = test::small_llama(plan);
  settings.step.seq_length = kColumns;
  return settings;
}

inline EngineSettings small_gpt2(const std::string& plan) {
  EngineSettings settings = test::small_gpt2(plan);
  settings.step.seq_length = kColumns;
  return settings;
}

/// For runs that are compared bit for bit: cuDNN's backward pass of attention sums with atomics
/// unless it is asked not to.
inline EngineSettings repeatable(EngineSettings settings) {
  settings.step.deterministic = true;
  return settings;
}

inline Batch batch_of(uint64_t index) {
  return test::random_batch(index, kRows, kColumns);
}

struct Run {
  std::unique_ptr<Device> device;
  Engine engine;
  int64_t step = 0;

  Run(DeviceKind kind, const EngineSettings& settings)
      : device(make_device(kind)), engine(*device, settings) {
    engine.reserve(dry_run_step(settings, *device).plan);
    engine.model().initialize(3);
    engine.weights_changed();
  }
  void train_step() {
    uint64_t index =
        static_cast<uint64_t>(step * engine.settings().step.gradient_accumulation_steps);
    // Statistics every third step and a learning rate that changes: what a recording must not hold.
    engine.step([&] { return batch_of(index++); }, step, 1e-3 / static_cast<double>(step + 1),
                step % 3 == 2);
    ++step;
  }
  std::vector<float> gradients() {
    return test::gradients_of(*device, engine.model().parameters());
  }
};

/// Whether plans whose kernels and wiring are those of others are left out: under a sanitizer, and
/// with FP8TRAIN_TEST_PLANS=distinct, where a GPU is at hand for minutes.
inline bool only_distinct_plans() {
  const char* const plans = std::getenv("FP8TRAIN_TEST_PLANS");
  return kSanitized || (plans != nullptr && std::string_view(plans) == "distinct");
}

inline bool no_device() {
  const std::string obstacle = why_cuda_is_unusable();
  if (!obstacle.empty()) {
    WARN("not run: " << obstacle);
  }
  return !obstacle.empty();
}

inline double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0;
  double a_norm = 0;
  double b_norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * b[i];
    a_norm += double{a[i]} * a[i];
    b_norm += double{b[i]} * b[i];
  }
  return dot / std::sqrt(a_norm * b_norm);
}

struct PlanTolerance {
  std::string plan;
  double loss = 2e-3, gradient = 5e-3;  // relative difference of the loss, 1 - cosine of gradients
  bool distinct = false;  // of a kind of its own; false: its kernels and wiring are those of others
};

// A step takes a sanitizer many times as long; its kernels have tests of their own there.
using test::kSanitized;

/// Plans of a kind of their own, and tolerances that are not those of all.
inline const PlanTolerance kNotedPlans[] = {
    {"fp32", 1e-6, 1e-9, true},       {"bf16", 2e-4, 1e-4, true},
    {"fp16", 5e-5, 1e-5, true},       {"te-delayed", 2e-3, 5e-3, true},
    {"te-current", 2e-3, 5e-3, true}, {"te-blockwise", 2e-3, 5e-3, true},
    {"te-nvfp4", 1e-2, 5e-2, true},   {"torchao-rowwise", 2e-3, 5e-3, true},
    {"fp8-lm", 2e-3, 5e-3, true},     {"coat", 2e-3, 5e-3, true},
    {"fp8-lean", 2e-3, 5e-3, true},   {"torchao-mxfp4", 1e-2, 5e-2}};

/// Every plan of the table of plans.
inline std::vector<PlanTolerance> all_plans() {
  std::vector<PlanTolerance> all;
  for (const std::string& name : plan_names()) {
    const auto* noted =
        std::find_if(std::begin(kNotedPlans), std::end(kNotedPlans),
                     [&](const PlanTolerance& tolerance) { return tolerance.plan == name; });
    all.push_back(noted == std::end(kNotedPlans) ? PlanTolerance{name} : *noted);
  }
  return all;
}

inline void compare_devices(const EngineSettings& settings, const PlanTolerance& tolerance) {
  CAPTURE(tolerance.plan);
  Run cpu(DeviceKind::cpu, settings);
  Run cuda(DeviceKind::cuda, settings);
  for (int i = 0; i < 3; ++i) {
    cpu.train_step();
    cuda.train_step();
    const double want = cpu.engine.step_loss().mean;
    const double got = cuda.engine.step_loss().mean;
    CAPTURE(i, want, got);
    CHECK(std::abs(got - want) <= tolerance.loss * (i + 1) * want);
    if (i == 0) {
      CHECK(1 - cosine(cuda.gradients(), cpu.gradients()) <= tolerance.gradient);
    }
  }
}

}  // namespace fp8train::test::steps
