// Ranks that share sequences compute what one rank does: all bits of the forward pass, and
// gradients but for the order in which those of positions are added.

#include <catch2/catch.hpp>

#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <tuple>

#include "base/philox.h"
#include "nn/attention.h"
#include "numeric/convert.h"
#include "ops/pointwise/elementwise.h"
#include "parallel/tensor_ranks.h"
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

/// An attention whose projections change nothing: the gradient of its input is that of q, k and v.
struct BareAttention {
  static constexpr Attention::Dimensions kHeads = {.heads = 8, .kv_heads = 4, .head_dim = 32};

  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  RotaryTables rotary;
  std::optional<Attention> layer;

  explicit BareAttention(const std::string& plan) {
    const int64_t widths[] = {kHeads.qkv_width(), kHeads.heads * kHeads.head_dim};
    std::vector<Linear> linears;
    std::vector<Parameter*> weights;
    for (const int64_t width : widths) {
      weights.push_back(store.add({.name = std::to_string(width), .shape = {width, width}}));
      const LinearSite site = {
          .name = "layer", .in_features = width, .out_features = width, .block = 0};
      linears.emplace_back(plan_linears(plan_named(plan), {site}).front(), weights.back(), nullptr,
                           scaling);
    }
    store.allocate(*device);
    scaling.allocate(*device);
    layer.emplace(kHeads, std::move(linears[0]), std::move(linears[1]), Attention::HeadNorms{},
                  rotary);
    saved.reserve(size_t{1} << 27);
    scratch.reserve(size_t{1} << 27);
    for (const Parameter* weight : weights) {
      for (int64_t i = 0; i < weight->shape[0]; ++i) {
        weight->value.as<float>()[i * (weight->shape[0] + 1)] = 1.0F;
      }
    }
    layer->for_each_linear([&](Linear& linear) {
      linear.weight().allocate(*device, store);
      linear.weight().refresh(context(), LinearWeight::Refresh::all);
    });
  }

  StepContext context() {
    return {
        .device = device.get(), .stream = device->stream(), .saved = &saved, .scratch = &scratch};
  }
};

/// fp32 [B, T, (H + 2 Hkv) D] in the order of positions; `starts`: [B, T], or none.
std::vector<float> gradients_of_attention(const EngineSettings& settings, int ranks,
                                          const std::vector<int32_t>& starts) {
  const int64_t rows = settings.step.micro_batch_size;
  const int64_t length = settings.step.seq_length;
  const int64_t of_rank = length / ranks;
  Batch batch = random_batch(0, rows, length);
  batch.document_starts = starts;
  const ChunkDeal deal = ranks == 1 ? deal_in_order(1) : deal_chunks(settings, batch);
  constexpr auto kHeads = BareAttention::kHeads;
  std::vector<float> whole(static_cast<size_t>(rows * length * kHeads.qkv_width()));
  std::mutex mutex;
  const auto body = [&](Communicator* comm) {
    const int rank = comm == nullptr ? 0 : comm->rank();
    BareAttention attention(settings.plan.name);
    std::optional<TensorRanks> context_ranks;
    StepContext context = attention.context();
    if (comm != nullptr) {
      context.context_ranks = &context_ranks.emplace(*comm);
      context.chunks =
          settings.strategy.layout.context_kind == ContextKind::gather ? &deal : nullptr;
    }
    if (!starts.empty()) {
      context.document_starts = {starts.data(), DType::i32, {rows, length}};
    }
    const auto for_each_row = [&](const auto& visit) {
      for (int64_t row = 0; row < rows * of_rank; ++row) {
        visit(row, row / of_rank * length + deal.position(row % of_rank, of_rank, rank));
      }
    };
    const auto random_rows = [&](int64_t width, uint64_t stream) {
      const Tensor values(*attention.device, DType::f32, {rows * of_rank, width},
                          MemoryCategory::workspace);
      for_each_row([&](int64_t row, int64_t of_whole) {
        for (int64_t i = 0; i < width; ++i) {
          const auto element = static_cast<uint64_t>(of_whole * width + i);
          values.view().as<float>()[row * width + i] =
              2.0F * uniform_from_bits(philox(stream, 0, element).word[0]) - 1.0F;
        }
      });
      const View typed = allocate(attention.scratch, settings.plan.activation, values.view().shape);
      ops::cast(context.stream, values, typed);
      return typed;
    };
    const View x = random_rows(kHeads.qkv_width(), 1);
    const View dy = random_rows(kHeads.heads * kHeads.head_dim, 2);
    const View y = allocate(attention.scratch, dy.dtype, dy.shape);
    const View dx = allocate(attention.scratch, x.dtype, x.shape);
    Attention::Saved saved;
    attention.layer->forward(context, x, y, rows, {}, saved);
    attention.layer->backward(context, dy, dx, rows, saved);
    const Tensor wide(*attention.device, DType::f32, x.shape, MemoryCategory::workspace);
    ops::cast(context.stream, dx, wide);
    const std::lock_guard lock(mutex);
    for_each_row([&](int64_t row, int64_t of_whole) {
      std::copy_n(wide.view().as<float>() + row * kHeads.qkv_width(), kHeads.qkv_width(),
                  whole.begin() + of_whole * kHeads.qkv_width());
    });
  };
  if (ranks == 1) {
    body(nullptr);
    return whole;
  }
  const std::vector<std::string> errors =
      run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) { body(&comm); });
  CHECK(errors == std::vector<std::string>(errors.size()));
  return whole;
}

/// The columns of q, or those of k and v, of such gradients.
std::vector<float> part_of_gradients(const std::vector<float>& all, bool of_queries) {
  const int64_t width = BareAttention::kHeads.qkv_width();
  const int64_t of_q = BareAttention::kHeads.heads * BareAttention::kHeads.head_dim;
  std::vector<float> part;
  for (size_t i = 0; i < all.size(); ++i) {
    if ((static_cast<int64_t>(i) % width < of_q) == of_queries) {
      part.push_back(all[i]);
    }
  }
  return part;
}

}  // namespace

TEST_CASE("ranks that share sequences have the bits of one in the gradients of q, k and v",
          "[context]") {
  const std::string plan = GENERATE("fp32", "bf16");
  const ContextKind kind = GENERATE(ContextKind::heads, ContextKind::gather);
  const int ranks = GENERATE(2, 4);
  const int64_t chunks = GENERATE(1, 3);
  const bool masks = GENERATE(false, true);
  CAPTURE(plan, kind, ranks, chunks, masks);
  EngineSettings settings = with(llama(plan), ranks, kind);
  settings.step.micro_batch_size = 2;
  settings.step.seq_length = 2 * ranks * 64 * chunks;
  std::vector<int32_t> starts;
  for (int64_t i = 0; masks && i < 2 * settings.step.seq_length; ++i) {
    const int64_t position = i % settings.step.seq_length;
    starts.push_back(i < settings.step.seq_length ? document_start(position)
                                                  : static_cast<int32_t>(position / 50 * 50));
  }
  const std::vector<float> one = gradients_of_attention(settings, 1, starts);
  const std::vector<float> several = gradients_of_attention(settings, ranks, starts);
  CHECK(same_bits(part_of_gradients(one, true), part_of_gradients(several, true)));
  const Wholes keys = {{"k and v", part_of_gradients(one, false)}};
  const Wholes of_ranks = {{"k and v", part_of_gradients(several, false)}};
  CHECK(norm_of(keys.at("k and v")) > 1);
  const double tolerance = kind == ContextKind::heads ? 0 : plan == "fp32" ? 2e-6 : 2e-3;
  CHECK(difference(keys, of_ranks, tolerance) == "");
}

TEST_CASE("documents are dealt to ranks by the pairs that they see", "[context]") {
  const int64_t ranks = GENERATE(2, 4, 8);
  const int64_t length = GENERATE(256, 1024);
  CAPTURE(ranks, length);
  for (uint64_t batch = 0; batch < 20; ++batch) {
    // Lengths of documents are uniform in their logarithm, from 1 to the whole sequence.
    std::vector<int32_t> starts;
    for (uint64_t draw = 0; std::ssize(starts) < 2 * length; ++draw) {
      const auto at = static_cast<int32_t>(std::ssize(starts) % length);
      const double size =
          std::pow(static_cast<double>(length), uniform_from_bits(philox(batch, 0, draw).word[0]));
      const int64_t count = std::min(static_cast<int64_t>(size), length - at);
      starts.insert(starts.end(), static_cast<size_t>(std::max<int64_t>(count, 1)), at);
    }
    const ChunkDeal deal = deal_documents(starts, length, ranks);
    REQUIRE(deal.per_rank == 8);
    std::vector<int64_t> seen(static_cast<size_t>(ranks)), positions;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t t = 0; t < length / ranks; ++t) {
        const int64_t position = deal.position(t, length / ranks, rank);
        positions.push_back(position);
        CHECK((t == 0 || position > positions[positions.size() - 2]));
        for (const int64_t at : {position, length + position}) {
          seen[static_cast<size_t>(rank)] += position + 1 - starts[static_cast<size_t>(at)];
        }
      }
    }
    std::ranges::sort(positions);
    std::vector<int64_t> all(static_cast<size_t>(length));
    std::iota(all.begin(), all.end(), int64_t{0});
    CHECK(positions == all);
    const auto sum = static_cast<double>(std::accumulate(seen.begin(), seen.end(), int64_t{0}));
    CHECK(static_cast<double>(std::ranges::max(seen)) * static_cast<double>(ranks) <= 1.1 * sum);
  }
  CHECK(deal_documents(std::vector<int32_t>(24), 24, 4).per_rank == 2);
}

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
