// Attention in FP8 (fp8.attention) in whole steps: formats of slots, memory, and the same bits on
// ranks that share layers, on stages of a pipeline and with each kind of recomputation.

#include <catch2/catch.hpp>

#include <set>

#include "device/cuda/cuda_device.h"
#include "engine/roofline.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;
using Catch::Matchers::Contains;

namespace {

PrecisionPlan plan_with(const std::string& name, Fp8Attention attention) {
  PlanRequest request;
  request.plan = name;
  request.attention = attention;
  return resolve_plan(request);
}

EngineSettings settings_of(const std::string& plan, Fp8Attention attention) {
  EngineSettings settings = llama(plan);
  settings.plan = plan_with(plan, attention);
  return settings;
}

/// "role: format" of the slots of the first block's attention.
std::set<std::string> slots_of(const EngineSettings& settings) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, settings);
  std::set<std::string> slots;
  for (const auto& slot : engine.model().scaling().slots()) {
    if (slot->layer == "layers.0.attention") {
      slots.insert(slot->role + ": " + describe(slot->format));
    }
  }
  return slots;
}

}  // namespace

TEST_CASE("attention in FP8 has TransformerEngine's roles", "[attention_codes]") {
  using enum Fp8Attention;
  const std::string of_x = "e4m3 tensor delayed(1024, max)";
  const std::string of_dy = "e5m2 tensor delayed(1024, max)";
  CHECK(slots_of(settings_of("te-delayed", none)).empty());
  CHECK(slots_of(settings_of("te-delayed", Fp8Attention::forward)) ==
        std::set<std::string>{"qkv: " + of_x, "p: " + of_x, "out: " + of_x});
  CHECK(slots_of(settings_of("te-delayed", both)) ==
        std::set<std::string>{"qkv: " + of_x, "p: " + of_x, "out: " + of_x, "dout: " + of_dy,
                              "ds: " + of_dy, "dqkv: " + of_dy});
  CHECK(slots_of(settings_of("te-current", both)) ==
        std::set<std::string>{"qkv: e4m3 tensor current", "p: e4m3 tensor delayed(1, most_recent)",
                              "dout: e5m2 tensor current",
                              "ds: e5m2 tensor delayed(1, most_recent)"});
  EngineSettings exempt = settings_of("te-delayed", both);
  exempt.plan.exemptions.first_blocks = 1;
  CHECK(slots_of(exempt).empty());
  PlanRequest request;
  request.plan = "te-delayed";
  request.attention = both;
  request.format = Fp8Format::e4m3;
  request.amax_history_len = 4;
  CHECK(describe(resolve_plan(request).attention.dscores) == "e4m3 tensor delayed(4, max)");
}

TEST_CASE("plans without one scale for x and dy have no attention in FP8", "[attention_codes]") {
  const std::string plan = GENERATE("te-mxfp8", "deepseek-v3", "bf16", "int8-qat");
  CAPTURE(plan);
  CHECK_THROWS_WITH(plan_with(plan, Fp8Attention::forward),
                    Contains("fp8.attention has no meaning for plan '" + plan + "'") &&
                        Contains("te-delayed") && Contains("te-current"));
  CHECK_NOTHROW(plan_with(plan, Fp8Attention::none));
}

TEST_CASE("steps with attention in FP8 have the bits of one rank, and the memory that is planned",
          "[attention_codes]") {
  const std::string plan = GENERATE("te-delayed", "te-current", "coat");
  const Fp8Attention attention = GENERATE(Fp8Attention::forward, Fp8Attention::both);
  const std::string model = GENERATE("llama", "qwen3");
  CAPTURE(plan, attention, model);
  EngineSettings settings = settings_of(plan, attention);
  settings.model.qk_norm = settings.masks_documents = model == "qwen3";
  settings.strategy.layout.tensor_parts = 2;
  settings.step.gradient_accumulation_steps = 2;
  const Results one = run(settings, 1);
  CHECK(one.as_planned);
  EngineSettings plain = settings;
  plain.plan = plan_named(plan);
  CHECK(run(plain, 1).losses != one.losses);
  for (const Recompute recompute : {Recompute::attention, Recompute::block}) {
    EngineSettings again = settings;
    again.step.decoder.recompute = recompute;
    const Results recomputed = run(again, 1);
    check_equal(one, recomputed);
    CHECK(recomputed.as_planned);
  }
  settings.strategy.layout.tensor = 2;
  const Results several = run(settings, 2);
  check_equal(one, several);
  CHECK(several.as_planned);
}

TEST_CASE("stages of a pipeline have the bits of one rank with attention in FP8",
          "[attention_codes]") {
  const std::string plan = GENERATE("te-delayed", "te-current");
  CAPTURE(plan);
  EngineSettings settings = settings_of(plan, Fp8Attention::both);
  settings.step.gradient_accumulation_steps = 4;
  const Results one = run(settings, 1);
  settings.strategy.layout.pipeline = 2;
  const Results several = run(settings, 2);
  CHECK(difference(one.values, several.values, 0) == "");
  CHECK(several.as_planned);
}

TEST_CASE("backward in FP8 stores codes of q, k, v and of the output", "[attention_codes]") {
  const auto saved = [](const std::string& plan, Fp8Attention attention) {
    return static_cast<int64_t>(dry_run_step(settings_of(plan, attention), {}).plan.saved_bytes);
  };
  const EngineSettings settings = settings_of("te-delayed", Fp8Attention::none);
  const ModelConfig& model = settings.model;
  const int64_t tokens = settings.step.micro_batch_size * settings.step.seq_length;
  const int64_t layers = model.num_hidden_layers;
  const int64_t out = model.num_attention_heads * model.head_dim;
  const int64_t plain = saved("te-delayed", Fp8Attention::none);
  CHECK(saved("te-delayed", Fp8Attention::forward) == plain);
  CHECK(plain - saved("te-delayed", Fp8Attention::both) ==
        layers * tokens * (model.qkv_width() + out));
  CHECK(saved("te-current", Fp8Attention::none) - saved("te-current", Fp8Attention::both) ==
        layers * tokens * model.qkv_width());
}

TEST_CASE("a step's model has attention in FP8 at the rate of 8 bits", "[attention_codes]") {
  const auto found = [](Fp8Attention attention) {
    std::set<Arithmetic> all;
    for (const OpCall& call : logged_step(settings_of("te-delayed", attention), {}).calls) {
      if (call.work.arithmetic >= Arithmetic::attention_forward) {
        all.insert(call.work.arithmetic);
      }
    }
    return all;
  };
  using enum Arithmetic;
  CHECK(found(Fp8Attention::none) == std::set{attention_forward, attention_backward});
  CHECK(found(Fp8Attention::forward) == std::set{attention_forward_fp8, attention_backward});
  CHECK(found(Fp8Attention::both) == std::set{attention_forward_fp8, attention_backward_fp8});
  const GpuKind* h100 = find_gpu_kind("h100");
  REQUIRE(h100 != nullptr);
  OpWork work;
  work.flops = 1e15;
  const auto seconds = [&](Arithmetic arithmetic) {
    work.arithmetic = arithmetic;
    return roofline(work, StepRates(*h100)).seconds;
  };
  CHECK(seconds(attention_forward_fp8) == Approx(1e15 / (h100->tera_flops_8bit * 1e12 * 0.48)));
  CHECK(seconds(attention_backward_fp8) == Approx(1e15 / (h100->tera_flops_8bit * 1e12 * 0.22)));
}

TEST_CASE("attention in FP8 is refused where it cannot run", "[attention_codes]") {
  const auto plan_for = [](const std::string& plan, Fp8Attention attention, int capability,
                           int64_t head_dim) {
    EngineSettings settings = settings_of(plan, attention);
    settings.model.head_dim = head_dim;
    plan_weights(settings, cuda_traits(capability, size_t{80} << 30));
  };
  using enum Fp8Attention;
  CHECK_NOTHROW(plan_for("te-delayed", forward, 90, 64));
  CHECK_NOTHROW(plan_for("te-delayed", both, 90, 128));
  CHECK_NOTHROW(plan_for("te-current", both, 100, 64));
  CHECK_THROWS_WITH(plan_for("te-delayed", forward, 89, 64), Contains("fp8.attention: GPUs below"));
  CHECK_THROWS_WITH(plan_for("te-delayed", both, 90, 64), Contains("fp8.attention: forward"));
  CHECK_THROWS_WITH(plan_for("te-current", forward, 90, 64), Contains("current scaling"));
  CHECK_THROWS_WITH(plan_for("te-delayed", forward, 100, 256), Contains("up to 128"));
}
