#include "nn/attention.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "nn/partial_gradient.h"
#include "ops/attention/kv_cache.h"
#include "ops/norm/norm.h"

namespace fp8train {

Attention::Attention(Dimensions dimensions, Linear qkv, Linear output, HeadNorms norms,
                     const RotaryTables& rotary)
    : dimensions_(dimensions),
      qkv_(std::move(qkv)),
      output_(std::move(output)),
      norms_(norms),
      rotary_(&rotary) {}

ops::AttentionShape Attention::shape(int64_t batch, int64_t queries, int64_t keys) const {
  return {.batch = batch,
          .query_length = queries,
          .key_length = keys,
          .heads = dimensions_.heads,
          .kv_heads = dimensions_.kv_heads,
          .head_dim = dimensions_.head_dim,
          .scale = 1.0F / std::sqrt(static_cast<float>(dimensions_.head_dim))};
}

ops::HeadsView Attention::slice(const View& projected, int64_t first_head, int64_t length) const {
  const size_t offset =
      static_cast<size_t>(first_head * dimensions_.head_dim) * size_of(projected.dtype);
  return {.data = static_cast<char*>(projected.data) + offset,
          .dtype = projected.dtype,
          .row_stride = projected.shape.back(),
          .length_capacity = length};
}

void Attention::rotate(const StepContext& context, const ops::HeadsView& q, int64_t batch,
                       int64_t length, int64_t position, bool inverse) const {
  if (!rotary_->cosines.empty()) {
    ops::rope(context.stream, {.x = q,
                               .batch = batch,
                               .length = length,
                               .heads = dimensions_.heads + dimensions_.kv_heads,
                               .head_dim = dimensions_.head_dim,
                               .cosines = rotary_->cosines,
                               .sines = rotary_->sines,
                               .position_offset = position,
                               .inverse = inverse,
                               .document_starts = context.document_starts});
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
      ops::head_rms_norm_forward(context.stream,
                                 {.x = slice(projected, first_head + part * (heads / parts), rows),
                                  .rows = rows,
                                  .heads = heads / parts,
                                  .head_dim = dimensions_.head_dim,
                                  .weight = weight->value,
                                  .eps = norms_.eps,
                                  .original = rows_of(original, part * rows, rows),
                                  .rstd = rows_of(rstd, part * rows, rows)});
    }
  };
  normalize(0, dimensions_.heads, norms_.q, saved.q_original, saved.q_rstd);
  normalize(dimensions_.heads, dimensions_.kv_heads, norms_.k, saved.k_original, saved.k_rstd);
}

void Attention::forward(const StepContext& context, const InputTensor& x, View y, int64_t batch,
                        KvCache* cache, Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  const int64_t rows = context.rows_of_ranks(x.plain.shape.rows());
  const DType dtype = x.plain.dtype;
  const int64_t length = rows / batch;
  const int64_t past = cache == nullptr ? 0 : cache->length;
  Arena& arena = context.training ? *context.saved : *context.scratch;
  saved.projected = allocate(arena, dtype, {rows, dimensions_.qkv_width()});
  qkv_.forward(context, x, saved.projected, saved.qkv);
  if (norms_.q != nullptr) {
    normalize_heads(context, saved.projected, saved);
  }
  const ops::HeadsView q = slice(saved.projected, 0, length);
  ops::HeadsView k = slice(saved.projected, heads, length);
  ops::HeadsView v = slice(saved.projected, heads + kv_heads, length);
  rotate(context, q, batch, length, past, false);
  if (cache != nullptr) {
    check(past + length <= cache->capacity, "the KV cache is full");
    const int64_t width = kv_heads * head_dim;
    const auto append = [&](const ops::HeadsView& from, const View& to) {
      return ops::append_to_cache(context.stream, {.rows = from,
                                                   .cache = to,
                                                   .batch = batch,
                                                   .length = length,
                                                   .width = width,
                                                   .past = past});
    };
    k = append(k, cache->keys);
    v = append(v, cache->values);
  }
  saved.attended = allocate(output_.holds_plain_input(context) ? *context.held : arena, dtype,
                            {rows, heads * head_dim});
  saved.log_sum_exp = allocate(arena, DType::f32, {batch, heads, length});
  ops::attention_forward(context.stream, {.shape = shape(batch, length, past + length),
                                          .q = q,
                                          .k = k,
                                          .v = v,
                                          .out = slice(saved.attended, 0, length),
                                          .log_sum_exp = saved.log_sum_exp,
                                          .document_starts = context.document_starts});
  output_.forward(context, saved.attended, y, saved.output);
}

void Attention::backward(const StepContext& context, ConstView dy, View dx, int64_t batch,
                         Saved& saved) const {
  ArenaScope scope(*context.scratch);
  const auto& [heads, kv_heads, head_dim] = dimensions_;
  const int64_t rows = context.rows_of_ranks(dy.shape.rows());
  const int64_t length = rows / batch;
  const View d_attended = allocate(*context.scratch, dy.dtype, saved.attended.shape);
  output_.backward(context, dy, d_attended, saved.output);
  const View d_projected = allocate(*context.scratch, dy.dtype, saved.projected.shape);
  ops::AttentionShape attention = shape(batch, length, length);
  attention.deterministic = context.deterministic;
  const ops::HeadsView dq = slice(d_projected, 0, length);
  const ops::HeadsView dk = slice(d_projected, heads, length);
  {
    ArenaScope inner(*context.scratch);
    ops::AttentionBackward call = {.shape = attention,
                                   .q = slice(saved.projected, 0, length),
                                   .k = slice(saved.projected, heads, length),
                                   .v = slice(saved.projected, heads + kv_heads, length),
                                   .out = slice(saved.attended, 0, length),
                                   .log_sum_exp = saved.log_sum_exp,
                                   .dout = slice(d_attended, 0, length),
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = slice(d_projected, heads + kv_heads, length),
                                   .document_starts = context.document_starts};
    const int64_t scratch = ops::attention_backward_scratch(context.stream, call);
    call.scratch = allocate(*context.scratch, DType::f32, {scratch});
    ops::attention_backward(context.stream, call);
  }
  rotate(context, dq, batch, length, 0, true);
  if (norms_.q != nullptr) {
    const View partial =
        allocate(*context.scratch, DType::f32, {ops::norm_partial_rows(rows), head_dim});
    const auto normalize_backward = [&](int64_t first_head, int64_t count, const Parameter& weight,
                                        const View& original, const View& rstd) {
      const PartialGradients<1> gradient(context, {&weight});
      gradient.add(
          count, [&](const SumRange& range, const std::array<View, 1>& gradients, bool overwrites) {
            const int64_t first_row = range.first / range.count * rows;
            ops::head_rms_norm_backward(context.stream,
                                        {.dx = slice(d_projected, first_head + range.first, length),
                                         .rows = rows,
                                         .heads = range.count,
                                         .head_dim = dimensions_.head_dim,
                                         .original = rows_of(original, first_row, rows),
                                         .weight = weight.value,
                                         .rstd = rows_of(rstd, first_row, rows),
                                         .weight_grad = gradients[0],
                                         .scratch = partial,
                                         .overwrite_weight_grad = overwrites});
          });
    };
    normalize_backward(0, heads, *norms_.q, saved.q_original, saved.q_rstd);
    normalize_backward(heads, kv_heads, *norms_.k, saved.k_original, saved.k_rstd);
  }
  qkv_.backward(context, d_projected, dx, saved.qkv);
}

}  // namespace fp8train
