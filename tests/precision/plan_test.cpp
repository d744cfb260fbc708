#include "precision/plan.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace fp8train;
using Catch::Contains;

namespace {

PlanRequest fp8_request(const char* recipe) {
  PlanRequest request;
  request.mixed_precision = MixedPrecision::fp8;
  request.recipe = recipe;
  return request;
}

}  // namespace

TEST_CASE("the plans are those of the table of plans") {
  CHECK(plan_names() == std::vector<std::string>{"fp32",
                                                 "bf16",
                                                 "fp16",
                                                 "te-delayed",
                                                 "te-current",
                                                 "te-blockwise",
                                                 "te-mxfp8",
                                                 "te-nvfp4",
                                                 "msamp-o1",
                                                 "msamp-o2",
                                                 "msamp-o3",
                                                 "msamp-o1-te",
                                                 "msamp-o2-te",
                                                 "msamp-o3-te",
                                                 "torchao-tensorwise",
                                                 "torchao-rowwise",
                                                 "torchao-rowwise-gw-hp",
                                                 "torchao-blockwise",
                                                 "torchao-mxfp8",
                                                 "torchao-mxfp4",
                                                 "fp8-lm",
                                                 "deepseek-v3",
                                                 "deepseek-v3.1",
                                                 "llm.q",
                                                 "coat",
                                                 "fp8-fast",
                                                 "fp8-safe",
                                                 "fp8-lean",
                                                 "fp8-min",
                                                 "int8-qat"});
  for (const std::string& name : plan_names()) {
    CHECK(plan_named(name).name == name);
  }
  CHECK_THROWS_WITH(plan_named("te-delay"), Contains("te-delayed, te-current"));
  CHECK_THROWS_WITH(plan_named("te-foo"),
                    Contains("no plan 'te-foo'; did you mean te-delayed, te-current, te-blockwise, "
                             "te-mxfp8 or te-nvfp4? The plans are: fp32, "));
}

TEST_CASE("mixed_precision and recipe select a plan, precision.plan names it") {
  PlanRequest request;
  CHECK(resolve_plan(request).name == "fp32");
  request.mixed_precision = MixedPrecision::bf16;
  CHECK(resolve_plan(request).name == "bf16");
  CHECK(resolve_plan(fp8_request("")).name == "te-delayed");
  CHECK(resolve_plan(fp8_request("current")).name == "te-current");
  CHECK(resolve_plan(fp8_request("blockwise")).name == "te-blockwise");
  CHECK(resolve_plan(fp8_request("mxfp8")).name == "te-mxfp8");
  PlanRequest torchao = fp8_request("");
  torchao.backend = "torchao";
  CHECK(resolve_plan(torchao).name == "torchao-tensorwise");
  torchao.recipe = "rowwise";
  CHECK(resolve_plan(torchao).name == "torchao-rowwise");
  torchao.recipe = "rowwise_with_gw_hp";
  CHECK(resolve_plan(torchao).name == "torchao-rowwise-gw-hp");
  torchao.recipe = "mxfp8_rceil";
  CHECK(resolve_plan(torchao).name == "torchao-mxfp8");
  torchao.recipe = "mxfp4_emulated";
  CHECK(resolve_plan(torchao).name == "torchao-mxfp4");
  request.plan = "te-current";
  CHECK(resolve_plan(request).name == "te-current");
}

TEST_CASE("te-blockwise and te-mxfp8 have TransformerEngine's formats") {
  const PrecisionPlan blockwise = plan_named("te-blockwise");
  CHECK(describe(blockwise.fprop.a) == "e4m3 1x128 current pow2");
  CHECK(describe(blockwise.fprop.b) == "e4m3 128x128 current pow2");
  CHECK(blockwise.dgrad == blockwise.fprop);
  CHECK(blockwise.wgrad.a == blockwise.fprop.a);
  CHECK(blockwise.wgrad.b == blockwise.fprop.a);
  CHECK_FALSE(blockwise.fprop.fast_accumulate);
  CHECK_FALSE(blockwise.wgrad.fast_accumulate);
  const PrecisionPlan mxfp8 = plan_named("te-mxfp8");
  for (const GemmPlan* gemm : {&mxfp8.fprop, &mxfp8.dgrad, &mxfp8.wgrad}) {
    CHECK(describe(gemm->a) == "e4m3 1x32 current e8m0");
    CHECK(gemm->a == gemm->b);
  }
}

TEST_CASE("torchao's plans have its recipes' formats") {
  const PrecisionPlan tensorwise = plan_named("torchao-tensorwise");
  CHECK(describe(tensorwise.fprop.a) == "e4m3 tensor current epsilon 1e-12");
  CHECK(describe(tensorwise.wgrad.a) == "e5m2 tensor current epsilon 1e-12");
  CHECK(tensorwise.fprop.a == tensorwise.fprop.b);
  const PrecisionPlan rowwise = plan_named("torchao-rowwise");
  for (const GemmPlan* gemm : {&rowwise.fprop, &rowwise.dgrad, &rowwise.wgrad}) {
    CHECK(describe(gemm->a) == "e4m3 row current pow2 epsilon 1e-12");
    CHECK(gemm->a == gemm->b);
    CHECK(gemm->fast_accumulate == (gemm == &rowwise.fprop));
  }
  const PrecisionPlan gw_hp = plan_named("torchao-rowwise-gw-hp");
  CHECK(gw_hp.fprop == rowwise.fprop);
  CHECK(gw_hp.dgrad.a == rowwise.dgrad.a);
  CHECK(describe(gw_hp.dgrad.b) == "e4m3 tensor current pow2 epsilon 1e-12");
  CHECK(describe(gw_hp.wgrad.a) == "bf16");
  CHECK(gw_hp.saved_activation == plain(DType::bf16));
}

TEST_CASE("torchao's prototypes have the blocks of TransformerEngine's recipes") {
  const PrecisionPlan blockwise = plan_named("torchao-blockwise");
  CHECK(describe(blockwise.fprop.a) == "e4m3 1x128 current epsilon 1e-12");
  CHECK(describe(blockwise.fprop.b) == "e4m3 128x128 current epsilon 1e-12");
  CHECK(blockwise.dgrad == blockwise.fprop);
  CHECK(blockwise.wgrad.a == blockwise.fprop.a);
  CHECK(blockwise.wgrad.b == blockwise.fprop.a);
  CHECK(blockwise.saved_activation == blockwise.wgrad.b);
  const PrecisionPlan mxfp8 = plan_named("torchao-mxfp8");
  for (const GemmPlan* gemm : {&mxfp8.fprop, &mxfp8.dgrad, &mxfp8.wgrad}) {
    CHECK(describe(gemm->a) == "e4m3 1x32 current e8m0");
    CHECK(gemm->a == gemm->b);
    CHECK_FALSE(gemm->fast_accumulate);
  }
}

TEST_CASE("deepseek-v3.1 is deepseek-v3 with powers of two for the scales of all blocks") {
  PlanRequest request;
  request.plan = "deepseek-v3";
  request.power_2_scale = true;
  PrecisionPlan expected = resolve_plan(request);
  expected.name = "deepseek-v3.1";
  expected.saved_nonlinear = expected.saved_activation;
  CHECK(plan_named("deepseek-v3.1") == expected);
  CHECK(describe(expected.weight) == "e4m3 128x128 current pow2");
}

TEST_CASE("llm.q has E4M3 for all operands, and bf16 for all that is stored") {
  const PrecisionPlan plan = plan_named("llm.q");
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    CHECK(describe(gemm->a) == "e4m3 tensor current epsilon 1e-10");
    CHECK(gemm->a == gemm->b);
    CHECK_FALSE(gemm->fast_accumulate);
  }
  CHECK(describe(plan.weight) == "bf16 stochastic");
  CHECK_FALSE(plan.master_weight);
  CHECK(plan.weight_gradient == plain(DType::bf16));
  CHECK(plan.moment1 == plan.weight);
  CHECK(plan.moment2 == plan.weight);
}

TEST_CASE("hybrid, e4m3 and power_2_scale reach the plans with a scale for each block") {
  PlanRequest request = fp8_request("blockwise");
  request.format = Fp8Format::hybrid;
  request.power_2_scale = false;
  const PrecisionPlan plan = resolve_plan(request);
  CHECK(describe(plan.fprop.a) == "e4m3 1x128 current");
  CHECK(describe(plan.dgrad.a) == "e5m2 1x128 current");
  CHECK(describe(plan.wgrad.a) == "e5m2 1x128 current");
  CHECK(describe(plan.wgrad.b) == "e4m3 1x128 current");
  PlanRequest mxfp8 = fp8_request("mxfp8");
  mxfp8.power_2_scale = true;
  CHECK_THROWS_WITH(resolve_plan(mxfp8), Contains("power_2_scale") && Contains("te-mxfp8"));
}

TEST_CASE("te-delayed has TransformerEngine's formats and defaults") {
  const PrecisionPlan plan = plan_named("te-delayed");
  CHECK(plan.activation == DType::bf16);
  CHECK(plan.fprop.a.dtype == DType::e4m3);
  CHECK(plan.dgrad.a.dtype == DType::e5m2);
  CHECK(plan.dgrad.b.dtype == DType::e4m3);
  CHECK(plan.wgrad.a.dtype == DType::e5m2);
  CHECK(plan.wgrad.b == plan.fprop.a);
  CHECK(plan.fprop.a.delayed == DelayedScaling{0, 1, 1024, AmaxAlgorithm::max});
  CHECK(plan.fprop.fast_accumulate);
  CHECK_FALSE(plan.dgrad.fast_accumulate);
  CHECK_FALSE(plan.wgrad.fast_accumulate);
  CHECK(plan.weight.dtype == DType::f32);
  CHECK_FALSE(plan.master_weight);
}

TEST_CASE("fp8-fast is te-delayed with fast sums, an FP8 head, and moments and wire in bf16") {
  PlanRequest request = fp8_request("delayed");
  request.fast_accumulation = {true, true, true};
  request.exemptions.head = false;
  request.roles.gradient_wire = "bf16";
  request.roles.moment1 = request.roles.moment2 = "bf16 stochastic";
  PrecisionPlan expected = resolve_plan(request);
  expected.name = "fp8-fast";
  CHECK(plan_named("fp8-fast") == expected);
  PlanRequest named;
  named.plan = "fp8-fast";
  CHECK(resolve_plan(named) == expected);
  named.exemptions.head = true;
  CHECK(resolve_plan(named).exemptions.head == true);
}

TEST_CASE("reduce_amax is for tensors that a rank has alone") {
  PlanRequest request = fp8_request("delayed");
  request.reduce_amax = false;
  const PrecisionPlan plan = resolve_plan(request);
  for (const TensorFormat* format :
       {&plan.fprop.a, &plan.dgrad.a, &plan.wgrad.a, &plan.wgrad.b, &plan.saved_activation}) {
    CHECK(format->delayed.reduction == AmaxReduction::none);
  }
  CHECK(describe(plan.fprop.a) == "e4m3 tensor delayed(1024, max, each rank)");
  CHECK(plan.fprop.b == plan_named("te-delayed").fprop.b);
  CHECK(plan.dgrad.b == plan_named("te-delayed").dgrad.b);
  PlanRequest current = fp8_request("current");
  current.reduce_amax = false;
  CHECK_THROWS_WITH(resolve_plan(current), Contains("fp8.reduce_amax") && Contains("te-current"));
}

TEST_CASE("delayed options reach every GEMM operand") {
  PlanRequest request = fp8_request("delayed");
  request.margin = 1;
  request.interval = 4;
  request.amax_history_len = 16;
  request.amax_compute_algo = AmaxAlgorithm::most_recent;
  request.format = Fp8Format::e4m3;
  const PrecisionPlan plan = resolve_plan(request);
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    for (const TensorFormat* format : {&gemm->a, &gemm->b}) {
      CHECK(format->dtype == DType::e4m3);
      CHECK(format->delayed == DelayedScaling{1, 4, 16, AmaxAlgorithm::most_recent});
    }
  }
}

TEST_CASE("override_linear_precision keeps single GEMMs in the activation format") {
  PlanRequest request = fp8_request("delayed");
  request.override_linear_precision = {false, false, true};
  const PrecisionPlan plan = resolve_plan(request);
  CHECK(plan.fprop.a.is_scaled());
  CHECK(plan.dgrad.a.is_scaled());
  CHECK(plan.wgrad.a == plain(DType::bf16));
  CHECK(plan.saved_activation == plain(DType::bf16));
}

TEST_CASE("fast_accumulation is each GEMM's own, and no plain product's") {
  PlanRequest request = fp8_request("delayed");
  const PrecisionPlan source = resolve_plan(request);
  CHECK((source.fprop.fast_accumulate && !source.dgrad.fast_accumulate &&
         !source.wgrad.fast_accumulate));
  request.fast_accumulation = {false, true, true};
  const PrecisionPlan plan = resolve_plan(request);
  CHECK((!plan.fprop.fast_accumulate && plan.dgrad.fast_accumulate && plan.wgrad.fast_accumulate));
  request.override_linear_precision = {false, false, true};
  CHECK_FALSE(resolve_plan(request).wgrad.fast_accumulate);
  PlanRequest blockwise = fp8_request("blockwise");
  blockwise.fast_accumulation = {true, false, false};
  CHECK_THROWS_WITH(resolve_plan(blockwise), Contains("te-blockwise") && Contains("promoted"));
  request.fast_accumulation = {true};
  CHECK_THROWS_WITH(resolve_plan(request), Contains("three booleans"));
  PlanRequest bf16;
  bf16.mixed_precision = MixedPrecision::bf16;
  bf16.fast_accumulation = {true, true, true};
  CHECK_THROWS_WITH(resolve_plan(bf16), Contains("fp8.fast_accumulation") && Contains("FP8 plans"));
}

TEST_CASE("the short accumulator is emulated where a GEMM may use it") {
  PlanRequest request = fp8_request("current");
  request.accumulation = Accumulation::emulated;
  const PrecisionPlan plan = resolve_plan(request);
  CHECK(plan.fprop.emulate_accumulator);
  CHECK_FALSE(plan.dgrad.emulate_accumulator);
  CHECK_FALSE(plan_named("te-current").fprop.emulate_accumulator);
  for (const char* recipe : {"blockwise", "mxfp8"}) {
    PlanRequest blocks = fp8_request(recipe);
    blocks.accumulation = Accumulation::emulated;
    CHECK_THROWS_WITH(resolve_plan(blocks), Contains("fp8.accumulation: emulated has no meaning"));
  }
}

TEST_CASE("options without a meaning for the plan are errors that name the key") {
  PlanRequest current = fp8_request("current");
  current.amax_history_len = 16;
  CHECK_THROWS_WITH(resolve_plan(current), Contains("amax_history_len") && Contains("te-current"));
  PlanRequest delayed = fp8_request("delayed");
  delayed.power_2_scale = true;
  CHECK_THROWS_WITH(resolve_plan(delayed), Contains("power_2_scale"));
  PlanRequest bf16;
  bf16.mixed_precision = MixedPrecision::bf16;
  bf16.exemptions.head = true;  // as it is anyway
  CHECK_NOTHROW(resolve_plan(bf16));
  bf16.exemptions.first_blocks = 1;
  CHECK_THROWS_WITH(resolve_plan(bf16), Contains("exemption"));
  bf16.schedule = {{4, "bf16"}, {0, "te-current"}};  // whose layers it exempts
  bf16.roles.weight = "fp32";
  bf16.roles.master_weight = "none";
  CHECK(resolve_plan(bf16).exemptions.first_blocks == 1);
  CHECK_THROWS_WITH(resolve_plan(fp8_request("mxfp4")),
                    Contains("'mxfp4'") && Contains("te: delayed, current"));
}

TEST_CASE("moments are roles of their own, in any plan") {
  for (const char* name : {"fp32", "te-delayed"}) {
    PlanRequest request;
    request.plan = name;
    request.roles.moment1 = "e4m3 group(128)";
    request.roles.moment2 = "fp16";
    const PrecisionPlan plan = resolve_plan(request);
    CHECK(describe(plan.moment1) == "e4m3 group(128) current");
    CHECK(describe(plan.moment2) == "fp16 tensor current");
    request.roles.moment2 = "bf16";
    CHECK(resolve_plan(request).moment2 == plain(DType::bf16));
    CHECK(plan_named(name).moment2 == plain(DType::f32));
    request.roles.moment2 = "e4m3 row";
    CHECK_THROWS_WITH(resolve_plan(request),
                      Contains("precision.moment2") && Contains("group(128)"));
  }
  for (const char* spelling : {"fp32", "bf16", "fp16", "e4m3", "e5m2", "bf16 group(128)",
                               "fp16 group(128)", "e4m3 group(128)", "e5m2 group(128)"}) {
    PlanRequest request;
    request.roles.moment1 = spelling;
    CHECK(describe(resolve_plan(request).moment1).starts_with(spelling));
  }
}
