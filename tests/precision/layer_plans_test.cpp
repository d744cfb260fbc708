// Plans of single layers: which one counts, what they share with the run's plan, what is refused.

#include <catch2/catch.hpp>

#include "base/error.h"
#include "config/load.h"
#include "config/show.h"
#include "precision/linear_plan.h"
#include "support/files.h"

namespace fp8train::test::layer_plans {
namespace {

using Catch::Contains;

std::vector<LinearSite> two_blocks() {
  std::vector<LinearSite> sites;
  for (int64_t i = 0; i < 2; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
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

PlanRequest asked_for(const char* plan, std::vector<LayerRequest> layers) {
  PlanRequest request;
  request.plan = plan;
  request.layers = std::move(layers);
  return request;
}

std::vector<LinearPlan> linears_of(const char* plan, std::vector<LayerRequest> layers) {
  return plan_linears(resolve_plan(asked_for(plan, std::move(layers))), two_blocks());
}

std::string refusal_of(const char* plan, std::vector<LayerRequest> layers) {
  return message_of<ConfigError>([&] { linears_of(plan, std::move(layers)); });
}

Settings loaded(const std::string& lines) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text = "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 100}\n" + lines;
  return load_settings(request);
}

}  // namespace

TEST_CASE("a layer has the GEMMs of the last plan whose name matches") {
  const auto linears =
      linears_of("te-delayed", {{"*.mlp.down", "te-blockwise"}, {"layers.0.*", "bf16"}});
  const PrecisionPlan delayed = plan_named("te-delayed");
  const PrecisionPlan blockwise = plan_named("te-blockwise");
  CHECK_FALSE(linears[0].is_scaled());
  CHECK_FALSE(linears[1].is_scaled());
  CHECK(linears[1].exempt_reason == "plan bf16 (precision.layers: 'layers.0.*')");
  CHECK(linears[2].fprop == delayed.fprop);
  CHECK(linears[2].layer_plan.empty());
  CHECK(linears[3].fprop == blockwise.fprop);
  CHECK(linears[3].dgrad == blockwise.dgrad);
  CHECK(linears[3].wgrad == blockwise.wgrad);
  CHECK(layer_plan_note(linears[3]) == "plan te-blockwise (precision.layers: '*.mlp.down')");
  CHECK(linears[4].exempt_reason == "output head");
}

TEST_CASE("layers of a bf16 run can have scales, the others and what is stored stay bf16") {
  const PrecisionPlan plan = resolve_plan(asked_for("bf16", {{"*.down", "torchao-rowwise"}}));
  CHECK(parameter_formats(plan) == parameter_formats(plan_named("bf16")));
  const auto linears = plan_linears(plan, two_blocks());
  CHECK_FALSE(linears[0].is_scaled());
  CHECK(linears[0].exempt_reason.empty());
  CHECK(linears[1].fprop == plan_named("torchao-rowwise").fprop);
}

TEST_CASE("an exemption counts for a layer with a plan of its own, and its dimensions do") {
  PlanRequest request = asked_for("te-current", {{"*.mlp.*", "te-mxfp8"}});
  request.exemptions.patterns = {"layers.0.mlp.up"};
  std::vector<LinearSite> sites = two_blocks();
  sites[1].in_features = 80;
  const auto linears = plan_linears(resolve_plan(request), sites);
  CHECK(linears[0].exempt_reason == "matches exempt pattern 'layers.0.mlp.up'");
  CHECK(linears[1].exempt_reason == "dimension 80 is not a multiple of 32");
  CHECK(describe(linears[2].fprop.a) == "e4m3 1x32 current e8m0");
}

TEST_CASE("what single layers cannot have is refused with the key") {
  CHECK_THAT(refusal_of("te-delayed", {{"*.dwn", "te-current"}}),
             Contains("precision.layers: '*.dwn' matches no linear layer") &&
                 Contains("layers.0.mlp.down"));
  CHECK_THAT(refusal_of("te-delayed", {{"*", "te-blokwise"}}),
             Contains("precision.layers: no") && Contains("did you mean te-blockwise?"));
  CHECK_THAT(refusal_of("te-delayed", {{"*", "fp32"}}),
             Contains("fp32 has activations in fp32, the run's plan 'te-delayed' in bf16"));
  CHECK_THAT(refusal_of("te-delayed", {{"*", "custom"}}), Contains("name another plan"));
  CHECK_THAT(refusal_of("deepseek-v3", {{"*.down", "te-current"}}),
             Contains("stores weights as 'e4m3 128x128 current'"));
  CHECK_THAT(refusal_of("te-delayed", {{"head", "te-current"}}),
             Contains("'head': te-current reaches no layer") && Contains("output head"));
  CHECK_THAT(refusal_of("te-delayed", {{"*.down", "te-current"}, {"*", "te-blockwise"}}),
             Contains("'*.down' has no effect: later patterns match all of its layers"));
  PlanRequest smooth = asked_for("te-delayed", {{"*.down", "int8-qat"}});
  smooth.swiglu = SwigluInput::smoothed;
  CHECK_THAT(message_of<ConfigError>([&] { plan_linears(resolve_plan(smooth), two_blocks()); }),
             Contains("fp8.swiglu: smooth") && Contains("'*.down': int8-qat"));
}

TEST_CASE("one window of current scaling at first is for all layers") {
  CHECK_NOTHROW(linears_of("msamp-o2", {{"*.down", "te-delayed"}}));
  CHECK_NOTHROW(linears_of("te-delayed", {{"*.down", "msamp-o2"}}));
  PlanRequest request = asked_for("msamp-o2", {{"*.down", "msamp-o1"}});
  request.amax_history_len = 8;
  CHECK_THROWS_WITH(resolve_plan(request), Contains("for 16 steps, other layers for 8"));
}

TEST_CASE("precision.layers is read in its order and written back") {
  const std::string lines =
      "mixed_precision: fp8\n"
      "precision: {layers: {\"*.mlp.down\": te-blockwise, \"layers.0.*\": bf16}}\n";
  const Settings settings = loaded(lines);
  CHECK(settings.precision.layers ==
        std::vector<LayerRequest>{{"*.mlp.down", "te-blockwise"}, {"layers.0.*", "bf16"}});
  const std::string shown = show_settings(settings, false, false);
  CHECK_THAT(shown, Contains("layers: {\"*.mlp.down\": te-blockwise, \"layers.0.*\": bf16}"));
  LoadRequest again;
  again.path = "again.yaml";
  again.text = shown;
  CHECK(load_settings(again).precision == settings.precision);
  CHECK_THAT(message_of<ConfigError>([] { loaded("precision: {layers: [te-current]}\n"); }),
             Contains("precision.layers: expected names of layers") && Contains("got a list"));
  CHECK_THAT(message_of<ConfigError>([] { loaded("precision: {layers: {a: fp9}}\n"); }),
             Contains("run.yaml:4:13: precision.layers") && Contains("fp9"));
}

}  // namespace fp8train::test::layer_plans
