// Configurations in the spellings of other programs.

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "config/load_support.h"
#include "config/show.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::kBase;

Settings load_text(const std::string& text, std::vector<std::string> sets = {}) {
  return test::load_text(text, std::move(sets));
}

std::string error_of(const std::string& text, std::vector<std::string> sets = {}) {
  return test::error_of(text, std::move(sets));
}

bool tells(const Settings& settings, const std::string& line) {
  const auto& lines = settings.notes.lines;
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

std::string row_of(const Settings& settings) {
  return resolve_plan(settings.precision).name;
}

TEST_CASE("fp8_config as the wizard writes it") {
  const Settings s = load_text(kBase + R"(
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
fp8_config:
  amax_compute_algorithm: most_recent
  amax_history_length: 16
  backend: TE
  fp8_format: HYBRID
  interval: 1
  margin: 2
  override_linear_precision:
  - false
  - false
  - true
  use_autocast_during_eval: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: fp8
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)");
  CHECK(s.precision.backend == "te");
  CHECK(s.precision.format == Fp8Format::hybrid);
  CHECK(s.precision.amax_history_len == 16);
  CHECK(s.precision.amax_compute_algo == AmaxAlgorithm::most_recent);
  CHECK(s.precision.margin == 2);
  CHECK(s.precision.interval == 1);
  CHECK(s.precision.override_linear_precision == std::vector<bool>{false, false, true});
  CHECK(s.precision.use_autocast_during_eval == false);
  CHECK(row_of(s) == "te-delayed");
  CHECK(tells(s,
              "fp8_config.amax_history_length read as fp8.amax_history_len (Accelerate itself "
              "ignores this spelling)"));
  CHECK(tells(s, "fp8_config.backend: TE read as fp8.backend: te"));
  CHECK(tells(s, "fp8_config.fp8_format read as fp8.format"));
  CHECK(s.notes.lines.back().starts_with("without a meaning here: compute_environment, debug, "));
  CHECK(s.notes.lines.size() == 8 + 2);
  CHECK(s.notes.processes == 8);
  // What is shown reads back as the same settings, in our own keys.
  const Settings again = load_text(show_settings(s, true));
  CHECK(again == s);
  CHECK(again.notes.lines.empty());
}

TEST_CASE("fp8_config in its other spellings") {
  const auto precision = [](const std::string& keys) {
    return load_text(kBase + "mixed_precision: fp8\nfp8_config: {" + keys + "}\n").precision;
  };
  const std::vector<bool> last = {false, false, true};
  CHECK(precision("override_linear_precision: '(false, false, true)'").override_linear_precision ==
        last);
  CHECK(precision("override_linear_precision: \"false,false,true\"").override_linear_precision ==
        last);
  CHECK(precision("override_linear_precision: false").override_linear_precision.empty());
  CHECK(precision("override_linear_precision: null").override_linear_precision.empty());
  CHECK(precision("fp8_amax_history_len: 4").amax_history_len == 4);
  CHECK(precision("fp8_dpa: true").attention == Fp8Attention::both);
  CHECK(precision("fp8_dpa: false, fp8_mha: false").attention == Fp8Attention::none);
  CHECK(precision("use_mxfp8_block_scaling: true").recipe == "mxfp8");
  CHECK(precision("use_mxfp8_block_scaling: False").recipe.empty());
  CHECK(precision("backend: TORCH_AO, enable_fsdp_float8_all_gather: true, pad_inner_dim: true")
            .backend == "torchao");
  CHECK(precision("backend: ao").backend == "torchao");
  CHECK(precision("backend: ao").exemptions.first_linears == 1);
  CHECK(precision("backend: TE").exemptions.first_linears == 0);
  CHECK(precision("backend: MS-AMP, optimization_level: O1").opt_level == "O1");
  CHECK(resolve_plan(precision("backend: MSAMP")).name == "msamp-o2");
}

TEST_CASE("fp8_config of TransformerEngine that is silent about evaluation means high precision") {
  const auto load = [](const std::string& keys) {
    return load_text(kBase + "mixed_precision: fp8\nfp8_config: {" + keys + "}\n");
  };
  const Settings silent = load("backend: TE");
  CHECK(silent.precision.use_autocast_during_eval == false);
  CHECK_FALSE(resolve_plan(silent.precision).evaluate_scaled);
  CHECK(tells(silent,
              "fp8_config without use_autocast_during_eval read as fp8.use_autocast_during_eval: "
              "false (Accelerate's default: evaluation in high precision)"));
  CHECK(load("backend: TE, use_autocast_during_eval: true").precision.use_autocast_during_eval ==
        true);
  CHECK_FALSE(load("backend: MSAMP").precision.use_autocast_during_eval.has_value());
  CHECK_FALSE(load_text(kBase + "mixed_precision: fp8\n").precision.use_autocast_during_eval);
}

TEST_CASE("a key of ours counts in place of Accelerate's default") {
  const auto precision = [](const std::string& lines) {
    return load_text(kBase + "mixed_precision: fp8\n" + lines).precision;
  };
  CHECK(
      precision("fp8_config: {backend: AO}\nfp8: {first_linears: 0}\n").exemptions.first_linears ==
      0);
  CHECK(precision("fp8: {use_autocast_during_eval: true}\nfp8_config: {backend: TE}\n")
            .use_autocast_during_eval == true);
  CHECK(precision("precision: {first_linears: 0}\nfp8_config: {backend: AO}\n")
            .exemptions.first_linears == 0);
  CHECK(precision("precision: {use_autocast_during_eval: true}\nfp8_config: {backend: TE}\n")
            .use_autocast_during_eval == true);
}

TEST_CASE("Accelerate's defaults belong to the backend of its file") {
  const auto switched = [](const std::string& backend, std::vector<std::string> sets) {
    return test::load_text(kBase + "mixed_precision: fp8\nfp8_config: {backend: " + backend + "}\n",
                           std::move(sets))
        .precision;
  };
  CHECK(switched("AO", {"precision.plan=te-blockwise"}).exemptions.first_linears == 0);
  CHECK(switched("AO", {"precision.plan=torchao-rowwise"}).exemptions.first_linears == 1);
  CHECK(switched("AO", {"fp8.backend=te", "fp8.recipe=delayed"}).exemptions.first_linears == 0);
  CHECK_FALSE(switched("TE", {"fp8.backend=torchao"}).use_autocast_during_eval.has_value());
}

TEST_CASE("an override as text without quotes is one text in YAML") {
  const Settings s = load_text(kBase +
                               "mixed_precision: fp8\nfp8_config:\n"
                               "  override_linear_precision: (false, false, true)\n");
  CHECK(s.precision.override_linear_precision == std::vector<bool>{false, false, true});
}

TEST_CASE("what fp8_config cannot mean is an error with its location") {
  const auto error = [](const std::string& keys) {
    return error_of(kBase + "mixed_precision: fp8\nfp8_config: {" + keys + "}\n");
  };
  CHECK(error("amax_histry_len: 4") ==
        "run.yaml:5:14: fp8_config.amax_histry_len: unknown key; did you mean "
        "\"amax_history_len\"?");
  CHECK_THAT(error("fp8_format: E5M2"),
             Catch::StartsWith("run.yaml:5:14: fp8_config.fp8_format:") && Contains("HYBRID"));
  CHECK_THAT(error("override_linear_precision: true"), Contains("which GEMMs"));
  CHECK_THAT(error("override_linear_precision: '(false, false)'"), Contains("three"));
  CHECK_THAT(error("amax_history_len: 4, amax_history_length: 5"),
             Contains("fp8_config.amax_history_length: says 5, but fp8_config.amax_history_len at "
                      "run.yaml:5:14 says 4"));
  CHECK(error("amax_history_len: 4, amax_history_length: 4") == "loaded");
  CHECK_THAT(error("margin: many"), Contains("fp8_config.margin: expected a whole number"));
  CHECK_THAT(error("margin: auto"), Contains("fp8_config.margin: expected a whole number"));
  CHECK_THAT(error("backend: nvidia"), Contains("nvidia"));
  CHECK_THAT(error("backend: AO, margin: 1"),
             Contains("fp8_config.margin") && Contains("torchao-tensorwise"));
  CHECK_THAT(error("pad_inner_dim: 16"), Contains("true or false"));
  CHECK_THAT(error("fp8_mha: true"), Contains("fp8_mha") && Contains("fp8_dpa computes attention"));
  CHECK_THAT(error_of(kBase + "fp8_config: {margin: 1}\n"),
             Contains("fp8_config.margin: has no meaning with mixed_precision: no"));
  CHECK_THAT(error_of(kBase + "fp8_config: TE\n"), Contains("expected a section"));
  CHECK_THAT(error_of(kBase + "rdzv_backend: static\n"), Contains("unknown key"));
  CHECK_THAT(error_of(kBase + "mixed_precision: fp8\nfp8: {margin: 1}\nfp8_config: {margin: 2}\n"),
             Contains("fp8_config.margin: says 2, but fp8.margin at run.yaml:5:7 says 1"));
}

TEST_CASE("fp8.enabled is a switch") {
  Settings s = load_text(kBase + "fp8: {enabled: true, format: E4M3}\n");
  CHECK(s.precision.mixed_precision == MixedPrecision::fp8);
  CHECK(s.precision.format == Fp8Format::e4m3);
  CHECK(tells(s, "fp8.enabled read as mixed_precision: fp8"));
  s = load_text(kBase + "mixed_precision: bf16\nfp8: {enabled: false}\n");
  CHECK(s.precision.mixed_precision == MixedPrecision::bf16);
  CHECK(s.notes.lines.size() == 1);
  CHECK_THAT(error_of(kBase + "mixed_precision: fp8\nfp8: {enabled: false}\n"),
             Contains("run.yaml:5:7: fp8.enabled: false conflicts with mixed_precision: fp8"));
  CHECK_THAT(error_of(kBase + "mixed_precision: bf16\nfp8: {enabled: true}\n"),
             Contains("fp8.enabled: switches FP8 on"));
  CHECK_THAT(error_of(kBase + "fp8: {enabled: perhaps}\n"), Contains("true or false"));
  CHECK(load_text(kBase, {"fp8.enabled=true"}).precision.mixed_precision == MixedPrecision::fp8);
}

TEST_CASE("Megatron's names") {
  const Settings s = load_text(kBase + R"(
fp8_format: hybrid
fp8_recipe: delayed
fp8_margin: 1
fp8_amax_history_len: 8
fp8_amax_compute_algo: max
tp_only_amax_red: true
fp8_output_proj: true
fp8_wgrad: false
fp8_param_gather: true
first_last_layers_bf16: true
num_layers_at_end_in_bf16: 2
)");
  CHECK(s.precision.mixed_precision == MixedPrecision::fp8);
  CHECK(row_of(s) == "te-delayed");
  CHECK(s.precision.format == Fp8Format::hybrid);
  CHECK(s.precision.margin == 1);
  CHECK(s.precision.amax_history_len == 8);
  CHECK(s.precision.reduce_amax == false);
  CHECK(s.precision.exemptions.head == false);
  CHECK(s.precision.override_linear_precision == std::vector<bool>{false, false, true});
  CHECK(s.precision.exemptions.first_blocks == 1);
  CHECK(s.precision.exemptions.last_blocks == 2);
  CHECK(tells(s, "fp8_format read as mixed_precision: fp8"));
  CHECK(tells(s, "fp8_margin read as fp8.margin"));
  CHECK(tells(s, "first_last_layers_bf16: true read as fp8.first_blocks: 1"));
  CHECK(tells(s, "num_layers_at_end_in_bf16 read as fp8.last_blocks"));
  const Settings inside = load_text(
      kBase +
      "mixed_precision: fp8\nfp8: {fp8_recipe: tensorwise, first_last_layers_bf16: true}\n");
  CHECK(row_of(inside) == "te-current");
  CHECK(inside.precision.exemptions.last_blocks == 1);
  CHECK(tells(inside, "fp8.fp8_recipe: tensorwise read as fp8.recipe: current"));
  CHECK(load_text(kBase, {"fp8_format=e4m3"}).precision.mixed_precision == MixedPrecision::fp8);
}

TEST_CASE("Megatron's names of experts") {
  const Settings s = load_text(kBase + R"(
num_experts: 16
moe_router_topk: 4
moe_ffn_hidden_size: 48
moe_shared_expert_intermediate_size: 64
moe_router_score_function: sigmoid
moe_router_pre_softmax: true
moe_router_enable_expert_bias: true
moe_router_bias_update_rate: 0.01
moe_router_num_groups: 4
moe_router_group_topk: 2
moe_router_topk_scaling_factor: 2.5
moe_aux_loss_coeff: 0.02
moe_z_loss_coeff: 0.001
moe_expert_capacity_factor: 1.5
moe_pad_expert_input_to_capacity: true
moe_router_padding_for_quantization: true
moe_router_load_balancing_type: seq_aux_loss
moe_router_dtype: fp32
moe_layer_freq: [0, 1]
moe_grouped_gemm: true
expert_tensor_parallel_size: 1
)");
  CHECK(s.model.config.moe == MoeShape{.experts = 16,
                                       .per_token = 4,
                                       .width = 48,
                                       .shared_width = 64,
                                       .groups = 4,
                                       .groups_per_token = 2,
                                       .score = RouterScore::sigmoid,
                                       .normalizes = true,
                                       .has_bias = true,
                                       .scale = 2.5F});
  CHECK(s.model.config.dense_layers == std::vector<int64_t>{0});
  const MoeSettings& moe = s.step.decoder.moe;
  CHECK(moe.capacity_factor == 1.5);
  CHECK(moe.balance_loss == 0.02);
  CHECK(moe.z_loss == 0.001);
  CHECK(moe.bias_rate == 0.01);
  CHECK(tells(s, "num_experts read as model.num_experts"));
  CHECK(tells(s, "moe_router_dtype: routers always compute in fp32"));
  const std::string experts = kBase + "num_experts: 4\nmoe_router_topk: 2\n";
  CHECK_THAT(error_of(experts + "expert_tensor_parallel_size: 2\n"),
             Contains("expert_tensor_parallel_size") && Contains("expert are not divided"));
  CHECK_THAT(error_of(experts + "moe_router_load_balancing_type: sinkhorn\n"),
             Contains("expected aux_loss, seq_aux_loss or none"));
  CHECK_THAT(error_of(experts + "moe_layer_freq: 2\n"), Contains("give model.dense_layers"));
  const std::string coefficient = experts + "moe_aux_loss_coeff: 0.02\n";
  CHECK(load_text(coefficient).step.decoder.moe.balance_loss == 0.02);
  CHECK(load_text(coefficient + "moe_router_load_balancing_type: none\n")
            .step.decoder.moe.balance_loss == 0.0);
}

TEST_CASE("Megatron's balancing type none counts for every source and for a preset's default") {
  const auto balance = [](const std::string& text, const std::vector<std::string>& sets) {
    return load_text(text, sets).step.decoder.moe.balance_loss;
  };
  const std::string none = "moe_router_load_balancing_type: none\n";
  const std::string preset =
      "model: {preset: toy-moe}\ndata: {train: a.txt}\ntraining: {max_steps: 100}\n";
  CHECK(balance(preset, {}) == 0.01);
  CHECK(balance(preset + none, {}) == 0.0);
  CHECK(balance(preset, {"moe_router_load_balancing_type=none"}) == 0.0);
  CHECK(balance(preset + none, {"moe_aux_loss_coeff=0.02"}) == 0.0);
  CHECK(balance(preset + "moe_aux_loss_coeff: 0.02\n", {"moe_router_load_balancing_type=none"}) ==
        0.0);
  CHECK(balance(preset + none + "moe_aux_loss_coeff: 0.02\n",
                {"moe_router_load_balancing_type=aux_loss"}) == 0.02);
  CHECK(balance(kBase + none, {}) == 0.0);  // of a model without experts
}

TEST_CASE("fp8 as a scalar is Megatron's format") {
  for (const char* format : {"hybrid", "e4m3", "\"hybrid\""}) {
    CAPTURE(format);
    const Settings s = load_text(kBase + "fp8: " + format +
                                 "\nfp8_recipe: delayed\nfp8_amax_history_len: 16\n"
                                 "fp8_param: false\nfp8_dot_product_attention: false\n");
    CHECK(row_of(s) == "te-delayed");
    CHECK(s.precision.amax_history_len == 16);
    CHECK(s.precision.format ==
          (std::string(format) == "e4m3" ? Fp8Format::e4m3 : Fp8Format::hybrid));
  }
  CHECK(row_of(load_text(kBase, {"fp8=hybrid"})) == "te-delayed");
  for (const char* off : {"false", "null", "none", "''"}) {
    CAPTURE(off);
    CHECK(row_of(load_text(kBase + "mixed_precision: bf16\nfp8: " + off + "\n")) == "bf16");
  }
  CHECK_THAT(error_of(kBase + "fp8: true\n"),
             Contains("run.yaml:4:1: fp8: expected hybrid or e4m3, as in Megatron, or a section of "
                      "keys, got \"true\"; mixed_precision: fp8 switches FP8 on"));
  CHECK(load_text(kBase + "fp8: hybrid\nfp8_dot_product_attention: true\n").precision.attention ==
        Fp8Attention::both);
  CHECK_THAT(error_of(kBase + "fp8: hybrid\nfp8_multi_head_attention: true\n"),
             Contains("choose fp8_dot_product_attention"));
}

TEST_CASE("what Megatron's names cannot mean is an error") {
  const auto error = [](const std::string& keys) { return error_of(kBase + keys); };
  CHECK_THAT(error("fp8_format: hybrid\nfp8_recipe: custom\n"),
             Contains("run.yaml:5:1: fp8_recipe: expected delayed, tensorwise"));
  CHECK_THAT(error("fp8_format: hybrid\nfp8_recipe: auto\n"),
             Contains("fp8_recipe: expected delayed, tensorwise"));
  CHECK_THAT(error("fp8_format: hybrid\nfp8_dot: 1\n"), Contains("fp8_dot: unknown key"));
  CHECK_THAT(error("fp8_format: hybrid\nnum_layers_at_start_in_bf16: 2\n"),
             Contains("first_last_layers_bf16: true"));
  CHECK_THAT(error("fp8_format: hybrid\nfp8_recipe: tensorwise\nfp8_margin: 1\n"),
             Contains("fp8_margin") && Contains("te-current"));
  CHECK_THAT(error("mixed_precision: bf16\nfp8_format: hybrid\n"), Contains("remove one of them"));
}

TEST_CASE("every example of the page on recipes loads and selects a plan") {
  const auto page = std::filesystem::path(FP8TRAIN_SOURCE_DIR) / "docs" / "use" / "plans.md";
  std::ifstream file(page);
  std::string example;
  size_t count = 0;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (inside && line == "```") {
      inside = false;
      CAPTURE(example);
      CHECK(error_of(kBase + example) == "loaded");
      CHECK_FALSE(row_of(load_text(kBase + example)).empty());
      ++count;
    } else if (inside) {
      example += line + "\n";
    } else if (line == "```yaml") {
      inside = true;
      example.clear();
    }
  }
  CHECK_FALSE(inside);
  CHECK(count > 0);
}

}  // namespace
}  // namespace fp8train
