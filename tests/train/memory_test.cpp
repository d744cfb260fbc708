// What a model holds for each parameter of its linear layers, by the memory report, against the
// table of bytes per parameter, which follows from each plan's formats: exact. The difference of
// two models that differ by one block leaves out what does not belong to blocks.

#include <catch2/catch.hpp>

#include "engine/dry_run.h"
#include "ops/gemm/gemm.h"
#include "support/environment.h"
#include "support/small_llama.h"
#include "train/layout_results.h"

using namespace fp8train;

namespace {

constexpr int64_t kWidth = 512;
constexpr int64_t kInner = 1536;
// qkv, output, up (gate and up), down; and two norms.
constexpr double kLinear = 3.0 * kWidth * kWidth + kWidth * kWidth + 3.0 * kWidth * kInner;
constexpr double kNorms = 2.0 * kWidth;

MemoryLedger ledger_of(const PrecisionPlan& plan, int64_t blocks, int ranks = 1, int stage = 0,
                       const char* packs = "0") {
  const test::EnvironmentScope scope("FP8TRAIN_CPU_PACK", packs);
  EngineSettings settings = test::small_llama("fp32");
  settings.strategy.zero_stage = stage;
  settings.model.hidden_size = kWidth;
  settings.model.intermediate_size = kInner;
  settings.model.num_hidden_layers = blocks;
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.model.head_dim = kWidth / 4;
  settings.plan = plan;
  return dry_run_step(settings, DeviceTraits{}, Topology::blocks(ranks, ranks)).memory;
}

/// Bytes for each parameter of a linear layer; `norm` bytes of the category belong to each
/// parameter of a norm.
double per_parameter(const PrecisionPlan& plan, MemoryCategory category, double norm, int ranks = 1,
                     int stage = 0) {
  const auto bytes = [&](int64_t blocks) {
    return static_cast<double>(ledger_of(plan, blocks, ranks, stage).current(category));
  };
  return (bytes(3) - bytes(2) - norm * kNorms) / kLinear;
}

struct PlanBytes {
  const char* plan;
  double weight, master, gradient, moments;
};

constexpr double kGroup = 4.0 / 128;
constexpr double kExpanded = 12.0 / 128;
constexpr double kSquare = 4.0 / (128 * 128);

constexpr PlanBytes kTable[] = {
    {"fp32", 4, 0, 4, 8},
    {"bf16", 2, 4, 4, 8},
    {"fp16", 4, 0, 4, 8},
    {"te-delayed", 4, 0, 4, 8},
    {"te-current", 4, 0, 4, 8},
    {"te-blockwise", 4, 0, 4, 8},
    {"te-mxfp8", 4, 0, 4, 8},
    {"te-nvfp4", 4, 0, 4, 8},
    {"msamp-o1", 2, 0, 1, 8},
    {"msamp-o2", 2, 0, 1, 3},
    {"msamp-o3", 1, 2, 1, 3},
    {"msamp-o1-te", 2, 0, 1, 8},
    {"msamp-o2-te", 2, 0, 1, 3},
    {"msamp-o3-te", 1, 2, 1, 3},
    {"torchao-tensorwise", 4, 0, 4, 8},
    {"torchao-rowwise", 4, 0, 4, 8},
    {"torchao-rowwise-gw-hp", 4, 0, 4, 8},
    {"torchao-blockwise", 4, 0, 4, 8},
    {"torchao-mxfp8", 4, 0, 4, 8},
    {"torchao-mxfp4", 4, 0, 4, 8},
    {"fp8-lm", 1, 2, 1, 3},
    {"deepseek-v3", 1 + kSquare, 4, 4, 4},
    {"deepseek-v3.1", 1 + kSquare, 4, 4, 4},
    {"llm.q", 2, 0, 2, 4},
    {"coat", 4, 0, 4, 2 + 2 * kExpanded},
    {"fp8-fast", 4, 0, 4, 4},
    {"fp8-safe", 1 + kSquare, 4, 4, 4},
    {"fp8-lean", 1 + kSquare, 2 + kGroup, 2, 2 + 2 * kExpanded},
    {"fp8-min", 1 + kSquare, 2 + kGroup, 1 + kGroup, 3 + 2 * kGroup},
    {"int8-qat", 4, 0, 4, 8},
};

}  // namespace

TEST_CASE("a weight in the type that GEMMs read is held once") {
  PlanRequest request;
  request.plan = "bf16";
  request.roles.master_weight = "none";
  const PrecisionPlan plan = resolve_plan(request);
  CHECK(per_parameter(plan, MemoryCategory::weights, 4) == Approx(2.0).epsilon(1e-4));
  CHECK(per_parameter(plan, MemoryCategory::quantized_weights, 0) == 0.0);
}

TEST_CASE("packed weights of both GEMMs are part of the plan") {
  const auto packed = [](const char* name) {
    const auto bytes = [&](int64_t blocks, const char* packs) {
      return ledger_of(plan_named(name), blocks, 1, 0, packs)
          .current(MemoryCategory::quantized_weights);
    };
    const auto block = bytes(3, "1") - bytes(2, "1") - (bytes(3, "0") - bytes(2, "0"));
    return static_cast<double>(block) / kLinear;
  };
  const std::string engine = ops::cpu_gemm_engine(DType::bf16);
  const bool packs = engine == "fp32 (avx512)" || engine.starts_with("bf16");
  const double bytes = engine.starts_with("bf16") ? 2.0 : 4.0;
  CHECK(packed("bf16") == (packs ? 2 * bytes : 0.0));  // extents here are whole blocks of oneDNN's
  CHECK(packed("te-delayed") == packed("bf16"));
  CHECK(packed("torchao-rowwise") == packed("bf16"));
  CHECK(packed("te-mxfp8") == packed("bf16"));
  CHECK(packed("fp32") == (packs ? 8.0 : 0.0));
  CHECK(packed("deepseek-v3") == 0.0);  // products of its blocks are in tiles
  if (std::string(ops::cpu_gemm_engine(DType::i8)).starts_with("int8")) {
    // One GEMM reads codes: oneDNN stores sums of columns of 512 and 1536 in addition.
    CHECK(packed("int8-qat") == Approx(1.0).margin(0.025));
  }
}

TEST_CASE("packed weights change no bits of a run") {
  const std::string plan = GENERATE("bf16", "te-delayed", "te-current", "te-mxfp8", "te-nvfp4",
                                    "torchao-rowwise", "int8-qat", "fp8-lm", "deepseek-v3");
  const int stage = GENERATE(0, 3);
  CAPTURE(plan, stage);
  EngineSettings settings = test::llama(plan);
  settings.strategy.zero_stage = stage;
  const auto results = [&](const char* packs) {
    const test::EnvironmentScope scope("FP8TRAIN_CPU_PACK", packs);
    return test::run(settings, stage == 0 ? 1 : 2);
  };
  test::check_equal(results("0"), results("1"));
}

TEST_CASE("a master weight in two halves takes two bytes next to its weight, on any ranks") {
  PlanRequest request;
  request.plan = "bf16";
  request.roles.master_weight = "bf16 remainder";
  const PrecisionPlan plan = resolve_plan(request);
  const ParameterBytes said = bytes_per_parameter(plan);
  CHECK(said.weight + said.master == 4.0);
  for (const int stage : {0, 1, 2}) {
    const int ranks = stage == 0 ? 1 : 4;
    CAPTURE(stage);
    const double norm = 4.0 / ranks;
    CHECK(per_parameter(plan, MemoryCategory::weights, norm, ranks, stage) ==
          Approx(2.0).epsilon(1e-2));
    CHECK(per_parameter(plan, MemoryCategory::master_weights, 0, ranks, stage) ==
          Approx(2.0 / ranks).epsilon(1e-2));
    CHECK(per_parameter(plan, MemoryCategory::quantized_weights, 0, ranks, stage) == 0.0);
  }
}

TEST_CASE("every plan holds the bytes per parameter that its roles say") {
  const std::vector<std::string> names = plan_names();
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto* expected = std::find_if(std::begin(kTable), std::end(kTable),
                                        [&](const PlanBytes& entry) { return name == entry.plan; });
    REQUIRE(expected != std::end(kTable));
    const PrecisionPlan plan = plan_named(name);
    const ParameterBytes said = bytes_per_parameter(plan);
    CHECK(said.weight == Approx(expected->weight).epsilon(1e-9));
    CHECK(said.master == Approx(expected->master).epsilon(1e-9));
    CHECK(said.gradient == Approx(expected->gradient).epsilon(1e-9));
    CHECK(said.moment1 + said.moment2 == Approx(expected->moments).epsilon(1e-9));
    // A scale for the tensor is a few bytes for hundreds of thousands of parameters; codes of a
    // weight that is not square in blocks end with a partial one: 1e-4.
    const auto near = [](double bytes) { return Approx(bytes).epsilon(1e-4).margin(1e-4); };
    CHECK(per_parameter(plan, MemoryCategory::master_weights, 0) == near(expected->master));
    CHECK(per_parameter(plan, MemoryCategory::gradients, 4) == near(expected->gradient));
    CHECK(per_parameter(plan, MemoryCategory::optimizer_state, 8) == near(expected->moments));
    // Where a GEMM contracts along columns with a scale for each block, the weight is held in a
    // second orientation too.
    const bool both = plan.weight.is_scaled() && plan.weight.block != per::tensor;
    CHECK(per_parameter(plan, MemoryCategory::weights, 4) ==
          near(both ? 2 * expected->weight : expected->weight));
  }
}

TEST_CASE("gradients that cross the wire after one rounding take two more bytes on several ranks") {
  const auto gradient = [](const char* plan, int ranks, int stage) {
    // Of a norm: fp32, and in parts a shard of it where gradients are not summed in place.
    return per_parameter(plan_named(plan), MemoryCategory::gradients, 4, ranks, stage);
  };
  const auto near = [](double bytes) { return Approx(bytes).epsilon(2e-3); };
  CHECK(gradient("msamp-o2", 1, 0) == near(1));
  // bf16 until the exchange, and E4M3 after it.
  CHECK(gradient("msamp-o2", 4, 0) == near(2 + 1));
  // bf16, and a quarter of the sum in fp32.
  CHECK(gradient("msamp-o2", 4, 1) == near(2 + 4.0 / 4));
  // FP8-LM's scales are powers of two: a second rounding loses nothing but small values.
  CHECK(gradient("fp8-lm", 4, 0) == near(1));
  CHECK(gradient("te-delayed", 4, 0) == near(4));
}
