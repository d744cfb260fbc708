#include "nn/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "nn/context_exchange.h"
#include "nn/partial_gradient.h"
#include "ops/attention/copy_rows.h"
#include "ops/norm/norm.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {
namespace {

/// Whether ranks swap rows for heads around attention.
bool swaps(const StepContext& context) {
  return context.context_ranks != nullptr && context.chunks == nullptr;
}

bool gathers(const StepContext& context) {
  return context.context_ranks != nullptr && context.chunks != nullptr;
}

/// Queries of a rank that follow each other in the sequence.
struct Chunk {
  int64_t first, count;  ///< of the rank's rows
  int64_t position;      ///< keys before the first one
};

std::vector<Chunk> chunks(const StepContext& context, int64_t length, int64_t past) {
  if (!gathers(context)) {
    return {{0, length, past}};
  }
  std::vector<Chunk> all;
  const int64_t count = length / context.chunks->per_rank;
  for (int64_t i = 0; i < context.chunks->per_rank; ++i) {
    all.push_back({i * count, count, context.chunks->at(context.context_ranks->rank(), i) * count});
  }
  return all;
}

/// The rows of each sequence from `first` on.
ops::HeadsView rows_from(ops::HeadsView view, int64_t first) {
  view.data = static_cast<char*>(view.data) +
              static_cast<size_t>(first * view.row_stride) * size_of(view.dtype);
  return view;
}

/// log_sum_exp, [B, H, T], is in the order of chunks.
View of_chunk(const View& log_sum_exp, const Chunk& chunk) {
  const int64_t heads = log_sum_exp.shape[0] * log_sum_exp.shape[1];
  return {log_sum_exp.as<float>() + heads * chunk.first,
          DType::f32,
          {log_sum_exp.shape[0], log_sum_exp.shape[1], chunk.count}};
}

/// A tensor with one scale, which one GEMM reads.
QuantizedInput one_way(ScalingState& scaling, const std::string& layer, const char* name,
                       const TensorFormat& format) {
  return {scaling,
          layer,
          {.name = name, .format = format, .other = format, .cut = {Cut::columns, {}}},
          {}};
}

ops::KernelCodes in_kernel(const StepContext& context, const ScalingSlot& slot) {
  return {slot.format.dtype, slot.scale, slot.scale_inv, context.training ? slot.amax : nullptr};
}

}  // namespace

AttentionScaling::AttentionScaling(const AttentionPlan& plan, const std::string& layer,
                                   bool in_evaluation, ScalingState& scaling)
    : qkv(scaling, layer,
          {.name = "qkv", .format = plan.qkv, .other = plan.qkv, .cut = {Cut::columns, {}}}, {},
          in_evaluation),
      out(one_way(scaling, layer, "out", plan.out)),
      dout(one_way(scaling, layer, "dout", plan.dout)),
      dqkv(one_way(scaling, layer, "dqkv", plan.dqkv)),
      probabilities(scaling.add(layer, "p", plan.probabilities)),
      dscores(plan.dscores.is_scaled() ? scaling.add(layer, "ds", plan.dscores) : nullptr) {}

Attention::Attention(Dimensions dimensions, Linear qkv, Linear output, HeadNorms norms,
                     const RotaryTables& rotary, std::optional<AttentionScaling> scaling)
    : dimensions_(dimensions),
      qkv_(std::move(qkv)),
      output_(std::move(output)),
      norms_(norms),
      rotary_(&rotary),
      scaling_(std::move(scaling)) {}

Attention::Dimensions Attention::swapped(const StepContext& context) const {
  const int64_t ranks = swaps(context) ? context.context_ranks->ranks() : 1;
  return {dimensions_.heads / ranks, dimensions_.kv_heads / ranks, dimensions_.head_dim};
}

ops::AttentionShape Attention::shape(const Dimensions& heads, int64_t batch, int64_t queries,
                                     int64_t keys) const {
  return {.batch = batch,
          .query_length = queries,
          .key_length = keys,
          .heads = heads.heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .scale = 1.0F / std::sqrt(static_cast<float>(dimensions_.head_dim))};
}

ops::HeadsView Attention::slice(const View& projected, int64_t first_head, int64_t length) const {
  const size_t offset =
      static_cast<size_t>(first_head * dimensions_.head_dim) * size_of(projected.dtype);
  return {.data = projected.empty() ? nullptr : static_cast<char*>(projected.data) + offset,
          .dtype = projected.dtype,
          .row_stride = projected.shape.back(),
          .length_capacity = length};
}

/// Some heads of all positions, as rows of NormRows.
View Attention::heads_of(const View& projected, int64_t first_head, int64_t heads) const {
  const int64_t rows = projected.shape.rows();
  return {slice(projected, first_head, rows).data,
          projected.dtype,
          {rows * heads, dimensions_.head_dim}};
}

void Attention::rotate(const StepContext& context, const ops::HeadsView& q, int64_t batch,
                       int64_t length, int64_t position, bool inverse) const {
  if (!rotary_->cosines.empty()) {
    const Dimensions attending = swapped(context);
    ops::rope(context.stream,
              {.x = q,
               .batch = batch,
               .length = length,
               .heads = attending.heads + attending.kv_heads,
               .head_dim = attending.head_dim,
               .cosines = rotary_->cosines,
               .sines = rotary_->sines,
               .position_offset = position,
               .inverse = inverse,
               .document_starts = gathers(context) ? context.row_starts : context.document_starts});
  }
}

void Attention::normalize_heads(const StepContext& context, const View& projected,
                                Saved& saved) const {
  const int64_t rows = projected.shape.rows();
  Arena& arena = context.training ? *context.saved : *context.scratch;
  const int64_t parts = context.tensor_parts;
  const auto normalize = [&](int64_t first_head, int64_t heads, Parameter* weight, View& original,
                             View& rstd) {
    original =
        allocate(arena, projected.dtype, {parts * rows, heads / parts * dimensions_.head_dim});
    rstd = allocate(arena, DType::f32, {parts * rows, heads / parts});
    for (int64_t part = 0; part < parts; ++part) {
      const View x = heads_of(projected, first_head + part * (heads / parts), heads / parts);
      ops::norm_forward(context.stream, {.x = x,
                                         .weight = weight->value,
                                         .eps = norms_.eps,
                                         .y = x,
                                         .rstd = rows_of(rstd, part * rows, rows),
                                         .rows = {projected.shape.back(), heads / parts},
                                         .original = rows_of(original, part * rows, rows)});
    }
  };
  normalize(0, dimensions_.heads, norms_.q, saved.q_original, saved.q_rstd);
  normalize(dimensions_.heads, dimensions_.kv_heads, norms_.k, saved.k_original, saved.k_rstd);
}

std::array<int64_t, 3> Attention::qkv_pieces() const {
  const int64_t of_keys = dimensions_.kv_heads * dimensions_.head_dim;
  return {dimensions_.heads * dimensions_.head_dim, of_keys, of_keys};
}

/// Appends the new keys and values to the cache, and returns what they and the earlier ones are in.
std::array<ops::HeadsView, 2> Attention::append_to_cache(const StepContext& context,
                                                         const View& projected,
                                                         const KvCache& cache) const {
  const int64_t length = projected.shape.rows();
  const int64_t width = dimensions_.kv_heads * dimensions_.head_dim;
  check(cache.length + length <= cache.capacity, "the KV cache is full");
  std::array<ops::HeadsView, 2> all;
  const View* const caches[] = {&cache.keys, &cache.values};
  for (size_t i = 0; i < all.size(); ++i) {
    const ops::HeadsView added = slice(
        projected, dimensions_.heads + static_cast<int64_t>(i) * dimensions_.kv_heads, length);
    all[i] = {.data = caches[i]->data,
              .dtype = added.dtype,
              .row_stride = width,
              .length_capacity = cache.capacity};
    ops::copy_rows(context.stream, {.from = added.data,
                                    .to = rows_from(all[i], cache.length).data,
                                    .dtype = added.dtype,
                                    .extents = {1, 1, length},
                                    .width = width,
                                    .from_strides = {0, 0, added.row_stride},
                                    .to_strides = {0, 0, width}});
  }
  return all;
}

/// Keys and values of whole sequences.
std::array<ops::HeadsView, 2> Attention::gather_keys(const StepContext& context,
                                                     const View& projected, int64_t batch) const {
  const int64_t length = projected.shape.rows() / batch;
  const int64_t whole_length = length * context.context_ranks->ranks();
  const int64_t width = dimensions_.kv_heads * dimensions_.head_dim;
  const View whole = allocate(*context.scratch, projected.dtype, {batch, whole_length, 2 * width});
  gather_chunks(context, slice(projected, dimensions_.heads, length), whole);
  return {slice(whole, 0, whole_length), slice(whole, dimensions_.kv_heads, whole_length)};
}

/// Writes saved.attended and saved.log_sum_exp.
void Attention::attention_forward(const StepContext& context, int64_t batch, int64_t past,
                                  const std::array<ops::HeadsView, 2>& keys,
                                  const Saved& saved) const {
  const int64_t length = saved.attended.shape.rows() / batch;
  const ops::HeadsView q = slice(saved.projected, 0, length);
  const ops::HeadsView out = slice(saved.attended, 0, length);
  for (const Chunk& chunk : chunks(context, length, past)) {
    ops::attention_forward(context.stream, {.shape = shape(swapped(context), batch, chunk.count,
                                                           chunk.position + chunk.count),
                                            .q = rows_from(q, chunk.first),
                                            .k = keys[0],
                                            .v = keys[1],
                                            .out = rows_from(out, chunk.first),
                                            .log_sum_exp = of_chunk(saved.log_sum_exp, chunk),
                                            .document_starts = context.document_starts});
  }
}

/// The same where keys are in caches. A sequence has the bits that it has alone.
void Attention::cached_forward(const StepContext& context, std::span<const KvCache> caches,
                               const Saved& saved) const {
  StepContext of_sequence = context;
  of_sequence.document_starts = {};  // they were the positions of rows
  const int64_t length = saved.projected.shape.rows() / std::ssize(caches);
  for (int64_t row = 0; const KvCache& cache : caches) {
    Saved one;
    one.projected = rows_of(saved.projected, row, length);
    one.attended = rows_of(saved.attended, row, length);
    one.log_sum_exp = saved.log_sum_exp;
    attention_forward(of_sequence, 1, cache.length,
                      append_to_cache(of_sequence, one.projected, cache), one);
    row += length;
  }
}

void Attention::forward(const StepContext& context, const InputTensor& x, View y, int64_t batch,
                        std::span<const KvCache> caches, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const Dimensions attending = swapped(context);
  const int64_t own_rows = context.rows_of_ranks(x.plain.shape.rows());
  const int64_t rows = own_rows * (dimensions_.heads / attending.heads);
  const DType dtype = x.plain.dtype;
  const int64_t length = rows / batch;
  int64_t past = 0;
  for (const KvCache& cache : caches) {
    past = std::max(past, cache.length);
  }
  Arena& arena = context.training ? *context.saved : *context.scratch;
  const bool in_codes =
      scaling_ && caches.empty() && scaling_->qkv.reads_codes(context, Along::rows);
  const bool saves_codes = in_codes && context.training && scaling_->dscores != nullptr;
  const View projected = allocate(swaps(context) || saves_codes ? *context.scratch : arena, dtype,
                                  {own_rows, dimensions_.qkv_width()});
  qkv_.forward(context, x, projected, saved.qkv);
  if (norms_.q != nullptr) {
    normalize_heads(context, projected, saved);
  }
  saved.projected = projected;
  if (swaps(context)) {
    saved.projected = allocate(arena, dtype, {rows, attending.qkv_width()});
    rows_to_heads(context, projected, saved.projected, batch, qkv_pieces());
  }
  rotate(context, slice(saved.projected, 0, length), batch, length, past, false);
  std::array<ops::HeadsView, 2> keys = {
      slice(saved.projected, attending.heads, length),
      slice(saved.projected, attending.heads + attending.kv_heads, length)};
  if (caches.empty() && gathers(context)) {
    keys = gather_keys(context, saved.projected, batch);
  }
  const bool only_codes = saves_codes && scaling_->out.slot(Along::rows) != nullptr;
  Arena& of_output = only_codes || output_.holds_plain_input(context)
                         ? output_.memory_of_plain_input(context)
                         : arena;
  saved.attended = allocate(swaps(context) ? arena : of_output, dtype,
                            {rows, attending.heads * attending.head_dim});
  saved.log_sum_exp =
      allocate(arena, DType::f32, {caches.empty() ? batch : 1, attending.heads, length});
  if (!caches.empty()) {
    cached_forward(context, caches, saved);
  } else if (in_codes) {
    codes_forward(context, batch, saves_codes ? *context.saved : *context.scratch, saved);
  } else {
    attention_forward(context, batch, 0, keys, saved);
  }
  if (!saves_codes) {
    saved.projected_codes = saved.attended_codes = {};
  }
  View attended = saved.attended;
  if (swaps(context)) {
    attended = allocate(of_output, dtype, {own_rows, qkv_pieces()[0]});
    heads_to_rows(context, saved.attended, attended, batch, std::array{qkv_pieces()[0]});
  }
  output_.forward(context, attended, y, saved.output);
}

/// Writes the gradients of q, k and v as attention had them.
void Attention::attention_backward(const StepContext& context, const View& d_attended,
                                   const View& d_projected, int64_t batch,
                                   const Saved& saved) const {
  if (!saved.projected_codes.empty()) {
    return codes_backward(context, d_attended, d_projected, batch, saved);
  }
  ArenaScope scope(*context.scratch);
  const Dimensions attending = swapped(context);
  const int64_t length = d_projected.shape.rows() / batch;
  const auto keys_of = [&](const View& of, int64_t first, int64_t count) {
    return std::array{slice(of, first, count), slice(of, first + attending.kv_heads, count)};
  };
  std::array<ops::HeadsView, 2> keys = keys_of(saved.projected, attending.heads, length);
  std::array<View, 2> sums;  // of the gradients of all keys: of all chunks, and of one
  if (gathers(context)) {
    keys = gather_keys(context, saved.projected, batch);
    for (View& sum : sums) {
      sum = allocate(*context.scratch, DType::f32,
                     {batch, keys[0].length_capacity, keys[0].row_stride});
      ops::fill(context.stream, sum, 0.0F);
    }
  }
  for (const Chunk& chunk : chunks(context, length, 0)) {
    ArenaScope inner(*context.scratch);
    const View& sum = sums[chunk.first == 0 ? 0 : 1];  // chunks ascend: what follows is 0
    const std::array<ops::HeadsView, 2> gradients =
        sum.empty() ? keys_of(d_projected, attending.heads, length)
                    : keys_of(sum, 0, keys[0].length_capacity);
    ops::AttentionBackward call = {
        .shape = shape(attending, batch, chunk.count, chunk.position + chunk.count),
        .q = rows_from(slice(saved.projected, 0, length), chunk.first),
        .k = keys[0],
        .v = keys[1],
        .out = rows_from(slice(saved.attended, 0, length), chunk.first),
        .log_sum_exp = of_chunk(saved.log_sum_exp, chunk),
        .dout = rows_from(slice(d_attended, 0, length), chunk.first),
        .dq = rows_from(slice(d_projected, 0, length), chunk.first),
        .dk = gradients[0],
        .dv = gradients[1],
        .document_starts = context.document_starts};
    call.shape.deterministic = context.deterministic;
    ops::AttentionBackward largest = call;
    if (!sum.empty() && !context.document_starts.empty()) {  // the next batch has other chunks
      largest.shape.key_length = keys[0].length_capacity;
    }
    const int64_t scratch = ops::attention_backward_scratch(context.stream, largest);
    call.scratch = allocate(*context.scratch, DType::f32, {scratch});
    ops::attention_backward(context.stream, call);
    if (chunk.first > 0) {
      ops::add(context.stream, sums[0], sums[1], sums[0]);
    }
  }
  if (gathers(context)) {
    sum_chunks(context, sums[0], slice(d_projected, dimensions_.heads, length));
  }
}

void Attention::backward(const StepContext& context, ConstView dy, View dx, int64_t batch,
                         Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const int64_t own_rows = context.rows_of_ranks(dy.shape.rows());
  const int64_t width = qkv_pieces()[0];
  View d_attended = allocate(*context.scratch, dy.dtype, {own_rows, width});
  output_.backward(context, dy, d_attended, saved.output);
  if (swaps(context)) {
    const View rows = d_attended;
    d_attended = allocate(*context.scratch, dy.dtype, saved.attended.shape);
    rows_to_heads(context, rows, d_attended, batch, std::array{width});
  }
  View d_projected = allocate(*context.scratch, dy.dtype, saved.projected.shape);
  attention_backward(context, d_attended, d_projected, batch, saved);
  const int64_t length = d_projected.shape.rows() / batch;
  rotate(context, slice(d_projected, 0, length), batch, length, 0, true);
  if (swaps(context)) {
    const View heads = d_projected;
    d_projected = allocate(*context.scratch, dy.dtype, {own_rows, dimensions_.qkv_width()});
    heads_to_rows(context, heads, d_projected, batch, qkv_pieces());
  }
  if (norms_.q != nullptr) {
    normalize_heads_backward(context, d_projected, saved);
  }
  qkv_.backward(context, d_projected, dx, saved.qkv);
}

void Attention::normalize_heads_backward(const StepContext& context, const View& d_projected,
                                         const Saved& saved) const {
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  const int64_t rows = d_projected.shape.rows();
  const View partial =
      allocate(*context.scratch, DType::f32, {ops::norm_partial_rows(rows), head_dim});
  const auto normalize_backward = [&](int64_t first_head, int64_t count, const Parameter& weight,
                                      const View& original, const View& rstd) {
    const PartialGradients<1> gradient(context, {&weight});
    gradient.add(count,
                 [&](const SumRange& range, const std::array<View, 1>& gradients, bool overwrites) {
                   const int64_t first_row = range.first / range.count * rows;
                   const View dx = heads_of(d_projected, first_head + range.first, range.count);
                   ops::norm_backward(context.stream,
                                      {.dy = dx,
                                       .x = reshaped(rows_of(original, first_row, rows), dx.shape),
                                       .weight = weight.value,
                                       .rstd = rows_of(rstd, first_row, rows),
                                       .dx = dx,
                                       .weight_grad = gradients[0],
                                       .scratch = partial,
                                       .overwrite_weight_grad = overwrites,
                                       .rows = {d_projected.shape.back(), range.count}});
                 });
  };
  normalize_backward(0, heads, *norms_.q, saved.q_original, saved.q_rstd);
  normalize_backward(heads, kv_heads, *norms_.k, saved.k_original, saved.k_rstd);
}

/// Writes saved.attended and saved.log_sum_exp. An output that has a scale is what its codes say.
void Attention::codes_forward(const StepContext& context, int64_t batch, Arena& of_codes,
                              Saved& saved) const {
  check(context.context_ranks == nullptr, "attention in FP8 has whole sequences");
  ArenaScope scope(*context.scratch);
  const View& attended = saved.attended;
  const int64_t length = attended.shape.rows() / batch;
  const QuantizedInput::Memory memory = {&of_codes, nullptr};
  saved.projected_codes =
      scaling_->qkv.operands(context, saved.projected, memory).along_rows.tensor;
  const View& codes = saved.projected_codes.codes;
  const bool is_cast = scaling_->out.slot(Along::rows) != nullptr;
  const InputTensor out =
      is_cast ? scaling_->out.allocate(context, attended.dtype, attended.shape, memory) : attended;
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  ops::attention_forward(context.stream,
                         {.shape = shape(dimensions_, batch, length, length),
                          .q = slice(codes, 0, length),
                          .k = slice(codes, heads, length),
                          .v = slice(codes, heads + kv_heads, length),
                          .out = slice(out.plain, 0, length),
                          .log_sum_exp = saved.log_sum_exp,
                          .document_starts = context.document_starts,
                          .codes = {.qkv_inv = saved.projected_codes.tensor_scale,
                                    .probabilities = in_kernel(context, *scaling_->probabilities),
                                    .cast = out.cast}});
  if (is_cast) {
    saved.attended_codes = scaling_->out.operands(context, out, memory).along_rows.tensor;
    ops::dequantize(context.stream, saved.attended_codes, attended);
  }
}

/// Of probabilities it reads the scale of the forward pass, and the output as that pass has it.
void Attention::codes_backward(const StepContext& context, const View& d_attended,
                               const View& d_projected, int64_t batch, const Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  const int64_t length = d_projected.shape.rows() / batch;
  const QuantizedInput::Memory memory = {context.scratch, nullptr};
  const Encoded dout = scaling_->dout.operands(context, d_attended, memory).along_rows.tensor;
  const View& codes = saved.projected_codes.codes;
  const bool out_in_codes = !saved.attended_codes.empty();
  const bool is_cast = scaling_->dqkv.slot(Along::rows) != nullptr;
  const InputTensor dqkv =
      is_cast ? scaling_->dqkv.allocate(context, d_projected.dtype, d_projected.shape, memory)
              : d_projected;
  StepContext forward = context;
  forward.training = false;
  ops::AttentionBackward call = {
      .shape = shape(dimensions_, batch, length, length),
      .q = slice(codes, 0, length),
      .k = slice(codes, heads, length),
      .v = slice(codes, heads + kv_heads, length),
      .out = slice(out_in_codes ? saved.attended_codes.codes : saved.attended, 0, length),
      .log_sum_exp = saved.log_sum_exp,
      .dout = slice(dout.codes, 0, length),
      .dq = slice(dqkv.plain, 0, length),
      .dk = slice(dqkv.plain, heads, length),
      .dv = slice(dqkv.plain, heads + kv_heads, length),
      .document_starts = context.document_starts,
      .codes = {.qkv_inv = saved.projected_codes.tensor_scale,
                .out_inv = saved.attended_codes.tensor_scale,
                .dout_inv = dout.tensor_scale,
                .probabilities = in_kernel(forward, *scaling_->probabilities),
                .dscores = in_kernel(context, *scaling_->dscores),
                .cast = dqkv.cast}};
  call.shape.deterministic = context.deterministic;
  const int64_t scratch = ops::attention_backward_scratch(context.stream, call);
  call.scratch = allocate(*context.scratch, DType::f32, {scratch});
  ops::attention_backward(context.stream, call);
  if (is_cast) {
    ops::dequantize(context.stream,
                    scaling_->dqkv.operands(context, dqkv, memory).along_rows.tensor, d_projected);
  }
}

}  // namespace fp8train
