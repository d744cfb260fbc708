// Roles as text, and which of them go together.

#include <catch2/catch.hpp>

#include "base/error.h"
#include "precision/plan.h"
#include "precision/plan_table.h"

using namespace fp8train;
using Catch::Contains;

namespace {

std::vector<TensorFormat> roles_of(const PrecisionPlan& plan) {
  std::vector<TensorFormat> roles = {
      plan.saved_activation, plan.saved_norm,      plan.saved_nonlinear,
      plan.weight,           plan.weight_gradient, plan.gradient_wire,
      plan.parameter_wire,   plan.moment1,         plan.moment2};
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    roles.push_back(gemm->a);
    roles.push_back(gemm->b);
  }
  if (plan.master_weight) {
    roles.push_back(*plan.master_weight);
  }
  return roles;
}

PlanRequest plan_request(const char* name) {
  PlanRequest request;
  request.plan = name;
  return request;
}

/// The message of the ConfigError; "resolved" when there is none.
std::string error_of(const PlanRequest& request) {
  try {
    resolve_plan(request);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "resolved";
}

}  // namespace

TEST_CASE("every role of every plan is what its spelling says") {
  for (const std::string& name : plan_names()) {
    for (const TensorFormat& role : roles_of(plan_named(name))) {
      CAPTURE(name, describe(role));
      CHECK(parse_format(describe(role)) == role);
    }
  }
}

TEST_CASE("a weight with a master that GEMMs do not read can be what its refusal advises") {
  for (const std::string& name : plan_names()) {
    PlanRequest request = plan_request(name.c_str());
    request.roles.weight = "e5m2 group(128)";
    request.roles.master_weight = "fp32";
    const std::string refusal = error_of(request);
    CAPTURE(name, refusal);
    REQUIRE_THAT(refusal, Contains("is not what GEMMs read"));
    for (size_t at = refusal.find("choose '");
         (at = refusal.find('\'', at)) != std::string::npos;) {
      const size_t end = refusal.find('\'', at + 1);
      request.roles.weight = refusal.substr(at + 1, end - at - 1);
      CHECK(error_of(request) == "resolved");
      at = end + 1;
    }
    request.roles.weight = "e5m2 group(128)";
    request.roles.master_weight = "none";
    const bool advised = refusal.find("or set precision.master_weight: none") != std::string::npos;
    CHECK(advised == (error_of(request) == "resolved"));
  }
}

TEST_CASE("a role of each name is replaced, in any plan") {
  PlanRequest request = plan_request("te-current");
  for (const auto operand :
       {&RoleRequest::fprop_x, &RoleRequest::fprop_w, &RoleRequest::dgrad_dy, &RoleRequest::dgrad_w,
        &RoleRequest::wgrad_dy, &RoleRequest::wgrad_x}) {
    request.roles.*operand = "e4m3 row pow2";
  }
  request.roles.weight = "bf16 stochastic";
  request.roles.weight_gradient = "bf16";
  request.roles.gradient_wire = "e4m3";
  request.roles.parameter_wire = "bf16";
  request.roles.moment1 = "e4m3 group(128) expanded";
  request.roles.moment2 = "fp16";
  request.roles.saved_nonlinear = "e4m3 group(16)";
  request.self_exact = true;
  const PrecisionPlan plan = resolve_plan(request);
  for (const GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    CHECK(describe(gemm->a) == "e4m3 row current pow2");
    CHECK(gemm->b == gemm->a);
  }
  CHECK(plan.saved_activation == plan.wgrad.b);
  CHECK(describe(plan.weight) == "bf16 stochastic");
  CHECK(describe(plan.weight_gradient) == "bf16");
  CHECK(describe(plan.gradient_wire) == "e4m3 tensor current");
  CHECK(describe(plan.parameter_wire) == "bf16");
  CHECK(describe(plan.moment1) == "e4m3 group(128) expanded current");
  CHECK(describe(plan.moment2) == "fp16 tensor current");
  CHECK(describe(plan.saved_nonlinear) == "e4m3 group(16) current");
  CHECK(plan.saved_norm == plan.saved_nonlinear);
  CHECK(plan.self_exact);
  CHECK(plan_roles().size() == 16);  // and saved_norm, expert_dispatch and the master weight
}

TEST_CASE("what norms and activation functions store is chosen for each of them") {
  PlanRequest request = plan_request("te-blockwise");
  request.roles.saved_nonlinear = "e4m3 1x128";
  request.roles.saved_norm = "bf16";
  request.recompute_swiglu = true;
  const PrecisionPlan plan = resolve_plan(request);
  CHECK(describe(plan.saved_nonlinear) == "e4m3 1x128 current");
  CHECK(plan.saved_norm == plain(DType::bf16));
  CHECK(plan.recompute_swiglu);
  request.forward_reads_saved = true;
  CHECK_THAT(error_of(request),
             Contains("precision.saved_nonlinear") && Contains("forward_reads_saved"));
  request.roles.saved_nonlinear = "e4m3 group(16)";
  CHECK_THAT(error_of(request),
             Contains("precision.saved_norm") && Contains("forward_reads_saved"));
  request.roles.saved_norm = "e4m3 group(16)";
  CHECK(resolve_plan(request).forward_reads_saved);
  PlanRequest blocks = plan_request("te-blockwise");
  blocks.roles.saved_nonlinear = "e4m3 1x128 pow2";
  CHECK_NOTHROW(resolve_plan(blocks));
  blocks.roles.saved_nonlinear = "e4m3 1x128 e8m0";
  CHECK_THAT(error_of(blocks), Contains("precision.saved_nonlinear"));
}

TEST_CASE("deepseek-v3 stores SwiGLU's inputs as its paper does, coat reads codes in both passes") {
  const PrecisionPlan deepseek = plan_named("deepseek-v3");
  CHECK(describe(deepseek.saved_nonlinear) == "e4m3 1x128 current");
  CHECK(deepseek.saved_norm == plain(DType::bf16));
  CHECK(deepseek.recompute_swiglu);
  CHECK_FALSE(deepseek.forward_reads_saved);
  const PrecisionPlan coat = plan_named("coat");
  CHECK(describe(coat.saved_norm) == "e4m3 group(16) current");
  CHECK(coat.saved_nonlinear == coat.saved_norm);
  CHECK(coat.forward_reads_saved);
  for (const TensorFormat* fp32 :
       {&coat.weight, &coat.weight_gradient, &coat.gradient_wire, &coat.parameter_wire}) {
    CHECK(*fp32 == plain(DType::f32));
  }
  CHECK_FALSE(coat.master_weight);
  CHECK(describe(coat.moment1) == "e4m3 group(128) expanded current");
  CHECK(coat.moment2 == coat.moment1);
}

TEST_CASE("evaluation runs in the formats in which a plan's source evaluates") {
  // COAT's modules are bf16 ones unless they train (coat_llama.py, `if self.training`). Layers of
  // torchao.float8, MS-AMP and torchao's QAT do not ask; TransformerEngine's do what the autocast
  // around them says, and its examples evaluate within it.
  for (const std::string& name : plan_names()) {
    CAPTURE(name);
    CHECK(plan_named(name).evaluate_scaled == (name != "coat"));
  }
  PlanRequest request = plan_request("coat");
  request.use_autocast_during_eval = true;
  CHECK(resolve_plan(request).evaluate_scaled);
}

TEST_CASE("a master weight is set and removed") {
  PlanRequest request = plan_request("bf16");
  request.roles.master_weight = "none";
  CHECK_FALSE(resolve_plan(request).master_weight);
  request.roles.master_weight = "fp16 group(128) stochastic";
  CHECK(describe(*resolve_plan(request).master_weight) == "fp16 group(128) current stochastic");
}

TEST_CASE("codes that are the weight follow the operand of the forward GEMM") {
  PlanRequest request = plan_request("deepseek-v3");
  request.power_2_scale = true;
  PrecisionPlan plan = resolve_plan(request);
  CHECK(describe(plan.weight) == "e4m3 128x128 current pow2");
  CHECK(plan.parameter_wire == plan.weight);
  request.power_2_scale.reset();
  request.roles.weight = "bf16";
  plan = resolve_plan(request);
  CHECK(plan.weight == plain(DType::bf16));
  CHECK(plan.parameter_wire == plan.weight);
}

TEST_CASE("custom is what its roles say, and needs one") {
  CHECK_THAT(error_of(plan_request("custom")),
             Contains("precision.plan") && Contains("at least one"));
  PlanRequest request = plan_request("custom");
  request.roles.moment2 = "bf16";
  PrecisionPlan wanted = plan_named("bf16");
  wanted.name = "custom";
  wanted.moment2 = plain(DType::bf16);
  CHECK(resolve_plan(request) == wanted);
}

TEST_CASE("formats that do not go together are errors that name them") {
  struct Case {
    std::string RoleRequest::*role;
    const char* text;
    const char* names;
    const char* why;
  };
  const Case cases[] = {
      {&RoleRequest::fprop_x, "e4m3 row", "precision.fprop_x", "resolved"},
      {&RoleRequest::fprop_x, "e4m3 1x128", "precision.fprop_x", "precision.fprop_w"},
      {&RoleRequest::fprop_x, "bf16", "precision.fprop_x", "precision.fprop_w"},
      {&RoleRequest::fprop_w, "fp32", "precision.fprop_w", "'bf16'"},
      {&RoleRequest::fprop_w, "fp16 tensor", "precision.fprop_w", "e4m3, e5m2, e2m1, int8"},
      {&RoleRequest::fprop_w, "e4m3 delayed(4, max, each rank)", "precision.fprop_w", "each rank"},
      {&RoleRequest::dgrad_w, "e5m2", "precision.dgrad_dy", "e5m2 by e5m2"},
      {&RoleRequest::dgrad_w, "e4m3 stochastic", "precision.dgrad_w", "nearest"},
      {&RoleRequest::wgrad_x, "e4m3 tensor static(2)", "precision.wgrad_x", "current or delayed"},
      {&RoleRequest::wgrad_x, "e4m3 row delayed(4, max)", "precision.wgrad_x", "current"},
      {&RoleRequest::wgrad_x, "e4m3 tensor e8m0", "precision.wgrad_x", "1x32"},
      {&RoleRequest::wgrad_dy, "e4m3 1x32", "precision.wgrad_dy", "e8m0"},
      {&RoleRequest::fprop_w, "e4m3 32x32 pow2", "precision.fprop_w", "scales for 32x32 are e8m0"},
      {&RoleRequest::fprop_w, "int8 32x32 e8m0", "precision.fprop_w",
       "operands in int8 have scales for one of: row"},
      {&RoleRequest::fprop_w, "e4m3 32x32 e8m0", "precision.fprop_x", "1x32 with 1x32 or 32x32"},
      {&RoleRequest::wgrad_dy, "e4m3 group(128)", "precision.wgrad_dy", "128x128"},
      {&RoleRequest::weight, "e4m3 1x128", "precision.weight", "group(128)"},
      {&RoleRequest::weight_gradient, "e4m3 stochastic", "precision.weight_gradient", "nearest"},
      {&RoleRequest::gradient_wire, "fp16 row", "precision.gradient_wire", "wire"},
      {&RoleRequest::parameter_wire, "e4m3 group(128)", "precision.parameter_wire", "fp32"},
      {&RoleRequest::saved_nonlinear, "e4m3 group(32)", "precision.saved_nonlinear", "group(16)"},
      {&RoleRequest::moment1, "e4m4", "precision.moment1", "did you mean 'e4m3'"},
      {&RoleRequest::moment2, "e4m3 group", "precision.moment2", "group(128)"}};
  for (const Case& one : cases) {
    PlanRequest request = plan_request("te-current");
    request.roles.*one.role = one.text;
    CAPTURE(one.text);
    const std::string message = error_of(request);
    if (std::string(one.why) == "resolved") {
      CHECK(message == "resolved");
    } else {
      CHECK_THAT(message, Catch::StartsWith(one.names) && Contains(one.why));
    }
  }
}

TEST_CASE("gradients that are stored with scales cross the wire as they are") {
  const auto error = [](const char* plan, const char* wire) {
    PlanRequest request = plan_request(plan);
    request.roles.gradient_wire = wire;
    return error_of(request);
  };
  for (const char* plan : {"fp8-min", "msamp-o2"}) {
    for (const char* wire : {"int8 group(256)", "bf16"}) {
      CAPTURE(plan, wire);
      CHECK_THAT(error(plan, wire),
                 Catch::StartsWith("precision.gradient_wire") && Contains("weight_gradient: bf16"));
    }
  }
  CHECK_THAT(error("fp8-min", "e4m3 group(256)"), Contains("gradients stored as 'e4m3 group(128)"));
  CHECK(error("fp8-min", "e4m3 group(128)") == "resolved");
  CHECK(error("fp8-lean", "int8 group(256)") == "resolved");
}

TEST_CASE("an automatic scale is that of gradients in FP8 with one scale for the tensor") {
  const auto error = [](const char* gradient, const char* wire) {
    PlanRequest request = plan_request("te-current");
    request.roles.weight_gradient = gradient;
    request.roles.gradient_wire = wire;
    return error_of(request);
  };
  CHECK(error("e4m3 tensor current", "e4m3 tensor auto") == "resolved");
  for (const auto& [gradient, wire] : {std::pair{"fp32", "e4m3 tensor auto"},
                                       {"e5m2 tensor current", "e4m3 tensor auto"},
                                       {"e4m3 group(128) current", "e4m3 group(128) auto"},
                                       {"fp16 tensor current", "fp16 tensor auto"}}) {
    CAPTURE(gradient, wire);
    CHECK_THAT(error(gradient, wire), Catch::StartsWith("precision.gradient_wire: ") &&
                                          Contains("scales gradients of its own format"));
  }
}

TEST_CASE("self_exact is for a wire that rounds sums of other gradients") {
  const auto error = [](const char* plan, const char* wire) {
    PlanRequest request = plan_request(plan);
    request.self_exact = true;
    request.roles.gradient_wire = wire;
    return error_of(request);
  };
  CHECK(error("te-current", "e4m3 group(128)") == "resolved");
  for (const auto& [plan, wire] :
       {std::pair{"te-current", "fp32"}, {"fp8-min", "e4m3 group(128)"}, {"fp8-lm", ""}}) {
    CAPTURE(plan);
    CHECK_THAT(error(plan, wire), Catch::StartsWith("precision.self_exact has no meaning"));
  }
}

TEST_CASE("windows that scale by the tensor itself at first are those of passes, of one length") {
  PlanRequest request = plan_request("te-current");
  request.roles.fprop_x = request.roles.wgrad_x = "e4m3 delayed(4, max, current at first)";
  CHECK(error_of(request) == "resolved");
  request.roles.dgrad_dy = request.roles.wgrad_dy = "e5m2 delayed(8, max, current at first)";
  CHECK_THAT(error_of(request), Contains("give both one history length"));
  request = plan_request("te-current");
  request.roles.dgrad_w = "e4m3 delayed(4, max, current at first)";
  CHECK_THAT(error_of(request), Catch::StartsWith("precision.dgrad_w") &&
                                    Contains("a weight is not scaled by its step"));
}

TEST_CASE("a GEMM role left in high precision is refused") {
  PlanRequest request = plan_request("te-current");
  request.override_linear_precision = {true, false, false};
  request.roles.fprop_x = "e4m3";
  CHECK_THAT(error_of(request),
             Contains("precision.fprop_x") && Contains("override_linear_precision"));
}

TEST_CASE("backend with recipe or level selects plans") {
  const auto name = [](const char* backend, const char* recipe, const char* level,
                       std::optional<bool> use_te) {
    PlanRequest request;
    request.mixed_precision = MixedPrecision::fp8;
    request.backend = backend;
    request.recipe = recipe;
    request.opt_level = level;
    request.use_te = use_te;
    try {
      return resolve_plan(request).name;
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  CHECK(name("msamp", "", "", {}) == "msamp-o2");
  CHECK(name("MSAMP", "", "o1", {}) == "msamp-o1");
  CHECK(name("msamp", "", "O3", true) == "msamp-o3-te");
  CHECK(name("msamp", "", "O3", false) == "msamp-o3");
  CHECK_THAT(name("msamp", "", "O4", {}), Contains("fp8.opt_level") && Contains("O1, O2 or O3"));
  CHECK_THAT(name("msamp", "delayed", "", {}), Contains("fp8.recipe") && Contains("opt_level"));
  CHECK_THAT(name("te", "", "O1", {}), Contains("fp8.opt_level") && Contains("msamp"));
  CHECK_THAT(name("", "", "", true), Contains("fp8.use_te") && Contains("msamp"));
}

TEST_CASE("the table of plans has a line for each plan, with its bytes") {
  const std::string table = plan_table_markdown();
  for (const std::string& plan : plan_names()) {
    CHECK(table.find("| `" + plan + "` |") != std::string::npos);
  }
  CHECK(bytes_text(plan_named("fp32")) == "16");
  CHECK(bytes_text(plan_named("msamp-o1")) == "11");
  CHECK(table_columns(plan_named("te-current"))[0].text ==
        "x, w e4m3 tensor current; dy e5m2 tensor current");
  CHECK(plan_origin("msamp-o3-te").selected_by ==
        "fp8: {backend: msamp, opt_level: O3, use_te: true}");
  CHECK(plan_origin("fp32").selected_by == "mixed_precision: no");
  CHECK(plan_origin("bf16").selected_by == "mixed_precision: bf16");
  CHECK(plan_origin("fp16").selected_by == "mixed_precision: fp16");
  CHECK(plan_origin("fp8-min").selected_by == "precision.plan: fp8-min");
  CHECK(table.find("| `custom` |") == std::string::npos);
}

TEST_CASE("mixed_precision selects a plan by itself") {
  CHECK(resolve_plan({.mixed_precision = MixedPrecision::no}).name == "fp32");
  CHECK(resolve_plan({.mixed_precision = MixedPrecision::bf16}).name == "bf16");
  CHECK(resolve_plan({.mixed_precision = MixedPrecision::fp16}).name == "fp16");
  CHECK(resolve_plan({.mixed_precision = MixedPrecision::fp8}).name == "te-delayed");
}
