// Steps of a run whose stages have other GEMMs.

#include "four_steps.h"

namespace fp8train::test::schedule {
namespace {

using Steps = std::vector<std::pair<int64_t, int64_t>>;

/// The plan with stages; `plain`: the steps that are plain.
EngineSettings settings_of(const std::string& plan, Steps plain) {
  EngineSettings settings = small_llama(plan, 2);
  if (!plain.empty()) {
    settings.plan.schedule = {{1, true}, {0, false}};
  }
  settings.plain_steps = std::move(plain);
  return settings;
}

TEST_CASE("a run all of whose steps are plain is a run with all layers exempt") {
  // With fp32 weights: exempt layers store them so.
  const std::string plan = GENERATE("te-delayed", "te-blockwise", "te-mxfp8", "int8-qat");
  CAPTURE(plan);
  EngineSettings staged = settings_of(plan, {{0, 4}});
  EngineSettings exempt = settings_of(plan, {});
  staged.plan.gradient_wire = exempt.plan.gradient_wire = plain(DType::f32);
  exempt.plan.exemptions.patterns = {"*"};
  const Trained a = trained(staged);
  const Trained b = trained(exempt);
  CHECK(equal(a.weights, b.weights));
  CHECK(a.evaluation == b.evaluation);
}

TEST_CASE("stages switch at their step, in any plan") {
  const std::string plan = GENERATE("te-delayed", "te-current", "te-mxfp8", "msamp-o3",
                                    "deepseek-v3", "coat", "torchao-rowwise-gw-hp", "int8-qat");
  CAPTURE(plan);
  const Trained scaled = trained(settings_of(plan, {}));
  const Trained late = trained(settings_of(plan, {{4, 8}}));  // not reached
  CHECK(equal(late.weights, scaled.weights));
  CHECK(late.evaluation == scaled.evaluation);
  const Trained last = trained(settings_of(plan, {{3, 4}}));
  const Trained two = trained(settings_of(plan, {{2, 4}}));
  CHECK_FALSE(equal(last.weights, scaled.weights));
  CHECK_FALSE(equal(last.weights, two.weights));
  CHECK(last.evaluation == Approx(scaled.evaluation).margin(0.2));
}

}  // namespace
}  // namespace fp8train::test::schedule
