// Every plan, and formats of roles put together at random: a step runs, and the model learns.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "train/trained_engine.h"

using namespace fp8train;
using test::same_bits;
using test::TrainedEngine;

TEST_CASE("every plan learns as bf16 does") {
  const auto final_loss = [](const std::string& plan) {
    TrainedEngine run(test::small_llama(plan));
    double loss = 0;
    for (int step = 0; step < 16; ++step) {
      run.engine.step([&] { return test::random_batch(static_cast<uint64_t>(step % 2)); }, step,
                      1e-2F, false);
      loss = run.engine.step_loss().mean;
    }
    return loss;
  };
  const double bf16 = final_loss("bf16");
  // From log(50) = 3.9 on two batches again and again: where the curve is steep.
  CHECK(bf16 > 0.3);
  CHECK(bf16 < 2.2);
  for (const std::string& plan : test::compared_plans()) {
    CAPTURE(plan);
    CHECK(final_loss(plan) == Approx(bf16).margin(0.2));  // the noise of FP8: up to 0.1
  }
}

namespace {

struct RoleChoices {
  std::string RoleRequest::*role;
  std::vector<std::string> formats;
};

/// Trains `wanted` of the random combinations that a configuration may have, each for two steps.
void check_combinations(const std::vector<RoleChoices>& choices, size_t wanted) {
  size_t trained = 0;
  size_t refused = 0;
  for (uint64_t i = 0; trained < wanted && i < 20000; ++i) {
    PlanRequest request;
    request.plan = i % 2 == 0 ? "te-current" : "bf16";
    request.roles.moment1 = "bf16";
    const auto& [swiglu, word] = kSwigluInputs[philox(i, 8, 0).word[0] % std::size(kSwigluInputs)];
    request.swiglu = swiglu;
    std::string said = request.plan + " | " + std::string(word);
    for (size_t j = 0; j < choices.size(); ++j) {
      const std::vector<std::string>& formats = choices[j].formats;
      const std::string& format = formats[philox(i, 7, j).word[0] % formats.size()];
      request.roles.*choices[j].role = format;
      said += " | " + format;
    }
    EngineSettings settings = test::small_llama("bf16", 2);
    try {
      settings.plan = resolve_plan(request);
    } catch (const ConfigError&) {
      ++refused;
      continue;
    }
    CAPTURE(i, said);
    TrainedEngine run(settings);
    run.train(2, true);
    CHECK(std::isfinite(run.engine.step_loss().mean));
    CHECK(run.engine.optimizer().control().skipped_steps == 0);
    ++trained;
  }
  CHECK(trained == wanted);
  CHECK(refused > 0);
}

}  // namespace

TEST_CASE("whatever roles of GEMMs a configuration may combine, a step runs") {
  const std::vector<std::string> formats = {"",
                                            "bf16",
                                            "e4m3",
                                            "e5m2 row",
                                            "e4m3 row pow2",
                                            "e4m3 1x128",
                                            "e5m2 128x128 pow2",
                                            "e4m3 128x128",
                                            "e4m3 1x32 e8m0",
                                            "e4m3 tensor delayed(2, max) pow2",
                                            "e5m2 tensor delayed(4, most_recent)"};
  check_combinations({{&RoleRequest::fprop_x, formats},
                      {&RoleRequest::fprop_w, formats},
                      {&RoleRequest::dgrad_dy, formats},
                      {&RoleRequest::dgrad_w, formats},
                      {&RoleRequest::wgrad_dy, formats},
                      {&RoleRequest::wgrad_x, formats}},
                     test::kSanitized ? 8 : 24);
}

TEST_CASE("whatever stored roles a configuration may combine, a step runs") {
  const std::vector<std::string> stored = {"",
                                           "fp32",
                                           "bf16 stochastic",
                                           "fp16",
                                           "e4m3",
                                           "e5m2 group(128)",
                                           "fp16 group(128) stochastic",
                                           "bf16 tensor pow2",
                                           "e2m1 group(128) e4m3"};
  std::vector<std::string> masters = stored;
  masters.insert(masters.end(), 8, "none");
  std::vector<std::string> moments = stored;
  moments.emplace_back("e4m3 group(128) expanded");
  check_combinations(
      {{&RoleRequest::weight, stored},
       {&RoleRequest::master_weight, masters},
       {&RoleRequest::weight_gradient, stored},
       {&RoleRequest::gradient_wire, stored},
       {&RoleRequest::parameter_wire, {"", "fp32", "bf16"}},
       {&RoleRequest::moment1, moments},
       {&RoleRequest::moment2, moments},
       {&RoleRequest::saved_norm, {"", "bf16", "e4m3 1x128"}},
       {&RoleRequest::saved_nonlinear, {"", "bf16", "e4m3 group(16)", "e4m3 1x128 pow2"}}},
      40);
}

TEST_CASE("training with moments of few bits learns, in the memory that they take") {
  const auto trained = [](const char* first, const char* second, size_t& state_bytes) {
    PlanRequest request;
    request.plan = "te-current";
    request.roles.moment1 = first;
    request.roles.moment2 = second;
    EngineSettings settings = test::small_llama("te-current");
    settings.plan = resolve_plan(request);
    TrainedEngine run(settings);
    state_bytes = 0;
    const auto& parameters = run.engine.model().parameters().all();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->name.starts_with("layers.") && parameters[i]->shape.rank() == 2) {
        state_bytes += run.engine.optimizer().state("moment1", i).codes.bytes();
        state_bytes += run.engine.optimizer().state("moment2", i).codes.bytes();
      }
    }
    const Batch batch = test::random_batch(7);
    for (int64_t step = 0; step < 40; ++step) {
      run.engine.step([&] { return batch; }, step, 3e-3, false);
    }
    return run.engine.step_loss().mean;
  };
  size_t usual = 0;
  size_t few = 0;
  const double wanted = trained("fp32", "fp32", usual);
  CHECK(wanted < 1.0);  // the batch is learnt by heart; it starts at ln(50) = 3.9
  // Of the 3 nats that are learnt, 5 %: updates differ by a few percent (adamw_moments_test).
  CHECK(std::abs(trained("bf16", "bf16", few) - wanted) < 0.15);
  CHECK(2 * few == usual);
  CHECK(std::abs(trained("e4m3", "fp16", few) - wanted) < 0.15);
  CHECK(8 * few == 3 * usual);
  CHECK(std::abs(trained("e4m3 group(128)", "fp16 group(128)", few) - wanted) < 0.15);
}
