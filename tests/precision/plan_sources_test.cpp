// The plans of torchao and TransformerEngine, and an fp8_config of Accelerate, against what their
// sources say of themselves.

#include "config/load.h"
#include "precision/source_facts.h"

namespace fp8train::test::sources {
namespace {

// torchao

std::string torchao_format(const json& recipe, const char* cast) {
  const json& config = recipe.at(cast);
  if (config.at("scaling_type") == "DISABLED") {
    return "bf16";
  }
  const std::map<std::string, std::string> dtypes = {{"torch.float8_e4m3fn", "e4m3"},
                                                     {"torch.float8_e5m2", "e5m2"}};
  const std::map<std::string, std::string> granularities = {{"TENSORWISE", "tensor"},
                                                            {"AXISWISE", "row"}};
  return dtypes.at(config.at("target_dtype").get<std::string>()) + " " +
         granularities.at(config.at("scaling_granularity").get<std::string>()) + " current " +
         (recipe.at("round_scales_to_power_of_2").get<bool>() ? "pow2" : "f32");
}

Facts torchao_facts(const PrecisionPlan& plan, const json& recipe) {
  Facts facts;
  add_gemms(
      plan,
      {torchao_format(recipe, "cast_config_input"), torchao_format(recipe, "cast_config_weight"),
       torchao_format(recipe, "cast_config_grad_output"),
       torchao_format(recipe, "cast_config_weight_for_grad_input"),
       torchao_format(recipe, "cast_config_grad_output_for_grad_weight"),
       torchao_format(recipe, "cast_config_input_for_grad_weight")},
      facts);
  const auto fast = [&](const char* gemm) { return recipe.at(gemm).at("use_fast_accum") == true; };
  add_accumulation(plan, fast("gemm_config_output"), fast("gemm_config_grad_input"),
                   fast("gemm_config_grad_weight"), facts);
  const auto eps = dump().at("torchao").at("EPS").get<float>();
  for (const TensorFormat* format : {&plan.fprop.a, &plan.fprop.b, &plan.dgrad.a, &plan.dgrad.b}) {
    CHECK(format->amax_epsilon == eps);
  }
  return facts;
}

const std::set<std::string> kTorchaoRead = {
    "cast_config_input",       "cast_config_input_for_grad_weight",
    "cast_config_weight",      "cast_config_weight_for_grad_input",
    "cast_config_grad_output", "cast_config_grad_output_for_grad_weight",
    "gemm_config_output",      "gemm_config_grad_input",
    "gemm_config_grad_weight", "round_scales_to_power_of_2"};

TEST_CASE("torchao's plans are Float8LinearConfig.from_recipe_name") {
  const json& recipes = dump().at("torchao").at("recipes");
  CHECK(recipes.size() == 3);
  for (const auto& [name, plan] :
       std::map<std::string, std::string>{{"tensorwise", "torchao-tensorwise"},
                                          {"rowwise", "torchao-rowwise"},
                                          {"rowwise_with_gw_hp", "torchao-rowwise-gw-hp"}}) {
    INFO(plan);
    compare(torchao_facts(plan_named(plan), recipes.at(name)), {});
    require_rest(recipes.at(name), kTorchaoRead,
                 {{"emulate", false},
                  {"enable_fsdp_float8_all_gather", false},
                  {"force_recompute_fp8_weight_in_bwd", false},
                  {"pad_inner_dim", false}});
  }
}

// TransformerEngine

void add_recipe_accumulation(const PrecisionPlan& plan, const json& recipe, Facts& facts) {
  const auto fast = [&](const char* gemm) {
    return !recipe.at(gemm).at("use_split_accumulator").get<bool>();
  };
  add_accumulation(plan, fast("fp8_gemm_fprop"), fast("fp8_gemm_dgrad"), fast("fp8_gemm_wgrad"),
                   facts);
}

std::string te_scale(const json& recipe, const char* quantizer) {
  const json& params = recipe.at(quantizer);
  CHECK(params.at("amax_epsilon") == 0.0);
  for (const char* off :
       {"random_hadamard_transform", "stochastic_rounding", "fp4_2d_quantization"}) {
    CHECK(params.at(off) == false);
  }
  return params.at("power_2_scale") == true ? " pow2" : " f32";
}

const std::set<std::string> kDelayedRead = {"fp8_format", "amax_history_len", "amax_compute_algo",
                                            "margin"};
// Ranks agree on amaxes, as reduce_amax: true; attention is never FP8.
const json kDelayedRest = {{"reduce_amax", true},
                           {"scaling_factor_compute_algo", nullptr},
                           {"fp8_dpa", false},
                           {"fp8_mha", false},
                           {"backward_override", nullptr}};

TEST_CASE("TransformerEngine's plans are its recipes' defaults") {
  const json& recipes = dump().at("transformer_engine").at("recipes");
  const json attention = {{"fp8_dpa", false}, {"fp8_mha", false}, {"backward_override", nullptr}};

  const json& delayed = recipes.at("DelayedScaling");
  compare(te_delayed_facts(plan_named("te-delayed"), delayed), {});
  require_rest(delayed, kDelayedRead, kDelayedRest);

  const json& current = recipes.at("Float8CurrentScaling");
  Facts facts;
  const std::string scale = te_scale(current, "fp8_quant_fwd_inp");
  CHECK(scale == te_scale(current, "fp8_quant_fwd_weight"));
  CHECK(scale == te_scale(current, "fp8_quant_bwd_grad"));
  add_te_gemms(plan_named("te-current"), current, " tensor current" + scale, facts);
  add_recipe_accumulation(plan_named("te-current"), current, facts);
  compare(facts, {});
  require_rest(current,
               {"fp8_format", "fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad",
                "fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad", "use_power_2_scales"},
               attention);

  const json& mxfp8 = recipes.at("MXFP8BlockScaling");
  facts.clear();
  add_te_gemms(plan_named("te-mxfp8"), mxfp8, " 1x32 current e8m0", facts);
  add_module_accumulation(plan_named("te-mxfp8"), facts);
  compare(facts, {});
  json rest = attention;
  rest["margin"] = 0;
  rest["enable_2d_quantization"] = false;
  require_rest(mxfp8, {"fp8_format"}, rest);
}

TEST_CASE("te-blockwise is Float8BlockScaling with its block dimensions") {
  const json& recipe = dump().at("transformer_engine").at("recipes").at("Float8BlockScaling");
  const PrecisionPlan plan = plan_named("te-blockwise");
  const auto format = [&](const char* dimension, const char* quantizer, const char* pass) {
    const bool vector = recipe.at(dimension) == 1;
    return te_dtype(recipe, pass) + (vector ? " 1x128" : " 128x128") + " current" +
           te_scale(recipe, quantizer);
  };
  const std::string x = format("x_block_scaling_dim", "fp8_quant_fwd_inp", "max_fwd");
  const std::string w = format("w_block_scaling_dim", "fp8_quant_fwd_weight", "max_fwd");
  const std::string dy = format("grad_block_scaling_dim", "fp8_quant_bwd_grad", "max_bwd");
  Facts facts;
  add_gemms(plan, {x, w, dy, w, dy, x}, facts);
  add_recipe_accumulation(plan, recipe, facts);
  compare(facts, {});
  require_rest(recipe,
               {"fp8_format", "fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad",
                "fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad", "x_block_scaling_dim",
                "w_block_scaling_dim", "grad_block_scaling_dim", "use_f32_scales"},
               {{"fp8_dpa", false}, {"fp8_mha", false}, {"backward_override", nullptr}});
}

// Accelerate

PrecisionPlan plan_of_accelerate(const std::string& backend) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text =
      "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 100}\n"
      "mixed_precision: fp8\nfp8_config: {backend: " +
      backend + "}\n";
  return resolve_plan(load_settings(request).precision);
}

TEST_CASE("an fp8_config of Accelerate with a backend only has the handlers' defaults") {
  const json& handlers = dump().at("accelerate");
  const json& te = handlers.at("TERecipeKwargs");
  const json& made = te.at("makes");
  CHECK(made.at("recipe") == "DelayedScaling");
  const PrecisionPlan plan = plan_of_accelerate("TE");
  Facts facts = te_delayed_facts(plan, made.at("fields"));
  facts["evaluation scaled"] = {yes_or_no(plan.evaluate_scaled),
                                yes_or_no(made.at("use_during_eval"))};
  facts["interval"] = {std::to_string(plan.fprop.a.delayed.interval),
                       std::to_string(te.at("fields").at("interval").get<int>())};
  compare(facts, {});
  require_rest(made.at("fields"), kDelayedRead, kDelayedRest);
  // Not handed on, because it is the handler's default: the recipe has max.
  CHECK(te.at("fields").at("amax_compute_algo") == "most_recent");
  CHECK(te.at("fields").at("override_linear_precision") == json::array({false, false, false}));
  CHECK(te.at("fields").at("use_mxfp8_block_scaling") == false);

  CHECK(handlers.at("MSAMPRecipeKwargs").at("fields") == json{{"opt_level", "O2"}});
  CHECK(plan_of_accelerate("MSAMP") == plan_named("msamp-o2"));

  const json& config = handlers.at("AORecipeKwargs").at("fields").at("config");
  compare(torchao_facts(plan_of_accelerate("AO"), config), {});
  // The two that have no key here; `fp8train` says what it does instead of them.
  require_rest(config, kTorchaoRead,
               {{"emulate", false},
                {"enable_fsdp_float8_all_gather", true},
                {"force_recompute_fp8_weight_in_bwd", false},
                {"pad_inner_dim", true}});
}

}  // namespace
}  // namespace fp8train::test::sources
