// Ranks that share sequences compute what one rank does: all bits of the forward pass, and
// gradients but for the order in which those of positions are added.

#include <catch2/catch.hpp>

#include <mutex>
#include <tuple>

#include "ops/pointwise/elementwise.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

EngineSettings with(EngineSettings settings, int64_t ranks, ContextKind kind = ContextKind::heads) {
  settings.strategy.layout.context = ranks;
  settings.strategy.layout.context_kind = kind;
  return settings;
}

EngineSettings model_of(const std::string& name, const std::string& plan) {
  EngineSettings settings = name == "gpt2" ? gpt2_with_heads(plan) : llama(plan);
  settings.model.qk_norm = name == "qwen3";
  settings.masks_documents = name != "llama";
  return settings;
}

/// Outputs of units, [B, T, C], in fp32: of a rank's positions the others being 0.
struct Outputs final : ActivationWatch {
  Outputs(const EngineSettings& of, int at) : settings(&of), rank(at) {}

  void made(size_t unit, const View& output) override {
    const Device& device = *on;
    const Tensor wide(*on, DType::f32, output.shape, MemoryCategory::workspace);
    ops::cast(device.stream(), output, wide);
    std::vector<float> own(static_cast<size_t>(output.count()));
    copy_to_host(*on, own.data(), wide);
    const int64_t width = output.shape.back();
    const int64_t length = settings->length_of_rank();
    const ChunkDeal deal = deal_chunks(*settings, batch_of(*settings, 0));
    values.resize(std::max(values.size(), unit + 1));
    values[unit].resize(static_cast<size_t>(settings->step.micro_batch_tokens() * width));
    for (int64_t row = 0; row < output.shape.rows(); ++row) {
      const int64_t position =
          row / length * settings->step.seq_length + deal.position(row % length, length, rank);
      std::copy_n(own.begin() + row * width, width, values[unit].begin() + position * width);
    }
  }

  const EngineSettings* settings;
  int rank;
  Device* on = nullptr;
  std::vector<std::vector<float>> values;
};

/// All outputs of a forward pass, and its loss.
std::pair<std::vector<std::vector<float>>, double> outputs_of(const EngineSettings& settings,
                                                              int ranks) {
  std::vector<std::vector<float>> all;
  double loss = 0;
  std::mutex mutex;
  const auto body = [&](Communicator* comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, comm);
    engine.reserve(dry_run_step(settings, {}, Topology::blocks(ranks, ranks),
                                comm == nullptr ? 0 : comm->rank())
                       .plan);
    engine.model().initialize(3);
    engine.weights_changed();
    Outputs outputs(settings, engine.mesh().index(Axis::context));
    outputs.on = device.get();
    engine.begin_evaluation();
    engine.watch_forward(batch_of(settings, 0), outputs);
    const double mean = engine.evaluation_loss().mean;
    const std::lock_guard lock(mutex);
    loss = mean;
    all.resize(outputs.values.size());
    for (size_t unit = 0; unit < all.size(); ++unit) {
      all[unit].resize(outputs.values[unit].size());
      for (size_t i = 0; i < all[unit].size(); ++i) {
        all[unit][i] += outputs.values[unit][i];
      }
    }
  };
  if (ranks == 1) {
    body(nullptr);
  } else {
    const std::vector<std::string> errors =
        run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) { body(&comm); });
    CHECK(errors == std::vector<std::string>(errors.size()));
  }
  return {all, loss};
}

}  // namespace

TEST_CASE("ranks that share sequences have the bits of one in the forward pass", "[context]") {
  const std::string model = GENERATE("llama", "gpt2", "qwen3");
  const std::string plan = GENERATE("fp32", "bf16", "torchao-rowwise");
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  const int ranks = GENERATE(2, 4);
  const int64_t length = GENERATE(16, 128);
  CAPTURE(model, plan, kind, ranks, length);
  EngineSettings settings = model_of(model, plan);
  settings.step.seq_length = settings.model.max_position_embeddings = length;
  const auto [one, loss] = outputs_of(settings, 1);
  const auto [several, same_loss] = outputs_of(with(settings, ranks, kind), ranks);
  REQUIRE(one.size() == several.size());
  for (size_t unit = 0; unit < one.size(); ++unit) {
    CAPTURE(unit);
    CHECK(same_bits(one[unit], several[unit]));
  }
  CHECK(same_loss == Approx(loss).epsilon(1e-12));
}

TEST_CASE("ranks that share sequences get the gradients of one rank", "[context]") {
  const std::string model = GENERATE("llama", "gpt2", "qwen3");
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  const int ranks = GENERATE(2, 4);
  const int64_t passes = GENERATE(1, 2);
  CAPTURE(model, kind, ranks, passes);
  EngineSettings settings = model_of(model, "fp32");
  settings.step.seq_length = settings.model.max_position_embeddings = passes == 1 ? 16 : 64;
  settings.step.gradient_accumulation_steps = passes;
  settings.step.decoder.recompute = passes == 2 ? Recompute::block : Recompute::none;
  const Results one = run(settings, 1, 1);
  const Results several = run(with(settings, ranks, kind), ranks, 1);
  CHECK(difference(one.gradients, several.gradients, 2e-6) == "");
  CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(1e-12));
  CHECK(several.norms[0] == Approx(one.norms[0]).epsilon(1e-6));
  CHECK(several.as_planned);
}

TEST_CASE("sharing sequences, reading others and accumulating give the same gradients",
          "[context]") {
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  const int ranks = GENERATE(2, 4);
  CAPTURE(kind, ranks);
  EngineSettings settings = llama("fp32");
  const Results data = run(settings, ranks, 1);
  settings.step.gradient_accumulation_steps = ranks;
  const Results one = run(settings, 1, 1);
  const Results context = run(with(settings, ranks, kind), ranks, 1);
  CHECK(difference(one.gradients, context.gradients, 2e-6) == "");
  CHECK(difference(data.gradients, context.gradients, 2e-6) == "");
  CHECK(context.norms[0] == Approx(data.norms[0]).epsilon(1e-6));
  CHECK(context.norms[0] == Approx(one.norms[0]).epsilon(1e-6));
}

TEST_CASE("a step's targets are divided by once where ranks share sequences", "[context]") {
  EngineSettings settings = llama("fp32");
  settings.counts_targets = true;
  settings.step.gradient_accumulation_steps = 2;
  const Results one = run(settings, 2, 1);
  const Results several = run(with(settings, 2), 4, 1);
  CHECK(difference(one.gradients, several.gradients, 2e-6) == "");
  CHECK(several.losses[0] == Approx(one.losses[0]).epsilon(1e-12));
  CHECK(several.norms[0] == Approx(one.norms[0]).epsilon(1e-6));
}

TEST_CASE("every plan trains on ranks that share sequences", "[context]") {
  const std::string plan = GENERATE(from_range(compared_plans()));
  CAPTURE(plan);
  EngineSettings settings = llama(plan);
  settings.step.micro_batch_size = 8;
  const Results one = run(settings, 1, 3);
  const Results several = run(with(settings, 2), 2, 3);
  CHECK(several.losses[2] == Approx(one.losses[2]).epsilon(0.01));
  CHECK(several.norms[0] == Approx(one.norms[0]).epsilon(0.1));
  CHECK(several.as_planned);
}

TEST_CASE("ranks that share sequences share the optimizer too, at each stage of ZeRO",
          "[context]") {
  const std::string plan = GENERATE("bf16", "te-delayed", "deepseek-v3", "msamp-o3", "fp8-lm");
  const int data = GENERATE(1, 2);
  CAPTURE(plan, data);
  EngineSettings settings = with(llama(plan), 2);
  settings.strategy.bucket_bytes = 65536;
  settings.step.gradient_accumulation_steps = 2;
  const Results whole = run(settings, 2 * data, 2);
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    settings.strategy.zero_stage = stage;
    const Results shared = run(settings, 2 * data, 2);
    CHECK(difference(whole.values, shared.values, 0) == "");
    CHECK(shared.losses == whole.losses);
    CHECK(shared.as_planned);
  }
}

TEST_CASE("ranks that share sequences share layers too, or are stages of a pipeline", "[context]") {
  const std::string plan = GENERATE("bf16", "te-delayed", "deepseek-v3");
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  CAPTURE(plan, kind);
  EngineSettings settings = model_of("qwen3", plan);
  settings.model.num_key_value_heads = 8;
  settings.model.intermediate_size = 768;
  settings.step.gradient_accumulation_steps = 2;
  settings.strategy.layout.tensor_parts = 2;
  settings = with(settings, 2, kind);
  const Results one = run(settings, 2, 2);
  for (const auto& [tensor, pipeline] : {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
    CAPTURE(tensor, pipeline);
    settings.strategy.layout.tensor = tensor;
    settings.strategy.layout.pipeline = pipeline;
    const Results several = run(settings, 2 * tensor * pipeline, 2);
    CHECK(difference(one.values, several.values, 0) == "");
    CHECK(several.losses == one.losses);
    CHECK(several.norms.back() == Approx(one.norms.back()).epsilon(1e-6));
    CHECK(several.as_planned);
  }
}

TEST_CASE("each exchange of ranks that share sequences is needed", "[context]") {
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  const std::string plan = GENERATE("bf16", "te-delayed");
  CAPTURE(kind, plan);
  EngineSettings settings = with(model_of("qwen3", plan), 2, kind);
  for (GemmPlan* gemm : {&settings.plan.fprop, &settings.plan.dgrad, &settings.plan.wgrad}) {
    gemm->a.delayed.reduction = gemm->b.delayed.reduction = AmaxReduction::none;
  }
  settings.model.num_hidden_layers = 1;
  CHECK(exchanges_not_needed(settings, false) == std::vector<std::string>());
}

TEST_CASE("a block sends the bytes of its formula between ranks that share sequences",
          "[context]") {
  const int ranks = GENERATE(2, 4);
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  CAPTURE(ranks, kind);
  EngineSettings settings = with(llama("bf16"), ranks, kind);
  const auto sent = [&](int64_t blocks) {
    settings.model.num_hidden_layers = blocks;
    const DryRunStep step = dry_run_step(settings, {}, Topology::blocks(ranks, ranks), 0);
    return static_cast<int64_t>(step.sent_by_layers.total());
  };
  const auto& model = settings.model;
  const int64_t keys = 2 * model.num_key_value_heads * model.head_dim;
  const int64_t queries = model.num_attention_heads * model.head_dim;
  // q, k, v and the output cross in bf16, forward and backward; or k and v twice, and their
  // gradients in fp32.
  const int64_t of_row =
      kind == ContextKind::heads ? 2 * 2 * (2 * queries + keys) : ranks * (2 * 2 + 4) * keys;
  CHECK(sent(3) - sent(2) == of_row * settings.rows_of_rank() * (ranks - 1) / ranks);
}

TEST_CASE("a number of ranks that cannot share sequences is refused with one that can",
          "[context]") {
  const auto refusal = [](EngineSettings settings) {
    std::string text;
    run_ranks(Topology::blocks(8, 8), [&](Communicator& comm) {
      try {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
        const Engine engine(*device, settings, &comm);
      } catch (const ConfigError& error) {
        if (comm.rank() == 0) {
          text = error.what();
        }
      }
    });
    return text;
  };
  CHECK(refusal(with(llama("bf16"), 8)) ==
        "parallelism.context is 8, which does not divide data.seq_length 16 and the 4 heads of "
        "keys that a rank has of each layer; the nearest size that does is 4, or take "
        "parallelism.context_kind: gather");
  EngineSettings odd = with(llama("bf16"), 4);
  odd.step.seq_length = 18;
  CHECK(refusal(odd) ==
        "parallelism.context is 4, which does not divide data.seq_length 18 and the 4 heads of "
        "keys that a rank has of each layer; the nearest size that does is 2, the nearest length "
        "20");
  EngineSettings settings = with(llama("bf16"), 8, ContextKind::gather);
  settings.step.seq_length = 24;
  CHECK(refusal(settings) ==
        "parallelism.context is 8, and data.seq_length 24 is not a multiple of twice as much; the "
        "nearest length that works is 32, the nearest size 6");
}
