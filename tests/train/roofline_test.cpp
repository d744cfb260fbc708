// The model of a step's time on a GPU that is not here.

#include "engine/roofline.h"
#include "engine/dry_run.h"

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

/// The h200's rates without instructions.
StepRates rates_of(const GpuKind& gpu) {
  StepRates rates(gpu);
  rates.instructions = nullptr;
  return rates;
}

StepModel model_on(const EngineSettings& settings, const StepRates& rates) {
  return model_step(logged_step(settings, traits_of(*rates.gpu)).calls, settings, rates);
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
  const StepModel model = model_on(settings, rates_of(h200()));
  OpTotal sum;
  for (const OpCall& call : logged_step(settings, traits_of(h200())).calls) {
    sum.calls += 1;
    sum.launches += call.work.launches;
    sum.bytes += call.work.bytes.all;
    sum.flops += call.work.flops;
    sum.seconds += roofline(call.work, rates_of(h200())).seconds;
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
  for (const OpCall& call : logged_step(settings, traits).calls) {
    const bool operation =
        std::strcmp(call.name, "fill_zero") != 0 && std::strcmp(call.name, "copy_from_host") != 0;
    logged.bytes += operation ? call.work.bytes.all : 0.0;
    logged.operations += operation ? 1 : 0;
    logged.gemm_flops += call.work.flops;
  }
  CHECK(logged.operations == counted.operations);
  CHECK(logged.bytes == Approx(counted.bytes).epsilon(1e-12));
  CHECK(logged.gemm_flops == Approx(counted.gemm_flops + counted.attention_flops).epsilon(1e-12));
}

TEST_CASE("an operation of a modeled step has its exact bytes and time", "[roofline]") {
  const EngineSettings settings = wide_llama("bf16");
  const StepModel model = model_on(settings, rates_of(h200()));
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
  StepRates rates(h200());
  rates.instructions = instructions;
  const OpTime time = roofline(work, rates);
  const AchievedShares shares = achieved_shares(h200());
  const double rate = 67e12 / 64 * shares.instructions;
  CHECK(time.bound == Bound::instructions);
  CHECK(time.seconds == Approx(1e9 * 100 / 32 / rate + shares.launch_seconds));
  CHECK(roofline(work, rates_of(h200())).bound == Bound::memory);
  CHECK(roofline({.bytes = 4}, rates_of(h200())).bound == Bound::launches);
  CHECK_THROWS_AS(roofline({.flops = 4}, rates_of(h200())), InternalError);
}

TEST_CASE("FP8 makes a wide model faster, with fewer bytes where norms write codes", "[roofline]") {
  const auto model = [](const char* plan) { return model_on(wide_llama(plan), rates_of(h200())); };
  const StepModel bf16 = model("bf16");
  const StepModel delayed = model("te-delayed");
  const StepModel current = model("te-current");
  CHECK(bf16.step.seconds / delayed.step.seconds > 1.05);
  CHECK(bf16.step.seconds / delayed.step.seconds < 2.0);
  CHECK(current.step.seconds > delayed.step.seconds);
  CHECK(current.layer.bytes > delayed.layer.bytes);
  CHECK(delayed.step.flops == bf16.step.flops);
}

TEST_CASE("a step of many micro-batches has the calls of all of them", "[roofline]") {
  const auto model = [](int64_t micro_batches) {
    EngineSettings settings = wide_llama("te-current");
    settings.step.gradient_accumulation_steps = micro_batches;
    return model_on(settings, rates_of(h200())).step;
  };
  const OpTotal three = model(3);
  const OpTotal four = model(4);
  const OpTotal hundred = model(100);
  CHECK(hundred.calls == three.calls + 97 * (four.calls - three.calls));
  CHECK(hundred.launches == three.launches + 97 * (four.launches - three.launches));
  CHECK(hundred.flops == Approx(three.flops * 100 / 3).epsilon(1e-12));
  CHECK(hundred.seconds == Approx(three.seconds + 97 * (four.seconds - three.seconds)));
}

TEST_CASE("a measured product has the rate of its shape, another that of its kind", "[roofline]") {
  const Fp8Product bf16 = {.a = DType::bf16, .b = DType::bf16};
  const Fp8Product fp8 = {.fast_accumulate = true};
  StepRates rates = rates_of(h200());
  rates.measured.add({.m = 8192, .n = 4096, .k = 4096, .type = bf16}, 5e14);
  rates.measured.add({.m = 8192, .n = 8192, .k = 4096, .type = bf16}, 8e14);
  rates.measured.add({.m = 8192, .n = 4096, .k = 4096, .type = fp8}, 1.2e15);
  const auto time = [&](int64_t n, const Fp8Product& type, bool adds, Arithmetic arithmetic) {
    const OpProduct product = {.m = 8192, .n = n, .k = 4096, .type = type, .adds = adds};
    const double flops = 2.0 * 8192 * static_cast<double>(n) * 4096;
    const OpTime of = roofline(
        {.launches = 0, .flops = flops, .arithmetic = arithmetic, .product = product}, rates);
    return std::pair(flops / of.seconds, of.source);
  };
  const auto check = [](const std::pair<double, RateSource>& found, double rate, RateSource from) {
    CHECK(found.first == Approx(rate));
    CHECK(found.second == from);
  };
  using enum RateSource;
  check(time(4096, bf16, false, Arithmetic::bits16), 5e14, shape);
  check(time(4096, bf16, true, Arithmetic::bits16), 5e14, shape);
  check(time(4096, fp8, false, Arithmetic::fp8_fast), 1.2e15, shape);
  // All FLOPs through all seconds: 3 / (1 / 5 + 2 / 8).
  check(time(2048, bf16, false, Arithmetic::bits16), 1e14 * 3 / (1.0 / 5 + 2.0 / 8), kind);
  check(time(2048, fp8, false, Arithmetic::fp8_fast), 1.2e15, kind);
  const double exact = 1979e12 * achieved_shares(h200()).fp8;
  check(time(4096, {}, false, Arithmetic::fp8), exact, RateSource::assumed);
}

TEST_CASE("the log names the shape and the types of each product", "[roofline]") {
  std::map<std::string, int> products;
  for (const OpCall& call : logged_step(wide_llama("deepseek-v3"), traits_of(h200())).calls) {
    const OpProduct& product = call.work.product;
    if (product.m > 0) {
      products[std::to_string(product.m) + "x" + std::to_string(product.n) + "x" +
               std::to_string(product.k) + " " + operands_text(product.type) + " " +
               std::string(name_of(product.type.c)) + (product.adds ? " +=" : "")] += 1;
    }
  }
  CHECK(products["8192x4096x14336 e4m3 1x128 x e4m3 128x128 bf16"] == 2);  // down
  CHECK(products["8192x14336x4096 e4m3 1x128 x e4m3 128x128 bf16"] == 2);
  CHECK(products["4096x14336x8192 e4m3 1x128 x e4m3 1x128 fp32"] == 2);
  CHECK(products.size() > 10);
}

TEST_CASE("gradients in bf16 make a modeled step faster, and its scratch no larger", "[roofline]") {
  const auto stored = [](const char* plan, const char* gradient) {
    Settings settings;
    settings.precision.plan = plan;
    settings.precision.roles.weight_gradient = gradient;
    settings.step.seq_length = 8192;
    settings.step.micro_batch_size = 1;
    ModelConfig config = find_preset("llama-8b")->config;
    config.num_hidden_layers = 2;
    return engine_settings(settings, completed(config));
  };
  for (const char* plan : {"bf16", "te-delayed", "te-blockwise"}) {
    CAPTURE(plan);
    const EngineSettings wide = stored(plan, "fp32");
    const EngineSettings narrow = stored(plan, "bf16");
    const StepModel model = model_on(narrow, rates_of(h200()));
    CHECK(model.step.seconds < model_on(wide, rates_of(h200())).step.seconds);
    const DeviceTraits traits = traits_of(h200());
    CHECK(dry_run_step(narrow, traits).plan.scratch_bytes <=
          dry_run_step(wide, traits).plan.scratch_bytes);
  }
}

TEST_CASE("products that a GPU does not have are dequantized in its model", "[roofline]") {
  const auto launches = [](const char* gpu) {
    const GpuKind& kind = *find_gpu_kind(gpu);
    return operation(model_on(wide_llama("torchao-rowwise"), rates_of(kind)), StepPart::forward,
                     "scaled_gemm")
        .launches;
  };
  CHECK(launches("h200") == 8);
  CHECK(launches("rtx4090") == 3 * 8);
}

}  // namespace fp8train
