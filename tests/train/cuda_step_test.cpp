// A whole training step on the cuda device against the cpu: on a GPU, or through the host shim,
// where every kernel runs as fibers and a fake cuBLASLt computes the products. Both devices start
// from the same weights. They differ by the order of fp32 sums, and in bf16 and FP8 by what a last
// bit of an fp32 sum moves when it is rounded.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "support/environment.h"
#include "support/small_moe.h"
#include "train/cuda_steps.h"
#include "train/first_windows.h"

using namespace fp8train;
using namespace fp8train::test::steps;

TEST_CASE("a step of each plan on cuda gives the cpu's loss and gradients, Llama", "[cuda]") {
  if (no_device()) {
    return;
  }
  for (const PlanTolerance& tolerance : all_plans()) {
    if (tolerance.distinct || !only_distinct_plans()) {
      compare_devices(small_llama(tolerance.plan), tolerance);
    }
  }
}

TEST_CASE("a step of each kind of plan on cuda gives the cpu's loss and gradients, GPT-2",
          "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const PlanTolerance& tolerance : all_plans()) {
    if (tolerance.distinct && test::is_in_rotation(index++, 3)) {
      compare_devices(small_gpt2(tolerance.plan), tolerance);
    }
  }
}

TEST_CASE("a step of each kind of plan on cuda gives the cpu's loss and gradients, with experts",
          "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const PlanTolerance& tolerance : all_plans()) {
    if (tolerance.distinct && test::is_in_rotation(index++, 3)) {
      EngineSettings settings = test::small_deepseek(tolerance.plan);
      settings.step.seq_length = kColumns;
      compare_devices(settings, tolerance);
    }
  }
}

TEST_CASE("plans with a tolerance of their own are in the table of plans", "[cuda]") {
  const std::vector<std::string> names = plan_names();
  for (const PlanTolerance& tolerance : kNotedPlans) {
    CAPTURE(tolerance.plan);
    CHECK(std::count(names.begin(), names.end(), tolerance.plan) == 1);
  }
}

TEST_CASE("two runs on cuda are bitwise equal", "[cuda]") {
  if (no_device()) {
    return;
  }
  const EngineSettings settings = repeatable(small_llama("te-delayed"));
  Run first(DeviceKind::cuda, settings);
  Run second(DeviceKind::cuda, settings);
  for (int i = 0; i < 3; ++i) {
    first.train_step();
    second.train_step();
  }
  CHECK(first.gradients() == second.gradients());
}

TEST_CASE("states and activations in memory of the host change no bit on cuda", "[cuda]") {
  if (no_device()) {
    return;
  }
  EngineSettings settings = repeatable(small_llama("msamp-o2"));
  settings.model.num_hidden_layers = 4;
  Run on_device(DeviceKind::cuda, settings);
  settings.optimizer.offloads = true;
  settings.step.decoder.offloads_saved = true;
  Run on_host(DeviceKind::cuda, settings);
  for (int i = 0; i < 3; ++i) {
    on_device.train_step();
    on_host.train_step();
  }
  CHECK(on_host.gradients() == on_device.gradients());
  CHECK(on_host.device->ledger().current(MemoryCategory::offloaded) > 0);
  for (const OptimizerState* state : on_host.engine.optimizer().states()) {
    const auto values = [&](Run& run) {
      const View codes = run.engine.optimizer().state(state->name(), 0).codes;
      std::vector<uint8_t> bytes(static_cast<size_t>(codes.bytes()));
      copy_to_host(*run.device, bytes.data(), codes);
      return bytes;
    };
    CHECK(values(on_host) == values(on_device));
  }
}

TEST_CASE("the steady step on cuda stays within the plan made on meta", "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const PlanTolerance& tolerance : all_plans()) {
    if (!tolerance.distinct || !test::is_in_rotation(index++, 3)) {
      continue;
    }
    Run run(DeviceKind::cuda, small_llama(tolerance.plan));
    const uint64_t before = run.device->ledger().allocations();
    run.train_step();
    CHECK(run.device->ledger().allocations() == before);
  }
}

TEST_CASE("recorded steps are bitwise those that are launched one by one", "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const PlanTolerance& tolerance : all_plans()) {
    CAPTURE(tolerance.plan);
    EngineSettings settings = repeatable(small_llama(tolerance.plan));
    settings.model.num_hidden_layers = 1;
    settings.step.gradient_accumulation_steps = 2;
    if (!tolerance.distinct ||
        (kSanitized && settings.plan.fprop.a.policy == ScalePolicy::current) ||
        !test::is_in_rotation(index++, 3)) {
      continue;
    }
    settings.plan.wgrad.a.delayed.interval = 2;  // some steps update those scales, some do not
    Run recorded(DeviceKind::cuda, settings);
    settings.step.cuda_graphs = false;
    Run launched(DeviceKind::cuda, settings);
    for (int i = 0; i < 6; ++i) {
      recorded.train_step();
      launched.train_step();
      CHECK(recorded.engine.step_loss().mean == launched.engine.step_loss().mean);
    }
    CHECK(recorded.gradients() == launched.gradients());
    const auto weights = [](Run& run) {
      return test::values_of(*run.device, run.engine.model().parameters());
    };
    CHECK(weights(recorded) == weights(launched));
  }
}

TEST_CASE("first windows that begin again on cuda are the cpu's, recorded or not", "[cuda]") {
  if (no_device()) {
    return;
  }
  EngineSettings settings = test::with_window(repeatable(small_llama("msamp-o1")), 4);
  Run cpu(DeviceKind::cpu, settings);
  Run recorded(DeviceKind::cuda, settings);
  settings.step.cuda_graphs = false;
  Run launched(DeviceKind::cuda, settings);
  const auto updates_left = [](Run& run) {
    for (const auto& saved : run.engine.model().scaling().save()) {
      if (saved.name.ends_with(".updates_left")) {
        return saved.values;
      }
    }
    return std::vector<float>();
  };
  // In first windows these scales say nothing.
  const auto spoil_scales = [](Run& run) {
    run.engine.model().scaling().read_windows();
    const float wrong = 0x1p-30F;
    for (const auto& slot : run.engine.model().scaling().slots()) {
      if (slot->format.is_current_at_first() && slot->scales_now) {
        copy_from_host(*run.device, View{slot->scale, DType::f32, {1}}, &wrong);
      }
    }
  };
  const std::map<int, const char*> overflows = {{5, "layers.1.attention_norm.weight"},
                                                {10, "layers.0.mlp_norm.weight"}};
  for (int step = 0; step < 15; ++step) {
    CAPTURE(step);
    const auto overflow = overflows.find(step);
    for (Run* run : {&cpu, &recorded, &launched}) {
      spoil_scales(*run);
      if (overflow != overflows.end()) {
        test::with_overflow(
            run->engine, [&] { run->train_step(); }, overflow->second);
      } else {
        run->train_step();
      }
    }
    const std::vector<float> left = updates_left(cpu);
    CHECK(!left.empty());
    CHECK((std::count(left.begin(), left.end(), 0.0F) > 0) == (step > 2));
    CHECK(updates_left(recorded) == left);
    CHECK(updates_left(launched) == left);
    if (overflow == overflows.end()) {
      const double loss = recorded.engine.step_loss().mean;
      CHECK(launched.engine.step_loss().mean == loss);
      CHECK(loss == Approx(cpu.engine.step_loss().mean).epsilon(2e-3 * (step + 1)));
    }
  }
  CHECK(recorded.gradients() == launched.gradients());
}

TEST_CASE("steps with a smoothed product, or one in bf16, on cuda are the cpu's", "[cuda]") {
  if (no_device()) {
    return;
  }
  struct Case {
    const char* plan;
    SwigluInput swiglu;
    bool distinct;
  };
  for (const Case& c : {Case{"te-delayed", SwigluInput::smoothed, true},
                        Case{"te-blockwise", SwigluInput::smoothed, false},
                        Case{"coat", SwigluInput::smoothed, false},
                        Case{"te-delayed", SwigluInput::high_precision, false}}) {
    if (kSanitized && !c.distinct) {
      continue;
    }
    EngineSettings settings = small_llama(c.plan);
    settings.model.num_hidden_layers = 1;
    settings.plan.swiglu = c.swiglu;
    compare_devices(settings, {c.plan, 2e-3, 5e-3});
    if (c.distinct) {
      Run run(DeviceKind::cuda, settings);
      const uint64_t before = run.device->ledger().allocations();
      run.train_step();
      CHECK(run.device->ledger().allocations() == before);
    }
  }
}

TEST_CASE("recorded steps with moments of few bits are those that are launched", "[cuda]") {
  if (no_device()) {
    return;
  }
  const char* const moments[][2] = {
      {"bf16", "bf16"}, {"e4m3", "fp16"}, {"e4m3 group(128)", "fp32"}};
  for (const auto& [first, second] : moments) {
    CAPTURE(first, second);
    PlanRequest request;
    request.plan = "te-delayed";
    request.roles.moment1 = first;
    request.roles.moment2 = second;
    EngineSettings settings = repeatable(small_llama("te-delayed"));
    settings.plan = resolve_plan(request);
    compare_devices(settings, all_plans()[3]);
    Run recorded(DeviceKind::cuda, settings);
    settings.step.cuda_graphs = false;
    Run launched(DeviceKind::cuda, settings);
    const uint64_t before = recorded.device->ledger().allocations();
    for (int i = 0; i < 5; ++i) {
      recorded.train_step();
      launched.train_step();
    }
    CHECK(recorded.device->ledger().allocations() == before);
    const auto weights = [](Run& run) {
      return test::values_of(*run.device, run.engine.model().parameters());
    };
    CHECK(weights(recorded) == weights(launched));
  }
}

TEST_CASE("a step of bf16 on cuda gives the cpu's loss and gradients with our own attention",
          "[cuda]") {
  if (no_device()) {
    return;
  }
  const test::EnvironmentScope scope("FP8TRAIN_CUDA_ATTENTION", "own");
  compare_devices(small_llama("bf16"), all_plans()[1]);
}
