// Steps of a run whose stages have other GEMMs.

#include "base/error.h"
#include "config/load.h"
#include "device/cuda/cuda_device.h"
#include "four_steps.h"
#include "ops/gemm/gemm_support.h"
#include "support/files.h"
#include "train/preflight.h"
#include "train/session.h"

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

Session session_of(const std::string& precision, int64_t seq_length) {
  LoadRequest request;
  request.path = "run.yaml";
  request.text =
      "model: {preset: toy}\ndata: {train: a.txt, seq_length: " + std::to_string(seq_length) +
      "}\ntraining: {max_steps: 8, micro_batch_size: 1}\nprecision: {" + precision + "}\n";
  return open_session(load_settings(request), false);
}

TEST_CASE("the plan of every stage is checked against the model") {
  for (const char* stages : {"{until: 4, plan: te-current}, {plan: te-delayed}",
                             "{until: 4, plan: te-delayed}, {plan: te-current}"}) {
    CAPTURE(stages);
    const std::string precision =
        "plan: te-current, exempt: [\"*.none\"], schedule: [" + std::string(stages) + "]";
    CHECK_THAT(message_of<ConfigError>([&] { session_of(precision, 32); }),
               Catch::Contains("*.none"));
  }
  const Session exempt = session_of(
      "plan: te-current, exempt: [\"*\"], schedule: [{until: 2, plan: te-current}, {until: 4, "
      "plan: "
      "te-delayed}, {plan: te-current}]",
      32);
  REQUIRE(exempt.notes.size() == 2);
  CHECK(std::get<NothingScaled>(exempt.notes[0].fact).plan == "te-current");
  CHECK(std::get<NothingScaled>(exempt.notes[1].fact).plan == "te-delayed");
}

TEST_CASE("weight gradients of any number of tokens are multiplied as codes") {
  for (const auto& [plan, chip] : {std::pair{"te-delayed", 89},
                                   {"torchao-rowwise", 90},
                                   {"te-blockwise", 90},
                                   {"te-mxfp8", 100},
                                   {"te-nvfp4", 100}}) {
    CAPTURE(plan);
    CHECK(session_of("plan: " + std::string(plan), 27).engine.step.seq_length == 27);
    const GemmPlan wgrad = plan_named(plan).wgrad;
    const auto padded = [&, gpu = chip](int64_t tokens) {
      const ops::GemmSupport support =
          ops::gemm_support(cuda_traits(gpu, 0), {wgrad.a, wgrad.b}, {64, 64, tokens});
      CHECK(support.native);
      return support.padded_k;
    };
    CHECK(padded(27) == 32);
    CHECK(padded(32) == 0);
  }
}

TEST_CASE("memory is that of the stage that needs the most") {
  const Session session = session_of(
      "plan: te-current, schedule: [{until: 4, plan: te-current}, {plan: te-mxfp8}]", 32);
  const DryRunStep largest = largest_stage(session, [&](const EngineSettings& engine) {
    DryRunStep step;
    step.memory.add(MemoryCategory::weights, engine.plan.name == "te-mxfp8" ? 2 : 1);
    return step;
  });
  CHECK(largest.plan_name == "te-mxfp8");
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
  CHECK(same_bits(a.weights, b.weights));
  CHECK(a.evaluation == b.evaluation);
}

TEST_CASE("stages switch at their step, in any plan") {
  const std::string plan = GENERATE("te-delayed", "te-current", "te-mxfp8", "msamp-o3",
                                    "deepseek-v3", "coat", "torchao-rowwise-gw-hp", "int8-qat");
  CAPTURE(plan);
  const Trained scaled = trained(settings_of(plan, {}));
  const Trained late = trained(settings_of(plan, {{4, 8}}));  // not reached
  CHECK(same_bits(late.weights, scaled.weights));
  CHECK(late.evaluation == scaled.evaluation);
  const Trained last = trained(settings_of(plan, {{3, 4}}));
  const Trained two = trained(settings_of(plan, {{2, 4}}));
  CHECK_FALSE(same_bits(last.weights, scaled.weights));
  CHECK_FALSE(same_bits(last.weights, two.weights));
  CHECK(last.evaluation == Approx(scaled.evaluation).margin(0.2));
}

}  // namespace
}  // namespace fp8train::test::schedule
