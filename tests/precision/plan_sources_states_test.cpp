// MS-AMP's and COAT's plans against what their sources say of themselves: casts, states, wires.

#include "precision/source_facts.h"

namespace fp8train::test::sources {
namespace {

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
  facts["weight gradient of several ranks"] = {
      words_of(running_gradient(parameter_formats(plan), true)), "bf16"};
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

TEST_CASE("MS-AMP's plans are its metas, casts and optimizer states") {
  for (const std::string level : {"O1", "O2", "O3"}) {
    const std::string name = "msamp-o" + level.substr(1);
    INFO(name);
    compare(msamp_facts(plan_named(name), level, false), {});
  }
  CHECK(dump().at("msamp").at("linear").at("input_in_time_after_its_window") == false);
  CHECK(dump().at("msamp").at("distributed_optimizer").at("wgrad_qtype") == "kFloat8E4M3");
}

TEST_CASE("MS-AMP's plans with TransformerEngine cast x and dy as its recipe, w as MS-AMP") {
  for (const std::string level : {"O1", "O2", "O3"}) {
    const std::string name = "msamp-o" + level.substr(1) + "-te";
    INFO(name);
    compare(msamp_facts(plan_named(name), level, true), {});
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
  CHECK(plan.forward_reads_saved);
  compare(facts, {{"epsilon", "scales are fp32 and made without the 1e-10: last bits only"}});
}

TEST_CASE("COAT's norm, SiLU and product read codes in the forward pass") {
  // What docs/reference/plan_sources.md says of the source; the arguments are codes and scales.
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

}  // namespace
}  // namespace fp8train::test::sources
