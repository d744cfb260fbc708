// Steps on the cuda device as its libraries and its queue see them: products that a GPU has not,
// cuDNN, biases in cuBLASLt, workspaces, and a host that runs ahead. They ask the host shim.

#include <catch2/catch.hpp>

#include <cmath>
#include <string>

#include "cublaslt_fake.h"
#include "cuda_runtime_api.h"
#include "cudnn_fake.h"
#include "support/environment.h"
#include "train/cuda_steps.h"

using namespace fp8train;
using namespace fp8train::test::steps;

TEST_CASE("steps that the host submits ahead of the GPU leave no error behind", "[cuda]") {
  struct Case {
    int64_t accumulation;
    int steps;  // each copies a learning rate and two arrays per micro-batch through 16 slots
  };
  for (const Case& c : {Case{1, 24}, Case{16, 2}}) {
    CAPTURE(c.accumulation);
    EngineSettings settings = repeatable(small_llama("te-delayed"));
    settings.model.num_hidden_layers = 1;
    settings.step.gradient_accumulation_steps = c.accumulation;
    double loss[2] = {};
    for (const bool late : {false, true}) {
      shim::set_late_events(late);
      Run run(DeviceKind::cuda, settings);
      for (int i = 0; i < c.steps; ++i) {
        run.train_step();
        CHECK(cudaPeekAtLastError() == cudaSuccess);
      }
      loss[late ? 1 : 0] = run.engine.step_loss().mean;
    }
    CHECK(loss[0] == loss[1]);
  }
}

TEST_CASE("chips with and without products of a granularity give the cpu's loss", "[cuda]") {
  struct Case {
    int capability;
    const char* plan;
    ScalePair scales;
    bool native;
  };
  for (const Case& c : {Case{89, "torchao-rowwise", ScalePair::row, false},
                        Case{100, "te-blockwise", ScalePair::block_1x128_128x128, false},
                        Case{100, "te-mxfp8", ScalePair::block_1x32, true}}) {
    CAPTURE(c.capability, c.plan);
    shim::set_capability(c.capability);
    const DeviceTraits traits = make_device(DeviceKind::cuda)->traits();
    CHECK(traits.fp8_products.has(c.scales) == c.native);
    compare_devices(small_llama(c.plan), {c.plan, 2e-3, 5e-3});
    shim::set_capability(90);
  }
}

TEST_CASE("cuDNN runs the attention of a step unless our own is asked for", "[cuda]") {
  struct Case {
    const char *plan, *choice;
    uint64_t runs;  // forward and backward of two blocks
  };
  for (const Case& c : {Case{"bf16", nullptr, 4}, Case{"bf16", "own", 0}, Case{"fp32", nullptr, 0},
                        Case{"te-delayed", "cudnn", 4}}) {
    CAPTURE(c.plan, c.runs);
    const test::EnvironmentScope scope("FP8TRAIN_CUDA_ATTENTION", c.choice);
    Run run(DeviceKind::cuda, small_llama(c.plan));
    run.train_step();
    const uint64_t runs = shim::sdpa_runs();
    run.train_step();
    CHECK(shim::sdpa_runs() == runs + c.runs);
  }
}

TEST_CASE("cuBLASLt adds the biases of a step", "[cuda]") {
  struct Case {
    const char* plan;
    uint64_t biased;  // of 2 blocks of 4 layers
  };
  for (const Case& c : {Case{"fp32", 8}, Case{"bf16", 8}, Case{"te-delayed", 8}}) {
    CAPTURE(c.plan);
    Run run(DeviceKind::cuda, small_gpt2(c.plan));
    const uint64_t before = shim::biased_matmuls();
    run.train_step();
    CHECK(shim::biased_matmuls() == before + c.biased);
  }
}

TEST_CASE("the plan holds what cuDNN and all libraries need", "[cuda]") {
  constexpr size_t kMebi = size_t{1} << 20;
  const EngineSettings settings = small_llama("bf16");
  for (const bool large : {false, true}) {
    shim::set_sdpa_workspace(large ? 33 * kMebi : 4096);
    const MemoryLedger planned = dry_run_step(settings, *make_device(DeviceKind::cuda)).memory;
    Run run(DeviceKind::cuda, settings);
    const uint64_t allocations = shim::runtime_calls().allocations;
    run.train_step();  // the first: nothing is left to be made
    CHECK(shim::runtime_calls().allocations == allocations);
    CHECK(planned.total() == run.device->ledger().total());
    CHECK((planned.current(MemoryCategory::workspace) >= 65 * kMebi) == large);
  }
  shim::set_sdpa_workspace(4096);
}

TEST_CASE("the steady step on cuda allocates nothing, and waits for first windows alone",
          "[cuda]") {
  for (const PlanTolerance& tolerance : all_plans()) {
    if (!tolerance.distinct || (kSanitized && tolerance.plan != std::string("te-delayed"))) {
      continue;
    }
    CAPTURE(tolerance.plan);
    shim::set_late_events(false);  // a GPU that keeps up
    Run run(DeviceKind::cuda, small_llama(tolerance.plan));
    for (int i = 0; i < 6; ++i) {  // with and without statistics: as it is and recorded
      run.train_step();
    }
    const shim::RuntimeCalls before = shim::runtime_calls();
    const uint64_t plans = shim::heuristics_asked();
    const uint64_t products = shim::matmuls();
    const uint64_t attention_plans = shim::sdpa_plans();
    run.train_step();
    CHECK(shim::runtime_calls().allocations == before.allocations);
    const uint64_t windows = plan_named(tolerance.plan).fprop.a.is_current_at_first() ? 1 : 0;
    CHECK(shim::runtime_calls().synchronizations == before.synchronizations + windows);
    CHECK(shim::runtime_calls().reads_back == before.reads_back + windows);
    CHECK(shim::heuristics_asked() == plans);
    // The batch, the learning rate, the zeroed totals and the gradients that are zeroed, a fill for
    // each stretch of them, are added to the two graphs.
    const size_t cleared = run.engine.model().parameters().cleared_gradients().size();
    CHECK(shim::runtime_calls().graph_launches == before.graph_launches + 2);
    CHECK(shim::runtime_calls().submissions <= before.submissions + 5 + cleared);
    CHECK(shim::sdpa_plans() == attention_plans);
    CHECK(shim::matmuls() == products + 27);  // 2 blocks of 4 layers and the head, three GEMMs each
    shim::set_late_events(true);
  }
}
