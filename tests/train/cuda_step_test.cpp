// A whole training step on the cuda device against the cpu: on a GPU, or through the host shim,
// where every kernel runs as fibers and a fake cuBLASLt computes the products. Both devices start
// from the same weights. They differ by the order of fp32 sums, and in bf16 and FP8 by what a last
// bit of an fp32 sum moves when it is rounded.

#include <catch2/catch.hpp>

#include <cmath>
#include <string>

#include "base/philox.h"
#include "device/cuda/cuda_device.h"
#include "model/families/family.h"
#include "support/environment.h"
#include "support/parameters.h"
#include "support/sanitized.h"
#include "support/small_llama.h"
#include "train/dry_run.h"

#if defined(FP8TRAIN_CUDA_SHIM)
#include "cublaslt_fake.h"
#include "cuda_runtime_api.h"
#include "cudnn_fake.h"
#endif

using namespace fp8train;

namespace {

constexpr int64_t kRows = test::kSmallRows;
constexpr int64_t kColumns = 24;
constexpr uint32_t kVocabulary = test::kSmallVocabulary;

EngineSettings small_llama(const std::string& plan) {
  EngineSettings settings = test::small_llama(plan);
  settings.seq_length = kColumns;
  return settings;
}

EngineSettings small_gpt2(const std::string& plan) {
  EngineSettings settings = small_llama(plan);
  ModelConfig& model = settings.model;
  model = {};
  model.family = &gpt2_family();
  model.vocab_size = kVocabulary;
  model.hidden_size = 32;
  model.intermediate_size = 128;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 2;
  model.num_key_value_heads = 2;
  model.max_position_embeddings = 32;
  model.norm = NormKind::layer_norm;
  model.positions = PositionKind::learned;
  model.mlp = MlpKind::gelu;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = model.norm_bias = true;
  model.tie_word_embeddings = true;
  model = completed(model);
  return settings;
}

Batch batch_of(uint64_t index) {
  Batch batch;
  batch.rows = kRows;
  batch.columns = kColumns;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const PhiloxBlock bits = philox(index, 0, static_cast<uint64_t>(i));
    batch.tokens.push_back(static_cast<int32_t>(bits.word[0] % kVocabulary));
    batch.targets.push_back(static_cast<int32_t>(bits.word[1] % kVocabulary));
  }
  return batch;
}

struct Run {
  std::unique_ptr<Device> device;
  Engine engine;
  int64_t step = 0;

  Run(DeviceKind kind, const EngineSettings& settings)
      : device(make_device(kind)), engine(*device, settings) {
    engine.reserve(dry_run_step(settings, *device).plan);
    engine.model().initialize(3);
    engine.weights_changed();
  }
  void train_step() {
    uint64_t index = static_cast<uint64_t>(step * engine.settings().gradient_accumulation_steps);
    // Statistics every third step and a learning rate that changes: what a recording must not hold.
    engine.step([&] { return batch_of(index++); }, step, 1e-3 / static_cast<double>(step + 1),
                step % 3 == 2);
    ++step;
  }
  std::vector<float> gradients() {
    return test::gradients_of(*device, engine.model().parameters());
  }
};

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0;
  double a_norm = 0;
  double b_norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * b[i];
    a_norm += double{a[i]} * a[i];
    b_norm += double{b[i]} * b[i];
  }
  return dot / std::sqrt(a_norm * b_norm);
}

bool no_device() {
  const std::string obstacle = why_cuda_is_unusable();
  if (!obstacle.empty()) {
    WARN("not run: " << obstacle);
  }
  return !obstacle.empty();
}

struct Row {
  const char* plan;
  double loss, gradient;  // relative difference of the loss, 1 - cosine of all gradients
  bool distinct = true;   // of a kind of its own; false: its kernels and wiring are those of others
};

// A step takes a sanitizer many times as long; its kernels have tests of their own there.
using test::kSanitized;

constexpr Row kAllPlans[] = {{"fp32", 1e-6, 1e-9},
                             {"bf16", 2e-4, 1e-4},
                             {"fp16", 5e-5, 1e-5},
                             {"te-delayed", 2e-3, 5e-3},
                             {"te-current", 2e-3, 5e-3},
                             {"te-blockwise", 2e-3, 5e-3},
                             {"te-mxfp8", 2e-3, 5e-3, false},
                             {"te-nvfp4", 1e-2, 5e-2},
                             {"msamp-o1", 2e-3, 5e-3, false},
                             {"msamp-o2", 2e-3, 5e-3, false},
                             {"msamp-o3", 2e-3, 5e-3, false},
                             {"msamp-o1-te", 2e-3, 5e-3, false},
                             {"msamp-o2-te", 2e-3, 5e-3, false},
                             {"msamp-o3-te", 2e-3, 5e-3, false},
                             {"torchao-tensorwise", 2e-3, 5e-3, false},
                             {"torchao-rowwise", 2e-3, 5e-3},
                             {"torchao-rowwise-gw-hp", 2e-3, 5e-3, false},
                             {"fp8-lm", 2e-3, 5e-3},
                             {"deepseek-v3", 2e-3, 5e-3, false},
                             {"coat", 2e-3, 5e-3},
                             {"fp8-safe", 2e-3, 5e-3, false},
                             {"fp8-lean", 2e-3, 5e-3},
                             {"fp8-min", 2e-3, 5e-3, false},
                             {"int8-qat", 2e-3, 5e-3, false}};

void compare_devices(const EngineSettings& settings, const Row& row) {
  CAPTURE(row.plan);
  Run cpu(DeviceKind::cpu, settings);
  Run cuda(DeviceKind::cuda, settings);
  for (int i = 0; i < 3; ++i) {
    cpu.train_step();
    cuda.train_step();
    const double want = cpu.engine.step_loss().mean;
    const double got = cuda.engine.step_loss().mean;
    CAPTURE(i, want, got);
    CHECK(std::abs(got - want) <= row.loss * (i + 1) * want);
    if (i == 0) {
      CHECK(1 - cosine(cuda.gradients(), cpu.gradients()) <= row.gradient);
    }
  }
}

}  // namespace

TEST_CASE("a step of each plan on cuda gives the cpu's loss and gradients, Llama", "[cuda]") {
  if (no_device()) {
    return;
  }
  for (const Row& row : kAllPlans) {
    if (row.distinct || !kSanitized) {
      compare_devices(small_llama(row.plan), row);
    }
  }
}

TEST_CASE("a step of each kind of plan on cuda gives the cpu's loss and gradients, GPT-2",
          "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const Row& row : kAllPlans) {
    if (row.distinct && test::is_in_rotation(index++, 3)) {
      compare_devices(small_gpt2(row.plan), row);
    }
  }
}

TEST_CASE("the plans compared on both devices are those of the table of plans", "[cuda]") {
  std::vector<std::string> compared;
  for (const Row& row : kAllPlans) {
    compared.emplace_back(row.plan);
  }
  CHECK(compared == plan_names());
}

TEST_CASE("two runs on cuda are bitwise equal", "[cuda]") {
  if (no_device()) {
    return;
  }
  Run first(DeviceKind::cuda, small_llama("te-delayed"));
  Run second(DeviceKind::cuda, small_llama("te-delayed"));
  for (int i = 0; i < 3; ++i) {
    first.train_step();
    second.train_step();
  }
  CHECK(first.gradients() == second.gradients());
}

TEST_CASE("the steady step on cuda stays within the plan made on meta", "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const Row& row : kAllPlans) {
    if (!row.distinct || !test::is_in_rotation(index++, 3)) {
      continue;
    }
    Run run(DeviceKind::cuda, small_llama(row.plan));
    const uint64_t before = run.device->ledger().allocations();
    run.train_step();
    CHECK(run.device->ledger().allocations() == before);
  }
}

TEST_CASE("recorded steps are bitwise those that are launched one by one", "[cuda]") {
  if (no_device()) {
    return;
  }
  size_t index = 0;
  for (const Row& row : kAllPlans) {
    CAPTURE(row.plan);
    EngineSettings settings = small_llama(row.plan);
    settings.model.num_hidden_layers = 1;
    settings.gradient_accumulation_steps = 2;
    if (!row.distinct || (kSanitized && settings.plan.fprop.a.policy == ScalePolicy::current) ||
        !test::is_in_rotation(index++, 3)) {
      continue;
    }
    settings.plan.wgrad.a.delayed.interval = 2;  // some steps update those scales, some do not
    Run recorded(DeviceKind::cuda, settings);
    settings.record = false;
    Run launched(DeviceKind::cuda, settings);
    for (int i = 0; i < 6; ++i) {
      recorded.train_step();
      launched.train_step();
      CHECK(recorded.engine.step_loss().mean == launched.engine.step_loss().mean);
    }
    CHECK(recorded.gradients() == launched.gradients());
    const auto weights = [](Run& run) {
      return test::values_of(*run.device, run.engine.model().parameters());
    };
    CHECK(weights(recorded) == weights(launched));
  }
}

TEST_CASE("steps with a smoothed product, or one in bf16, on cuda are the cpu's", "[cuda]") {
  if (no_device()) {
    return;
  }
  struct Case {
    const char* plan;
    SwigluInput swiglu;
    bool distinct;
  };
  for (const Case& c : {Case{"te-delayed", SwigluInput::smoothed, true},
                        Case{"te-blockwise", SwigluInput::smoothed, false},
                        Case{"coat", SwigluInput::smoothed, false},
                        Case{"te-delayed", SwigluInput::high_precision, false}}) {
    if (kSanitized && !c.distinct) {
      continue;
    }
    EngineSettings settings = small_llama(c.plan);
    settings.model.num_hidden_layers = 1;
    settings.plan.swiglu = c.swiglu;
    compare_devices(settings, {c.plan, 2e-3, 5e-3});
    if (c.distinct) {
      Run run(DeviceKind::cuda, settings);
      const uint64_t before = run.device->ledger().allocations();
      run.train_step();
      CHECK(run.device->ledger().allocations() == before);
    }
  }
}

TEST_CASE("recorded steps with moments of few bits are those that are launched", "[cuda]") {
  if (no_device()) {
    return;
  }
  const char* const moments[][2] = {
      {"bf16", "bf16"}, {"e4m3", "fp16"}, {"e4m3 group(128)", "fp32"}};
  for (const auto& [first, second] : moments) {
    CAPTURE(first, second);
    PlanRequest request;
    request.plan = "te-delayed";
    request.roles.moment1 = first;
    request.roles.moment2 = second;
    EngineSettings settings = small_llama("te-delayed");
    settings.plan = resolve_plan(request);
    compare_devices(settings, kAllPlans[3]);
    Run recorded(DeviceKind::cuda, settings);
    settings.record = false;
    Run launched(DeviceKind::cuda, settings);
    const uint64_t before = recorded.device->ledger().allocations();
    for (int i = 0; i < 5; ++i) {
      recorded.train_step();
      launched.train_step();
    }
    CHECK(recorded.device->ledger().allocations() == before);
    const auto weights = [](Run& run) {
      return test::values_of(*run.device, run.engine.model().parameters());
    };
    CHECK(weights(recorded) == weights(launched));
  }
}

TEST_CASE("a step of bf16 on cuda gives the cpu's loss and gradients with our own attention",
          "[cuda]") {
  if (no_device()) {
    return;
  }
  const test::EnvironmentScope scope("FP8TRAIN_CUDA_ATTENTION", "own");
  compare_devices(small_llama("bf16"), kAllPlans[1]);
}

#if defined(FP8TRAIN_CUDA_SHIM)
TEST_CASE("steps that the host submits ahead of the GPU leave no error behind", "[cuda]") {
  struct Case {
    int64_t accumulation;
    int steps;  // each copies a learning rate and two arrays per micro-batch through 16 slots
  };
  for (const Case& c : {Case{1, 24}, Case{16, 2}}) {
    CAPTURE(c.accumulation);
    EngineSettings settings = small_llama("te-delayed");
    settings.model.num_hidden_layers = 1;
    settings.gradient_accumulation_steps = c.accumulation;
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

TEST_CASE("the steady step on cuda makes no allocation, waits for nothing and reads nothing back",
          "[cuda]") {
  for (const Row& row : kAllPlans) {
    if (!row.distinct || (kSanitized && row.plan != std::string("te-delayed"))) {
      continue;
    }
    CAPTURE(row.plan);
    shim::set_late_events(false);  // a GPU that keeps up
    Run run(DeviceKind::cuda, small_llama(row.plan));
    for (int i = 0; i < 6; ++i) {  // with and without statistics: as it is and recorded
      run.train_step();
    }
    const shim::RuntimeCalls before = shim::runtime_calls();
    const uint64_t plans = shim::heuristics_asked();
    const uint64_t products = shim::matmuls();
    const uint64_t attention_plans = shim::sdpa_plans();
    run.train_step();
    CHECK(shim::runtime_calls().allocations == before.allocations);
    CHECK(shim::runtime_calls().synchronizations == before.synchronizations);
    CHECK(shim::runtime_calls().reads_back == before.reads_back);
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
#endif
