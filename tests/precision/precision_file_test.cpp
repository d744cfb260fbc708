// precision.file: the layers of two blocks have the plans that the program whose file it is gives
// them (tests/golden/make_precision_files.py), and what cannot be had is refused with its line.

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/dialects/dialects.h"
#include "config/load.h"
#include "config/show.h"
#include "model/families/family.h"
#include "model/linear_sites.h"
#include "precision/linear_plan.h"
#include "support/files.h"

namespace fp8train::test::precision_file {
namespace {

using Catch::Contains;

const std::string kFolder = FP8TRAIN_GOLDEN_DIR "/precision/";

std::vector<LinearSite> two_blocks() {
  std::vector<LinearSite> sites;
  for (int64_t i = 0; i < 2; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    sites.push_back({layer + "attention.qkv", 64, 192, i, false});
    sites.push_back({layer + "attention.output", 64, 64, i, false});
    sites.push_back({layer + "mlp.up", 64, 192, i, false});
    sites.push_back({.name = layer + "mlp.down",
                     .in_features = 96,
                     .out_features = 64,
                     .block = i,
                     .reads_swiglu = true});
  }
  sites.push_back({"head", 64, 80, -1, true});
  return sites;
}

constexpr const char* kTheirs[] = {"self_attention.linear_qkv", "self_attention.linear_proj",
                                   "mlp.linear_fc1", "mlp.linear_fc2"};

Settings loaded(const std::string& lines) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text = "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 100}\n" + lines;
  return load_settings(request);
}

std::vector<LinearPlan> linears_of(const std::string& file, const std::string& plan) {
  const Settings settings =
      loaded("precision: {plan: " + plan + ", file: " + kFolder + "files/" + file + "}\n");
  return plan_linears(resolve_plan(settings.precision), two_blocks());
}

std::string refusal_of(const std::string& text) {
  Problems problems;
  read_precision_file("layers.yaml", text, problems);
  return message_of<ConfigError>([&] { problems.raise(); });
}

std::string refused_recipe(const std::string& recipe) {
  return refusal_of(
      "configs:\n  one:\n    transformer_engine_config_type: TEQuantizationParams\n"
      "    training_recipe: " +
      recipe + "\n");
}

}  // namespace

TEST_CASE("patterns of a file reach every linear layer in the blocks of every family") {
  Problems problems;
  PlanRequest request = {.plan = "te-delayed"};
  request.file_layers = read_precision_file(
      "layers.yaml",
      "configs:\n  one:\n    transformer_engine_config_type: TEQuantizationParams\n"
      "    training_recipe: {fp8_quantization_recipe: tensorwise}\n"
      "matchers:\n  all: {enabled: true, type: glob, pattern: \"decoder.*\", config: one}\n",
      problems);
  request.layers_file = "layers.yaml";
  for (const ModelFamily* family : families()) {
    ModelConfig config;
    config.hidden_size = 64;
    config.intermediate_size = 96;
    config.num_hidden_layers = 1;
    config.num_attention_heads = config.num_key_value_heads = 4;
    config.max_position_embeddings = 16;
    config.vocab_size = 48;
    config.family = family;
    family->set_switches(config);
    for (const LinearPlan& linear :
         plan_linears(resolve_plan(request), linear_sites(completed(config)))) {
      CAPTURE(family->name(), linear.site.name);
      CHECK((linear.site.block < 0 || linear.layer_pattern == "decoder.*"));
    }
  }
}

TEST_CASE("layers have the configurations that the file's own program finds for them") {
  const std::map<std::string, std::string> plans = {{"bf16", "bf16"},
                                                    {"mxfp8", "te-mxfp8"},
                                                    {"mxfp8_evaluate_bf16", "te-mxfp8"},
                                                    {"fp8_cs", "te-current"}};
  std::ifstream stream(kFolder + "files.json");
  const nlohmann::json expected = nlohmann::json::parse(stream);
  REQUIRE(expected.size() == 2);
  for (const auto& [file, layers] : expected.items()) {
    const std::vector<LinearPlan> linears = linears_of(file, "te-delayed");
    for (size_t i = 0; i < 8; ++i) {
      const std::string name = "decoder.layers." + std::to_string(i / 4) + "." + kTheirs[i % 4];
      INFO(file << ": " << name);
      const nlohmann::json& key = layers.at(name);
      CHECK(linears[i].layer_plan == (key.is_null() ? "" : plans.at(key.get<std::string>())));
      CHECK(linears[i].is_scaled() == (key != "bf16"));
      CHECK(linears[i].evaluate_scaled == (key != "mxfp8_evaluate_bf16"));
    }
    CHECK(linears[8].exempt_reason == "output head");
  }
  const LinearPlan current = linears_of("order.yaml", "te-delayed")[0];
  CHECK(describe(current.dgrad.a) == "e5m2 tensor current");  // fp8_format: hybrid
  CHECK(layer_plan_note(current) == "plan te-current (precision.file: '*')");
}

TEST_CASE("a recipe that does not override the run's precision leaves it") {
  for (const LinearPlan& linear : linears_of("order.yaml", "bf16")) {
    CHECK_FALSE(linear.is_scaled());  // override_nonquantized_autocast is false
  }
  const std::string head =
      "matchers: {all: {type: glob, enabled: true, pattern: '*', config: a}}\n"
      "configs: {a: {transformer_engine_config_type: TEQuantizationParams, "
      "training_recipe: {fp8_quantization_recipe: mxfp8, ";
  Problems problems;
  PlanRequest request;
  request.plan = "te-delayed";
  request.file_layers =
      read_precision_file("a", head + "override_quantized_autocast: false}}}", problems);
  problems.raise();
  CHECK(plan_linears(resolve_plan(request), two_blocks())[0].fprop ==
        plan_named("te-delayed").fprop);
  request.file_layers =
      read_precision_file("b", head + "override_nonquantized_autocast: true}}}", problems);
  request.plan = "bf16";
  CHECK(plan_linears(resolve_plan(request), two_blocks())[0].fprop == plan_named("te-mxfp8").fprop);
  request.plan = "te-delayed";
  request.exemptions.first_blocks = 1;
  CHECK_THROWS_WITH(resolve_plan(request), Contains("override_nonquantized_autocast: true"));
}

TEST_CASE("what the file cannot have here is refused with its line") {
  CHECK_THAT(refused_recipe("{fp8_quantization_recipe: delayed}"),
             Contains("layers.yaml:4:") &&
                 Contains("configs.one.training_recipe.fp8_quantization_recipe: delayed scaling"));
  CHECK_THAT(refused_recipe("{fp8_quantization_recipe: custom, custom_recipe_factory: a.b}"),
             Contains("expected tensorwise, blockwise or mxfp8") && Contains("no code is loaded"));
  CHECK_THAT(refused_recipe("{fp4_quantization_recipe: mxfp4}"), Contains("expected nvfp4"));
  CHECK_THAT(refused_recipe("{fp8_quantization_recipe: mxfp8, fp8_param: true}"),
             Contains("stored of weights is the run's"));
  CHECK_THAT(refused_recipe("{fp8_format: e5m2}"), Contains("expected e4m3 or hybrid"));
  CHECK_THAT(refused_recipe("{margin: 1}"),
             Contains("training_recipe.margin: unknown key; there are: fp8_quantization_recipe"));
  CHECK_THAT(refused_recipe("{}\n    evaluation_recipe: {fp8_quantization_recipe: mxfp8}"),
             Contains("trained in bf16"));
  CHECK_THAT(refusal_of("configs: {a: {training_recipe: {}}}"),
             Contains("missing transformer_engine_config_type"));
  CHECK_THAT(refusal_of("confgs: {}"), Contains("layers.yaml:1:1: confgs: unknown key"));
  Problems problems;
  CHECK(read_precision_file("layers.yaml",
                            "configs: {a: 3}\nmatchers: {m: {enabled: true, type: glob, pattern: "
                            "b, config: a}}",
                            problems)
            .empty());
  CHECK(problems.all().size() == 1);
  const std::string config =
      "configs: {fp8: {transformer_engine_config_type: TEQuantizationParams, training_recipe: "
      "{}}}\n";
  CHECK_THAT(refusal_of(config + "matchers: {m: {enabled: true, type: regex, pattern: a, config: "
                                 "fp8}}"),
             Contains("layers.yaml:2:") && Contains("matchers.m.type: expected glob"));
  CHECK_THAT(refusal_of(config + "matchers: {m: {enabled: true, type: glob, pattern: a, config: "
                                 "fp}}"),
             Contains("no configuration 'fp', did you mean fp8?"));
  CHECK_THAT(refusal_of(config + "matchers: {m: {enabled: true, type: glob, pattern: '[ab]', "
                                 "config: fp8}}"),
             Contains("sets of characters"));
  CHECK_THAT(refusal_of(config + "matchers: {m: {enabled: true, type: glob, config: fp8}}"),
             Contains("missing pattern"));
  CHECK_THROWS_WITH(linears_of("none.yaml", "te-current"), Contains("cannot open"));
}

TEST_CASE("the file is named by a key of ours or of theirs, and layers by one of two keys") {
  const std::string path = kFolder + "files/order.yaml";
  const Settings theirs = loaded("te_precision_config_file: " + path +
                                 "\nprecision: {plan: "
                                 "te-delayed}\n");
  const Settings ours = loaded("precision: {plan: te-delayed, file: " + path + "}\n");
  CHECK(theirs.precision == ours.precision);
  CHECK(ours.precision.file_layers.size() == 3);
  CHECK_THAT(show_settings(ours, false, false), Contains("file: ") && !Contains("layers:"));
  CHECK_THROWS_WITH(
      loaded("precision: {plan: te-delayed, layers: {'*.up': bf16}, file: " + path + "}\n"),
      Contains("precision.layers and precision.file"));
}

}  // namespace fp8train::test::precision_file
