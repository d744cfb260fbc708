#include "precision/linear_plan.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace fp8train;
using Catch::Contains;

namespace {

std::vector<LinearSite> four_blocks() {
  std::vector<LinearSite> sites;
  for (int64_t i = 0; i < 4; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    sites.push_back({layer + "qkv", 64, 192, i, false});
    sites.push_back({layer + "down", 172, 64, i, false});
  }
  sites.push_back({"head", 64, 80, -1, true});
  return sites;
}

std::vector<bool> scaled(const ExemptionRules& rules) {
  PrecisionPlan plan = plan_named("te-current");
  plan.exemptions = rules;
  std::vector<bool> result;
  for (const LinearPlan& linear : plan_linears(plan, four_blocks())) {
    CHECK(linear.is_scaled() == linear.exempt_reason.empty());
    result.push_back(linear.is_scaled());
  }
  return result;
}

}  // namespace

TEST_CASE("the head and dimensions that are not multiples of 16 are exempt by themselves") {
  CHECK(scaled({}) == std::vector<bool>{true, false, true, false, true, false, true, false, false});
  ExemptionRules with_head;
  with_head.head = false;
  CHECK(scaled(with_head).back());
}

TEST_CASE("blocks of 32 ask for dimensions that are multiples of 32") {
  const std::vector<LinearSite> sites = {{"up", 64, 192, 0, false}, {"down", 80, 64, 0, false}};
  CHECK(plan_linears(plan_named("te-blockwise"), sites)[1].is_scaled());
  const std::vector<LinearPlan> plans = plan_linears(plan_named("te-mxfp8"), sites);
  CHECK(plans[0].is_scaled());
  CHECK(plans[1].exempt_reason == "dimension 80 is not a multiple of 32");
}

TEST_CASE("first and last blocks, first and last linears, patterns and sizes") {
  ExemptionRules blocks;
  blocks.first_blocks = 1;
  blocks.last_blocks = 2;
  CHECK(scaled(blocks) ==
        std::vector<bool>{false, false, true, false, false, false, false, false, false});
  ExemptionRules linears;
  linears.first_linears = 3;
  linears.last_linears = 2;
  CHECK(scaled(linears) ==
        std::vector<bool>{false, false, false, false, true, false, false, false, false});
  ExemptionRules pattern;
  pattern.patterns = {"layers.2.*"};
  CHECK(scaled(pattern) ==
        std::vector<bool>{true, false, true, false, false, false, true, false, false});
  ExemptionRules size;
  size.min_dimension = 65;
  CHECK(scaled(size) == std::vector<bool>(9, false));
}

TEST_CASE("a pattern that matches nothing is an error that lists the layers") {
  PrecisionPlan plan = plan_named("te-current");
  plan.exemptions.patterns = {"*.qvk"};
  CHECK_THROWS_WITH(plan_linears(plan, four_blocks()),
                    Contains("'*.qvk'") && Contains("layers.0.qkv") && Contains("head"));
}

TEST_CASE("the setting of SwiGLU's product is for down projections that are not exempt") {
  const std::vector<LinearSite> sites = {
      {"up", 64, 192, 0, false},
      {.name = "down", .in_features = 96, .out_features = 64, .block = 0, .reads_swiglu = true},
      {"head", 64, 64, -1, true}};
  PrecisionPlan plan = plan_named("te-delayed");
  plan.swiglu = SwigluInput::smoothed;
  std::vector<LinearPlan> plans = plan_linears(plan, sites);
  CHECK(plans[0].swiglu == SwigluInput::as_planned);
  CHECK(plans[0].fprop == plan.fprop);
  CHECK(plans[1].swiglu == SwigluInput::smoothed);
  CHECK(plans[1].fprop.a == plan.fprop.a);
  CHECK(describe(plans[1].fprop.b) == "e4m3 tensor current");  // w / s of each pass
  CHECK(plans[1].dgrad == plan.dgrad);
  CHECK(plans[1].wgrad == plan.wgrad);
  CHECK_THAT(swiglu_note(plans[1]), Contains("fp8.swiglu: smooth"));
  CHECK(swiglu_note(plans[0]).empty());

  plan.swiglu = SwigluInput::high_precision;
  plans = plan_linears(plan, sites);
  CHECK(plans[0].fprop == plan.fprop);
  for (const GemmPlan* gemm : {&plans[1].fprop, &plans[1].wgrad}) {
    CHECK(describe(gemm->a) == "bf16");
    CHECK(describe(gemm->b) == "bf16");
  }
  CHECK(plans[1].dgrad == plan.dgrad);
  CHECK_THAT(swiglu_note(plans[1]), Contains("stay out") && Contains("bf16"));

  PrecisionPlan rounded = plan_named("int8-qat");  // dgrad reads what fprop has cast
  rounded.swiglu = SwigluInput::high_precision;
  CHECK_FALSE(plan_linears(rounded, sites)[1].is_scaled());

  CHECK_THROWS_WITH(plan_linears(plan, four_blocks()),
                    Contains("fp8.swiglu: bf16_down_input") && Contains("not a SwiGLU"));
  plan.exemptions.patterns = {"down"};
  CHECK_THROWS_WITH(plan_linears(plan, sites), Contains("every down projection is exempt"));
}

/// Delayed or current, a scale of the whole tensor is that of the forward pass.
TEST_CASE("a product that is made again has a scale for each block in every layer, or none") {
  const std::vector<LinearSite> sites = {{"layers.0.up", 128, 512, 0, false},
                                         {.name = "layers.0.down",
                                          .in_features = 256,
                                          .out_features = 128,
                                          .block = 0,
                                          .reads_swiglu = true},
                                         {"head", 128, 256, -1, true}};
  PlanRequest request;
  request.recompute_swiglu = true;
  for (const char* by_tensor : {"te-delayed", "te-current", "int8-qat"}) {
    request.plan = by_tensor;
    CHECK_THROWS_WITH(plan_linears(resolve_plan(request), sites),
                      Contains("precision.recompute_swiglu: wgrad of layers.0.down"));
  }
  request.plan = "te-current";
  request.exemptions.patterns = {"*.down"};
  CHECK(plan_linears(resolve_plan(request), sites)[1].remade_input);
  request.exemptions.patterns.clear();
  request.swiglu = SwigluInput::high_precision;
  CHECK(plan_linears(resolve_plan(request), sites)[1].remade_input);
  request = {};
  request.plan = "te-blockwise";
  request.recompute_swiglu = true;
  request.layers = {{"*.down", "te-delayed"}};
  CHECK_THROWS_WITH(plan_linears(resolve_plan(request), sites),
                    Contains("wgrad of layers.0.down") && Contains("precision.layers"));
}

TEST_CASE("globs") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("layers.?.qkv", "layers.3.qkv"));
  CHECK_FALSE(glob_match("layers.?.qkv", "layers.13.qkv"));
  CHECK(glob_match("*a*b", "xxaxxab"));
  CHECK_FALSE(glob_match("*a*b", "xxaxxabc"));
  CHECK_FALSE(glob_match("", "a"));
}
