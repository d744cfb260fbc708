// Stages of a run: which steps are plain, and what is refused.

#include <catch2/catch.hpp>

#include "base/error.h"
#include "config/load.h"
#include "config/show.h"
#include "precision/plan.h"
#include "support/files.h"

namespace fp8train::test::schedule {
namespace {

using Catch::Contains;
using Steps = std::vector<std::pair<int64_t, int64_t>>;

PrecisionPlan plan_of(const char* plan, std::vector<StageRequest> stages) {
  PlanRequest request;
  request.plan = plan;
  request.schedule = std::move(stages);
  return resolve_plan(request);
}

std::string refusal_of(const char* plan, std::vector<StageRequest> stages) {
  return message_of<ConfigError>([&] { plan_of(plan, std::move(stages)); });
}

}  // namespace

TEST_CASE("stages end at fractions of the run or at steps") {
  const PrecisionPlan late = plan_of("te-current", {{0.9, "te-current"}, {0, "bf16"}});
  CHECK(plain_steps(late, 100) == Steps{{90, 100}});
  CHECK(plain_steps(late, 11) == Steps{{9, 11}});
  const PrecisionPlan both = plan_of("int8-qat", {{10, "bf16"}, {30, "int8-qat"}, {0, "bf16"}});
  CHECK(plain_steps(both, 40) == Steps{{0, 10}, {30, 40}});
  CHECK(plain_steps(plan_named("te-current"), 40).empty());
  CHECK_THROWS_WITH(plain_steps(both, 30), Contains("would end at step 30 of a run of 30"));
  CHECK_THROWS_WITH(plain_steps(late, 1), Contains("at least one step"));
}

TEST_CASE("what cannot be switched in a run is refused in words") {
  CHECK_THAT(refusal_of("te-current", {{0.5, "te-current"}, {0, "msamp-o2"}}),
             Contains("precision.schedule: 'msamp-o2' has weight in") &&
                 Contains("cannot change during a run; choose plans that store and send alike, or "
                          "set precision.weight"));
  // All roles at once: with these set there is nothing more to refuse.
  PlanRequest both;
  both.plan = "te-current";
  both.schedule = {{0.5, "te-current"}, {0, "msamp-o2"}};
  const std::string refused = message_of<ConfigError>([&] { resolve_plan(both); });
  for (const Role& role : plan_roles()) {
    if (refused.find(std::string("precision.") + role.name) != std::string::npos) {
      const PrecisionPlan run = plan_named("te-current");
      both.roles.*role.requested = role.format != nullptr ? describe(run.*role.format)
                                   : role.name == std::string_view("weight") ? describe(run.weight)
                                                                             : "none";
    }
  }
  CHECK_NOTHROW(resolve_plan(both));
  CHECK_THAT(refusal_of("te-current", {{0.5, "te-current"}, {0, "fp32"}}),
             Contains("'fp32' has activations in fp32"));
  CHECK_THAT(refusal_of("te-current", {{0.5, "te-curent"}, {0, "bf16"}}),
             Contains("precision.schedule: no") && Contains("did you mean te-current?"));
  CHECK_THAT(refusal_of("bf16", {{0.5, "bf16"}, {0, "bf16"}}), Contains("no stage has scaled"));
  CHECK_THAT(refusal_of("te-current", {{0.5, "te-current"}, {0.9, "bf16"}}),
             Contains("leave out its `until`"));
  CHECK_THAT(refusal_of("te-current", {{0.5, "te-current"}, {0.4, "bf16"}, {0, "te-current"}}),
             Contains("stage 2 needs an `until` later"));
  CHECK_THAT(refusal_of("te-current", {{0.5, "te-current"}, {9, "bf16"}, {0, "te-current"}}),
             Contains("every `until` as a fraction"));
  CHECK_THAT(refusal_of("te-current", {{7, "te-current"}, {0.7, "bf16"}, {0, "te-current"}}),
             Contains("every `until` as a fraction"));
  CHECK_THAT(refusal_of("te-current", {{7, "te-current"}, {0, "bf16"}, {0, "te-current"}}),
             Contains("stage 2 needs an `until` later"));
  CHECK_THAT(refusal_of("msamp-o2", {{0.5, "bf16"}, {0, "msamp-o2"}}), Contains("begin with it"));
}

TEST_CASE("a run has a stage for each scaled plan, and plain steps in them") {
  PlanRequest request;
  request.plan = "te-delayed";
  request.margin = 2;  // of the run's plan alone
  request.roles.moment1 = "bf16";
  request.schedule = {
      {4, "bf16"}, {10, "te-delayed"}, {12, "bf16"}, {20, "te-blockwise"}, {0, "te-delayed"}};
  const std::vector<RunStage> stages = run_stages(request, 30);
  REQUIRE(stages.size() == 3);
  CHECK((stages[0].begin == 0 && stages[0].end == 12 && stages[0].plan.name == "te-delayed"));
  CHECK(stages[0].plain_steps == Steps{{0, 4}, {10, 12}});
  CHECK((stages[1].begin == 12 && stages[1].end == 20 && stages[1].plan.name == "te-blockwise"));
  CHECK(stages[1].plain_steps.empty());
  CHECK(stages[1].plan.schedule.empty());  // no bf16 copy of weights
  CHECK((stages[2].begin == 20 && stages[2].end == 30));
  CHECK(stages[2].plan.fprop.a.delayed.margin == 2);
  for (const RunStage& stage : stages) {
    CHECK(stage.plan.moment1 == plain(DType::bf16));
  }
  CHECK_THROWS_WITH(run_stages(request, 20), Contains("at least one step"));
  request.schedule = {{0.9, "te-delayed"}, {0, "bf16"}};
  const std::vector<RunStage> one = run_stages(request, 10);
  CHECK((one.size() == 1 && one[0].end == 10 && one[0].plain_steps == Steps{{9, 10}}));
  CHECK(one[0].plan == resolve_plan(request));
}

TEST_CASE("what is saved for backward is as the request says in all stages") {
  PlanRequest request;
  request.plan = "te-current";
  request.roles.saved_norm = "e4m3 group(16)";
  request.roles.saved_nonlinear = "e4m3 group(16)";
  request.recompute_swiglu = true;
  request.roles.fprop_x = request.roles.fprop_w = "bf16";  // of the run's plan alone
  request.schedule = {{4, "te-current"}, {0, "te-delayed"}};
  const std::vector<RunStage> stages = run_stages(request, 8);
  REQUIRE(stages.size() == 2);
  CHECK(describe(stages[0].plan.saved_norm) == describe(stages[1].plan.saved_norm));
  CHECK(stages[1].plan.saved_norm != plan_named("te-delayed").saved_norm);
  CHECK(stages[1].plan.saved_nonlinear != plan_named("te-delayed").saved_nonlinear);
  CHECK(stages[1].plan.recompute_swiglu);
  CHECK_FALSE(stages[0].plan.fprop.a.is_scaled());
  CHECK(stages[1].plan.fprop.a.is_scaled());
}

TEST_CASE("the options of a request that no stage replaces hold in all stages") {
  PlanRequest base;
  base.plan = "te-current";
  base.schedule = {{4, "te-current"}, {0, "te-delayed"}};
  const auto second = [](const PlanRequest& request) { return run_stages(request, 8).at(1).plan; };
  const PrecisionPlan usual = second(base);
  PlanRequest request = base;
  request.use_autocast_during_eval = !usual.evaluate_scaled;
  CHECK(second(request).evaluate_scaled != usual.evaluate_scaled);
  request = base;
  request.swiglu = SwigluInput::smoothed;
  CHECK(second(request).swiglu == SwigluInput::smoothed);
  request = base;
  request.exemptions.first_blocks = 1;
  CHECK(second(request).exemptions.first_blocks == 1);
  request = base;
  request.plan = "fp8-fast";
  request.schedule = {{4, "fp8-fast"}, {0, "te-current"}};
  request.roles.moment1 = request.roles.moment2 = "fp32";
  request.roles.gradient_wire = "bf16";
  CHECK(second(request).exemptions.head == false);
  request.plan = "bf16";  // has no say: the plan of the stage decides
  request.schedule = {{4, "bf16"}, {0, "fp8-fast"}};
  request.roles.weight = "bf16";
  request.roles.master_weight = "fp32";
  request.roles.moment1 = request.roles.moment2 = "bf16 stochastic";
  CHECK(run_stages(request, 8).at(0).plan.exemptions.head == false);
  request = base;
  request.layers = {{"layers.0.*", "bf16"}};
  CHECK(second(request).layers == resolve_plan(request).layers);
  CHECK(second(request).layers.size() == 1);
  request = base;
  request.file_layers = {{"layers.1.*", "bf16"}};
  CHECK(second(request).layers == resolve_plan(request).layers);
  CHECK(second(request).layers.size() == 1);
  request = base;
  request.roles.gradient_wire = "e4m3 group(128)";
  request.self_exact = true;
  CHECK(second(request).self_exact);
  request = base;
  request.roles.saved_norm = request.roles.saved_nonlinear = "e4m3 group(16)";
  request.forward_reads_saved = true;
  CHECK(second(request).forward_reads_saved);
}

TEST_CASE("precision.schedule is read and written back") {
  LoadRequest request;
  request.path = "run.yaml";
  const std::string base =
      "model: {preset: toy}\ndata: {train: a.txt}\ntraining: {max_steps: 100}\n";
  request.text = base +
                 "precision: {plan: te-current, schedule: [{until: 0.9, plan: te-current}, "
                 "{plan: bf16}]}\n";
  const Settings settings = load_settings(request);
  CHECK(settings.precision.schedule == std::vector<StageRequest>{{0.9, "te-current"}, {0, "bf16"}});
  const std::string shown = show_settings(settings, false, false);
  CHECK_THAT(shown, Contains("schedule: [{until: 0.9, plan: te-current}, {plan: bf16}]"));
  request.text = shown;
  CHECK(load_settings(request).precision == settings.precision);
  const auto error = [&](const std::string& schedule) {
    request.text = base + "precision: {plan: te-current, schedule: " + schedule + "}\n";
    return message_of<ConfigError>([&] { load_settings(request); });
  };
  CHECK_THAT(error("{until: 1}"), Contains("expected a list of {until, plan}, got a section"));
  CHECK_THAT(error("[{unti: 1, plan: bf16}]"),
             Contains("unti: unknown key; did you mean \"until\"?"));
  CHECK_THAT(error("[{until: 1.5, plan: bf16}, {plan: te-current}]"), Contains("a whole number"));
  CHECK_THAT(error("[{until: 5}, {plan: te-current}]"), Contains("a stage needs a plan"));
}

}  // namespace fp8train::test::schedule
