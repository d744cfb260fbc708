// Attention of ranks that share sequences: the bits of one rank in the gradients of q, k and v, and
// the deal of the chunks of packed documents.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "nn/attention.h"
#include "numeric/convert.h"
#include "ops/pointwise/elementwise.h"
#include "parallel/tensor_ranks.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

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
  EngineSettings settings = llama(plan);
  settings.strategy.layout.context = ranks;
  settings.strategy.layout.context_kind = kind;
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
