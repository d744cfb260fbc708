#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "device/device_questions.h"
#include "model/families/family.h"
#include "model/lora.h"
#include "model/rotary.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/embedding.h"

namespace fp8train {
namespace {

/// The plan's roles are for the weights of layers that are not exempt.
ParameterFormats formats_of(const PrecisionPlan& plan, const LinearPlan& linear) {
  return linear.exempt_reason.empty() ? parameter_formats(plan) : ParameterFormats{};
}

/// Of a weight that has adapters, or could have.
ParameterFormats frozen_formats(const LoraSettings& lora) {
  if (!lora.has_codes()) {
    return {.value = lora.base};
  }
  // The bytes of codes, whatever they stand for: as e4m3 under a scale that stays 1.
  TensorFormat bytes = plain(DType::e4m3);
  bytes.policy = ScalePolicy::current;
  return {.value = bytes};
}

/// Values, gradients and moments of the head stay in fp32, also if its GEMMs have no scales; at
/// most there is a copy for them. An embedding that the head shares is read in fp32.
ParameterFormats head_formats(const ModelConfig& config, const PrecisionPlan& plan,
                              const LinearPlan& head) {
  if (config.lora.is_on() && !config.tie_word_embeddings && config.lora.base != TensorFormat{} &&
      plan.activation == DType::bf16) {
    return {.value = plain(DType::bf16)};  // frozen, and read by its product alone
  }
  return {.is_master = formats_of(plan, head).is_master};
}

}  // namespace

Decoder::Decoder(Device& device, const ModelConfig& config, const PrecisionPlan& plan,
                 const DecoderOptions& options)
    : device_(&device),
      config_(config),
      plan_(plan),
      part_(options.part.value_or(ModelPart{{{0, config.num_hidden_layers}}})),
      tensor_(options.tensor),
      keeps_block_inputs_(!encodes_residuals() || options.settings.recompute == Recompute::block) {
  check(config_.vocab_size > 0, "the vocabulary is known before a model is built");
  if (config_.head_dim > device.traits().max_head_dim) {
    throw ConfigError(fmt::format(
        "model.head_dim {} is longer than the {} that attention has kernels for on this device; "
        "take more and shorter heads, or device: cpu (up to {})",
        config_.head_dim, device.traits().max_head_dim, ops::kMaxHeadDim));
  }
  linear_plans_ = plan_linears(plan_, linear_sites(config_));
  for (size_t i = 0; i < linear_plans_.size(); ++i) {
    linear_index_.emplace(linear_plans_[i].site.name, i);
  }
  check_tensor_share(config_, linear_plans_, tensor_);
  if (!part_.is_whole()) {
    scaling_.separate_passes();
  }
  parameters_.begin_unit();
  set_present(part_.embeds || (part_.has_head && tied()));
  embedding_ = parameters_.add({.name = "embedding.weight",
                                .used_rows = config_.vocab_size,
                                .sharding = vocabulary(),
                                .init_std = config_.initializer_range});
  embedding_->counts_in_norm = part_.embeds;
  // The embedding is read in fp32. If the head shares it, it is the master of the head's copy.
  if (tied()) {
    embedding_->formats = head_formats(config_, plan_, linear_plans_.back());
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
  blocks_.reserve(static_cast<size_t>(config_.num_hidden_layers));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    const size_t chunk = part_.chunk_of(i);
    const bool is_present = chunk < part_.chunks.size();
    set_present(is_present);
    scaling_.set_chunk(static_cast<int>(chunk));
    if (is_present) {
      parameters_.begin_unit();
    }
    add_block(i, options.settings.recompute);
    if (!is_present) {
      blocks_.pop_back();
    }
  }
  parameters_.begin_unit();
  add_head(options);
  for (const auto& parameter : parameters_.all()) {
    // All ranks of the tensor axis have what is not cut.
    parameter->counts_in_norm =
        parameter->counts_in_norm && (tensor_.rank == 0 || parameter->sharding.cut);
  }
  freeze(options.settings.frozen);
  allocate(options);
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
                                   .formats = head_formats(config_, plan_, linear_plans_.back()),
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

Sharding Decoder::sharding_of(const Shape& whole, Split split,
                              std::span<const int64_t> pieces) const {
  Sharding all = whole_of(whole, parameters_.next_index());
  if (split == Split::none || tensor_.ranks == 1) {
    return all;
  }
  return split == Split::columns ? rows_of_pieces(all, pieces, tensor_.rank, tensor_.ranks)
                                 : columns_of(all, tensor_.rank, tensor_.ranks);
}

/// The rows of the embedding and of the head.
Sharding Decoder::vocabulary() const {
  const int64_t rows = padded_vocabulary(config_, tensor_.divisor());
  return sharding_of({rows, config_.hidden_size}, Split::columns, std::array{rows});
}

/// Returns the parameter of a norm's gain or of a bias, of which each rank has all.
Parameter Decoder::vector_of(const std::string& name, int64_t size, Init init, bool partial) const {
  Sharding all = sharding_of({size}, Split::none, {});
  all.partial = partial;
  return {
      .name = name, .sharding = std::move(all), .decay = false, .init = init, .overwritten = true};
}

Norm Decoder::make_norm(const std::string& name, const SavedFormat& input) {
  const bool centered = config_.norm == NormKind::layer_norm;
  Parameter* weight =
      parameters_.add(vector_of(name + ".weight", config_.hidden_size, Init::ones, true));
  Parameter* bias = nullptr;
  if (centered && config_.norm_bias) {
    bias = parameters_.add(vector_of(name + ".bias", config_.hidden_size, Init::zeros, true));
  }
  return {weight, bias, centered, config_.norm_eps, input};
}

Linear Decoder::make_linear(const std::string& name) {
  const auto found = linear_index_.find(name);
  check(found != linear_index_.end(), "a block's linear is one of the model's sites");
  const LinearSite& whole = linear_plans_[found->second].site;
  LinearPlan plan = linear_plans_[found->second];
  plan.site = whole.of_rank(tensor_.ranks);
  const std::vector<int64_t> pieces = whole.pieces();
  Parameter* weight = parameters_.add(
      {.name = name + ".weight",
       .sharding = sharding_of({whole.out_features, whole.in_features}, whole.split, pieces),
       .matrices = plan.site.matrices,
       .init_std = plan.site.ends_branch ? config_.family->residual_init_std(config_)
                                         : config_.initializer_range,
       .formats = config_.lora.is_on() ? frozen_formats(config_.lora) : formats_of(plan_, plan),
       .gathered = {.form = GatheredForm::operands},
       .overwritten = true});
  Parameter* offset = nullptr;
  if (plan.site.has_bias) {
    const bool summed = whole.split == Split::rows;  // y is, and the bias is behind the sum
    Parameter bias = vector_of(name + ".bias", whole.out_features, Init::zeros, summed);
    if (!summed) {
      bias.sharding = sharding_of({whole.out_features}, whole.split, pieces);
    }
    offset = parameters_.add(std::move(bias));
  }
  Linear linear(plan, weight, offset, scaling_);
  if (config_.lora.has_codes()) {
    linear.weight().set_codes(add_scales(whole), config_.lora.base);
  }
  add_adapters(whole, plan, linear);
  return linear;
}

/// Whether every linear layer of a block is exempt.
bool Decoder::is_exempt(int64_t block) const {
  return std::all_of(linear_plans_.begin(), linear_plans_.end(), [&](const LinearPlan& linear) {
    return linear.site.block != block || !linear.exempt_reason.empty();
  });
}

void Decoder::add_block(int64_t index, Recompute recompute) {
  const std::string layer = fmt::format("layers.{}.", index);
  const auto head_norm = [&](const char* name) -> Parameter* {
    return config_.qk_norm
               ? parameters_.add(vector_of(layer + name, config_.head_dim, Init::ones, true))
               : nullptr;
  };
  const bool exempt = is_exempt(index);
  const auto saved_input = [&](const TensorFormat& format) {
    SavedFormat input = saved_format(plan_, format);
    input.in_training = input.in_training && !exempt;
    input.in_evaluation = input.in_evaluation && !exempt;
    return input;
  };
  const Norm attention_norm = make_norm(layer + "attention_norm", saved_input(plan_.saved_norm));
  Linear qkv = make_linear(layer + "attention.qkv");
  Parameter* q_norm = head_norm("attention.q_norm.weight");
  Parameter* k_norm = head_norm("attention.k_norm.weight");
  Linear output = make_linear(layer + "attention.output");
  Attention attention({config_.num_attention_heads / tensor_.ranks,
                       config_.num_key_value_heads / tensor_.ranks, config_.head_dim},
                      std::move(qkv), std::move(output), {q_norm, k_norm, config_.norm_eps},
                      rotary_);
  const Norm mlp_norm = make_norm(layer + "mlp_norm", saved_input(plan_.saved_norm));
  Linear up = make_linear(layer + "mlp.up");
  Linear down = make_linear(layer + "mlp.down");
  blocks_.emplace_back(
      attention_norm, std::move(attention), mlp_norm,
      Mlp(config_.mlp, std::move(up), std::move(down), saved_input(plan_.saved_nonlinear)),
      recompute == Recompute::block, encodes_residuals());
}

void Decoder::allocate(const DecoderOptions& options) {
  parameters_.allocate(*device_, options.gradients, options.sharing);
  scaling_.allocate(*device_);
  for (size_t unit = 0; unit < units(); ++unit) {
    for_each_linear(unit, [&](Linear& linear) { linear.weight().allocate(*device_, parameters_); });
  }
  if (config_.positions == PositionKind::rope) {
    fill_rotary_tables();
  }
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
      .document_starts = context.document_starts};
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
                         std::vector<KvCache>* caches) {
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
    blocks_[unit - 1].forward(context, stream, y, pass.tokens.shape[0],
                              caches == nullptr ? nullptr : &(*caches)[unit - 1],
                              pass.saved[unit - first]);
    if (context.watch != nullptr) {
      ops::add(context.stream, stream.x, stream.branch, stream.sum);
      stream = {.x = stream.sum, .branch = stream.branch, .sum = {}};
      context.watch->made(unit, stream.x);
    }
    spare = input;
  }
}

}  // namespace fp8train
