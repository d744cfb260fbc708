#pragma once
// Engines of small models on the cpu and the cuda device, stepped with the same batches.

#include <catch2/catch.hpp>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "device/cuda/cuda_device.h"
#include "support/parameters.h"
#include "support/sanitized.h"
#include "support/small_gpt2.h"
#include "support/small_llama.h"
#include "train/dry_run.h"

namespace fp8train::test::steps {

constexpr int64_t kRows = test::kSmallRows;
constexpr int64_t kColumns = 24;
constexpr uint32_t kVocabulary = test::kSmallVocabulary;

inline EngineSettings small_llama(const std::string& plan) {
  EngineSettings settings = test::small_llama(plan);
  settings.seq_length = kColumns;
  return settings;
}

inline EngineSettings small_gpt2(const std::string& plan) {
  EngineSettings settings = test::small_gpt2(plan);
  settings.seq_length = kColumns;
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
    uint64_t index = static_cast<uint64_t>(step * engine.settings().gradient_accumulation_steps);
    // Statistics every third step and a learning rate that changes: what a recording must not hold.
    engine.step([&] { return batch_of(index++); }, step, 1e-3 / static_cast<double>(step + 1),
                step % 3 == 2);
    ++step;
  }
  std::vector<float> gradients() {
    return test::gradients_of(*device, engine.model().parameters());
  }
};

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
  const char* plan;
  double loss, gradient;  // relative difference of the loss, 1 - cosine of all gradients
  bool distinct = true;   // of a kind of its own; false: its kernels and wiring are those of others
};

// A step takes a sanitizer many times as long; its kernels have tests of their own there.
using test::kSanitized;

inline constexpr PlanTolerance kAllPlans[] = {{"fp32", 1e-6, 1e-9},
                                              {"bf16", 2e-4, 1e-4},
                                              {"fp16", 5e-5, 1e-5},
                                              {"te-delayed", 2e-3, 5e-3},
                                              {"te-current", 2e-3, 5e-3},
                                              {"te-blockwise", 2e-3, 5e-3},
                                              {"te-mxfp8", 2e-3, 5e-3, false},
                                              {"te-nvfp4", 1e-2, 5e-2},
                                              {"msamp-o1", 2e-3, 5e-3, false},
                                              {"msamp-o2", 2e-3, 5e-3, false},
                                              {"msamp-o3", 2e-3, 5e-3, false},
                                              {"msamp-o1-te", 2e-3, 5e-3, false},
                                              {"msamp-o2-te", 2e-3, 5e-3, false},
                                              {"msamp-o3-te", 2e-3, 5e-3, false},
                                              {"torchao-tensorwise", 2e-3, 5e-3, false},
                                              {"torchao-rowwise", 2e-3, 5e-3},
                                              {"torchao-rowwise-gw-hp", 2e-3, 5e-3, false},
                                              {"fp8-lm", 2e-3, 5e-3},
                                              {"deepseek-v3", 2e-3, 5e-3, false},
                                              {"coat", 2e-3, 5e-3},
                                              {"fp8-safe", 2e-3, 5e-3, false},
                                              {"fp8-lean", 2e-3, 5e-3},
                                              {"fp8-min", 2e-3, 5e-3, false},
                                              {"int8-qat", 2e-3, 5e-3, false}};

inline void compare_devices(const EngineSettings& settings, const PlanTolerance& row) {
  CAPTURE(row.plan);
  Run cpu(DeviceKind::cpu, settings);
  Run cuda(DeviceKind::cuda, settings);
  for (int i = 0; i < 3; ++i) {
    cpu.train_step();
    cuda.train_step();
    const double want = cpu.engine.step_loss().mean;
    const double got = cuda.engine.step_loss().mean;
    CAPTURE(i, want, got);
    CHECK(std::abs(got - want) <= row.loss * (i + 1) * want);
    if (i == 0) {
      CHECK(1 - cosine(cuda.gradients(), cpu.gradients()) <= row.gradient);
    }
  }
}

}  // namespace fp8train::test::steps
