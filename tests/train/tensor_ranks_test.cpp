// Ranks that share each layer compute what one rank does: with parallelism.tensor_parts the same
// bits of losses, gradients and values, in every plan that they can run; without it all but the
// order of some sums.

#include <catch2/catch.hpp>

#include <mutex>
#include <tuple>

#include "support/leaves_out.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

EngineSettings with(EngineSettings settings, int64_t ranks, int64_t parts) {
  settings.strategy.layout = {.tensor = ranks, .tensor_parts = parts};
  return settings;
}

/// Makes scales of powers of two fp32, so that none is the same for two amax.
void scale_finely(PrecisionPlan& plan) {
  std::vector<TensorFormat*> formats = {&plan.weight,          &plan.parameter_wire,
                                        &plan.weight_gradient, &plan.gradient_wire,
                                        &plan.moment1,         &plan.moment2};
  for (GemmPlan* gemm : {&plan.fprop, &plan.dgrad, &plan.wgrad}) {
    formats.insert(formats.end(), {&gemm->a, &gemm->b});
  }
  if (plan.master_weight) {
    formats.push_back(&*plan.master_weight);
  }
  for (TensorFormat* format : formats) {
    const bool pow2 = format->scale_type == ScaleType::pow2;
    format->scale_type = pow2 ? ScaleType::f32 : format->scale_type;
  }
}

}  // namespace

TEST_CASE("ranks that share layers get the gradients of one rank", "[tensor]") {
  const int ranks = GENERATE(2, 4);
  const int64_t passes = GENERATE(1, 2);
  const bool gpt2 = GENERATE(false, true);
  CAPTURE(ranks, passes, gpt2);
  EngineSettings settings = gpt2 ? gpt2_with_heads("fp32") : llama("fp32");
  settings.step.gradient_accumulation_steps = passes;
  const Results one = run(settings, 1, 1);
  const Results several = run(with(settings, ranks, 0), ranks, 1);
  CHECK(difference(one.gradients, several.gradients, 2e-6) == "");
  CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(1e-6));
  CHECK(several.norms[0] == Approx(one.norms[0]).epsilon(1e-6));
  CHECK(several.as_planned);
}

TEST_CASE("without parts of sums plans in 16 bits round each rank's part once", "[tensor]") {
  const std::string plan = GENERATE("bf16", "fp16", "te-delayed", "te-current");
  const int ranks = GENERATE(2, 4);
  CAPTURE(plan, ranks);
  const EngineSettings settings = llama(plan);
  const Results one = run(settings, 1, 1);
  const Results several = run(with(settings, ranks, 0), ranks, 1);
  // Codes of FP8 that another sum moves across a boundary differ by a whole step.
  CHECK(difference(one.gradients, several.gradients, plan.starts_with("te") ? 0.2 : 1e-2) == "");
  CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(1e-3));
  CHECK(several.as_planned);
}

TEST_CASE("with parts of sums any number of ranks has the bits of one", "[tensor]") {
  const std::string plan =
      GENERATE("fp32", "bf16", "fp16", "te-delayed", "te-current", "torchao-tensorwise",
               "torchao-rowwise", "int8-qat", "te-nvfp4", "msamp-o3", "fp8-lm");
  const std::string model = GENERATE("llama", "gpt2", "qwen3");
  CAPTURE(plan, model);
  EngineSettings settings = model == "gpt2" ? gpt2_with_heads(plan) : llama(plan);
  settings.model.qk_norm = model == "qwen3";
  settings.masks_documents = model == "qwen3";
  settings.step.decoder.recompute = model == "qwen3" ? Recompute::block : Recompute::none;
  const Results one = run(with(settings, 1, 4), 1);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const Results several = run(with(settings, ranks, 4), ranks);
    check_equal(one, several);
    CHECK(several.as_planned);
  }
}

TEST_CASE("eight ranks have the bits of one, and three but the order of sums", "[tensor]") {
  const std::string plan = GENERATE("fp32", "te-delayed", "te-current", "torchao-rowwise");
  const int ranks = GENERATE(3, 8);
  CAPTURE(plan, ranks);
  EngineSettings settings = llama(plan);
  settings.model.num_key_value_heads = ranks;
  settings.model.num_attention_heads = ranks == 3 ? 6 : 8;
  settings.model.intermediate_size = int64_t{128} * ranks;
  settings.step.seq_length = settings.model.max_position_embeddings = int64_t{16} * ranks;
  settings.step.micro_batch_size = 1;
  const int64_t parts = ranks == 8 ? 8 : 0;  // parts are a power of two
  const Results one = run(with(settings, 1, parts), 1, 1);
  const Results several = run(with(settings, ranks, parts), ranks, 1);
  if (parts > 0) {
    check_equal(one, several);
  } else {
    CHECK(difference(one.gradients, several.gradients, plan == "fp32" ? 2e-6 : 0.2) == "");
    CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(plan == "fp32" ? 1e-6 : 1e-3));
  }
  CHECK(several.as_planned);
}

TEST_CASE("every plan trains on ranks that share layers, with the bits of one", "[tensor]") {
  const std::string plan = GENERATE(from_range(compared_plans()));
  CAPTURE(plan);
  EngineSettings settings = llama(plan);
  settings.model.num_key_value_heads = 8;
  settings.model.intermediate_size = 768;
  check_equal(run(with(settings, 1, 2), 1, 2), run(with(settings, 2, 2), 2, 2));
}

TEST_CASE("codes next to gradients that stay in 16 bits are cut by rows and by columns",
          "[tensor]") {
  PlanRequest request;
  request.plan =
      GENERATE("te-blockwise", "deepseek-v3", "torchao-rowwise", "te-current", "te-nvfp4");
  request.recompute_swiglu = false;
  request.roles.dgrad_dy = "bf16";
  request.roles.wgrad_dy = GENERATE("bf16", "");
  CAPTURE(request.plan, request.roles.wgrad_dy);
  if (request.plan == "te-nvfp4") {
    request.roles.fprop_x = request.roles.fprop_w = request.roles.dgrad_w =
        "e2m1 1x16 e4m3 row_scaled";
    request.roles.wgrad_dy = request.roles.wgrad_x = "bf16";
  }
  EngineSettings settings = llama("bf16");
  settings.plan = resolve_plan(request);
  settings.model.num_key_value_heads = 8;
  settings.model.intermediate_size = 768;
  check_equal(run(with(settings, 1, 2), 1, 2), run(with(settings, 2, 2), 2, 2));
}

TEST_CASE("ranks that share layers share the optimizer too, at each stage of ZeRO", "[tensor]") {
  const std::string plan =
      GENERATE("bf16", "te-delayed", "deepseek-v3", "torchao-rowwise-gw-hp", "int8-qat", "te-nvfp4",
               "msamp-o1", "msamp-o3", "msamp-o2-te", "fp8-lm");
  CAPTURE(plan);
  EngineSettings settings = llama(plan);
  settings.model.num_key_value_heads = 8;
  settings.strategy.bucket_bytes = 65536;
  settings.step.gradient_accumulation_steps = 2;
  const Results one = run(with(settings, 1, 2), 2, 2);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const Results several = run(with(settings, 2, 2), 4, 2);
    CHECK(difference(one.values, several.values, 0) == "");
    CHECK(several.losses == one.losses);
    CHECK(several.as_planned);
  }
}

TEST_CASE("gradients of parts cross a wire with one scale as those of the whole", "[tensor]") {
  EngineSettings settings = llama("bf16");
  settings.plan.gradient_wire = plan_named("msamp-o1").gradient_wire;
  const int data = GENERATE(1, 2);
  const Results one = run(with(settings, 1, 2), data, 2);
  const Results several = run(with(settings, 2, 2), 2 * data, 2);
  CHECK(difference(one.values, several.values, 0) == "");
  CHECK(several.losses == one.losses);
}

TEST_CASE("each exchange of ranks that share layers is needed", "[tensor]") {
  const std::string plan =
      GENERATE("bf16", "te-current", "te-delayed", "torchao-rowwise", "te-nvfp4", "msamp-o2");
  CAPTURE(plan);
  EngineSettings settings = plan == "te-delayed" ? llama(plan) : gpt2_with_heads(plan);
  settings.model.qk_norm = plan == "te-delayed";
  settings.model.num_hidden_layers = 1;
  scale_finely(settings.plan);
  settings = with(settings, 2, 2);
  // Scales and weights on which ranks agree after a step are needed in the next one. With current
  // scaling, and in first windows, the amax that all ranks have seen are for values that are not
  // finite alone.
  CHECK(exchanges_not_needed(settings, plan != "te-delayed") == std::vector<std::string>());
}

TEST_CASE("a block sends the bytes of its formula between ranks that share layers", "[tensor]") {
  // Six gathers of rows, in bf16 or as codes, four sums in bf16, the gradients of two norms and,
  // with delayed scaling, the amax of twelve tensors.
  const auto [plan, gathered, amax] =
      GENERATE(std::tuple("bf16", 2, 0), std::tuple("te-delayed", 1, 12));
  const int ranks = GENERATE(2, 4);
  CAPTURE(plan, ranks);
  EngineSettings settings = with(llama(plan), ranks, 0);
  const auto sent = [&](int64_t blocks) {
    settings.model.num_hidden_layers = blocks;
    const DryRunStep step = dry_run_step(settings, {}, Topology::blocks(ranks, ranks), 0);
    return static_cast<int64_t>(step.sent_by_layers.total());
  };
  const int64_t width = settings.model.hidden_size;
  const int64_t elements = settings.step.micro_batch_tokens() * width;
  const int64_t rows = (6 * gathered + 4 * 2) * elements * (ranks - 1) / ranks;
  CHECK(sent(3) - sent(2) == rows + 4 * (2 * width + amax) * (ranks - 1));
}
