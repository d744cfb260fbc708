// The model of a step's time on a GPU that is not here.

#include "train/step/roofline.h"
#include "train/step/dry_run.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>

#include "config/presets.h"
#include "support/small_llama.h"
#include "train/session.h"

namespace fp8train {
namespace {

const GpuKind& h200() {
  return *find_gpu_kind("h200");
}

const OpTotal& operation(const StepModel& model, StepPart part, const std::string& name) {
  for (const OpTotal& total : model.operations) {
    if (total.part == part && total.name == name) {
      return total;
    }
  }
  FAIL("no " << name << " in " << name_of(part));
  throw std::logic_error("unreachable");
}

/// Two layers as wide as Llama 3 8B, 8192 tokens.
EngineSettings wide_llama(const std::string& plan) {
  Settings settings;
  settings.precision.plan = plan;
  settings.step.seq_length = 8192;
  settings.step.micro_batch_size = 1;
  ModelConfig model = find_preset("llama-8b")->config;
  model.num_hidden_layers = 2;
  return engine_settings(settings, completed(model));
}

}  // namespace

TEST_CASE("totals of a modeled step are the sums of its calls", "[roofline]") {
  const EngineSettings settings = test::small_llama("te-delayed", 2);
  const StepModel model = model_step(settings, h200(), nullptr);
  OpTotal sum;
  for (const OpCall& call : log_step(settings, traits_of(h200()))) {
    sum.calls += 1;
    sum.launches += call.work.launches;
    sum.bytes += call.work.bytes;
    sum.flops += call.work.flops;
    sum.seconds += roofline(call.work, h200(), nullptr).seconds;
  }
  CHECK(model.step.calls == sum.calls);
  CHECK(model.step.launches == sum.launches);
  CHECK(model.step.bytes == Approx(sum.bytes).epsilon(1e-12));
  CHECK(model.step.flops == Approx(sum.flops).epsilon(1e-12));
  CHECK(model.step.seconds == Approx(sum.seconds).epsilon(1e-12));
  double parts = 0;
  for (const auto& [part, name] : kStepParts) {
    CAPTURE(name);
    CHECK(model.seconds_of(part) > 0);
    parts += model.seconds_of(part);
  }
  CHECK(parts == Approx(model.step.seconds).epsilon(1e-12));
  const double outside = model.seconds_of(StepPart::start) + model.seconds_of(StepPart::update);
  CHECK(2 * model.micro_batch.seconds + outside == Approx(model.step.seconds));
}

TEST_CASE("a modeled step has the work that a dry run counts", "[roofline]") {
  const EngineSettings settings = test::small_llama("te-current");
  const DeviceTraits traits = traits_of(h200());
  const OpCounters counted = dry_run_step(settings, traits).work;
  OpCounters logged;
  for (const OpCall& call : log_step(settings, traits)) {
    const bool operation =
        std::strcmp(call.name, "fill_zero") != 0 && std::strcmp(call.name, "copy_from_host") != 0;
    logged.bytes += operation ? call.work.bytes : 0.0;
    logged.operations += operation ? 1 : 0;
    logged.gemm_flops += call.work.flops;
  }
  CHECK(logged.operations == counted.operations);
  CHECK(logged.bytes == Approx(counted.bytes).epsilon(1e-12));
  CHECK(logged.gemm_flops == Approx(counted.gemm_flops + counted.attention_flops).epsilon(1e-12));
}

TEST_CASE("an operation of a modeled step has its exact bytes and time", "[roofline]") {
  const EngineSettings settings = wide_llama("bf16");
  const StepModel model = model_step(settings, h200(), nullptr);
  const OpTotal& swiglu = operation(model, StepPart::forward, "swiglu_forward");
  CHECK(swiglu.calls == 2);
  CHECK(swiglu.launches == 2);
  const double bytes = 2.0 * 8192 * 14336 * 3 * 2;  // two halves read, one result, bf16, layers
  CHECK(swiglu.bytes == bytes);
  const AchievedShares shares = achieved_shares(h200());
  CHECK(swiglu.seconds ==
        Approx(bytes / (4800e9 * shares.memory) + 2 * shares.launch_seconds).epsilon(1e-12));
  CHECK(swiglu.bound == Bound::memory);
  const OpTotal& gemm = operation(model, StepPart::forward, "gemm");
  const double flops = 2 * 2.0 * 8192 * 4096 * (6144 + 4096 + 2 * 14336 + 14336);
  CHECK(gemm.flops == flops);
  CHECK(gemm.seconds ==
        Approx(flops / (989e12 * shares.bits16) + 8 * shares.launch_seconds).epsilon(1e-12));
  CHECK(gemm.bound == Bound::flops);
}

TEST_CASE("instructions bound an operation where they take longest", "[roofline]") {
  const OpWork work = {.bytes = 1e9, .kernel = "slow", .elements = 1e9};
  const auto instructions = [](std::string_view kernel) { return kernel == "slow" ? 100.0 : 0.0; };
  const OpTime time = roofline(work, h200(), instructions);
  const AchievedShares shares = achieved_shares(h200());
  const double rate = 67e12 / 64 * shares.instructions;
  CHECK(time.bound == Bound::instructions);
  CHECK(time.seconds == Approx(1e9 * 100 / 32 / rate + shares.launch_seconds));
  CHECK(roofline(work, h200(), nullptr).bound == Bound::memory);
  CHECK(roofline({.bytes = 4}, h200(), nullptr).bound == Bound::launches);
}

TEST_CASE("FP8 makes a wide model faster, with fewer bytes where norms write codes", "[roofline]") {
  const auto model = [](const char* plan) { return model_step(wide_llama(plan), h200(), nullptr); };
  const StepModel bf16 = model("bf16");
  const StepModel delayed = model("te-delayed");
  const StepModel current = model("te-current");
  CHECK(bf16.step.seconds / delayed.step.seconds > 1.05);
  CHECK(bf16.step.seconds / delayed.step.seconds < 2.0);
  CHECK(current.step.seconds > delayed.step.seconds);
  CHECK(current.layer.bytes > delayed.layer.bytes);
  CHECK(delayed.step.flops == bf16.step.flops);
}

TEST_CASE("products that a GPU does not have are dequantized in its model", "[roofline]") {
  const auto launches = [](const char* gpu) {
    const GpuKind& kind = *find_gpu_kind(gpu);
    return operation(model_step(wide_llama("torchao-rowwise"), kind, nullptr), StepPart::forward,
                     "scaled_gemm")
        .launches;
  };
  CHECK(launches("h200") == 8);
  CHECK(launches("rtx4090") == 3 * 8);
}

}  // namespace fp8train
