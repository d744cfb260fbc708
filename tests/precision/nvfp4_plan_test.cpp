// The plan of NVFP4: its formats, what goes together, and where it runs.

#include <catch2/catch.hpp>

#include <string>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/gemm/gemm_support.h"
#include "precision/linear_plan.h"
#include "precision/plan.h"

namespace fp8train::test::nvfp4_plan {
namespace {

using Catch::Contains;

PrecisionPlan resolved(const RoleRequest& roles) {
  PlanRequest request;
  request.plan = "te-nvfp4";
  request.roles = roles;
  return resolve_plan(request);
}

TEST_CASE("te-nvfp4 has the formats of TransformerEngine's NVFP4BlockScaling") {
  PlanRequest request;
  request.mixed_precision = MixedPrecision::fp8;
  request.backend = "te";
  request.recipe = "nvfp4";
  const PrecisionPlan plan = resolve_plan(request);
  CHECK(plan.name == "te-nvfp4");
  CHECK(describe(plan.fprop.a) == "e2m1 1x16 current e4m3");
  CHECK(describe(plan.fprop.b) == "e2m1 16x16 current e4m3");
  CHECK(describe(plan.dgrad.a) == "e2m1 1x16 current e4m3 stochastic");
  CHECK(plan.dgrad.b == plan.fprop.b);
  CHECK(describe(plan.wgrad.a) == "e2m1 1x16 current e4m3 hadamard stochastic");
  CHECK(describe(plan.wgrad.b) == "e2m1 1x16 current e4m3 hadamard");
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    for (const TensorFormat* format : {&gemm->a, &gemm->b}) {
      CHECK(parse_format(describe(*format)) == *format);
    }
  }
}

TEST_CASE("TransformerEngine's options of NVFP4 are roles") {
  // disable_rht, disable_stochastic_rounding, disable_2d_quantization
  const PrecisionPlan plan = resolved({.fprop_w = "e2m1 1x16 e4m3",
                                       .dgrad_dy = "e2m1 1x16 e4m3",
                                       .dgrad_w = "e2m1 1x16 e4m3",
                                       .wgrad_dy = "e2m1 1x16 e4m3",
                                       .wgrad_x = "e2m1 1x16 e4m3"});
  CHECK(plan.wgrad.a == plan.fprop.a);
  CHECK(plan.fprop.b == plan.fprop.a);
  CHECK(plan.saved_activation == plan.fprop.a);
  // nvfp4_4over6: weights, with its bound of 256 and mean absolute errors
  const char* const weight = "e2m1 16x16 e4m3_4over6";
  const PrecisionPlan four_over_six = resolved({.fprop_w = weight, .dgrad_w = weight});
  CHECK(describe(four_over_six.dgrad.b) == "e2m1 16x16 current e4m3_4over6");
  CHECK(four_over_six.wgrad == plan_named("te-nvfp4").wgrad);
  // row_scaled_activation
  const PrecisionPlan rows = resolved({.fprop_x = "e2m1 1x16 e4m3 row_scaled",
                                       .wgrad_dy = "e2m1 1x16 e4m3 stochastic",
                                       .wgrad_x = "e2m1 1x16 e4m3 row_scaled"});
  CHECK(rows.fprop.a == rows.wgrad.b);
  CHECK(describe(rows.fprop.a) == "e2m1 1x16 current e4m3 row_scaled");
}

TEST_CASE("torchao-mxfp4 has MXFP4 for all operands, and roles mix it with MXFP8") {
  const PrecisionPlan plan = plan_named("torchao-mxfp4");
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    CHECK(describe(gemm->a) == "e2m1 1x32 current e8m0_floor");
    CHECK(gemm->b == gemm->a);
    const ops::GemmFormats formats = {gemm->a, gemm->b};
    CHECK(ops::gemm_support(DeviceTraits{}, formats).native);
    const ops::GemmSupport hopper = ops::gemm_support(cuda_traits(90, 0), formats, {64, 64, 64});
    CHECK(hopper.dequantized);
    CHECK(hopper.reason == "this GPU has no products with 1x32 scales");
    const ops::GemmSupport blackwell =
        ops::gemm_support(cuda_traits(100, 0), formats, {64, 64, 64});
    CHECK(blackwell.dequantized);
    CHECK(blackwell.reason == "cuBLASLt multiplies e2m1 with 1x16 scales only");
  }
  PlanRequest request;
  request.plan = "te-mxfp8";
  request.roles = {.fprop_w = "e2m1 32x32 e8m0", .dgrad_w = "e2m1 32x32 e8m0"};
  CHECK(describe(resolve_plan(request).fprop.b) == "e2m1 32x32 current e8m0");
  request.roles = {.dgrad_dy = "e2m1 1x32 e8m0 stochastic"};
  CHECK(resolve_plan(request).dgrad.a.rounding == Rounding::stochastic);
}

TEST_CASE("formats that do not go together with NVFP4 are refused by role") {
  CHECK_THROWS_WITH(resolved({.wgrad_x = "e2m1 1x16 e4m3"}),
                    Contains("precision.wgrad_dy") && Contains("both hadamard or neither"));
  CHECK_THROWS_WITH(resolved({.fprop_x = "e2m1 current"}), Contains("precision.fprop_x"));
  CHECK_THROWS_WITH(resolved({.fprop_x = "e4m3 1x16 e4m3"}),
                    Contains("operands in e4m3 have scales for one of: tensor, row, 1x128"));
  CHECK_THROWS_WITH(resolved({.fprop_x = "e2m1 1x16"}), Contains("scales for 1x16 are e4m3 or "));
  CHECK_THROWS_WITH(resolved({.fprop_x = "e4m3 1x128 e4m3"}),
                    Contains("scales for 1x128 are fp32 or pow2; e4m3 ones are for 1x16, 16x16"));
  CHECK_THROWS_WITH(resolved({.fprop_w = "e2m1 16x16 e4m3 row_scaled"}),
                    Contains("precision.fprop_w") && Contains("row_scaled goes with 1x16"));
  CHECK_THROWS_WITH(resolved({.dgrad_dy = "e2m1 1x16 e4m3_4over6 stochastic"}),
                    Contains("precision.dgrad_dy") && Contains("4over6 compares"));
  CHECK_THROWS_WITH(resolved({.fprop_x = "e4m3 1x128"}), Contains("has no product"));
  CHECK_THROWS_WITH(resolved({.fprop_w = "e2m1 16x16 e4m3 hadamard"}),
                    Contains("hadamard goes with 1x16"));
  CHECK_THROWS_WITH(resolved({.fprop_x = "e4m3 1x32 e8m0 stochastic"}),
                    Contains("only e2m1 may be rounded stochastically"));
  for (const auto weight : {&RoleRequest::fprop_w, &RoleRequest::dgrad_w}) {
    RoleRequest roles;
    roles.*weight = "e2m1 16x16 e4m3 stochastic";
    CHECK_THROWS_WITH(resolved(roles), Contains("weights are rounded to nearest"));
  }
  for (const char* stored :
       {"e2m1 1x16 e4m3", "e4m3 group(128) e4m3", "e4m3 tensor e4m3 hadamard"}) {
    CHECK_THROWS_WITH(resolved({.moment1 = stored}), Contains("is not stored"));
  }
  for (const char* wire : {"e2m1 group(128)", "e2m1 group(256)", "int8 group(256) e4m3",
                           "e4m3 group(128) e4m3 hadamard"}) {
    CHECK_THROWS_WITH(resolved({.gradient_wire = wire}), Contains("does not cross a wire"));
  }
  CHECK_THROWS_WITH(parse_format("e4m3 1x32 e8m0 hadamard"), Contains("belongs to e4m3 scales"));
  CHECK_THROWS_WITH(parse_format("e4m3 row row_scaled"),
                    Contains("row_scaled belongs to e4m3 scales: e2m1 1x16 e4m3 row_scaled"));
  PlanRequest request;
  request.plan = "te-nvfp4";
  request.power_2_scale = true;
  CHECK_THROWS_WITH(resolve_plan(request), Contains("power_2_scale"));
  request.power_2_scale.reset();
  request.format = Fp8Format::hybrid;
  CHECK_THROWS_WITH(resolve_plan(request), Contains("fp8.format"));
}

TEST_CASE("layers of which NVFP4 has no product, and the last blocks, stay out") {
  PlanRequest request;
  request.plan = "te-nvfp4";
  request.exemptions.last_blocks = 1;
  const std::vector<LinearSite> sites = {
      {.name = "layers.0.mlp.up", .in_features = 64, .out_features = 96, .block = 0},
      {.name = "layers.0.mlp.down", .in_features = 80, .out_features = 64, .block = 0},
      {.name = "layers.1.mlp.up", .in_features = 64, .out_features = 96, .block = 1}};
  const std::vector<LinearPlan> plans = plan_linears(resolve_plan(request), sites);
  CHECK(plans[0].exempt_reason.empty());
  CHECK(plans[1].exempt_reason == "dimension 80 is not a multiple of 32");
  CHECK(plans[2].exempt_reason == "in the last block");
}

TEST_CASE("NVFP4 is multiplied by the cpu and on sm_100, elsewhere as bf16") {
  const PrecisionPlan plan = plan_named("te-nvfp4");
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    const ops::GemmFormats formats = {gemm->a, gemm->b};
    CHECK(ops::gemm_support(DeviceTraits{}, formats).native);
    CHECK(ops::gemm_support(DeviceTraits{}, formats).k_multiple == 32);
    const ops::GemmSupport hopper = ops::gemm_support(cuda_traits(90, 0), formats, {64, 64, 64});
    CHECK(hopper.dequantized);
    CHECK(hopper.reason == "this GPU has no products of e2m1");
    CHECK(ops::gemm_support(cuda_traits(100, 0), formats, {64, 64, 64}).native);
    const ops::GemmSupport odd = ops::gemm_support(cuda_traits(100, 0), formats, {64, 64, 48});
    CHECK(odd.native);
    CHECK(odd.padded_k == 64);
    ops::GemmFormats rows = formats;
    rows.a.row_scaled = true;
    CHECK(ops::gemm_support(DeviceTraits{}, rows).native);
    const ops::GemmSupport by_row = ops::gemm_support(cuda_traits(100, 0), rows, {64, 64, 64});
    CHECK(by_row.dequantized);
    CHECK(by_row.reason == "cuBLASLt reads one scale above those of blocks, not one for each row");
  }
  const ops::GemmFormats one_sided = {plan.wgrad.a, plan.fprop.a};
  CHECK_FALSE(ops::gemm_support(DeviceTraits{}, one_sided).native);
}

}  // namespace
}  // namespace fp8train::test::nvfp4_plan
