// Each plan against what its source says of itself: tests/golden/precision/plan_sources.json, made
// by make_plan_sources.py from the sources' own code. A difference is an error unless it is listed
// here with its reason, and so is a listed difference that no longer exists.

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "config/load.h"
#include "precision/plan.h"

namespace fp8train::test::sources {
namespace {

using nlohmann::json;

const json& dump() {
  static const json kDump = [] {
    std::ifstream file(FP8TRAIN_GOLDEN_DIR "/precision/plan_sources.json");
    return json::parse(file);
  }();
  return kDump;
}

/// What the plan and its source say of one thing.
struct Fact {
  std::string ours, source;
};
using Facts = std::map<std::string, Fact>;
/// Facts that differ, and why.
using Deviations = std::map<std::string, std::string>;

std::string yes_or_no(bool value) {
  return value ? "yes" : "no";
}

/// A format in the words that a source has for it; what no source says (the unit of an update, ...)
/// stays out.
std::string words_of(const TensorFormat& format) {
  std::string text(name_of(format.dtype));
  if (format.rounding == Rounding::stochastic) {
    text += " stochastic";
  }
  if (!format.is_scaled()) {
    return text;
  }
  text += " " + std::string(name_of(format.granularity));
  if (format.granularity == Granularity::group) {
    text += std::to_string(format.group_size) + (format.expanded ? " expanded" : "");
  }
  if (format.policy == ScalePolicy::delayed) {
    text += " window " + std::to_string(format.delayed.history_length) +
            (format.delayed.algorithm == AmaxAlgorithm::max ? " max" : " most_recent") +
            " margin " + std::to_string(format.delayed.margin) +
            (format.delayed.current_at_first ? " current at first" : "");
  } else {
    text += format.policy == ScalePolicy::current ? " current" : " other";
  }
  text += format.scale_type == ScaleType::pow2   ? " pow2"
          : format.scale_type == ScaleType::e8m0 ? " e8m0"
                                                 : " f32";
  return text;
}

struct SixFormats {
  std::string x, w, dgrad_dy, dgrad_w, wgrad_dy, wgrad_x;
};

void add_gemms(const PrecisionPlan& plan, const SixFormats& source, Facts& facts) {
  facts["fprop x"] = {words_of(plan.fprop.a), source.x};
  facts["fprop w"] = {words_of(plan.fprop.b), source.w};
  facts["dgrad dy"] = {words_of(plan.dgrad.a), source.dgrad_dy};
  facts["dgrad w"] = {words_of(plan.dgrad.b), source.dgrad_w};
  facts["wgrad dy"] = {words_of(plan.wgrad.a), source.wgrad_dy};
  facts["wgrad x"] = {words_of(plan.wgrad.b), source.wgrad_x};
}

void add_accumulation(const PrecisionPlan& plan, bool fprop, bool dgrad, bool wgrad, Facts& facts) {
  facts["fprop fast"] = {yes_or_no(plan.fprop.fast_accumulate), yes_or_no(fprop)};
  facts["dgrad fast"] = {yes_or_no(plan.dgrad.fast_accumulate), yes_or_no(dgrad)};
  facts["wgrad fast"] = {yes_or_no(plan.wgrad.fast_accumulate), yes_or_no(wgrad)};
}

/// Settings of the source with one meaning here, which its defaults must have; `read` are those
/// that facts are made from. None may be left.
void require_rest(const json& fields, const std::set<std::string>& read, const json& required) {
  for (const auto& [name, value] : fields.items()) {
    INFO(name);
    if (!read.contains(name)) {
      REQUIRE(required.contains(name));
      CHECK(required.at(name) == value);
    }
  }
}

void compare(const Facts& facts, const Deviations& known) {
  for (const auto& [name, fact] : facts) {
    INFO(name << ": ours '" << fact.ours << "', the source's '" << fact.source << "'");
    const bool listed = known.contains(name);
    if (listed) {
      INFO("a listed deviation that no longer exists: remove it from the list");
      CHECK(fact.ours != fact.source);
    } else {
      CHECK(fact.ours == fact.source);
    }
  }
  for (const auto& [name, reason] : known) {
    INFO(name);
    CHECK(facts.contains(name));
    CHECK_FALSE(reason.empty());
  }
}

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

std::string te_dtype(const json& recipe, const char* pass) {
  const json& format =
      dump().at("transformer_engine").at("formats").at(recipe.at("fp8_format").get<std::string>());
  const std::map<int, std::string> by_max = {{448, "e4m3"}, {57344, "e5m2"}};
  return by_max.at(format.at(pass).get<int>());
}

/// All six with one scaling.
void add_te_gemms(const PrecisionPlan& plan, const json& recipe, const std::string& scaling,
                  Facts& facts) {
  const std::string forward = te_dtype(recipe, "max_fwd") + scaling;
  const std::string backward = te_dtype(recipe, "max_bwd") + scaling;
  add_gemms(plan, {forward, forward, backward, forward, backward, forward}, facts);
}

void add_module_accumulation(const PrecisionPlan& plan, Facts& facts) {
  const json& split = dump().at("transformer_engine").at("split_accumulator_of_modules");
  add_accumulation(plan, !split.at("_2X_ACC_FPROP"), !split.at("_2X_ACC_DGRAD"),
                   !split.at("_2X_ACC_WGRAD"), facts);
}

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

Facts te_delayed_facts(const PrecisionPlan& plan, const json& recipe) {
  Facts facts;
  add_te_gemms(plan, recipe,
               " tensor window " + std::to_string(recipe.at("amax_history_len").get<int>()) + " " +
                   recipe.at("amax_compute_algo").get<std::string>() + " margin " +
                   std::to_string(recipe.at("margin").get<int>()) + " f32",
               facts);
  add_module_accumulation(plan, facts);
  return facts;
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

// MS-AMP

std::string msamp_dtype(const std::string& qtype) {
  const std::map<std::string, std::string> names = {{"kFloat8E4M3", "e4m3"},
                                                    {"kFloat8E5M2", "e5m2"},
                                                    {"kFloat16", "fp16"},
                                                    {"torch.uint8", "e4m3"},
                                                    {"torch.float16", "fp16"}};
  return names.at(qtype);
}

/// ScalingMeta.compute_scaling_factor gives powers of two; a window of 1 is always in time.
std::string msamp_scaling(int window, bool in_time_at_first) {
  return window == 1 ? " tensor current pow2"
                     : " tensor window " + std::to_string(window) + " max margin 0" +
                           (in_time_at_first ? " current at first" : "") + " pow2";
}

/// The cast of one tensor in FP8Linear's passes. The weight gets no meta: ScalingTensor.cast makes
/// one with the window of the weight itself.
std::string msamp_cast(const std::string& tensor) {
  const json& msamp = dump().at("msamp");
  for (const json& note : msamp.at("passes")) {
    if (note.value("cast", "") == tensor) {
      const json& linear = msamp.at("linear");
      const json& meta = tensor == "weight" ? linear.at("weight") : linear.at("metas").at(tensor);
      CHECK((note.at("window").is_null() ? tensor == "weight"
                                         : note.at("window") == meta.at("window")));
      return msamp_dtype(note.at("to")) +
             msamp_scaling(meta.at("window"), meta.at("in_time_at_first"));
    }
  }
  return "no cast of " + tensor;
}

std::string msamp_stored(const std::string& type) {
  return type == "torch.float32" ? "fp32" : msamp_dtype(type) + msamp_scaling(1, true);
}

Facts msamp_facts(const PrecisionPlan& plan, const std::string& level, bool te) {
  const json& msamp = dump().at("msamp");
  Facts facts;
  const std::string w = msamp_cast("weight");
  if (te) {
    // x and dy are TransformerEngine's own; its slot of the weight is neither read nor written.
    const json& cast = msamp.at("te_weight");
    CHECK((cast.at("scale_after") == 3.0 && cast.at("amax_after") == 5.0));
    CHECK(cast.at("casts").size() == 1);
    const Facts own =
        te_delayed_facts(plan, dump().at("transformer_engine").at("recipes").at("DelayedScaling"));
    facts = own;
    facts["fprop w"].source = facts["dgrad w"].source = w;
  } else {
    const std::string x = msamp_cast("input");
    const std::string dy = msamp_cast("ograd");
    add_gemms(plan, {x, w, dy, w, dy, x}, facts);
    std::map<std::string, bool> split;
    for (const json& note : msamp.at("passes")) {
      if (note.contains("gemm")) {
        split[note.at("gemm")[0].get<std::string>() + "," + note.at("gemm")[1].get<std::string>()] =
            note.at("use_split_accumulator");
      }
    }
    add_accumulation(plan, !split.at("input,weight"), !split.at("ograd,weight"),
                     !split.at("ograd,input"), facts);
  }
  facts["gradient wire"] = {words_of(plan.gradient_wire), msamp_cast("wgrad")};
  // With use_fp8_ddp the product of 16 bits is left as it is until it crosses the wire.
  CHECK(msamp.at("casts_of_wgrad_with_fp8_ddp").empty());
  facts["weight gradient of several ranks"] = {words_of(plan.weight_gradient), "bf16"};
  // DeepSpeed's O3 is O2 with the types of FP8DistributedOptimizer (msamp/deepspeed/runtime).
  const json& states = msamp.at("opt_levels").at(level == "O3" ? "O2" : level);
  facts["moment 1"] = {words_of(plan.moment1), msamp_stored(states.at("exp_avg"))};
  facts["moment 2"] = {words_of(plan.moment2), msamp_stored(states.at("exp_avg_sq"))};
  const json& optimizer = msamp.at("distributed_optimizer");
  const std::string fp16 = msamp_stored(msamp.at("linear").at("weight").at("qtype"));
  const bool o3 = level == "O3";
  facts["weight"] = {words_of(plan.weight), o3 ? msamp_stored(optimizer.at("weight_qtype")) : fp16};
  facts["master"] = {plan.master_weight ? words_of(*plan.master_weight) : "none",
                     o3 ? msamp_stored(optimizer.at("master_weight_qtype")) : "none"};
  facts["evaluation scaled"] = {yes_or_no(plan.evaluate_scaled), "yes"};  // F.linear, always
  return facts;
}

const char* const kRoundedTwice =
    "a gradient is rounded when it is stored and again when it crosses the wire";
const char* const kTeWeight = "the weight has TransformerEngine's delayed scale";

TEST_CASE("MS-AMP's plans are its metas, casts and optimizer states") {
  const std::string wgrad = "weight gradient of several ranks";
  for (const std::string level : {"O1", "O2", "O3"}) {
    const std::string name = "msamp-o" + level.substr(1);
    INFO(name);
    compare(msamp_facts(plan_named(name), level, false), {{wgrad, kRoundedTwice}});
  }
  CHECK(dump().at("msamp").at("linear").at("input_in_time_after_its_window") == false);
  CHECK(dump().at("msamp").at("distributed_optimizer").at("wgrad_qtype") == "kFloat8E4M3");
}

TEST_CASE("MS-AMP's plans with TransformerEngine cast x and dy as its recipe, w as MS-AMP") {
  const std::string wgrad = "weight gradient of several ranks";
  for (const std::string level : {"O1", "O2", "O3"}) {
    const std::string name = "msamp-o" + level.substr(1) + "-te";
    INFO(name);
    Deviations known = {{wgrad, kRoundedTwice}, {"fprop w", kTeWeight}, {"dgrad w", kTeWeight}};
    if (level == "O3") {
      known["weight"] = kTeWeight;
    }
    compare(msamp_facts(plan_named(name), level, true), known);
  }
}

// COAT

TEST_CASE("coat is COAT's configuration, states and training setup") {
  const json& coat = dump().at("coat");
  const json& config = coat.at("QuantizationConfig");
  const PrecisionPlan plan = plan_named("coat");
  const auto dtype = [&](const char* name) {
    return config.at(name) == "E4M3" ? std::string("e4m3") : std::string("e5m2");
  };
  const auto tensor = [&](const char* name) { return dtype(name) + " tensor current f32"; };
  const auto moment = [&](const char* bit, const char* expansion, const char* state) {
    const json& states = coat.at("states_of_1024_fp32_values");
    const int group = config.at("qgroup_size").get<int>();
    CHECK(states.at(std::string("scale_") + state).at("count") == 1024 / group);
    CHECK(states.at(state).at("dtype") ==
          (config.at(bit) == "E4M3" ? "torch.float8_e4m3fn" : "torch.float8_e5m2"));
    return dtype(bit) + " group" + std::to_string(group) +
           (config.at(expansion) == "true" ? " expanded" : "") + " current f32";
  };
  Facts facts;
  add_gemms(plan,
            {tensor("fabit"), tensor("fwbit"), tensor("babit"), tensor("fwbit"), tensor("babit"),
             tensor("fabit")},
            facts);
  facts["saved nonlinear"] = {words_of(plan.saved_nonlinear),
                              dtype("fabit") + " group" +
                                  std::to_string(config.at("group_size").get<int>()) +
                                  " current f32"};
  facts["moment 1"] = {words_of(plan.moment1),
                       moment("first_order_bit", "first_order_expansion", "exp_avg")};
  facts["moment 2"] = {words_of(plan.moment2),
                       moment("second_order_bit", "second_order_expansion", "exp_avg_sq")};
  // Scales of the states are read as fp32 and have the parameter's type, so that it is fp32.
  CHECK(coat.at("states_of_1024_fp32_values").at("scale_exp_avg").at("dtype") == "torch.float32");
  facts["weight"] = {words_of(plan.weight), "fp32"};
  facts["master"] = {plan.master_weight ? words_of(*plan.master_weight) : "none", "none"};
  CHECK(coat.at("olmo").at("reduce_dtype") == "torch.float32");
  facts["weight gradient"] = {words_of(plan.weight_gradient), "fp32"};
  facts["gradient wire"] = {words_of(plan.gradient_wire), "fp32"};
  bool evaluates = false;
  for (const auto& [layer, flow] : coat.at("flow").items()) {
    evaluates = evaluates || (flow.contains("evaluation") && !flow.at("evaluation").empty());
  }
  facts["evaluation scaled"] = {yes_or_no(plan.evaluate_scaled), yes_or_no(evaluates)};
  facts["epsilon"] = {std::to_string(plan.fprop.a.amax_epsilon > 0.0F),
                      std::to_string(config.at("epsilon").get<double>() > 0.0)};
  const char* const stochastic = "weights in bf16 without a master, rounded stochastically";
  compare(facts, {{"moment 2", "rounded stochastically"},
                  {"weight", stochastic},
                  {"weight gradient", "as the weight"},
                  {"gradient wire", "as the weight gradient"},
                  {"evaluation scaled", "evaluates as it trains"},
                  {"epsilon", "scales are fp32 and made without the 1e-10: last bits only"}});
}

TEST_CASE("COAT's norm, SiLU and product read codes in the forward pass") {
  // What docs/recipes.md says of the source; the arguments are codes and scales.
  const json& flow = dump().at("coat").at("flow").at("_CoatLlamaMLPResidual").at("training");
  std::map<std::string, std::vector<std::string>> arguments;
  for (const json& call : flow) {
    arguments[call[0]] = call.get<std::vector<std::string>>();
  }
  CHECK(arguments.at("fp8_rmsnorm_forward")[1] == "in_x");
  CHECK(arguments.at("fp8_rmsnorm_forward")[2] == "in_s");
  CHECK(arguments.at("fp8_silu_forward")[2] == "gate_s");
  CHECK(arguments.at("fp8_mul_forward")[2] == "silu_s");
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
