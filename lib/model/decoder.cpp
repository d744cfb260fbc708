#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/key_error.h"
#include "device/device_questions.h"
#include "model/families/family.h"
#include "model/lora.h"
#include "model/rotary.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/embedding.h"

namespace fp8train {
namespace {

/// The conditions of cuDNN 9.19 (NVIDIA/cudnn-frontend, 3929da2, include/cudnn_frontend/node:
/// sdpa_support_surface.h and sdpa_fp8_bwd.h), which has it from compute capability 9.0 on, where
/// products with scales of rows begin.
void check_attention(const DeviceTraits& traits, int64_t head_dim, const AttentionPlan& formats) {
  if (!traits.fp8_gemm_by_library || formats.gemms() == Fp8Attention::none) {
    return;
  }
  const bool is_hopper = traits.fp8_products.has(ScalePair::row);
  const int64_t longest = is_hopper ? 256 : 128;
  const char* why = nullptr;
  if (!is_hopper && !traits.fp8_products.has(ScalePair::block_1x32)) {
    why = "GPUs below compute capability 9.0 have no attention in FP8";
  } else if (is_hopper && !formats.out.is_scaled()) {
    why = "with current scaling it takes a GPU of compute capability 10.0; take delayed scaling";
  } else if (is_hopper && formats.gemms() == Fp8Attention::both && head_dim != 128) {
    why = "its backward pass takes heads of 128 on this GPU; take fp8.attention: forward";
  } else if (head_dim % 16 != 0 || head_dim > longest) {
    why = is_hopper ? "it takes heads of a multiple of 16 up to 256"
                    : "it takes heads of a multiple of 16 up to 128";
  }
  if (why != nullptr) {
    throw Keyed<DeviceError>("fp8.attention", fmt::format(": {}; or remove the key", why));
  }
}

}  // namespace

Decoder::Decoder(Device& device, const ModelConfig& config, const PrecisionPlan& plan,
                 const DecoderOptions& options)
    : device_(&device),
      config_(config),
      plan_(plan),
      part_(options.part.value_or(ModelPart{{{0, config.num_hidden_layers}}})),
      tensor_(options.tensor),
      experts_(options.experts),
      keeps_block_inputs_(!encodes_residuals() || options.settings.recompute == Recompute::block ||
                          options.settings.recompute == Recompute::attention) {
  check(config_.vocab_size > 0, "the vocabulary is known before a model is built");
  if (config_.head_dim > device.traits().max_head_dim) {
    throw KeyError("model.head_dim",
                   fmt::format(" {} is longer than the {} that attention has kernels for on this "
                               "device; take more and shorter heads, or device: cpu (up to {})",
                               config_.head_dim, device.traits().max_head_dim, ops::kMaxHeadDim));
  }
  check_attention(device.traits(), config_.head_dim, plan_.attention);
  linear_plans_ = plan_linears(plan_, linear_sites(config_));
  for (size_t i = 0; i < linear_plans_.size(); ++i) {
    linear_index_.emplace(linear_plans_[i].site.name, i);
  }
  check_tensor_share(config_, linear_plans_, tensor_);
  if (experts_.ranks > 1) {
    check_equal_experts(linear_plans_);
  }
  if (!part_.is_whole()) {
    scaling_.separate_passes();
  }
  add_embeddings();
  blocks_.reserve(static_cast<size_t>(config_.num_hidden_layers));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const size_t chunk = part_.chunk_of(i);
    const bool is_present = chunk < part_.chunks.size();
    set_present(is_present);
    scaling_.set_chunk(static_cast<int>(chunk));
    if (is_present) {
      parameters_.begin_unit();
    }
    add_block(i, options.settings);
    if (!is_present) {
      blocks_.pop_back();
    }
  }
  parameters_.begin_unit();
  add_head(options);
  for (const auto& parameter : parameters_.all()) {
    parameter->offloads = options.offloads;
    // All ranks of the tensor axis have what is not cut.
    const bool is_first = tensor_.rank == 0 || parameter->sharding.cut;
    parameter->counts_in_norm =
        parameter->counts_in_norm &&
        (parameter->of_experts() ? experts_.counts_experts : experts_.counts_others && is_first);
  }
  freeze(options.settings.frozen);
  const size_t first = std::max<size_t>(first_trained_, 1);
  if (options.settings.offloads_saved && !part_.is_whole()) {
    throw KeyError("offload.activations",
                   " has no implementation for parallelism.pipeline above 1; take model.recompute");
  }
  if (options.settings.offloads_saved && options.gradients && first <= blocks_.size()) {
    offload_ = std::make_unique<SavedOffload>(device, blocks_.size() + 1 - first);
  }
  allocate(options);
}

void Decoder::add_embeddings() {
  parameters_.begin_unit();
  set_present(part_.embeds || (part_.has_head && tied()));
  embedding_ = parameters_.add({.name = "embedding.weight",
                                .used_rows = config_.vocab_size,
                                .sharding = vocabulary(),
                                .init_std = config_.initializer_range});
  embedding_->counts_in_norm = part_.embeds;
  // The embedding is read in fp32. If the head shares it, it is the master of the head's copy.
  if (tied()) {
    embedding_->formats = head_formats();
  }
  set_present(part_.embeds);
  if (config_.positions == PositionKind::learned) {
    Sharding all =
        sharding_of({config_.max_position_embeddings, config_.hidden_size}, Split::none, {});
    all.partial = true;
    positions_ = parameters_.add({.name = "positions.weight",
                                  .sharding = std::move(all),
                                  .init_std = config_.initializer_range});
  }
}

void Decoder::add_head(const DecoderOptions& options) {
  set_present(part_.has_head);
  // Forward reads codes in the blocks only; the norm after them reads the residual stream, which
  // stays alive until its backward pass.
  final_norm_ = std::make_unique<Norm>(
      make_norm("final_norm",
                plan_.forward_reads_saved ? SavedFormat{plain(plan_.activation)} : norm_input()));
  const int64_t rows = embedding_->sharding.whole[0];
  Parameter* head_weight = embedding_;
  if (!config_.tie_word_embeddings) {
    head_weight = parameters_.add({.name = "head.weight",
                                   .used_rows = config_.vocab_size,
                                   .sharding = vocabulary(),
                                   .init_std = config_.initializer_range,
                                   .formats = head_formats(),
                                   .gathered = {.form = GatheredForm::operands},
                                   .overwritten = true});
  }
  const int64_t chunk_rows =
      options.settings.head_chunk_rows > 0
          ? options.settings.head_chunk_rows
          : head_chunk_rows(device_->traits().memory, rows, plan_.activation);
  scaling_.set_pass(ScalingPass::backward);  // which runs the head, forward and backward
  LinearPlan head = linear_plans_.back();
  head.site.out_features = rows;
  head.site = head.site.of_rank(tensor_.ranks);
  head_ = std::make_unique<Head>(Linear(head, head_weight, nullptr, scaling_), config_.vocab_size,
                                 chunk_rows, static_cast<float>(options.settings.z_loss));
  if (!part_.has_head) {
    final_norm_.reset();
    head_.reset();
  }
}

void Decoder::allocate_loads(bool trains, bool has_losses) {
  const int64_t layers =
      std::ranges::count_if(blocks_, [](Block& block) { return block.moe() != nullptr; });
  if (layers == 0) {
    return;
  }
  const auto allocate = [&](Tensor& loads) {
    loads = Tensor(*device_, DType::i64, {layers, config_.moe.experts + 1}, MemoryCategory::batch);
    fill_zero(*device_, loads);
  };
  allocate(evaluation_loads_);
  if (trains) {
    allocate(loads_);
  }
  if (trains && has_losses) {
    router_losses_ = Buffer(*device_, 2 * sizeof(double), MemoryCategory::batch);
    device_->fill_zero(router_losses_.data(), router_losses_.bytes());
  }
  int64_t layer = 0;
  const auto of_layer = [&](const View& loads) {
    return loads.empty() ? View() : reshaped(rows_of(loads, layer, 1), {loads.shape.back()});
  };
  for (Block& block : blocks_) {
    if (block.moe() != nullptr) {
      block.moe()->set_loads(of_layer(loads_.view()), of_layer(evaluation_loads_.view()));
      block.moe()->set_losses(router_losses());
      ++layer;
    }
  }
}

void Decoder::allocate(const DecoderOptions& options) {
  parameters_.allocate(*device_, options.gradients, options.sharing);
  if (parameters_.owners() != nullptr && experts_.ranks > 1) {
    for (const auto& parameter : parameters_.all()) {  // each rank counts what it updates
      parameter->counts_in_norm = parameter->counts_in_norm && !parameter->updated.elsewhere();
    }
  }
  scaling_.allocate(*device_);
  for (size_t unit = 0; unit < units(); ++unit) {
    for_each_linear(unit, [&](Linear& linear) {
      linear.weight().allocate(*device_, parameters_, options.gradients, unit >= first_trained_);
    });
  }
  if (config_.positions == PositionKind::rope) {
    fill_rotary_tables();
  }
  allocate_loads(options.gradients, options.settings.moe.has_losses());
}

void Decoder::fill_rotary_tables() {
  const int64_t positions = config_.max_position_embeddings;
  const std::vector<double> frequencies = rotary_frequencies(config_);
  const double factor = rotary_attention_factor(config_);
  const Shape shape = {positions, static_cast<int64_t>(frequencies.size())};
  cosines_ = Tensor(*device_, DType::f32, shape, MemoryCategory::weights);
  sines_ = Tensor(*device_, DType::f32, shape, MemoryCategory::weights);
  if (!counts_only(*device_)) {
    std::vector<float> cosines;
    std::vector<float> sines;
    for (int64_t t = 0; t < positions; ++t) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(t) * frequency;
        cosines.push_back(static_cast<float>(factor * std::cos(angle)));
        sines.push_back(static_cast<float>(factor * std::sin(angle)));
      }
    }
    copy_from_host(*device_, cosines_, cosines.data());
    copy_from_host(*device_, sines_, sines.data());
  }
  rotary_ = {cosines_, sines_};
}

std::pair<size_t, size_t> Decoder::units_of(int chunk) const {
  size_t first = 1;
  for (int before = 0;; ++before) {
    const auto& [begin, end] = part_.chunks[static_cast<size_t>(before)];
    const size_t next = first + static_cast<size_t>(end - begin);
    if (before == chunk) {
      return {first, next};
    }
    first = next;
  }
}

std::pair<SavedOffload*, size_t> Decoder::offload_of(const StepContext& context,
                                                     size_t unit) const {
  const size_t first = std::max<size_t>(first_trained_, 1);
  const bool moves = offload_ != nullptr && context.training && unit >= first;
  return {moves ? offload_.get() : nullptr, moves ? unit - first : 0};
}

/// Begins a pass over the model.
StepContext Decoder::begin_pass(StepContext context, ScalingPass pass, int chunk) const {
  scaling_.begin_pass(context.stream, pass, chunk);
  context.amax_is_clear = true;
  return context;
}

View Decoder::embed(const StepContext& context, ConstView tokens, int64_t first_position,
                    Arena& arena) {
  use(context, 0, 1);
  const int64_t rows = context.own_rows(tokens.count());
  const View x = fp8train::allocate(arena, plan_.activation, {rows, config_.hidden_size});
  ops::EmbeddingForward call = {
      .tokens = reshaped(tokens, {tokens.count()}),
      .table = embedding_->value,
      .positions = positions_ == nullptr ? ConstView{} : ConstView(positions_->value),
      .sequence_length = tokens.shape.back(),
      .position_offset = first_position,
      .y = x,
      .document_starts = context.starts_of_rows()};
  if (context.tensor_ranks == nullptr) {
    ops::embedding_forward(context.stream, call);
  } else {
    embed_over_ranks(context, call);
  }
  if (context.watch != nullptr) {
    context.watch->made(0, x);
  }
  return x;
}

/// Each token's row is in one rank's part of the table; positions are added to this rank's rows of
/// the sum.
void Decoder::embed_over_ranks(const StepContext& context, ops::EmbeddingForward call) const {
  ArenaScope scope(*context.scratch);
  const View own = call.y;
  const DType type = positions_ == nullptr ? context.partial_type(own.dtype) : DType::f32;
  const auto memory = [&](int64_t rows) {
    return fp8train::allocate(*context.scratch, type, {rows, config_.hidden_size});
  };
  const View sum = positions_ == nullptr ? own : memory(own.shape.rows());
  ops::EmbeddingForward of_part = call;
  of_part.positions = {};
  of_part.y = memory(call.tokens.count());
  of_part.first_token = embedding_->sharding.runs.front().begin;
  of_part.vocabulary = embedding_->sharding.whole[0];
  ops::embedding_forward(context.stream, of_part);
  context.tensor_ranks->sum_rows(context, of_part.y, sum);
  if (positions_ != nullptr) {
    call.tokens = {};
    call.table = sum;
    const bool shares_rows = own.shape.rows() < of_part.y.shape.rows();
    call.first_row = shares_rows ? own.shape.rows() * context.tensor_ranks->rank() : 0;
    ops::embedding_forward(context.stream, call);
  }
}

void Decoder::run_blocks(const StepContext& context, Residual& stream, MicroBatchPass& pass,
                         std::span<const KvCache> caches) {
  const auto batch = static_cast<size_t>(pass.tokens.shape[0]);
  const auto [first, end] = units_of(pass.chunk);
  pass.saved.resize(end - first);
  // If backward reads every block's input, all of them stay alive; otherwise two buffers alternate.
  const bool stored = context.training && keeps_block_inputs_;
  View spare;
  for (size_t unit = first; unit < end; ++unit) {
    const View input = stream.value();
    View y;
    if (stored) {
      y = fp8train::allocate(*context.saved, input.dtype, input.shape);
    } else {
      y = spare.empty() ? fp8train::allocate(*context.scratch, input.dtype, input.shape) : spare;
    }
    use(context, unit, unit + 1);
    StepContext of_block = context;
    const auto [offload, number] = offload_of(context, unit);
    if (offload != nullptr) {
      of_block.saved = &offload->begin_forward(context.stream, number);
    }
    blocks_[unit - 1].forward(of_block, stream, y, pass.tokens.shape[0],
                              caches.empty() ? caches : caches.subspan((unit - 1) * batch, batch),
                              pass.saved[unit - first]);
    if (offload != nullptr) {
      offload->end_forward(context.stream, number);
    }
    if (context.watch != nullptr) {
      ops::add(context.stream, stream.x, stream.branch, stream.sum);
      stream = {.x = stream.sum, .branch = stream.branch, .sum = {}};
      context.watch->made(unit, stream.x);
    }
    spare = input;
  }
}

}  // namespace fp8train
